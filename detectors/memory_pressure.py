"""A node that runs out of memory: its kernel kills a process for it, or work stalls for memory while little is left, or so long
that it hardly goes on.

A page cache that shrinks is no pressure; a process that is killed at its own container's limit is told by the same line,
and is the job owner's to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Target, Verdict
from core.window import Window
from detectors import stats

FAULT = "memory_pressure"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §4 (PSI healthy below 0.05; available below 10 %, any OOM kill); the rules that sites run today (a node's
    memory "is filling up" from 10 % left on); Meta's oomd, whose policy for hosts with GPUs (`devgpu` in its repository) acts when
    work stalled for memory 40 % of the time for 300 s, and systemd-oomd (`oomd.conf`), which acts at 60 % for 30 s. Both read the
    kernel's "full" line, as this does, and act whatever is left: it is the kernel's word that no work is done.

    window_seconds: how far back levels are averaged. stalled: share of time in which all work stalls for memory (twice what
    is healthy). available: share of memory left below which such a stall is pressure. standing, standing_seconds: share of time, in
    each third of that span, that is pressure whatever is left (Meta); severe, severe_seconds: likewise (systemd).
    kill_seconds: how long an OOM kill counts.
    """

    window_seconds: float = 120.0
    stalled: float = 0.1
    available: float = 0.1
    standing: float = 0.4
    standing_seconds: float = 300.0
    severe: float = 0.6
    severe_seconds: float = 30.0
    kill_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node that shows its memory, or whose kernel killed a process."""
    if not len(window.times):
        return []
    kills = {e.target.node: e for e in window.events_of("oom", since=window.end - int(params.kill_seconds * 1000))}
    nodes = window.of_kind("node")
    out = [_killed(event) for node, event in sorted(kills.items(), key=lambda k: k[0] or "")
           if node not in window.silent_nodes]
    stalled = stats.span_of(window, "node.memory_stalled_ratio", params.window_seconds)
    left = stats.span_of(window, "node.memory_available_bytes", params.window_seconds).mean / window.last("node.memory_total_bytes")
    pressed = stats.above(stalled.low, params.stalled) & ~stats.above(left, params.available)
    for seconds, share in ((params.standing_seconds, params.standing), (params.severe_seconds, params.severe)):
        pressed |= stats.above(stats.span_of(window, "node.memory_stalled_ratio", seconds).low, share)
    fresh = (window.block("node.memory_stalled_ratio").fresh() & ~np.isnan(stalled.mean)) | (
        window.block("node.memory_available_bytes").fresh() & ~np.isnan(left))
    onsets = stats.run_start(stats.above(window.values("node.memory_stalled_ratio"), params.stalled / 2), window.times, 4)
    for e, node in enumerate(nodes):
        if node.node in window.silent_nodes or node.node in kills:
            continue
        if pressed[e] and fresh[e]:
            levels = [stats.evidence("node.memory_stalled_ratio", stalled.mean[e], 0.0, "a node with memory left")]
            if not np.isnan(left[e]):
                levels.append(stats.evidence("node.memory_available_bytes", float(window.last("node.memory_available_bytes")[e]),
                                             float(window.last("node.memory_total_bytes")[e]), "all of its memory"))
            out.append(Verdict(node, FAULT, "faulty", 0.6, tuple(levels), "stalls_for_memory", onset_at=int(onsets[e])))
        elif fresh[e]:
            out.append(Verdict(node, FAULT, "clear", reason="clear"))
    return out


def _killed(event: Event) -> Verdict:
    rows = (Evidence("oom", "count", 1.0, 0.0, "no process is killed for memory", event.line),)
    return Verdict(Target("node", event.target.node), FAULT, "faulty", 0.6, rows, "oom_kill", True, event.at)


PLUGIN = DetectorPlugin(
    name="memory_pressure", fault=FAULT, judge=judge, params=Params, needs=(("node.memory_stalled_ratio", "oom"),),
    hold=Hold(on=3, of=4, off=8), must_not=("a page cache that shrinks", "little memory left without a stall"),
)
