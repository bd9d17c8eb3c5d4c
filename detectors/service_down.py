"""A service that GPUs need has ended on a node where it ran: the fabric manager, the persistence daemon, DCGM, the scheduler's
or Kubernetes' agent, the container runtime, the time daemon.

Told by systemd's state of the unit (node_exporter), by its own lines in the journal, or by the GPUs themselves (the state of
their fabric). What is no fault: a restart, a unit that never ran there, a node that is drained, boots or shuts down.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Target, Verdict
from core.window import Window
from detectors import shared, stats
from detectors.exporters import withdrawn
from detectors.stats import Bools

FAULT = "service_down"
DEGRADED = 0.6
_EVENTS = ("service_failed", "service_stopped", "service_starting", "service_started")
FABRIC_MANAGER = "nvidia-fabricmanager.service"
Unit = tuple[str, str]  # node, name
_LINE_BEFORE_STATE_MS = 120_000  # a line that old belongs to the state that was read after it
NOT_STARTED, DONE, FAILED = 1.0, 3.0, 4.0  # of gpu.fabric_manager_state


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §2 (fabric manager states); systemd's own times (it writes "Scheduled restart job" or "Starting" within
    RestartSec, which is 100 ms unless said; kubelet's 10 s is the longest of the units watched; a start may take TimeoutStartSec,
    90 s, and the fabric manager's 240 s); our judgement.

    failed_seconds: for how long after systemd called a unit failed nobody has started it again. down_seconds: how long an inactive
    unit may take to come back. stopped_seconds: the same where somebody stopped it in order (an upgrade stops, installs and starts),
    or where it is being started. told_seconds: how old a line of the journal may be. past_seconds: in which a unit must have run
    where the window does not show it.
    """

    failed_seconds: float = 12.0
    down_seconds: float = 60.0
    stopped_seconds: float = 300.0
    told_seconds: float = 86400.0
    past_seconds: int = 86400


@dataclass(slots=True)
class _Node:
    """What is known of a node: units that are down (name → (onset, words)), and whether any unit is known to run."""

    down: dict[str, tuple[int, Evidence]] = field(default_factory=dict)
    runs: bool = False


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node of which a watched service is known."""
    if not len(window.times):
        return []
    nodes: dict[str, _Node] = {}
    newest = _newest_lines(window, params)
    told = _by_state(window, nodes, newest, params)
    _by_lines(window, nodes, newest, told, params)
    _by_fabric(window, nodes, params)
    out, away = [], window.silent_nodes | withdrawn(window)
    for name, found in sorted(nodes.items()):
        if not name or name in away:
            continue
        target = Target("node", name)
        if found.down:
            rows = tuple(row for _, row in found.down.values())[:6]
            out.append(Verdict(target, FAULT, "faulty", DEGRADED, rows, "unit_down",
                               onset_at=min(at for at, _ in found.down.values())))
        elif found.runs:
            out.append(Verdict(target, FAULT, "clear", reason="clear"))
    return out


def _newest_lines(window: Window, p: Params) -> dict[Unit, Event]:
    """What the journal said last of each unit, a line before its node's last boot left out."""
    boots: dict[str | None, int] = {}
    for event in window.events_of("boot"):
        boots[event.target.node] = event.at
    newest: dict[Unit, Event] = {}
    for event in window.events_of(*_EVENTS, since=window.end - int(1000 * p.told_seconds)):
        if boots.get(event.target.node, -1) < event.at:
            newest[event.target.node or "", event.target.device or ""] = event
    return newest


def _by_state(window: Window, nodes: dict[str, _Node], newest: dict[Unit, Event], p: Params) -> dict[Unit, int]:
    """By the units' states; gives when (ms) that of each unit was read of which it is known now."""
    block = window.block("service.active")
    fresh = block.fresh() & ~np.isnan(block.last)
    if not fresh.any():
        return {}
    down = fresh & (block.last < 0.5)
    units = shared.kept("units", (block.entities,), lambda: [(unit.node or "", unit.device or "") for unit in block.entities])
    read = (window.end - 1000 * np.where(fresh, block.age_seconds, 0.0)).astype(np.int64)
    known = dict(itertools.compress(zip(units, read.tolist(), strict=True), fresh.tolist()))
    names, places = shared.node_names(block.entities)
    for i in np.unique(places[fresh & ~down]).tolist():
        nodes.setdefault(names[i] or "", _Node()).runs = True
    if not down.any():
        return known
    since = stats.run_start(stats.below(block.values, 0.5), window.times, 2)
    ran = _ran(window, down, p)
    failed = window.block("service.failed")
    says = {(failed.entities[e].node, failed.entities[e].device) for e in np.flatnonzero(failed.last >= 0.5)}
    for e in np.flatnonzero(down & ran):
        unit = block.entities[e]
        broken = (unit.node, unit.device) in says
        wait, start = _wait(newest.get(units[e]), broken, int(since[e]), p)
        if window.end - start < 1000 * wait:
            continue
        row = stats.evidence("service.failed" if broken else "service.active", float(broken), float(not broken),
                             "a unit that ran", f"{unit.device} {'has failed' if broken else 'does not run'}")
        nodes.setdefault(unit.node or "", _Node()).down[unit.device or ""] = (start, row)
    return known


