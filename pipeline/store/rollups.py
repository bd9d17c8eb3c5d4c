"""Rollups: minimum, maximum, sum, count and last value of each series in buckets of a minute or an hour. Pure.

A bucket is named by its start. NaN values that an exporter gave are counted in no bucket. In files a bucket has one row
for each statistic, so that the value columns are those of the raw rows: `stat` is an index into STATS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Series

MINUTE_MS = 60_000
STATS = ("min", "max", "sum", "count", "last", "last_at")  # last_at: ms after the bucket's start


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """keys [bucket] (entity or series), at int64[bucket] (start, ms), stats float64[statistic, column, bucket], NaN where
    the column has no value in the bucket."""

    keys: NDArray[Any]
    at: NDArray[np.int64]
    stats: Floats

    @property
    def cells(self) -> int:
        """How many buckets of series have values."""
        return int((~np.isnan(self.stats[3])).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Rollup:
    """A series in buckets: at int64[n] (start, ms, ascending); min, max, mean, count, last, sum float64[n]."""

    series: Series
    at: NDArray[np.int64]
    min: Floats
    max: Floats
    mean: Floats
    count: Floats
    last: Floats
    sum: Floats


def roll(keys: NDArray[Any], at: NDArray[np.int64], values: Floats, step_ms: int = MINUTE_MS) -> Buckets:
    """Buckets of raw rows. keys, at: sorted by key and time; values: float64[column, row], NaN = missing."""
    start = at // step_ms * step_ms
    first = _starts(keys, start)
    out = np.full((len(STATS), len(values), len(first)), np.nan)
    if not len(first):
        return Buckets(keys[:0], start[:0], out)
    order = np.arange(len(at))
    offset = (at - start).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for i, column in enumerate(values):
            there = ~np.isnan(column)
            count = np.add.reduceat(there.astype(np.int64), first)
            some = count > 0
            if not some.any():
                continue
            newest = np.maximum.reduceat(np.where(there, order, -1), first)[some]
            out[0, i] = np.fmin.reduceat(column, first)
            out[1, i] = np.fmax.reduceat(column, first)
            out[2, i, some] = np.add.reduceat(np.where(there, column, 0.0), first)[some]
            out[3, i, some] = count[some]
            out[4, i, some], out[5, i, some] = column[newest], offset[newest]
    return Buckets(keys[first], start[first], out)


def roll_up(buckets: Buckets, step_ms: int) -> Buckets:
    """Coarser buckets from finer ones of equal or smaller step. Buckets of one key and start, in any order of their last
    values, become one: so parts of an hour that were sealed one after the other are put together."""
    start = buckets.at // step_ms * step_ms
    order = np.lexsort((start, buckets.keys))
    keys, start = buckets.keys[order], start[order]
    stats = buckets.stats[:, :, order]
    first = _starts(keys, start)
    out = np.full((len(STATS), stats.shape[1], len(first)), np.nan)
    if not len(first):
        return Buckets(keys[:0], start[:0], out)
    bucket = np.repeat(np.arange(len(first)), np.diff([*first.tolist(), len(keys)]))
    shift = (buckets.at[order] - start).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for i in range(stats.shape[1]):
            low, high, total, count, last, last_at = stats[:, i]
            there = ~np.isnan(count)
            some = np.logical_or.reduceat(there, first)
            out[0, i], out[1, i] = np.fmin.reduceat(low, first), np.fmax.reduceat(high, first)
            out[2, i, some] = np.add.reduceat(np.where(there, total, 0.0), first)[some]
            out[3, i, some] = np.add.reduceat(np.where(there, count, 0.0), first)[some]
            when = np.where(there, shift + last_at, -1.0)
            newest = np.maximum.reduceat(when, first)
            hit = np.flatnonzero(there & (when == newest[bucket]))
            out[4, i, bucket[hit]], out[5, i, bucket[hit]] = last[hit], when[hit]
    return Buckets(keys[first], start[first], out)


def _starts(keys: NDArray[Any], start: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(keys):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero((np.diff(keys.astype(np.int64)) != 0) | (np.diff(start) != 0)) + 1])


def stacked(buckets: Buckets) -> list[NDArray[Any]]:
    """As columns of a file, statistic by statistic: stat, key, time, then the value columns."""
    n = len(buckets.keys)
    columns: list[NDArray[Any]] = [np.repeat(np.arange(len(STATS), dtype=np.uint8), n), np.tile(buckets.keys, len(STATS)),
                                   np.tile(buckets.at, len(STATS))]
    return columns + [np.ascontiguousarray(buckets.stats[:, i].reshape(-1)) for i in range(buckets.stats.shape[1])]


def joined(parts: Sequence[Buckets], step_ms: int) -> Buckets:
    """All buckets of one column set as one."""
    return roll_up(Buckets(np.concatenate([p.keys for p in parts]), np.concatenate([p.at for p in parts]),
                           np.concatenate([p.stats for p in parts], axis=2)), step_ms)
