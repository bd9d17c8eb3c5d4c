"""How long disks and shared storage take for a call, now and at like load before: what detectors of slow storage share.

A call takes longer when there are more calls, so a time says nothing by itself. It is compared with times of the same part
while it carried as much as now or more; where it never did, nothing can be said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats, Target
from core.window import Window
from detectors import shared, stats
from detectors.stats import Ints

BLOCK_TICKS = 8       # of the past: two minutes
LIKE_LOAD = 0.8       # a block of the past counts with this share of the load of now, or more
HIGH = 0.75           # of a block's times, the quantile that stands for it


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """By part. now: the smallest of three thirds of the last moments, so that a burst does not count. load: then.
    before: the best time of the past at like load, NaN where there was none."""

    now: Floats
    load: Floats
    before: Floats


def node_load(window: Window, parts: tuple[Target, ...]) -> Floats:
    """float64[tick, part]: what each part's node moves to and from shared storage."""
    block = window.block("node.storage_bytes_per_second")
    def make() -> Ints:
        column = {node.node: e for e, node in enumerate(block.entities)}
        return np.array([column.get(part.node, -1) for part in parts], np.int64)

    at = shared.kept("places of the parts' nodes", (parts, block.entities), make)
    if not len(block.entities):
        return np.full((len(window.times), len(parts)), np.nan)
    return np.where(at >= 0, block.values[:, np.maximum(at, 0)], np.nan)


def compared(times: Floats, load: Floats, intervals: Ints, ticks: int) -> Times:
    """times, load: float64[tick, part], seconds a call and any measure of load (NaN where missing; a load that is missing
    everywhere is taken as alike). ticks: how many are now."""
    recent = stats.span(times, intervals, ticks)
    # A short save is not what it carries; but where times are known of the save alone (the page came back in it), it is.
    carried = stats.median(np.where(np.isnan(times[-ticks:]), np.nan, load[-ticks:]))
    best = np.full(times.shape[1], np.nan)
    unknown = np.isnan(load).all(axis=0) if len(load) else np.ones(times.shape[1], bool)
    end = len(times) - ticks
    for start in range(0, end - BLOCK_TICKS + 1, BLOCK_TICKS):
        part = times[start:start + BLOCK_TICKS]
        level = np.where(stats.count(part) >= BLOCK_TICKS // 2, stats.quantile(part, HIGH), np.nan)
        like = unknown | stats.above(stats.mean(load[start:start + BLOCK_TICKS]), LIKE_LOAD * carried)
        best = np.fmin(best, np.where(like, level, np.nan))
    return Times(recent.low, carried, best)
