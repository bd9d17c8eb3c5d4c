"""Values at ticks and 1-minute means from stored readings, all at once: the past of a signal after a restart.

The ring closes one tick after another, each scrape by itself: right for a half hour, too slow for six. Here a target's
readings are one matrix and the rules of `ring_rows` (hold, gap, reset, gone) are passes over it. Two things are less exact
than live: the time between samples is the usual one of the whole stretch, where the ring learns it from the last 16, and
a failed scrape that left no row in the store ends a held value only when the hold ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from core.derive import DERIVED, derive
from core.types import Floats
from pipeline.baseline import MINUTE_MS, mean_of
from pipeline.ring_feeds import SHORTEST_INTERVAL_MS, Meanings
from pipeline.ring_rows import COMBINE, GAP_INTERVALS, HOLD_INTERVALS, SIGNAL_NAMES, UNKNOWN_INTERVAL_MS

Numbers = NDArray[np.int64]
FIRST, SUM = 0, 1  # as in COMBINE; 2 is the largest


class Past:
    """Some signals over a stretch of ticks. ticks: int64[n], ms, ascending, the first `lead` of them only to begin rates
    and holds with. widths: columns by signal's number. Add targets in the order in which copies of a part are preferred."""

    def __init__(self, widths: Mapping[int, int], ticks: Numbers, lead: int, step_ms: int) -> None:
        self._ticks, self._lead, self._step = ticks, lead, step_ms
        self.values = {number: np.full((len(ticks) - lead, width), np.nan) for number, width in widths.items()}

    def add(self, meanings: Meanings, columns: Numbers, at: Numbers, readings: Floats) -> None:
        """A target's readings: at int64[n] ms ascending, readings float64[n, meanings.size] as scraped. columns:
        int64[len(meanings.parts)], -1 where a part stands on no axis."""
        column = columns[meanings.part]
        for number, values in self.values.items():
            refs = np.flatnonzero((meanings.signal == number) & (column >= 0))
            if not len(refs) or not len(at):
                continue
            told = at_ticks(meanings, number, refs, at, readings, self._ticks, self._step)[self._lead:]
            parts, told = _by_part(column[refs], told, int(COMBINE[number]))
            known = values[:, parts]
            values[:, parts] = np.where(np.isnan(known), told, known) if COMBINE[number] == FIRST else np.fmax(known, told)

    def minutes(self) -> tuple[Numbers, dict[int, Floats]]:
        """(ends int64[m], means float64[m, column] by signal) of whole minutes."""
        ticks, each = self._ticks[self._lead:], MINUTE_MS // self._step
        last = np.flatnonzero(ticks % MINUTE_MS == 0)
        last = last[last >= each - 1]
        means = {number: np.stack([mean_of(values[i + 1 - each : i + 1]) for i in last.tolist()])
                 if len(last) else values[:0] for number, values in self.values.items()}
        return ticks[last], means


def at_ticks(meanings: Meanings, signal: int, refs: Numbers, at: Numbers, readings: Floats, ticks: Numbers,
             step_ms: int) -> Floats:
    """float64[tick, ref]: what the ring shows of references to one signal; counters as rates per second."""
    raw = readings[:, meanings.index[refs]]
    with np.errstate(invalid="ignore", over="ignore"):
        values = raw * meanings.scale[refs]
    if SIGNAL_NAMES[signal] in DERIVED:
        values = derive(SIGNAL_NAMES[signal], raw, meanings.scale[refs])
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(at))[:, None], -1), axis=0)
    upto = np.searchsorted(at, ticks, "right") - 1
    newest = np.where(upto[:, None] >= 0, last[np.maximum(upto, 0)], -1)
    there = np.maximum(newest, 0)
    when = np.where(newest >= 0, at[there].astype(np.float64), -np.inf)
    interval = usual(at)
    bound = UNKNOWN_INTERVAL_MS if np.isnan(interval) else interval * HOLD_INTERVALS
    new = when > ticks[:, None] - step_ms
    good = ticks[:, None] - when <= max(bound, step_ms)
    if not meanings.partial:  # what the newest reading lacks is gone; of one that speaks in parts it may come later
        good &= new | (newest == upto[:, None])
    shown = np.take_along_axis(values, there, axis=0)
    counts = np.flatnonzero(meanings.counter[refs])
    if len(counts):
        shown[:, counts] = _rates(values[:, counts], known[:, counts], last[:, counts], newest[:, counts], new[:, counts],
                                  at, interval)
    return np.where(good, shown, np.nan)


def _rates(values: Floats, known: NDArray[np.bool_], last: Numbers, newest: Numbers, new: NDArray[np.bool_], at: Numbers,
           interval: float) -> Floats:
    """float64[tick, ref]: per second between the newest samples of ticks that had one, NaN across a reset or a gap."""
    before = np.concatenate([np.full((1, last.shape[1]), -1), last[:-1]])
    base = np.maximum(before, 0)
    gap = GAP_INTERVALS * (UNKNOWN_INTERVAL_MS if np.isnan(interval) else interval)
    fell = values < np.take_along_axis(values, base, axis=0)
    broken = np.cumsum(known & (before >= 0) & (fell | (at[:, None] - at[base] > gap)), axis=0)
    former = np.concatenate([np.full((1, newest.shape[1]), -1), newest[:-1]])
    here, there = np.maximum(newest, 0), np.maximum(former, 0)
    seconds = (at[here] - at[there]) / 1000.0
    with np.errstate(invalid="ignore"):
        change = np.take_along_axis(values, here, axis=0) - np.take_along_axis(values, there, axis=0)
    whole = np.take_along_axis(broken, here, axis=0) == np.take_along_axis(broken, there, axis=0)
    good = (newest >= 0) & (former >= 0) & (seconds > 0) & whole
    rate = np.where(good, change / np.where(good, seconds, 1.0), np.nan)
    told = np.maximum.accumulate(np.where(new, np.arange(len(new))[:, None], -1), axis=0)
    return np.where(told >= 0, np.take_along_axis(rate, np.maximum(told, 0), axis=0), np.nan)


def usual(at: Numbers) -> float:
    """The usual time between readings, ms (the lower median); NaN where there is none."""
    spacings = np.sort(np.diff(at))
    return max(float(spacings[(len(spacings) - 1) // 2]), SHORTEST_INTERVAL_MS) if len(spacings) else np.nan


def _by_part(columns: Numbers, told: Floats, combine: int) -> tuple[Numbers, Floats]:
    """(columns, each once; float64[tick, column]): the values of one target's references put together as signals are."""
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(starts) == len(columns):
        return ordered, told[:, order]
    told = told[:, order]
    if combine == SUM:
        known = ~np.isnan(told)
        total = np.add.reduceat(np.where(known, told, 0.0), starts, axis=1)
        return ordered[starts], np.where(np.logical_or.reduceat(known, starts, axis=1), total, np.nan)
    if combine == FIRST:
        out = told[:, starts]
        nth = np.arange(len(ordered)) - np.repeat(starts, np.diff([*starts.tolist(), len(ordered)]))
        group = np.cumsum(np.concatenate([[0], ordered[1:] != ordered[:-1]]))
        for i in range(1, int(nth.max()) + 1):
            here = np.flatnonzero(nth == i)
            out[:, group[here]] = np.where(np.isnan(out[:, group[here]]), told[:, here], out[:, group[here]])
        return ordered[starts], out
    return ordered[starts], np.fmax.reduceat(told, starts, axis=1)

