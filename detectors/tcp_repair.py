"""Loss on plain Ethernet as TCP tells it: nobody counts what never arrived, only the senders see that they send again.

They count by node, not by port. A bad port loses both ways: its own node repairs what it sends to all, each of its peers
repairs what it sends there. So the culprit's share is the largest, and about as large as all of its peers' together. A
port that loses only what it sends has no such mirror: it counts only where the job is seen to wait as well. A far end
that is reached over a bad line (a bucket, a log server) has neither. Where nodes repair alike, nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Evidence, Floats, JobState, Target
from core.window import Window
from detectors import shared, stats
from detectors.stats import Bools, Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """Of `packet_loss.Params`: seconds, segments again a second, share of all segments, times the past, how far ahead of the
    next the culprit is, what the others repair as a share of what it repairs (least, most), share without a mirror, growth of the wait."""

    seconds: float
    rate: float
    share: float
    times_past: float
    ahead: float
    mirror: tuple[float, float]
    share_alone: float
    wait_grew: float


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """What TCP sends again by node (columns of `node`). rate: a second, over the span; share: of its segments; past: the share
    before; stands_out: far above it, over the whole span."""

    rate: Floats
    share: Floats
    past: Floats
    stands_out: Bools


def read(window: Window, limits: Limits) -> Repair:
    """The repair of each node over the last `seconds`."""
    again = stats.span_of(window, "node.tcp_retransmits_per_second", limits.seconds)
    sent = stats.span_of(window, "node.tcp_segments_per_second", limits.seconds)
    share = stats.ratio(again.mean, sent.mean)
    enough = stats.above(again.low, limits.rate) & stats.above(share, limits.share)
    past = np.full(len(share), np.nan)
    columns = stats.columns_where(enough)
    if len(columns):
        past[columns] = _past(window, columns, window.ticks(limits.seconds) + 2)
    # Without a past nothing is known to have changed.
    return Repair(again.mean, share, past, enough & stats.above(share, limits.times_past * past))


def _past(window: Window, columns: Ints, skip: int) -> Floats:
    """The usual share of the node: of the window before the span, at worst; of its long past where that is less."""
    def ended(signal: str) -> Floats:
        return window.values(signal)[:-skip, columns]

    shares = stats.ratio(ended("node.tcp_retransmits_per_second"), ended("node.tcp_segments_per_second"))
    near = np.where(stats.count(shares) >= 4, stats.quantile(shares, 0.75), np.nan)
    far = stats.ratio(stats.long_past(window, "node.tcp_retransmits_per_second", 6 * 3600, columns),
                      stats.long_past(window, "node.tcp_segments_per_second", 6 * 3600, columns))
    return np.fmin(near, far)


def culprit(window: Window, job: JobState, repair: Repair, limits: Limits) -> int | None:
    """The column of the job's node whose port loses packets, None where none is named."""
    columns = shared.on_nodes(window.of_kind("node"), job.nodes)
    if len(columns) < 3:
        return None  # of two ends nobody can tell which
    rate = np.where(repair.stands_out[columns], repair.rate[columns], 0.0)
    order = np.argsort(-rate, kind="stable")
    top, others = rate[order[0]], rate[order[1:]]
    if top <= 0 or top < limits.ahead * others.max(initial=0.0):
        return None
    least, most = limits.mirror
    mirrored = others.sum() / top
    first = int(columns[order[0]])
    if least <= mirrored <= most and (others > 0).sum() >= 2:
        return first
    alone = mirrored == 0 and stats.above(repair.share[[first]], limits.share_alone).all()
    return first if alone and _waits(window, job, limits) else None


def _waits(window: Window, job: JobState, limits: Limits) -> bool:
    """The job's steps take longer than before the span."""
    steps = window.values("rank.step_seconds")[:, np.array(job.ranks, np.int64)]
    ticks = window.ticks(limits.seconds)
    now, before = stats.median(stats.median(steps[-ticks:])), stats.median(stats.median(steps[:-ticks - 2]))
    return bool(now >= (1.0 + limits.wait_grew) * before)


def port(window: Window, node: Target, usable: Bools) -> Target:
    """The node's port that has nearly all of its traffic, among the usable columns of `nic`; else the node itself."""
    nics = window.of_kind("nic")
    mine = np.array([e for e, nic in enumerate(nics) if nic.node == node.node and usable[e]], np.int64)
    bytes_ = sum(np.nan_to_num(stats.span_of(window, f"nic.{way}_bytes_per_second", 300.0).mean[mine])
                 for way in ("received", "transmitted"))
    traffic = np.asarray(bytes_, np.float64)
    if not len(mine) or traffic.max(initial=0.0) < 0.6 * traffic.sum() or not traffic.any():
        return node
    return nics[int(mine[int(np.argmax(traffic))])]


def onset(window: Window, column: int, repair: Repair) -> int:
    """Since when the node repairs more than a third of today's rate."""
    again = window.values("node.tcp_retransmits_per_second")[:, [column]]
    return int(stats.run_start(stats.above(again, repair.rate[column] / 3.0), window.times, 2)[0])


def evidence(column: int, repair: Repair, sent: Floats) -> tuple[Evidence, ...]:
    """What stands for the verdict."""
    share, past = repair.share[column], repair.past[column]
    text = f"{share:.2%} of the segments sent again, {past:.2%} before"
    return (stats.evidence("node.tcp_retransmits_per_second", repair.rate[column], past * sent[column], "its own past", text),
            stats.evidence("node.tcp_segments_per_second", sent[column], None, "segments that it sends"))
