"""From hourly rollups to days: how fast a counter grew, and how a GPU's thermal margin stood under load.

A day is a block of 24 hours that ends with the newest whole hour, so that the time of day, which load and cooling follow, is
in each of them. What is not known of at least half of a day is missing, and so is an hour in which a counter began anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Target

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LONGEST_GAP_HOURS = 3  # as in the window: a rate across a longer gap says nothing of its hours
LEAST_HOURS = 12
LOADED = 0.6  # of a part's own usual greatest power: hours in which its temperature tells of its cooling
LEAST_LOADED_HOURS = 3
# °C that the margin falls for each watt, where too few parts are there to learn it: 32 °C over 560 W (signals.md §10).
CELSIUS_PER_WATT = 0.057
GREATEST_CELSIUS_PER_WATT = 0.2
LEAST_LEARNED = 200  # hours

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """One quantity by day. parts; values float64[day, part], NaN = missing, the last row is the newest day. level: float64
    [part], how the part stands now where the values are corrected ones, NaN = as the values say."""

    signal: str
    parts: tuple[Target, ...]
    values: Floats
    level: Floats | None = None


def day_of(at: Times, end: int, days: int) -> Times:
    """int64[n]: the row of each hour (named by its start, ms), outside of 0..days-1 where it is in none."""
    return days - 1 - (end - HOUR_MS - at) // DAY_MS


def growth(at: Times, last: Floats, high: Floats, end: int, days: int) -> tuple[Floats, Floats]:
    """(growth, hours known) by day of one counter. at: int64[n] starts of hours, ascending; last, high: newest and greatest
    value in each."""
    total, hours = np.zeros(days), np.zeros(days)
    if len(at) < 2:
        return total, hours
    gap = np.diff(at) / HOUR_MS
    more = np.diff(last)
    # The hour's greatest value is above its last one: it began anew within the hour, and what it grew before is not known.
    good = (more >= 0) & (high[1:] <= last[1:]) & (gap <= LONGEST_GAP_HOURS) & np.isfinite(more)
    day = day_of(at[1:], end, days)
    good &= (day >= 0) & (day < days)
    np.add.at(total, day[good], more[good])
    np.add.at(hours, day[good], gap[good])
    return total, hours


def rates(total: Floats, hours: Floats) -> Floats:
    """Per second by day, NaN where less than half of the day is known."""
    return np.where(hours >= LEAST_HOURS, total / np.maximum(hours, 1.0) / 3600.0, np.nan)


def margins(parts: Sequence[Target], margin: Floats, power: Floats, end_row: int) -> Days:
    """The thermal margin under load by day, as it would be at the part's usual power. margin, power: float64[hour, part];
    end_row: rows before the newest hour's end that make whole days (a multiple of 24)."""
    with np.errstate(invalid="ignore"):
        busy = power >= LOADED * _quantile(power, 0.95)
    no_power = np.isnan(power).all(axis=0)
    busy |= no_power & ~np.isnan(margin)
    hours = np.where(busy, margin, np.nan)
    usual = _quantile(np.where(busy, power, np.nan), 0.5)
    off = np.where(no_power, 0.0, np.where(busy, power, np.nan) - usual)
    fixed = hours + celsius_per_watt(hours, off) * off
    days = end_row // 24
    by_day = fixed[len(fixed) - end_row :].reshape(days, 24, len(parts))
    known = (~np.isnan(by_day)).sum(axis=1)
    # Without the power the coolest hours say nothing: the hot quarter of the day is what the margin is for.
    value = np.where(no_power, _quantile(by_day.swapaxes(0, 1), 0.25), _quantile(by_day.swapaxes(0, 1), 0.5))
    values = np.where(known >= LEAST_LOADED_HOURS, value, np.nan)
    low = _quantile(values[-3:], 0.5) if days else np.full(len(parts), np.nan)
    return Days("gpu.thermal_margin_celsius", tuple(parts), values, low)


def celsius_per_watt(margin: Floats, off: Floats) -> float:
    """How much margin a watt costs, over all parts; margin float64[hour, part], off: watts above the part's usual."""
    around = margin - _quantile(margin, 0.5)
    good = ~np.isnan(around) & ~np.isnan(off) & (np.abs(off) > 1.0)
    if good.sum() < LEAST_LEARNED:
        return CELSIUS_PER_WATT
    fall = -float((around[good] * off[good]).sum() / (off[good] ** 2).sum())
    return min(max(fall, 0.0), GREATEST_CELSIUS_PER_WATT)


def _quantile(values: Floats, q: float) -> Floats:
    """Along the first axis without the missing, NaN where all are."""
    ordered = np.sort(values, axis=0)
    n = (~np.isnan(ordered)).sum(axis=0)
    if not len(ordered):
        return np.full(values.shape[1:], np.nan)
    rank = np.maximum(n - 1, 0) * q
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(n - 1, 0))
    a, b = (np.take_along_axis(ordered, i[None], 0)[0] for i in (low, high))
    return np.where(n > 0, a + (b - a) * (rank - low), np.nan)
