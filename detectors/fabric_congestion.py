"""A whole fabric with less capacity than before: a wrong routing or congestion setting on all switches, up-links that are gone.

Marks (RoCE) or waits for credits (InfiniBand) on every port tell nothing by themselves: so does much traffic, and then the
links carry as much as ever, or more. Where every port is held back all the time and every job at work carries clearly less
than before, nobody asks for more: the fabric gives less. No leaf, port or node is to blame, so one port of each node is
named, and what they share is the fleet. A job without a past of its own may be what fills the fabric: then nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats, Verdict
from core.window import Window
from detectors import ports, shared, stats
from detectors.ports import MARKS, WAITS
from detectors.stats import Bools, Ints

CARRIED = "nic.received_bytes_per_second"
SLOW = 0.6
PAST_SECONDS = 6 * 3600
# Medians of minutes know a job's bursts less well than means of whole spans: so much less they count.
FAR_SHARE = 0.95
FEWEST_MEANS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """window_seconds: how long it holds. marks, waits: a second, from which a port is held back; times_past: and as often as
    before. share: of the ports, and of a job's, that must show it. less: by how much less they carry. leaves_min, jobs_min."""

    window_seconds: float
    marks: float
    waits: float
    times_past: float
    share: float
    less: float
    leaves_min: int
    jobs_min: int


def judge(window: Window, fault: str, limits: Limits) -> list[Verdict]:
    """A faulty verdict on one port of each node at work where the whole fabric is slow; nothing is said else."""
    if not len(window.times) or CARRIED not in window.blocks:
        return []
    for signal, least in ((MARKS, limits.marks), (WAITS, limits.waits)):
        if signal not in window.blocks:
            continue
        span = stats.span_of(window, signal, limits.window_seconds)
        held = stats.above(span.low, least)
        if held.sum() < limits.leaves_min:
            continue  # the usual case costs nothing more
        columns = _everywhere(window, held, limits)
        if len(columns) and _less_for_all(window, signal, columns, span.low, limits):
            return _said(window, fault, signal, columns, span.mean, least)
    return []


def _everywhere(window: Window, held: Bools, p: Limits) -> Ints:
    """The RDMA ports of all nodes at work, where (nearly) all of them are held back, on several leaves and in several jobs; else
    none."""
    nics, jobs = window.of_kind("nic"), stats.node_jobs(window)
    at_work = ports.is_rdma(window) & shared.loud(window, nics) & shared.of_nodes(nics, set(jobs))
    columns = stats.columns_where(at_work & window.block(CARRIED).fresh())
    if not len(columns) or held[columns].mean() < p.share:
        return columns[:0]
    leaves = {window.topology.leaf_of(nics[e]) for e in columns.tolist()} - {None}
    found = {jobs[nics[e].node or ""] for e in columns.tolist()}
    return columns if len(leaves) >= p.leaves_min and len(found) >= p.jobs_min else columns[:0]


def _less_for_all(window: Window, signal: str, columns: Ints, low: Floats, p: Limits) -> bool:
    """The ports are held back more than before, and those of each job carry less than before."""
    near = stats.own_past(window, signal, columns, 2 * window.ticks(p.window_seconds), 0.5)
    before = np.fmin(near, stats.long_past(window, signal, PAST_SECONDS, columns))
    if not (stats.above(low[columns], p.times_past * before).mean() >= p.share):
        return False
    # Without the worst third of the span: a checkpoint or an evaluation takes a part of it.
    span = stats.span_of(window, CARRIED, p.window_seconds)
    now = (stats.PARTS * span.mean - span.low) / (stats.PARTS - 1)
    less = stats.below(now[columns], (1.0 - p.less) * _carried(window, columns, p))
    nics, jobs = window.of_kind("nic"), stats.node_jobs(window)
    of = np.array([jobs[nics[e].node or ""] for e in columns.tolist()])
    return all(less[of == job].mean() >= p.share for job in sorted(set(of.tolist())))


def _carried(window: Window, columns: Ints, p: Limits) -> Floats:
    """What each port carried before the span: the middle one of means of a third of its length, for a job sends in bursts; of hours,
    where that is more (a fabric that is slow for long). NaN with fewer than four such means."""
    ticks = max(1, window.ticks(p.window_seconds) // stats.PARTS)
    values = window.values(CARRIED)[: -(stats.PARTS + 1) * ticks, columns]
    whole = len(values) // ticks
    near = np.full(len(columns), np.nan)
    if whole >= FEWEST_MEANS:
        blocks = values[len(values) - whole * ticks:].reshape(whole, ticks, len(columns))
        near = np.asarray(stats.quantile(blocks.mean(axis=1), 0.5))
    return np.where(np.isnan(near), np.nan, np.fmax(near, FAR_SHARE * stats.long_past(window, CARRIED, PAST_SECONDS, columns)))


def _said(window: Window, fault: str, signal: str, columns: Ints, mean: Floats, least: float) -> list[Verdict]:
    nics = window.of_kind("nic")
    # The same port of a node each time: its ports are held back alike, and the worst of them is another one at each tick.
    first: dict[str | None, int] = {}
    for e in columns.tolist():
        first.setdefault(nics[e].node, e)
    some = np.array(sorted(first.values()), np.int64)
    together = np.asarray(stats.above(window.values(signal)[:, some], 0.3 * least).mean(axis=1) >= 0.9, bool)
    onset = int(stats.run_start(together[:, None], window.times, 4)[0])
    text = "all ports of the fabric are held back, and all jobs carry less than before"
    return [Verdict(nics[e], fault, "faulty", SLOW, (stats.evidence(signal, mean[e], None, "the fabric as it was", text),),
                    "fabric_congested", onset_at=onset) for e in some.tolist()]
