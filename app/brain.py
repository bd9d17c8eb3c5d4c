"""One tick from samples to decisions, the same for live, replay, evaluation and tests.

feed() takes what collectors read; tick(T) makes the window at T and runs detectors, incidents and remediation over it.
It returns everything that has to be committed together; who owns the store commits it, then calls `carry_out`.
Not thread-safe: one thread owns a Brain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app import audit, past
from core import render
from core.clock import rfc3339
from core.inventory import NODE_STATES, Inventory
from core.protocols import ControlDoor, DetectorPlugin, TickCommit
from core.targets import CLOSED_STATES
from core.telemetry import Telemetry
from core.types import Action, Batch, Event, Finding, Incident, Note, Outbound, Outcome, PartPast, Record
from core.window import Topology, Window
from pipeline.changes import LabelChanges
from pipeline.checkpoints import Checkpoints
from pipeline.coverage import Coverage
from pipeline.detect import Changes, DetectLoop
from pipeline.drift import DriftReport
from pipeline.drift_told import DriftBook
from pipeline.facts import WindowFacts
from pipeline.gauge_xids import gauge_xids
from pipeline.goodput import Goodput
from pipeline.herald import Herald, NotifyRoute, Tidings
from pipeline.incidents import IncidentBook
from pipeline.marks import Marks
from pipeline.parts import PartsBook, odd_suspects
from pipeline.ring import FeedCounts, Ring
from pipeline.silences import SilenceBook
from remediation.diagnose import result_of
from remediation.engine import Engine, Site

NODE_WORDS = (*NODE_STATES, "unknown")


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a tick produced: the commit, the window for those who show it, and the changes of nodes that their labels
    showed; whoever owns the store stores these as events. standing: by notifier that has to be told again and again, what fires.
    """

    commit: TickCommit
    window: Window
    events: tuple[Event, ...] = ()
    standing: Mapping[str, tuple[Incident, ...]] = field(default_factory=dict)


