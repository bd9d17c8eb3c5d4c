"""Spares: which of them may be counted on, and their diagnosis on a schedule.

A spare that nobody tested for too long, that differs from its group, or that failed its last test is not counted and not
used. Tests take turns: one spare at a time, the one whose test is longest ago first, and never the last fit one; one that
is unfit for its age loses nothing by being tested. A test is an action of its own (`spare-<node>-<at>/1/1`), written before it
is done, and it holds where all hands hold: frozen, another hand, maintenance, work on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from core.errors import Refused, Unavailable
from core.protocols import ControlDoor, NodeView, WorldView
from core.types import Action, Finding, Outcome, Target
from remediation.diagnose import CONFIRMED, OTHER, level_seconds, tests_of
from remediation.hands import answer, push
from remediation.kinds import FINAL, HANDS
from remediation.policy import SpareRules
from remediation.track import Current, action_in

PREFIX = "spare-"
AGAIN_MS = 3_600_000      # after a test that could not be run or read
FORGET_MS = 30 * 86_400_000
SLACK_SECONDS = 600.0
OVERDUE_MS = 86_400_000   # as long as that a test that was given up may go on in the world


@dataclass(slots=True)
class Spare:
    """What is remembered of a spare, in ms. first_at: seen first; seen_at: seen last. passed_at, failed_at: its last test that
    passed or failed; tried_at: its last test of any end. away: it is in use, or in repair; its age begins anew when it is back."""

    first_at: int
    seen_at: int
    passed_at: int | None = None
    failed_at: int | None = None
    tried_at: int | None = None
    away: bool = False

    def checked_at(self, view: NodeView) -> int:
        """When it was last known to be good: its own tests, the world's, or when it was first seen here."""
        return max(self.first_at, self.passed_at or 0, view.checked_at or 0)

    def failed(self, view: NodeView) -> bool:
        """Its last test failed, and the world knows of none that passed since."""
        return self.failed_at is not None and self.failed_at > max(self.passed_at or 0, view.checked_at or 0)


def is_spare(view: NodeView) -> bool:
    """A spare that is nobody else's."""
    return view.state == "spare" and view.held_by in (None, HANDS) and view.maintenance is None


def usable(nodes: Mapping[str, NodeView], unfit: Mapping[str, str]) -> list[str]:
    """The spares that may be counted on."""
    return sorted(name for name, view in nodes.items() if view.state == "spare" and is_spare(view) and name not in unfit)


def is_check(incident: str) -> bool:
    """Whether an action's `incident` is a spare's scheduled test."""
    return incident.startswith(PREFIX)


