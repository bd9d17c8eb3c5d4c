"""Fatal XIDs of GPUs: from kernel lines, and from dcgm-exporter's gauge, which keeps its last value for ever.

The gauge counts when it changes to a code, never while it stands; the same code from the log and from the gauge is one
event. An event is over once the node has booted since, or once the GPU has worked for long without another one. A code
that the chosen list does not call fatal is no fault of this kind, whatever it is; 43 and 45, the echoes of a process
that is killed, are not in the list that is taken by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core import xid_gauge
from core.types import Event, Evidence, Target, Verdict
from core.window import Window
from core.xids import XidPolicy, xid_of
from detectors import shared, stats
from detectors.stats import Bools

FATAL = 0.9
# While a finding is open on a part its minutes are left out of its past: a past that has minutes of these last seconds has none.
OPEN_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Fatal:
    """One fatal event. line: the kernel's own words, None where only the gauge told."""

    at: int
    gpu: Target
    code: int
    line: str | None


def of_fault(window: Window, fault: str, policy: XidPolicy) -> list[Fatal]:
    """The fatal events of the fault in the window, in time order, each once."""
    parts = window.of_kind("gpu")
    places = shared.by_key(parts)
    found: list[Fatal] = []
    for event in window.events_of("xid"):
        if event.fields.get("source") == "gauge":
            continue  # the gauge itself is asked below: it also tells when it is over
        code = event.fields.get("xid")
        if isinstance(code, int) and xid_of(code).fault == fault and policy.counts(code, said(event)):
            e = places.get(event.target.key)
            found.append(Fatal(event.at, event.target if e is None else parts[e], code, event.line))
    for at, gpu, code in xid_gauge.changes(window):
        if xid_of(code).fault != fault or not policy.counts(code):
            continue
        if not any(f.code == code and f.gpu.node == gpu.node and abs(f.at - at) <= xid_gauge.SAME_MS for f in found):
            found.append(Fatal(at, gpu, code, None))
    return sorted(found, key=lambda f: (f.at, f.gpu.key, f.code))


def said(event: Event) -> bool | None:
    """What the line of an XID says itself, Fatal or Nonfatal; None = nothing."""
    told = event.fields.get("fatal")
    return told if isinstance(told, bool) else None


def judge(window: Window, fault: str, policy: XidPolicy, worked_seconds: float, reason: str = "fatal_xid") -> list[Verdict]:
    """A verdict for each GPU that met a fatal event of the fault in the window, and for those whose gauge shows none."""
    met = met_by(window, fault, policy, worked_seconds, reason)
    return [*met.words.values(), *shared.clears(window.of_kind("gpu"), met.none, fault)]


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """words: verdicts on GPUs that met an event, by key. none: bool[gpu], whose gauge is shown and which met none."""

    words: dict[str, Verdict]
    none: Bools


def met_by(window: Window, fault: str, policy: XidPolicy, worked_seconds: float, reason: str = "fatal_xid") -> Met:
    """What `judge` says, the GPUs that met nothing as an array."""
    newest: dict[str, Fatal] = {}
    counts: dict[str, int] = {}
    for one in of_fault(window, fault, policy):
        newest[one.gpu.key] = one
        counts[one.gpu.key] = counts.get(one.gpu.key, 0) + 1
    gauge = window.block("gpu.xid")
    shown = gauge.fresh() & ~np.isnan(gauge.last)
    none = shown & shared.loud(window, gauge.entities)
    places = shared.by_key(gauge.entities)
    out: dict[str, Verdict] = {}
    for key in sorted(newest):
        one, e = newest[key], places.get(key)
        if e is not None:
            none[e] = False
        if one.gpu.node in window.silent_nodes or (one.line is None and (e is None or not shown[e])):
            continue
        if (booted_at(window, one.gpu.node) > one.at or worked(window, one.gpu, one.at, worked_seconds)
                or _over(window, one, worked_seconds)):
            out[key] = Verdict(one.gpu, fault, "clear", reason="clear")
            continue
        out[key] = Verdict(one.gpu, fault, "faulty", FATAL, evidence(one, counts[key]), reason, True, one.at)
    return Met(out, none)


def evidence(one: Fatal, times: int) -> tuple[Evidence, ...]:
    """The code with its meaning, and the kernel's line where there is one."""
    row = xid_of(one.code)
    words = f"{row.means}; {times} in the window" if times > 1 else row.means
    text = f"XID {one.code}: {words}" if one.line is None else f"XID {one.code}: {words}: {one.line}"
    return (Evidence("gpu.xid", stats.unit_of("gpu.xid"), float(one.code), None, "no fatal XID", text),)


def _boots(window: Window) -> dict[str, int]:
    """The newest boot of each node, ms: from events, and from the boot time that the node shows."""
    found: dict[str, int] = {}
    for event in window.events_of("boot"):
        node = event.target.node or ""
        found[node] = max(found.get(node, -1), _boot_ms(event))
    block = window.block("node.boot_time_seconds")
    for part, seconds in zip(block.entities, block.last.tolist(), strict=True):
        if not math.isnan(seconds):
            node = part.node or ""
            found[node] = max(found.get(node, -1), int(seconds * 1000))
    return found


def booted_at(window: Window, node: str | None) -> int:
    """The newest boot of the node, ms; -1 = none is known."""
    return window.once("boots", lambda: _boots(window)).get(node or "", -1)


def _boot_ms(event: Event) -> int:
    seconds = event.fields.get("boot_time_seconds")
    return int(float(seconds) * 1000) if isinstance(seconds, (int, float)) else event.at


def _over(window: Window, one: Fatal, seconds: float) -> bool:
    """The GPU worked for long enough at some time since the event, so that its rest now says nothing; or the event is older than
    the window and no finding is open on the GPU, whose last minutes count as its past therefore."""
    column = shared.by_key(window.of_kind("gpu")).get(one.gpu.key)
    if column is None:
        return False
    if one.at < int(window.times[0]) and window.baseline_of is not None:
        return bool(window.baseline("gpu.utilization_ratio", OPEN_SECONDS).n[column] >= 3)
    return worked_since(window, one.gpu, one.at, seconds)


def worked_since(window: Window, gpu: Target, at: int, seconds: float) -> bool:
    """Whether the GPU was at work for `seconds` in a row at some time after `at` (ms), by what the window shows."""
    column = shared.by_key(window.of_kind("gpu")).get(gpu.key)
    if column is None:
        return False
    told = window.times > at
    busy = stats.above(window.values("gpu.utilization_ratio")[told, column], 0.5)
    idle = np.flatnonzero(~np.concatenate([[False], busy, [False]]))
    return bool(np.diff(idle).max(initial=1) - 1 >= window.ticks(seconds))


def worked(window: Window, gpu: Target, at: int, seconds: float) -> bool:
    """Whether the GPU has been at work for `seconds` in a row up to now, after `at` (ms)."""
    if window.end - at < seconds * 1000:
        return False
    block = window.block("gpu.utilization_ratio")
    e = shared.by_key(block.entities).get(gpu.key)
    if e is None:
        return False
    tail = block.values[-window.ticks(seconds):, e]
    return bool(len(tail) and np.isfinite(tail).mean() > 0.8 and np.nanmin(tail) > 0.5)