class Brain:
    """Ring, detect loop, incident book and engine, wired."""

    def __init__(
        self,
        plugins: Mapping[str, DetectorPlugin],
        params: Mapping[str, Any],
        inventory: Inventory,
        engine: Engine | None = None,
        telemetry: Telemetry | None = None,
        routes: Sequence[NotifyRoute] = (),
        labels_of: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        self.telemetry = telemetry or Telemetry()
        self.ring = Ring(inventory)
        self.loop = DetectLoop(plugins, params, self.telemetry)
        self.book = IncidentBook(telemetry=self.telemetry)
        self.marks = Marks()
        self.changes = LabelChanges()
        self.checkpoints = Checkpoints()
        self.goodput = Goodput(self.telemetry)
        self.parts = PartsBook()
        self.odd: Mapping[str, str] = {}  # keys of parts that the trained model finds odd, with their signals
        self.engine = engine
        self.herald = Herald(routes, self.telemetry, labels_of)
        self.silences = SilenceBook()
        self.drift = DriftBook()
        self.drift_report: DriftReport | None = None  # the newest; somebody else makes it, each hour
        self.plugins = dict(plugins)
        self._coverage = Coverage(plugins, self.telemetry)
        self._events: list[Event] = []
        self._carried: list[tuple[Action, Outcome]] = []
        self.said: list[Note] = []  # notes of the ledger that the next tick commits
        self._seen_events: set[tuple[int, str, str]] = set()
        self.facts: WindowFacts | None = None
        self.past_asked: dict[str, int] = {}  # as `app.past` keeps it
        self.keeps_state = True  # False where no store is: commits then hold no state to start again from
        self._told_states: dict[str, str] = {}
        self.samples = 0
        self.events = 0

    def set_inventory(self, inventory: Inventory) -> None:
        """The inventory as it is now; it is used from the next window on."""
        self.ring.set_inventory(inventory)

    def feed(self, batch: Batch) -> FeedCounts:
        """Takes a batch that has been committed (or, without a store, read)."""
        counts = self.ring.feed(batch)
        self.samples += counts.samples
        self.events += len(batch.events)
        self._events.extend(batch.events)
        return counts

    def tick(self, at: int) -> Ticked:
        """Judges tick `at` (ms). Call `carry_out` after the commit."""
        window = self.ring.window(at)
        changes = self.loop.run(window, self.engine.planned_gaps(at) if self.engine is not None else ())
        open_findings = self.loop.open()
        told = list(self.book.update(window, open_findings, changes.ended))
        told += self._called_wrong(at)
        for mark in self.silences.marks(at, self.book.open(), self.marks.all()):
            self.marks.add(mark)
        changed = (*self.changes.update(window), *gauge_xids(window))
        self.goodput.update(window)
        self.checkpoints.update(window)
        self.facts = WindowFacts(window, open_findings, self.checkpoints)
        actions = self._remediate(at, told, window.topology)
        parts = self.parts.update(at, (incident for _, incident in told), actions, window)
        told = [(word, odd_suspects(self.parts.remark(incident), self.odd)) for word, incident in told]
        self.ring.exclude(open_findings)
        records = self._records(at, changes, told, actions, self._coverage.update(window))
        commit = TickCommit(
            tick=at,
            findings=(*changes.opened, *changes.updated, *changes.ended),
            incidents=tuple({i.id: i for _, i in told}.values()),
            actions=tuple(actions),
            outbox=self._tell(at, [*told, *self.drift.update(at, self.drift_report)], actions),
            records=tuple(records),
            state=self.dump() if self.keeps_state else None,
            parts=parts,
            notes=tuple(self.said),
        )
        self.said = []
        self._measure(at)
        self._measure_nodes(window)
        if changed:  # the next window has them
            self.feed(Batch("changes", 1, 0, at, (), (), changed))
        return Ticked(commit, window, changed, self.standing())

    def standing(self) -> dict[str, tuple[Incident, ...]]:
        """By notifier what it has to keep firing: incidents and tickets of drift."""
        return self.herald.standing((*self.book.open(), *self.drift.open()))

    def _called_wrong(self, at: int) -> list[tuple[str, Incident]]:
        """Closes what people said is no fault."""
        told = []
        for incident in self.marks.take_wrong(at, self.book.open()):
            self.book.adopt(at, incident)
            told.append(("resolved", self.book.get(incident.id) or incident))
        return told

    def carry_out(self, at: int, door: ControlDoor) -> None:
        """Submits what was decided and polls what runs; the results are committed with the next tick."""
        if self.engine is not None:
            self._carried.extend(self.engine.carry_out(at, door))

    def _remediate(self, at: int, told: list[tuple[str, Incident]], topology: Topology) -> list[tuple[Action, Outcome]]:
        carried, self._carried = self._carried, []
        if self.engine is None or self.facts is None:
            return carried
        self.engine.over(at, [incident for _, incident in told if incident.state in CLOSED_STATES])
        step = self.engine.step(at, self.book.open(), self.facts, Site(topology, self.marks.silences(at)))
        self.said += audit.notes(at, step, self.book.get, self.loop.open())
        for decision in step.decisions:
            self.telemetry.add("greylag_decisions_total", decision=decision.decision, reason=decision.reason)
        self.telemetry.set("greylag_frozen", float(self.engine.frozen))
        for incident in step.incidents:
            self.book.adopt(at, incident)
            told.append(("resolved" if incident.state in CLOSED_STATES else "updated", incident))
        return [*carried, *step.actions]

    def _records(
        self, at: int, changes: Changes, told: Sequence[tuple[str, Incident]],
        actions: Sequence[tuple[Action, Outcome]], coverage: Sequence[dict[str, Any]],
    ) -> list[Record]:
        rows: list[Record] = []
        new, self._events = sorted(self._events, key=lambda e: (e.at, e.kind, e.target.key)), []
        rows += [Record(e.at, "event", render.event_line(e)) for e in new]
        rows += [Record(at, "coverage", render.dumps({"type": "coverage", "at": rfc3339(at), "coverage": row}))
                 for row in coverage]
        for event, findings in (("opened", changes.opened), ("updated", changes.updated), ("ended", changes.ended)):
            rows += [Record(at, "finding", render.finding_line(event, at, f)) for f in findings]
        # What became of earlier actions comes before the incident's new state, what is newly decided after it.
        lines = [(o.state == "PENDING", Record(at, "action", render.action_line(at, a, o))) for a, o in actions]
        rows += [row for planned, row in lines if not planned]
        rows += [Record(at, "incident", render.incident_line(event, at, i)) for event, i in told]
        rows += [row for planned, row in lines if planned]
        for action, outcome in actions:
            self.telemetry.add("greylag_actions_total", kind=action.kind, state=outcome.state, reason=outcome.reason)
            if (word := result_of(action, outcome)) is not None:
                self.telemetry.add("greylag_diagnoses_total", fault=str(action.args["fault"]), result=word)
        return sorted(rows, key=lambda r: min(r.at, at))

    def _tell(self, at: int, told: Sequence[tuple[str, Incident]], actions: Sequence[tuple[Action, Outcome]]) -> tuple[Outbound, ...]:
        acks = {mark.incident: mark.actor for mark in self.marks.all() if mark.word == "acknowledge"}
        return self.herald.tell(Tidings(at, told, (*self.book.open(), *self.drift.open()), self.marks.silences(at),
                                        lambda one: self.silences.holds(one, at), acks, actions))

    def _measure(self, at: int) -> None:
        self.telemetry.set("greylag_tick_timestamp_seconds", at / 1000)
        rows: dict[tuple[tuple[str, str], ...], float] = {}
        info: dict[tuple[tuple[str, str], ...], float] = {}
        for one in self.book.open():
            key = (("fault", one.fault), ("scope", one.scope), ("state", one.state))
            rows[key] = rows.get(key, 0) + 1
            culprit = one.culprit
            info[(("id", one.id), ("fault", one.fault), ("scope", one.scope),
                  ("node", (culprit.node if culprit else None) or ""),
                  ("device", (culprit.device if culprit else None) or ""),
                  ("job", ",".join(one.jobs)))] = 1.0
        self.telemetry.replace("greylag_incidents", rows)
        self.telemetry.replace("greylag_incident_info", info)

    def _measure_nodes(self, window: Window) -> None:
        """One-hot states: a node in service of which nothing is heard is unknown, never healthy."""
        states = {node: "unknown" if node in window.silent_nodes else place.state for node, place in window.topology.places.items()}
        if states == self._told_states:
            return
        self._told_states = states
        rows: dict[tuple[tuple[str, str], ...], float] = {}
        for node, state in states.items():
            for word in NODE_WORDS:
                rows[("node", node), ("state", word)] = float(word == state)
        self.telemetry.replace("greylag_node_state", rows)

    def coverage_rows(self) -> list[dict[str, Any]]:
        """What is known of each node and signal now: one row each."""
        return self._coverage.rows()

    def open_incidents(self) -> tuple[Incident, ...]:
        return self.book.open()

    def open_findings(self) -> tuple[Finding, ...]:
        return self.loop.open()

    def dump(self) -> dict[str, str]:
        """What a restart needs, as opaque texts that are committed with the tick."""
        self.past_asked = past.asked(self.ring, self.past_asked)
        state = {"loop": self.loop.dump(), "book": self.book.dump(), "marks": self.marks.dump(), "changes": self.changes.dump(),
                 "checkpoints": self.checkpoints.dump(), "herald": self.herald.dump(), "silences": self.silences.dump(), "drift": self.drift.dump(),
                 "goodput": self.goodput.dump(), past.STATE: json.dumps(self.past_asked)}
        if self.engine is not None:
            state["engine"] = self.engine.dump()
        return state

    def load(self, state: Callable[[str], str | None], ledger: Sequence[tuple[Action, Outcome]] = (),
             parts: Sequence[PartPast] = (), now: int = 0) -> None:
        """Restores what `dump` gave; `state` looks a text up by its key (None = never written).

        ledger: every action row of the store, oldest first: what was begun is asked about before anything is submitted.
        parts: the ledger of parts; now: ms, the last tick.
        """
        self.parts.load(parts, now)
        for key, part in (("loop", self.loop), ("book", self.book), ("marks", self.marks), ("changes", self.changes),
                          ("checkpoints", self.checkpoints), ("goodput", self.goodput), ("herald", self.herald),
                          ("silences", self.silences), ("drift", self.drift)):
            text = state(key)
            if text:
                part.load(text)
        self.past_asked = past.read(state(past.STATE))
        text = state("engine")
        if text and self.engine is not None:
            self.engine.load(text, ledger)
