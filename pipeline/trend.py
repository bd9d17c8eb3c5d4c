"""Trends that outliers, gaps and ties cannot fake: Theil–Sen slopes and the Mann–Kendall test, for many series at once.

Sen's interval of the slope and the test's variance follow Sen (1968) and Kendall with his correction for ties. Days that
resemble the day before make a trend look surer than it is, so the variance is widened by the autocorrelation of the ranks
that the trend leaves (Hamed and Rao 1998, lag one, corrected for its bias in short series).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats

COLUMNS_AT_ONCE = 1024  # so that the pairs of a month of days stay within some 10 MB
Z_OF_90 = 1.6449  # half of a two-sided 90 % interval of a normal distribution
MOST_CORRELATED = 0.9
EXACT = 1e-9  # of the greatest value: less is rounding


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """By series, float64[series], NaN where fewer than three values are known. n: how many are. slope: per day; low, high: its
    90 % interval. rising: chance (one-sided) of such a rise without a trend. middle_at, middle: the point that the line goes
    through (days, value). spread: robust standard deviation of what the line leaves."""

    n: Floats
    slope: Floats
    low: Floats
    high: Floats
    rising: Floats
    middle_at: Floats
    middle: Floats
    spread: Floats

    def at(self, day: float) -> Floats:
        """The line's value at a day."""
        return self.middle + self.slope * (day - self.middle_at)


def trend(days: Floats, values: Floats) -> Trend:
    """days: float64[row], ascending; values: float64[row, series], NaN = missing."""
    parts = [_trend(days, values[:, a : a + COLUMNS_AT_ONCE]) for a in range(0, values.shape[1], COLUMNS_AT_ONCE)]
    if not parts:
        nothing = np.zeros(0)
        return Trend(*[nothing] * 8)
    return Trend(*(np.concatenate([getattr(p, name) for p in parts]) for name in Trend.__dataclass_fields__))


def _trend(days: Floats, values: Floats) -> Trend:
    known = ~np.isnan(values)
    n = known.sum(axis=0).astype(np.float64)
    first, second = np.triu_indices(len(days), 1)
    rise = values[second] - values[first]
    with np.errstate(invalid="ignore"):
        slopes = np.sort(rise / (days[second] - days[first])[:, None], axis=0)  # NaN sorts last
        s = np.nansum(np.sign(rise), axis=0)
    pairs = (~np.isnan(slopes)).sum(axis=0)
    enough = n >= 3
    slope = np.where(enough, _at_rank(slopes, (pairs - 1) / 2), np.nan)
    middle_at, middle = _median(np.where(known, days[:, None], np.nan)), _median(values)
    rest = values - slope * days[:, None]
    middle = _median(rest) + slope * middle_at
    spread = 1.4826 * _median(np.abs(values - (middle + slope * (days[:, None] - middle_at))))
    variance = _variance(values, n) * _widened(rest, n, values)
    width = Z_OF_90 * np.sqrt(np.maximum(variance, 0.0))
    low = np.where(enough, _at_rank(slopes, (pairs - width) / 2 - 1), np.nan)
    high = np.where(enough, _at_rank(slopes, (pairs + width) / 2), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(variance > 0, (s - np.sign(s)) / np.sqrt(variance), 0.0)
    rising = np.array([0.5 * math.erfc(one / math.sqrt(2.0)) for one in z])
    return Trend(n, slope, low, high, np.where(enough, rising, np.nan), middle_at, middle, spread)


def _at_rank(ordered: Floats, rank: Floats | NDArray[np.int64]) -> Floats:
    """The value at a (fractional) rank of each column; ranks beyond the ends are the ends."""
    last = np.maximum((~np.isnan(ordered)).sum(axis=0) - 1, 0)
    if not len(ordered):
        return np.full(ordered.shape[1], np.nan)
    inside = np.clip(np.asarray(rank, np.float64), 0.0, last.astype(np.float64))
    below = np.floor(inside).astype(np.int64)
    above = np.minimum(below + 1, last)
    low = np.take_along_axis(ordered, below[None], 0)[0]
    high = np.take_along_axis(ordered, above[None], 0)[0]
    return np.asarray(low + (high - low) * (inside - below))


def _median(values: Floats) -> Floats:
    ordered = np.sort(values, axis=0)
    return _at_rank(ordered, ((~np.isnan(ordered)).sum(axis=0) - 1) / 2)


def _variance(values: Floats, n: Floats) -> Floats:
    """Of Mann–Kendall's S, ties counted."""
    equal = np.zeros(values.shape)
    for row in values:
        equal += values == row  # NaN equals nothing
    ties = np.where(equal > 0, (equal - 1) * (2 * equal + 5), 0.0).sum(axis=0)
    return np.maximum((n * (n - 1) * (2 * n + 5) - ties) / 18.0, 0.0)


def _widened(rest: Floats, n: Floats, scale: Floats) -> Floats:
    """By how much autocorrelation widens the variance, at least 1. rest: float64[row, series] without the trend;
    scale: with it."""
    known = ~np.isnan(rest)
    # What a line without noise leaves is rounding: equal values share their rank.
    with np.errstate(invalid="ignore"):
        grain = EXACT * np.fmax.reduce(np.abs(scale), axis=0, initial=0.0)
        even = np.where(grain > 0, np.round(rest / np.where(grain > 0, grain, 1.0)), rest)
    rank = np.zeros(rest.shape)
    for row in even:
        rank += (row < even) + 0.5 * (row == even)
    off = np.where(known, rank - n / 2, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        one = (off[1:] * off[:-1]).sum(axis=0) / (off * off).sum(axis=0)
        one = np.where(n > 4, (n * one + 1) / (n - 4), 0.0)
        one = np.clip(np.where(np.isnan(one), 0.0, one), 0.0, MOST_CORRELATED)
        lags = np.arange(1, len(rest))[:, None]
        weights = np.where(lags <= n - 3, (n - lags) * (n - lags - 1) * (n - lags - 2), 0.0)
        more = 2.0 / (n * (n - 1) * (n - 2)) * (weights * one[None, :] ** lags).sum(axis=0)
    return np.where(n > 4, 1.0 + np.nan_to_num(more), 1.0)
