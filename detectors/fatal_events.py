"""Fatal XIDs of GPUs: from kernel lines, and from dcgm-exporter's gauge, which keeps its last value for ever.

The gauge counts when it changes to a code, never while it stands; the same code from the log and from the gauge is one
event. An event is over once the node has booted since, or once the GPU has worked for long without another one. A code
that the chosen vendor does not call fatal is no fault of this kind, whatever it is; 43 and 45, the echoes of a process
that is killed, are in nobody's list that is taken by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.types import Event, Evidence, Target, Verdict
from core.window import Window
from core.xids import xids
from detectors import stats

# The log and the gauge tell of one event at different times: the exporter's cycle is 30 s, a slow scrape 60 s more.
SAME_MS = 120_000
FATAL = 0.9


@dataclass(frozen=True, slots=True)
class Fatal:
    """One fatal event. line: the kernel's own words, None where only the gauge told."""

    at: int
    gpu: Target
    code: int
    line: str | None


def of_fault(window: Window, fault: str, vendor: str) -> list[Fatal]:
    """The fatal events of the fault in the window, in time order, each once."""
    table = xids()
    shown = {gpu.key: gpu for gpu in window.of_kind("gpu")}
    found: list[Fatal] = []
    for event in window.events_of("xid"):
        code = event.fields.get("xid")
        row = table.get(code) if isinstance(code, int) else None
        told = event.fields.get("fatal")
        if row is not None and row.fault == fault and row.fatal(vendor, told if isinstance(told, bool) else None):
            found.append(Fatal(event.at, shown.get(event.target.key, event.target), row.code, event.line))
    for at, gpu, code in _from_gauge(window):
        row = table.get(code)
        if row is None or row.fault != fault or not row.fatal(vendor, None):
            continue
        if not any(f.code == code and f.gpu.node == gpu.node and abs(f.at - at) <= SAME_MS for f in found):
            found.append(Fatal(at, gpu, code, None))
    return sorted(found, key=lambda f: (f.at, f.gpu.key, f.code))


def _from_gauge(window: Window) -> Iterator[tuple[int, Target, int]]:
    """(ms, GPU, code) of each change of the gauge to a code. It is absent until the first XID, so a first value counts
    where the GPU was seen before it."""
    block = window.block("gpu.xid")
    if not len(window.times) or not np.nan_to_num(block.values).any():
        return
    seen = window.block("gpu.temperature_celsius").first_at
    values = stats.filled(block.values)
    for e in np.flatnonzero(np.nan_to_num(block.values).any(axis=0)):
        before = np.concatenate([[np.nan], values[:-1, e]])
        changed = (values[:, e] > 0) & ~(values[:, e] == before)
        for row in np.flatnonzero(changed):
            at = int(window.times[row])
            # A first value may have stood there for days when Greylag first looked, unless the GPU was watched before it.
            if np.isnan(before[row]) and not (seen[e] < block.first_at[e] and at - block.first_at[e] <= SAME_MS):
                continue
            yield at, block.entities[e], int(values[row, e])


def judge(window: Window, fault: str, vendor: str, worked_seconds: float, reason: str = "fatal_xid") -> list[Verdict]:
    """A verdict for each GPU that met a fatal event of the fault in the window."""
    newest: dict[str, Fatal] = {}
    counts: dict[str, int] = {}
    for one in of_fault(window, fault, vendor):
        newest[one.gpu.key] = one
        counts[one.gpu.key] = counts.get(one.gpu.key, 0) + 1
    boots, gauge = _boots(window), window.block("gpu.xid")
    shown = {gauge.entities[e].key for e in np.flatnonzero(gauge.fresh() & ~np.isnan(gauge.last))}
    out = [Verdict(gpu, fault, "clear", reason="clear") for gpu in gauge.entities
           if gpu.key in shown and gpu.key not in newest and gpu.node not in window.silent_nodes]
    for key in sorted(newest):
        one = newest[key]
        if one.gpu.node in window.silent_nodes or (one.line is None and key not in shown):
            continue
        if boots.get(one.gpu.node or "", -1) > one.at or worked(window, one.gpu, one.at, worked_seconds):
            out.append(Verdict(one.gpu, fault, "clear", reason="clear"))
            continue
        out.append(Verdict(one.gpu, fault, "faulty", FATAL, evidence(one, counts[key]), reason, True, one.at))
    return out


def evidence(one: Fatal, times: int) -> tuple[Evidence, ...]:
    """The code with its meaning, and the kernel's line where there is one."""
    row = xids()[one.code]
    said = f"{row.means}; {times} in the window" if times > 1 else row.means
    text = f"XID {one.code}: {said}" if one.line is None else f"XID {one.code}: {said}: {one.line}"
    return (Evidence("gpu.xid", stats.unit_of("gpu.xid"), float(one.code), None, "no fatal XID", text),)


def _boots(window: Window) -> dict[str, int]:
    """The newest boot of each node, ms: from events, and from the boot time that the node shows."""
    found: dict[str, int] = {}
    for event in window.events_of("boot"):
        node = event.target.node or ""
        found[node] = max(found.get(node, -1), _boot_ms(event))
    block = window.block("node.boot_time_seconds")
    for e, seconds in enumerate(block.last):
        if not np.isnan(seconds):
            node = block.entities[e].node or ""
            found[node] = max(found.get(node, -1), int(seconds * 1000))
    return found


def booted_at(window: Window, node: str | None) -> int:
    """The newest boot of the node, ms; -1 = none is known."""
    return _boots(window).get(node or "", -1)


def _boot_ms(event: Event) -> int:
    seconds = event.fields.get("boot_time_seconds")
    return int(float(seconds) * 1000) if isinstance(seconds, (int, float)) else event.at


def worked(window: Window, gpu: Target, at: int, seconds: float) -> bool:
    """Whether the GPU has been at work for `seconds` in a row up to now, after `at` (ms)."""
    if window.end - at < seconds * 1000:
        return False
    block = window.block("gpu.utilization_ratio")
    for e, one in enumerate(block.entities):
        if one.key == gpu.key:
            tail = block.values[-window.ticks(seconds):, e]
            return bool(len(tail) and np.isfinite(tail).mean() > 0.8 and np.nanmin(tail) > 0.5)
    return False
