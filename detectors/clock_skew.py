"""A node whose clock is off: its offset is large, or its time daemon has lost its source and the error bound has grown.

What is read is the kernel's own word on its clock. A clock that is stepped back into place is over at once. Where no clock of
the site ever followed a source (guests that take the time of their host), nothing was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import stats

FAULT = "clock_skew"


@dataclass(frozen=True)
class Params:
    """Sources: the alert rules that people run today (signals.md §4): an offset of more than 0.05 s, or not synchronised with
    a maximum error of 16 s and more.

    window_seconds: for how long. offset_seconds, error_seconds: from where. past_seconds: within which the clock followed a
    source, or else peers_share of the other clocks must do so now: longer than the 9 hours in which the kernel's bound grows
    to 16 s (by 500 microseconds a second). unguided_seconds: or the clock that followed a source in that past says for so long
    that it does not, and its bound grows by `rising` a second all that time, which is what the kernel adds where nobody guides it
    (0.8 of it, for readings that are late). A daemon that starts anew has its source back within a minute or two.
    """

    window_seconds: float = 240.0
    offset_seconds: float = 0.05
    error_seconds: float = 16.0
    past_seconds: int = 86400
    peers_share: float = 0.5
    unguided_seconds: float = 240.0
    rising: float = 4e-4


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node that shows its clock's offset or state."""
    nodes = window.of_kind("node")
    if not nodes or not len(window.times):
        return []
    size = np.abs(window.values("node.clock_offset_seconds"))
    block = window.block("node.clock_offset_seconds")
    offset = stats.span(size, stats.interval_ticks(block, window.step_seconds), window.ticks(params.window_seconds))
    synced, error = window.last("node.clock_synced"), window.last("node.clock_error_seconds")
    off = stats.above(offset.low, params.offset_seconds)
    before, others = _followed(window, params), _others_follow(synced, params)
    unguided = _unguided(window, params) & before
    lost = (stats.below(synced, 0.5) & stats.above(error, params.error_seconds) & (before | others)) | unguided
    fresh = (block.fresh() & ~np.isnan(offset.mean)) | (window.block("node.clock_synced").fresh() & ~np.isnan(synced))
    symptom = stats.above(size, params.offset_seconds) | (
        stats.below(window.values("node.clock_synced"), 0.5)
        & (stats.above(window.values("node.clock_error_seconds"), params.error_seconds) | unguided))
    onsets = stats.run_start(symptom, window.times, 4)
    out = []
    for e in np.flatnonzero(fresh):
        if nodes[e].node in window.silent_nodes:
            continue
        if not (off[e] or lost[e]):
            out.append(Verdict(nodes[e], FAULT, "clear", reason="clear"))
            continue
        rows = [stats.evidence("node.clock_offset_seconds", float(block.last[e]), 0.0, "a clock that keeps time")] if off[e] else [
            stats.evidence("node.clock_error_seconds", error[e], None, "not synchronised: the bound of its error grows")]
        out.append(Verdict(nodes[e], FAULT, "faulty", 0.3, tuple(rows), "offset" if off[e] else "not_synchronised",
                           onset_at=int(onsets[e])))
    return out


def _unguided(window: Window, p: Params) -> stats.Bools:
    """bool[node]: the clock is without a source for `unguided_seconds`, and the bound of its error grew all the while."""
    ticks = window.ticks(p.unguided_seconds)
    synced, error = window.tail("node.clock_synced", p.unguided_seconds), window.tail("node.clock_error_seconds", p.unguided_seconds)
    if len(window.times) < ticks:
        return np.zeros(synced.shape[1], bool)
    without = stats.below(stats.quantile(synced, 1.0), 0.5) & (stats.count(synced) >= 3)
    return np.asarray(without & stats.above(stats.slope_per_second(error, window.times[-ticks:]), p.rising))


def _followed(window: Window, p: Params) -> stats.Bools:
    """bool[node]: the clock followed a source before."""
    past = window.baseline("node.clock_synced", p.past_seconds)
    seen = stats.above(stats.quantile(window.values("node.clock_synced"), 1.0), 0.5)
    return np.asarray(seen | ((past.n >= 10) & stats.above(past.median, 0.5)))


def _others_follow(synced: Floats, p: Params) -> stats.Bools:
    """bool[node]: most of the other clocks follow one now."""
    known, good = ~np.isnan(synced), stats.above(synced, 0.5)
    return stats.above(stats.ratio(good.sum() - good, (known.sum() - known).astype(np.float64)), p.peers_share)


PLUGIN = DetectorPlugin(
    name="clock_skew", fault=FAULT, judge=judge, params=Params, needs=(("node.clock_offset_seconds", "node.clock_synced"),),
    hold=Hold(on=3, of=4, off=4), must_not=("a step that puts the clock right", "a moment without a source",
                                            "a site without time sources"),
)
