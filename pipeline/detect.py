"""Runs the detectors over a window and turns their verdicts into findings.

A detector that raises has said nothing: it is counted, and its parts are unknown. A detector without the signals that it
needs is not asked. Order of verdicts does not matter, and the state that `dump` gives is all that a restart needs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.clock import monotonic_seconds
from core.events import KINDS as EVENT_KINDS
from core.protocols import DetectorPlugin
from core.telemetry import Telemetry
from core.types import Finding, Target, Verdict
from core.window import Window
from pipeline.codec import pack, unpack
from pipeline.holding import HoldState, step
from pipeline.ring_parts import order_of, place_of

BOOT_GRACE_MS = 300_000  # first minutes after a boot: links train, clocks rise (DESIGN §6; NVSentinel issue 1701)
KEPT_DISCRETE_MS = 7 * 24 * 3_600_000  # as long as an event stays in the window
# What a planned silence (a GPU that is reset, a node that boots or is tested) looks like.
GAP_FAULTS = frozenset({"target_down", "exporter_stale", "exporter_partial", "gpu_lost", "service_down"})
GONE_SECONDS = 60.0      # a part of a node out of service is gone when nothing was known of it for this long


@dataclass(frozen=True, slots=True)
class Changes:
    """What a tick changed, each sorted by detector and part. A finding that opened in this tick is in `opened` only."""

    opened: tuple[Finding, ...] = ()
    updated: tuple[Finding, ...] = ()
    ended: tuple[Finding, ...] = ()


class DetectLoop:
    """params: by detector, the plug-in's own type; its defaults where a name is missing."""

    def __init__(self, plugins: Mapping[str, DetectorPlugin], params: Mapping[str, Any],
                 telemetry: Telemetry | None = None) -> None:
        self._plugins = {name: plugins[name] for name in sorted(plugins)}
        self._params = {name: params[name] if name in params else plugins[name].params() for name in self._plugins}
        self._telemetry = telemetry or Telemetry()
        self._states: dict[str, dict[str, HoldState]] = {name: {} for name in self._plugins}
        self._blind: dict[str, tuple[tuple[str, ...], ...]] = {}

    # --- the tick ---------------------------------------------------------------------------------------------------
    def run(self, window: Window, planned: Collection[str] = ()) -> Changes:
        """One tick: call it once for each window, in time order.

        planned: nodes whose exporters may be silent because of what is being done there: their silence says nothing.
        """
        booted = _booted(window)
        lists: dict[str, list[Finding]] = {"opened": [], "updated": [], "ended": []}
        for name, plugin in self._plugins.items():
            verdicts = self._verdicts(name, plugin, window)
            if planned and plugin.fault in GAP_FAULTS:
                verdicts = [v for v in verdicts if v.state != "faulty" or v.target.node not in planned]
            for news, finding in self._hold(name, plugin, verdicts, window, booted):
                lists[news].append(finding)
            self._telemetry.set("greylag_findings", sum(s.finding is not None for s in self._states[name].values()),
                                detector=name)
        return Changes(**{key: tuple(found) for key, found in lists.items()})

    def _verdicts(self, name: str, plugin: DetectorPlugin, window: Window) -> list[Verdict]:
        missing = missing_needs(plugin, window)
        if missing:
            self._blind[name] = missing
            return []
        self._blind.pop(name, None)
        started = monotonic_seconds()
        try:
            found = list(plugin.judge(window, self._params[name]))
        except Exception:  # containment: one detector's bug must not stop the tick
            self._telemetry.add("greylag_detector_errors_total", detector=name)
            found = []
        self._telemetry.set("greylag_detector_seconds", monotonic_seconds() - started, detector=name)
        return found

    def _hold(self, name: str, plugin: DetectorPlugin, verdicts: Sequence[Verdict], window: Window,
              booted: Mapping[str, int]) -> Iterable[tuple[str, Finding]]:
        states = self._states[name]
        words = self._by_state(states, verdicts)
        news: list[tuple[tuple[Any, ...], str, Finding]] = []
        for key in sorted(states.keys() | words.keys()):
            verdict = words.get(key)
            state = states.get(key)
            if state is None:
                if verdict is None or verdict.state != "faulty":
                    continue  # healthy or unknown parts need no memory
                state = states[key] = HoldState(verdict.target)
            grace = _in_grace(state.target, booted, window.end)
            word = step(state, verdict, window.end, plugin.hold, name, grace)
            if word != "ended" and state.finding is not None and _gone(state, verdict, window):
                state.finding = replace(state.finding, state="ended", updated_at=window.end, ended_at=window.end,
                                        end_reason="part_gone")
                state.history, state.held, word = [], None, "ended"
            if word is not None and state.finding is not None:
                news.append((order_of(state.finding.target), word, state.finding))
            if word == "ended":
                state.finding = None
            if state.counted is not None and state.counted < window.end - KEPT_DISCRETE_MS:
                state.counted = None
            if state.idle:
                del states[key]
        return [(word, finding) for _, word, finding in sorted(news, key=lambda n: (n[0], n[1], n[2].id))]

    def _by_state(self, states: dict[str, HoldState], verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
        """The verdicts by the key of their state. The worst counts where a detector speaks twice of one part; a part
        whose id came to be known (or went) keeps its state."""
        if not states and not any(v.state == "faulty" for v in verdicts):
            return {}
        places = {place_of(s.target): key for key, s in states.items()}
        out: dict[str, Verdict] = {}
        # Nearly all words of a tick are "clear" on parts that need no memory: they change nothing, and putting thousands of
        # them in order would cost more than the judgement.
        nodes, jobs = {s.target.node for s in states.values()}, {s.target.job for s in states.values()} - {None}
        ids = {s.target.id for s in states.values()} - {None}
        # A part that has a state is on one of their nodes, of one of their jobs, or has one of their ids.
        telling = [v for v in verdicts if v.state == "faulty" or (
            (v.target.node in nodes or v.target.job in jobs or v.target.id in ids)
            and (v.target.key in states or place_of(v.target) in places))]
        for verdict in sorted(telling, key=_worst_first):
            key = verdict.target.key
            if key not in states:
                other = places.get(place_of(verdict.target))
                if other is not None and states[other].target.same_part(verdict.target):
                    states[key] = states.pop(other)
                    places[place_of(verdict.target)] = key
                    if other in out:
                        out[key] = out.pop(other)
            out.setdefault(key, verdict)
        return out

    # --- what others ask --------------------------------------------------------------------------------------------
    def open(self) -> tuple[Finding, ...]:
        """All open findings, sorted by detector and part."""
        found = [s.finding for states in self._states.values() for s in states.values() if s.finding is not None]
        return tuple(sorted(found, key=lambda f: (f.detector, order_of(f.target), f.id)))

    def blind(self) -> Mapping[str, tuple[tuple[str, ...], ...]]:
        """Detectors that could not speak at the last tick, with the groups of signals of which none was seen."""
        return dict(self._blind)

    def dump(self) -> str:
        """All state as JSON; `load` gives exactly it back."""
        return json.dumps({name: {key: pack(s) for key, s in sorted(states.items())}
                           for name, states in self._states.items()}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave. State of detectors that are no longer there is left out."""
        data = json.loads(text)
        self._states = {name: {key: unpack(HoldState, row) for key, row in data.get(name, {}).items()}
                        for name in self._plugins}


def missing_needs(plugin: DetectorPlugin, window: Window) -> tuple[tuple[str, ...], ...]:
    """The groups of needs of which nothing was seen in the window; a need may also name a kind of event.

    What was seen and is lost is not missing here: its age is what the detector judges.
    """
    kinds: set[str] = set()
    if any(n in EVENT_KINDS for g in plugin.needs for n in g):
        kinds = window.once("kinds of events", lambda: {e.kind for e in window.events})
    return tuple(group for group in plugin.needs
                 if not any(name in window.blocks or name in kinds for name in group))


def _worst_first(verdict: Verdict) -> tuple[Any, ...]:
    order = {"faulty": 0, "clear": 1, "unknown": 2}
    return order.get(verdict.state, 3), not verdict.discrete, -verdict.severity, verdict.reason, verdict.target.key, \
        str(verdict.target), repr(verdict.evidence), repr(verdict.suspects)


def _booted(window: Window) -> dict[str, int]:
    """Boots that a grace may still follow, by node."""
    return {e.target.node: e.at for e in window.events_of("boot", since=window.end - BOOT_GRACE_MS)
            if e.target.node is not None}


def _in_grace(target: Target, booted: Mapping[str, int], end: int) -> bool:
    """Ranks and jobs have no grace: a job that hangs after a reboot hangs."""
    at = booted.get(target.node or "")
    return at is not None and target.kind not in ("rank", "job") and end < at + BOOT_GRACE_MS


def _gone(state: HoldState, verdict: Verdict | None, window: Window) -> bool:
    """The part left service: its job ended, or nothing has been known of it for a minute while its node is out of
    service (or of the inventory). A drained node may go on to report: idle, it says nothing of the fault."""
    target = state.target
    if target.kind in ("rank", "job"):
        job = next((j for j in window.jobs if j.id == target.job), None)
        return job is not None and not job.running
    if (verdict is not None and verdict.state != "unknown") or state.unknown < window.ticks(GONE_SECONDS):
        return False
    place = window.topology.place(target.node)
    if place is None:
        return bool(window.topology.places) and target.node is not None
    return place.state != "in_service"