@dataclass(slots=True)
class SpareBook:
    """All spares, and the test under way. overdue: tests that were given up and that the world may still run, by spare: (the
    action's id, until when the world is asked, ms). It travels in the engine's state."""

    spares: dict[str, Spare] = field(default_factory=dict)
    current: Current | None = None
    overdue: dict[str, tuple[str, int]] = field(default_factory=dict)

    # --- what the guards ask ----------------------------------------------------------------------------------------------
    def look(self, at: int, nodes: Mapping[str, NodeView]) -> None:
        """Takes in which nodes are spares now."""
        for name, view in nodes.items():
            if view.state == "spare":
                known = self.spares.setdefault(name, Spare(at, at))
                if known.away:
                    known.first_at, known.away = at, False
                known.seen_at = at
            elif name in self.spares:
                self.spares[name].away = True
        self.spares = {k: s for k, s in self.spares.items() if at - s.seen_at <= FORGET_MS}

    def unfit(self, at: int, nodes: Mapping[str, NodeView], rules: SpareRules, findings: Sequence[Finding]) -> dict[str, str]:
        """Why each spare that must not be used is not: spare_drifted, spare_failed, spare_unchecked, or target_busy."""
        drifted = {f.target.node for f in findings if f.fault == "config_drift" and f.ended_at is None}
        out: dict[str, str] = {}
        for name, view in nodes.items():
            if view.state != "spare" or not is_spare(view):
                continue
            known = self.spares.get(name) or Spare(at, at)
            if name in drifted:
                out[name] = "spare_drifted"
            elif known.failed(view):
                out[name] = "spare_failed"
            elif 0 < rules.unchecked_max_seconds * 1000 < at - known.checked_at(view):
                out[name] = "spare_unchecked"
            elif self.under_test == name or name in self.overdue:
                out[name] = "target_busy"
        return out

    @property
    def under_test(self) -> str | None:
        """The spare whose test is under way, or has ended with a result that `close` has not taken in yet."""
        return self.current.action.target.node if self.current is not None else None

    # --- the schedule -------------------------------------------------------------------------------------------------------
    def due(self, at: int, nodes: Mapping[str, NodeView], rules: SpareRules, unfit: Mapping[str, str],
            busy: Collection[str], wanted: int) -> str | None:
        """The spare to be tested now, None = none. busy: nodes that attempts work on; wanted: spares that they have to take."""
        if rules.diagnose_every_seconds <= 0 or self.current is not None:
            return None
        fit = usable(nodes, unfit)
        rows = []
        for name, known in sorted(self.spares.items()):
            view = nodes.get(name)
            if view is None or not is_spare(view) or view.jobs or name in busy or unfit.get(name) == "spare_drifted":
                continue
            if name in self.overdue:
                continue
            last = max(known.checked_at(view), known.failed_at or 0)
            tried = known.tried_at is None or at - known.tried_at >= min(AGAIN_MS, rules.diagnose_every_seconds * 1000)
            others = len(fit) - (name in fit) - wanted
            if at - last >= rules.diagnose_every_seconds * 1000 and tried and (others >= 1 or name in unfit):
                rows.append((last, name))
        return min(rows)[1] if rows else None

    def begin(self, at: int, node: str, rules: SpareRules, mode: str) -> tuple[Action, Outcome]:
        """Writes the test down as PENDING; `carry_out` does it."""
        name = f"{PREFIX}{node}-{at}"
        args: dict[str, object] = {"fault": None, "device": None, "tests": ",".join(tests_of("").tests), "level": rules.level,
                                   "after": None}
        seconds = level_seconds(rules.level) + SLACK_SECONDS
        action = Action(Action.make_id(name, 1, 1), "diagnose", Target("node", node), args, seconds, mode, name, 1, 1, at,
                        "spare_check")
        pending = Outcome(action.id, "PENDING", "spare_check", at=at)
        self.current = Current(action, pending, at + round(seconds * 1000))
        return action, pending

    def carry_out(self, at: int, door: ControlDoor, view: WorldView, frozen: bool) -> list[tuple[Action, Outcome]]:
        """Brings the test one step further; what is new of it."""
        rows = self._ask_after_overdue(at, door)
        current = self.current
        if current is None or current.final:
            return rows
        current.withhold = self._withheld(current, view)
        outcome = push(at, current, door, view, frozen)
        if outcome is None:
            return rows
        current.outcome = outcome
        return [*rows, (current.action, outcome)]

    def _ask_after_overdue(self, at: int, door: ControlDoor) -> list[tuple[Action, Outcome]]:
        """A test that was given up goes on to count as under way until the world says that it ended; its result counts."""
        rows = []
        for name, (action_id, until) in sorted(self.overdue.items()):
            try:
                outcome = answer(action_id, door.poll(action_id))
            except (Unavailable, Refused):
                outcome = None
            if outcome is not None and outcome.state in FINAL:
                failed = self._take(at, name, outcome)
                rows += [_told(at, name, action_id.partition("/")[0], "act", outcome)] if failed else []
            if (outcome is not None and outcome.state in FINAL) or at >= until:
                del self.overdue[name]
        return rows

    def _take(self, at: int, name: str, outcome: Outcome) -> bool:
        """Takes in a test's result; True where it failed."""
        spare = self.spares.setdefault(name, Spare(at, at))
        spare.tried_at = at
        if outcome.state == "DONE":
            spare.passed_at = at
        failed = outcome.state == "FAILED" and outcome.reason in (CONFIRMED, OTHER)
        if failed:
            spare.failed_at = at
        return failed

    @staticmethod
    def _withheld(current: Current, view: WorldView) -> str | None:
        """A test that has not begun is taken back where its node is no idle spare any more."""
        if current.outcome.state != "PENDING":
            return None
        try:
            node = view.nodes().get(current.action.target.node or "")
        except Unavailable:
            return None
        return None if node is not None and is_spare(node) and not node.jobs else "withdrawn"

    def close(self, at: int, mode: str) -> list[tuple[Action, Outcome]]:
        """Takes in the end of a test, where there is one. A spare that failed is told to people, in a row of the ledger."""
        current = self.current
        if current is None or not current.final:
            return []
        self.current = None
        action, outcome = current.action, current.outcome
        if outcome.reason == "deadline_exceeded":
            self.overdue[action.target.node or ""] = (action.id, at + OVERDUE_MS)
        if self._take(at, action.target.node or "", outcome):
            return [_told(at, action.target.node or "", action.incident, mode, outcome)]
        return []

    # --- state ------------------------------------------------------------------------------------------------------------
    def dump(self) -> dict[str, Any]:
        """As JSON types, the same for the same state."""
        return {"spares": {k: asdict(self.spares[k]) for k in sorted(self.spares)},
                "overdue": {k: list(self.overdue[k]) for k in sorted(self.overdue)},
                "current": None if self.current is None else asdict(self.current)}

    def load(self, state: Mapping[str, Any]) -> None:
        """What `dump` gave. Raises KeyError, TypeError on anything else."""
        self.spares = {str(k): Spare(**v) for k, v in state.get("spares", {}).items()}
        self.overdue = {str(k): (str(v[0]), int(v[1])) for k, v in state.get("overdue", {}).items()}
        row = state.get("current")
        if row is None:
            self.current = None
            return
        outcome = Outcome(**row["outcome"])
        self.current = Current(**{**row, "action": action_in(row["action"]), "outcome": outcome,
                                  "tried": row["tried"] or outcome.state not in FINAL})


def _told(at: int, node: str, incident: str, mode: str, outcome: Outcome) -> tuple[Action, Outcome]:
    """The row by which people hear of a spare that failed its test."""
    told = Action(Action.make_id(incident, 1, 2), "escalate", Target("node", node), {"nodes": node}, 60.0, mode, incident, 1, 2, at, "spare_failed")
    return told, Outcome(told.id, "DONE", "escalated", at=at, detail=outcome.detail)