def _wait(line: Event | None, broken: bool, since: int, p: Params) -> tuple[float, int]:
    """(seconds that a unit is waited for, from when: ms) by its state, which is down since then, and by its newest line."""
    recent = line if line is not None and line.at > since - _LINE_BEFORE_STATE_MS else None
    if recent is None:
        return (p.failed_seconds if broken else p.down_seconds), since
    if recent.kind == "service_failed" and broken:  # without `broken` it waits to be started again
        return p.failed_seconds, min(since, recent.at)
    if recent.kind == "service_stopped" and not broken:
        return p.stopped_seconds, since
    if recent.kind == "service_starting":
        return p.stopped_seconds, max(since, recent.at)
    return p.down_seconds, since


def _ran(window: Window, down: Bools, p: Params) -> Bools:
    """bool[unit]: it was seen to run in the window, or in the past where the window begins with it down."""
    ran = stats.above(window.values("service.active"), 0.5).any(axis=0)
    if (down & ~ran).any():
        past = window.baseline("service.active", p.past_seconds)
        ran = ran | ((past.n >= 5) & stats.above(past.median, 0.5))
    return np.asarray(ran)


def _by_lines(window: Window, nodes: dict[str, _Node], newest: dict[Unit, Event], told: dict[Unit, int], p: Params) -> None:
    """By the newest line of each unit whose state nobody has read since."""
    waits = {"service_failed": p.failed_seconds}
    for (node, unit), event in sorted(newest.items(), key=lambda pair: pair[0]):
        if told.get((node, unit), -1) >= event.at or not node:
            continue
        if event.kind == "service_started":
            nodes.setdefault(node, _Node()).runs = True
            continue
        if window.end - event.at < 1000 * waits.get(event.kind, p.stopped_seconds):
            continue
        row = Evidence(event.kind, "count", 1.0, 0.0, "a unit that ran", event.line or f"{unit}: {event.kind}")
        nodes.setdefault(node, _Node()).down.setdefault(unit, (event.at, row))


def _by_fabric(window: Window, nodes: dict[str, _Node], p: Params) -> None:
    """The fabric of all GPUs of a node was up and is not started or failed now."""
    block = window.block("gpu.fabric_manager_state")
    fresh = block.fresh() & ~np.isnan(block.last)
    if not fresh.any():
        return
    ended = fresh & np.isin(block.last, (NOT_STARTED, FAILED)) & (block.values == DONE).any(axis=0)
    well: dict[str, bool] = {}
    for e in np.flatnonzero(fresh):
        node = block.entities[e].node or ""
        well[node] = well.get(node, False) or not ended[e]
    since = stats.run_start(np.isin(block.values, (NOT_STARTED, FAILED)), window.times, 2)
    for e in np.flatnonzero(ended):
        node = block.entities[e].node or ""
        if well[node] or window.end - since[e] < 1000 * p.down_seconds:
            continue
        row = stats.evidence("gpu.fabric_manager_state", block.last[e], DONE, "the same GPUs before")
        nodes.setdefault(node, _Node()).down.setdefault(FABRIC_MANAGER, (int(since[e]), row))
    for node, fine in well.items():
        if fine and node:
            nodes.setdefault(node, _Node()).runs = True


PLUGIN = DetectorPlugin(
    name="service_down", fault=FAULT, judge=judge, params=Params,
    needs=(("service.active", "service_failed", "service_stopped", "gpu.fabric_manager_state"),),
    hold=Hold(on=1, of=1, off=4),
    must_not=("a restart of some seconds", "a unit that never ran", "a node that is drained, boots or shuts down",
              "a unit that GPU work does not need"),
)
