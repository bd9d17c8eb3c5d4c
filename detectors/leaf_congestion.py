"""Which leaf switch holds all its ports back while nobody else waits: it runs at a part of its capacity.

Congestion by itself is no fault: it comes and goes, on many leaves or few ports. But where every port on one leaf is marked
(RoCE) or waits for credits (InfiniBand) all the time, and the ports of the same nodes on other leaves, which carry the same
collectives, are not, the traffic is not to blame. Where all ports of a node hang on one leaf its job's nodes on other leaves are the measure.
No port shows it in its rate, so each port of the leaf is named, and the leaf they share is the culprit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats, Verdict
from core.window import Window
from detectors import ports, shared, stats
from detectors.ports import MARKS, WAITS
from detectors.stats import Bools, Ints

SLOW = 0.6


@dataclass(frozen=True, slots=True)
class Limits:
    """window_seconds: how long it holds. marks, waits: a second, from which a port is held back. times_others, times_past: as
    often as at the ports of other leaves, and as before. ports_min, nodes_min: of a leaf, and of other leaves' ports."""

    window_seconds: float
    marks: float
    waits: float
    times_others: float
    times_past: float
    ports_min: int
    nodes_min: int


def judge(window: Window, fault: str, limits: Limits) -> list[Verdict]:
    """Faulty verdicts on all ports of leaves that hold them back; nothing is said of the others."""
    if not len(window.times) or not {MARKS, WAITS} & set(window.blocks):
        return []
    out: dict[int, Verdict] = {}
    for signal, least in ((MARKS, limits.marks), (WAITS, limits.waits)):
        span = stats.span_of(window, signal, limits.window_seconds)
        held = stats.above(span.low, least)
        if held.sum() < limits.ports_min:
            continue  # the usual case costs nothing more
        for columns, usual in _leaves(window, held, span.low, span.mean, signal, limits):
            together = np.asarray(stats.above(window.values(signal)[:, columns], 0.3 * least).all(axis=1), bool)
            onset = int(stats.run_start(together[:, None], window.times, 4)[0])
            for e in columns.tolist():
                row = stats.evidence(signal, span.mean[e], usual, "the ports of other leaves", "all ports of the leaf are held back")
                out.setdefault(e, Verdict(window.of_kind("nic")[e], fault, "faulty", SLOW, (row,), "leaf_congested", onset_at=onset))
    return [out[e] for e in sorted(out)]


def _leaves(window: Window, held: Bools, low: Floats, mean: Floats, signal: str, p: Limits) -> list[tuple[Ints, float]]:
    """(ports, what the others have) of each leaf that holds its ports back."""
    nics = window.of_kind("nic")
    rdma = ports.is_rdma(window) & ~np.isnan(low) & shared.loud(window, nics)
    by_leaf: dict[str, list[int]] = {}
    for e in np.flatnonzero(rdma).tolist():
        leaf = window.topology.leaf_of(nics[e])
        if leaf is not None:
            by_leaf.setdefault(leaf, []).append(e)
    jobs, known = stats.node_jobs(window), [e for leaf in by_leaf.values() for e in leaf]
    found = []
    for mine in (np.array(columns, np.int64) for columns in by_leaf.values()):
        nodes = {nics[e].node for e in mine.tolist()}
        if len(mine) < p.ports_min or len(nodes) < p.nodes_min or not held[mine].all():
            continue
        theirs = {jobs.get(node or "") for node in nodes}
        rest = np.setdiff1d(np.array([e for e in known if nics[e].node in nodes], np.int64), mine)
        if len(rest) < p.ports_min:
            near = [e for e in known if jobs.get(nics[e].node or "") in theirs - {None}]
            rest = np.setdiff1d(np.array(near, np.int64), mine)
        if len(rest) < p.ports_min:
            continue
        usual = float(stats.quantile(mean[rest], 0.9))
        past = stats.own_past(window, signal, mine, 2 * window.ticks(p.window_seconds), 0.5)
        grown = np.isnan(past) | stats.above(low[mine], p.times_past * past)
        if low[mine].min() >= p.times_others * usual and grown.all():
            found.append((mine, usual))
    return found
