"""Work that waits for CPU on a node: the hypervisor takes time away, tasks wait far more than on the job's other nodes, or the
package slows itself for heat.

The host of a training node is mostly idle; a data loader that is busy is no starvation as long as it gets its time. Waiting
that all nodes of a job have alike is how the job is built.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Verdict
from core.window import Window
from detectors import shared, stats

FAULT = "cpu_starved"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §4 (PSI healthy below 0.05) and §11 (steal, cpu_waiting).

    window_seconds: how far back levels are averaged. steal: share of CPU time that is taken away. waiting: share of time in
    which some task waits. quick_seconds: or as much time taken or waited within this. above_peers: how many times the waiting of
    the other nodes. peers_min: other nodes needed.
    again_seconds, within_seconds: waiting that comes and goes counts when it adds up to so much within so long; recent_seconds: and
    was there so recently. throttles: events a second in which a CPU package slowed itself for heat, in each third of the window
    (a healthy node has none; a handful comes with a boot).
    """

    window_seconds: float = 300.0
    steal: float = 0.1
    waiting: float = 0.3
    quick_seconds: float = 120.0
    above_peers: float = 4.0
    peers_min: int = 2
    again_seconds: float = 270.0
    within_seconds: float = 900.0
    recent_seconds: float = 120.0
    throttles: float = 0.05


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node that shows steal, or how long tasks wait for CPU."""
    nodes = window.of_kind("node")
    if not nodes or not len(window.times):
        return []
    steal = stats.span_of(window, "node.cpu_steal_ratio", params.window_seconds)
    waiting = stats.span_of(window, "node.cpu_waiting_ratio", params.window_seconds)
    jobs = stats.node_jobs(window)
    peers = stats.peers(waiting.mean, stats.codes([jobs.get(n.node or "", "") for n in nodes]))
    quicker = params.window_seconds / params.quick_seconds
    stolen = stats.above(steal.low, params.steal) | stats.above(
        stats.span_of(window, "node.cpu_steal_ratio", params.quick_seconds).low, quicker * params.steal)
    long = stats.above(waiting.low, params.waiting) | stats.above(
        stats.span_of(window, "node.cpu_waiting_ratio", params.quick_seconds).low, quicker * params.waiting)
    starved = (long & (peers.n >= params.peers_min)
               & stats.above(waiting.mean, params.above_peers * np.maximum(peers.middle, 0.02)))
    starved |= _again(window, peers, params)
    heat = stats.span_of(window, "node.cpu_throttles_per_second", params.window_seconds)
    others = stats.peers(heat.mean, np.zeros(len(nodes), np.int64))
    throttled = stats.above(heat.low, params.throttles) & stats.above(heat.mean, params.above_peers * np.nan_to_num(others.middle))
    fresh = np.zeros(len(nodes), bool)
    for signal, span in (("node.cpu_steal_ratio", steal), ("node.cpu_waiting_ratio", waiting)):
        fresh |= window.block(signal).fresh() & ~np.isnan(span.mean)
    fresh &= shared.loud(window, nodes)
    bad = stolen | starved | throttled
    out = shared.clears(nodes, fresh & ~bad, FAULT)
    columns = stats.columns_where(fresh & bad)
    symptom = stats.above(window.values("node.cpu_steal_ratio")[:, columns], params.steal) | stats.above(
        window.values("node.cpu_waiting_ratio")[:, columns], params.waiting) | stats.above(
        window.values("node.cpu_throttles_per_second")[:, columns], params.throttles)
    onsets = stats.run_start(symptom, window.times, 4)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        rows: list[Evidence] = []
        if stolen[e]:
            rows.append(stats.evidence("node.cpu_steal_ratio", steal.mean[e], 0.0, "a machine of its own"))
        if starved[e]:
            rows.append(stats.evidence("node.cpu_waiting_ratio", waiting.mean[e], peers.middle[e], f"median of {peers.n[e]} peers"))
        if throttled[e]:
            rows.append(stats.evidence("node.cpu_throttles_per_second", heat.mean[e], others.middle[e], "other nodes: it is too hot"))
        reason = "steal" if stolen[e] else "waits_for_cpu" if starved[e] else "throttles_itself"
        out.append(Verdict(nodes[e], FAULT, "faulty", 0.3, tuple(rows), reason, onset_at=int(onset)))
    return out


def _again(window: Window, peers: stats.Peers, p: Params) -> stats.Bools:
    """bool[node]: tasks waited again and again, for long enough taken together, and lately."""
    tail = window.tail("node.cpu_waiting_ratio", p.within_seconds)
    limit = np.maximum(p.waiting, p.above_peers * np.maximum(np.nan_to_num(peers.middle), 0.02))
    waits = stats.above(tail, limit)
    lately = waits[-window.ticks(p.recent_seconds):].any(axis=0)
    return np.asarray((waits.sum(axis=0) >= window.ticks(p.again_seconds)) & lately & (peers.n >= p.peers_min), bool)


PLUGIN = DetectorPlugin(
    name="cpu_starved", fault=FAULT, judge=judge, params=Params, needs=(("node.cpu_steal_ratio", "node.cpu_waiting_ratio"),),
    hold=Hold(on=4, of=5, off=8), must_not=("a busy data loader", "waiting that all nodes of the job have", "a burst of a minute"),
)
