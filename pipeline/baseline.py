"""The past of a signal: 1-minute means for up to 24 hours, kept only for signals that somebody has asked for.

All 70 signals of 8,000 GPUs would be gigabytes; detectors compare a few with their own past. The first question is
answered from the ring's half hour, and from then on the minutes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from core.types import Baseline, Floats

MINUTE_MS = 60_000
KEPT_MINUTES = 24 * 60
LONG_MINUTES = 60
COARSE_MS = 5 * MINUTE_MS
Numbers = NDArray[np.int64]


class Minutes:
    """float64[minute, column] of one signal; minutes are named by their end (ms)."""

    def __init__(self, columns: int) -> None:
        self._ends: Numbers = np.zeros(32, np.int64)
        self._means: Floats = np.full((32, columns), np.nan)
        self._n = 0
        self._asked: dict[int, tuple[int, Baseline]] = {}  # by seconds: up to when, and what it was
        self._last: dict[tuple[int, int], Baseline] = {}   # by first and last minute, as long as no minute changes

    def add(self, end: int, values: Floats) -> None:
        """One more minute: values is float64[tick, column] of its ticks, all NaN = missing."""
        if self._n and end <= self._ends[self._n - 1]:
            return
        self._last.clear()
        if self._n == len(self._ends):
            keep = min(self._n, KEPT_MINUTES - 1)
            size = min(2 * self._n, 2 * KEPT_MINUTES)
            ends, means = np.zeros(size, np.int64), np.full((size, self._means.shape[1]), np.nan)
            ends[:keep], means[:keep] = self._ends[self._n - keep:self._n], self._means[self._n - keep:self._n]
            self._ends, self._means, self._n = ends, means, keep
        self._ends[self._n], self._means[self._n] = end, mean_of(values)
        self._n += 1

    @property
    def oldest(self) -> int | None:
        """The end (ms) of the oldest minute, None where there is none."""
        return int(self._ends[0]) if self._n else None

    def exclude(self, columns: Iterable[int], since: int, until: int | None = None) -> None:
        """Leaves out the minutes that end after `since` (ms), up to and including `until`."""
        first = int(np.searchsorted(self._ends[:self._n], since, "right"))
        last = self._n if until is None else int(np.searchsorted(self._ends[:self._n], until, "right"))
        if first < last:
            which = list(columns)
            if not np.isnan(self._means[first:last, which]).all():  # at most ticks they have been left out before
                self._means[first:last, which] = np.nan
                self._last.clear()

    def regrid(self, former: Numbers) -> None:
        """Moves the columns: former[new column] = old column, -1 = a new part."""
        fresh = np.full((len(self._ends), len(former)), np.nan)
        known = former >= 0
        fresh[:self._n, known] = self._means[:self._n, former[known]]
        self._means = fresh
        self._asked.clear()
        self._last.clear()

    def summary(self, start: int, end: int) -> Baseline:
        """n, median, MAD and slope per hour of the minutes with start < minute's end <= end.

        A past of more than an hour is told up to the last full five minutes: it changes too little to be worth a second of
        each tick (1,000 nodes: 1,440 minutes of 8,000 parts for each signal that somebody compares with its past).
        """
        if self._n and min(self._n, (end - start) // MINUTE_MS) > LONG_MINUTES:
            rounded = end // COARSE_MS * COARSE_MS
            start, end = start - (end - rounded), rounded
            known = self._asked.get(end - start)
            if known is not None and known[0] == end:
                return known[1]
        a = int(np.searchsorted(self._ends[:self._n], start, "right"))
        b = int(np.searchsorted(self._ends[:self._n], end, "right"))
        found = self._last.get((a, b))
        if found is None:
            found = self._last[a, b] = summarise(self._ends[a:b], self._means[a:b])
        if b - a > LONG_MINUTES:
            self._asked[end - start] = (end, found)
        return found


def mean_of(values: Floats) -> Floats:
    """float64[column]: the mean of what is known, NaN where nothing is."""
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def summarise(ends: Numbers, means: Floats) -> Baseline:
    """Robust location and spread by column, and the least-squares slope per hour."""
    columns = means.shape[1]
    if not len(ends):
        nan = np.full(columns, np.nan)
        return Baseline(np.zeros(columns), nan, nan, nan)
    known = ~np.isnan(means)
    n = known.sum(axis=0).astype(np.float64)
    median = _medians(means, n)
    mad = _medians(np.abs(means - median), n)
    hours = ((ends - ends[-1]) / 3_600_000.0)[:, None]
    mean_hour = np.where(known, hours, 0.0).sum(axis=0) / np.maximum(n, 1)
    off = np.where(known, hours - mean_hour, 0.0)
    spread = (off * off).sum(axis=0)
    centred = np.where(known, means - np.where(np.isnan(median), 0.0, median), 0.0)
    slope = np.where(spread > 0, (off * centred).sum(axis=0) / np.where(spread > 0, spread, 1.0), np.nan)
    return Baseline(n, median, mad, slope)


def _medians(values: Floats, n: Floats) -> Floats:
    """float64[column]: medians of what is known (n of each column), NaN where nothing is. Columns that know the same number
    are partitioned together, which costs a fifth of numpy's nanmedian."""
    out = np.full(values.shape[1], np.nan)
    for count in np.unique(n[n > 0]).astype(np.int64).tolist():
        columns = np.flatnonzero(n == count)
        rows = np.ascontiguousarray(values[:, columns].T)
        low, high = (count - 1) // 2, count // 2
        rows.partition((low, high), axis=1)  # NaN goes last
        out[columns] = (rows[:, low] + rows[:, high]) / 2.0
    return out
