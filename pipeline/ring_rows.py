"""The hot table of the ring: one row for each (series, signal, part), all rows of all targets side by side.

Data shape: 1,000 nodes of 8 GPUs have some 500,000 rows. A scrape touches the rows of its target by a slice or an
index array (a handful of numpy calls); a tick is a dozen passes over whole columns. The simple way, a Python object for
each series, costs some 2 µs a sample: a second of a tick that has a few hundred milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.signals import SIGNALS
from core.types import Floats

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Small = NDArray[np.signedinteger[Any]]

SIGNAL_NAMES: tuple[str, ...] = tuple(SIGNALS)
SIGNAL_NUMBER: dict[str, int] = {name: i for i, name in enumerate(SIGNAL_NAMES)}
COMBINE: NDArray[np.int8] = np.array(
    [{"first": 0, "sum": 1, "max": 2}[SIGNALS[name].combine] for name in SIGNAL_NAMES], np.int8)

UNKNOWN_INTERVAL_MS = 60_000.0  # the bound before a target's interval is known
HOLD_INTERVALS = 1.5            # a value is held for so many intervals (core.window.Block)
GAP_INTERVALS = 3.0             # a counter's rate is missing across a longer gap (core.window.Block)
GROWTH_SHARE = 4                # rows are made room for by a quarter: 66 bytes each, on a fleet's half a million
FRESH_INTERVALS = 2.5           # as Block.fresh
TOGETHER = 1 << 16              # rows that are closed at once: what is in between stays in the processor's cache

_FLOATS = {"value": np.nan, "at": -np.inf, "base_value": np.nan, "base_at": np.nan, "rate": np.nan,
           "interval": np.nan, "first_at": np.nan}
_NUMBERS: dict[str, type] = {"part": np.int32, "signal": np.int16, "feed": np.int32, "position": np.int32}
_FLAGS = ("alive", "gone", "counter", "broken")


class Rows:
    """Columns (one entry a row): value and at: the newest finite sample, scaled, and its time (ms). base_value and
    base_at: the newest sample of the ticks before (counters). broken: a reset or a gap since base. rate: the last rate.
    interval: of the target, ms. gone: the target's newest scrape lacked it. part, signal, feed, position: whose it is.
    """

    def __init__(self) -> None:
        self._size = 0
        self._free: list[int] = []
        self.version = 0
        self.rhythms = 0  # grows when an interval or a first time changes
        self.value: Floats
        self.at: Floats
        self.base_value: Floats
        self.base_at: Floats
        self.rate: Floats
        self.interval: Floats
        self.first_at: Floats
        self.part: NDArray[np.signedinteger[Any]]
        self.signal: NDArray[np.signedinteger[Any]]
        self.feed: NDArray[np.signedinteger[Any]]
        self.position: NDArray[np.signedinteger[Any]]
        self.alive: Bools
        self.gone: Bools
        self.counter: Bools
        self.broken: Bools
        self._allocate(1024)

    def __len__(self) -> int:
        return self._size

    def _allocate(self, capacity: int) -> None:
        old = self._size

        def grown(name: str, fill: float | int | bool, dtype: type) -> None:
            fresh: NDArray[np.generic] = np.full(capacity, fill, dtype)
            if old:
                fresh[:old] = getattr(self, name)[:old]
            setattr(self, name, fresh)

        for name, fill in _FLOATS.items():
            grown(name, fill, np.float64)
        for name, kind in _NUMBERS.items():
            grown(name, -1, kind)
        for name in _FLAGS:
            grown(name, False, np.bool_)

    def add(self, part: Numbers, signal: Numbers, counter: Bools, feed: int, position: Numbers) -> Numbers:
        """New rows, one for each entry; gives their numbers. They stand side by side unless freed rows are used again."""
        n = len(part)
        if not n:
            return np.zeros(0, np.int64)
        reuse = [self._free.pop() for _ in range(min(n, len(self._free)))]
        extra = n - len(reuse)
        if self._size + extra > len(self.value):
            self._allocate(max(self._size + extra, len(self.value) + len(self.value) // GROWTH_SHARE))
        numbers = np.concatenate([np.array(reuse, np.int64), np.arange(self._size, self._size + extra)])
        self._size += extra
        for name, fill in _FLOATS.items():
            getattr(self, name)[numbers] = fill
        self.broken[numbers], self.gone[numbers], self.alive[numbers] = False, False, True
        self.part[numbers], self.signal[numbers], self.counter[numbers] = part, signal, counter
        self.feed[numbers], self.position[numbers] = feed, position
        self.version += 1
        return numbers

    def free(self, numbers: Numbers) -> None:
        """Gives rows back; nothing may use their numbers any more."""
        if len(numbers):
            self.alive[numbers] = False
            self.at[numbers] = -np.inf
            self._free.extend(sorted(numbers.tolist(), reverse=True))
            self.version += 1

    def set_interval(self, where: slice | Small, interval: Floats | float) -> None:
        """The interval of the rows' targets, ms."""
        if (self.interval[where] != interval).any():
            self.interval[where] = interval
            self.rhythms += 1

    def set_first(self, where: slice | Small, at: Floats | float) -> None:
        """When the rows were first seen (ms), where they had not been."""
        first = self.first_at[where]
        new = np.isnan(first)
        if new.any():
            self.first_at[where] = np.where(new, at, first)
            self.rhythms += 1

    def close_tick(self, tick: float, step_ms: float, failed: Bools) -> Floats:
        """float64[row]: the values at `tick`, NaN = missing; counters as rates per second. Moves the counters' base on.

        failed: bool[feed], true where the newest scrape of the target failed.
        """
        out = np.empty(self._size)
        for first in range(0, self._size, TOGETHER):
            some = slice(first, min(first + TOGETHER, self._size))
            out[some] = self._close(some, tick, step_ms, failed)
        return out

    def _close(self, some: slice, tick: float, step_ms: float, failed: Bools) -> Floats:
        at, interval, counter, alive = self.at[some], self.interval[some], self.counter[some], self.alive[some]
        new = at > tick - step_ms
        self._close_rates(np.flatnonzero(counter & new & alive) + some.start)
        bound = np.where(np.isnan(interval), UNKNOWN_INTERVAL_MS, interval * HOLD_INTERVALS)
        # A sample from within this tick is this tick's value, however short the interval is: trainers that log each
        # second or so would otherwise flicker.
        held = tick - at <= np.maximum(bound, step_ms)
        good = alive & held & (new | ~self.gone[some]) & ~failed[self.feed[some]]
        return np.where(good, np.where(counter, self.rate[some], self.value[some]), np.nan)

    def _close_rates(self, rows: Numbers) -> None:
        seconds = (self.at[rows] - self.base_at[rows]) / 1000.0
        known = (seconds > 0) & ~self.broken[rows]
        change = self.value[rows] - self.base_value[rows]
        self.rate[rows] = np.where(known, change / np.where(known, seconds, 1.0), np.nan)
        self.base_value[rows], self.base_at[rows] = self.value[rows], self.at[rows]
        self.broken[rows] = False

    def fresh(self, tick: float, which: Numbers) -> Bools:
        """bool[len(which)]: the newest sample of these rows is at most 2.5 intervals old, by the rule of Block.fresh."""
        interval = self.interval[which]
        known = np.where(np.isnan(interval), UNKNOWN_INTERVAL_MS, interval)
        return np.asarray(self.alive[which] & (tick - self.at[which] <= np.maximum(known * FRESH_INTERVALS, 15_000.0)))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How rows come together in cells; a cell is one (signal, column), cells of a signal side by side.

    offsets: first cell by signal; widths: columns by signal. single: the rows that have a cell to themselves, nearly all;
    shared: the others, and how they come together. Copies (`first`) are written so that the first of them in
    order of target and position wins. Parts of a sum add up within one target; several targets that report one part
    are copies of each other, and then the largest sum counts: nothing is counted twice, no loss is hidden by a zero.
    off_axis: rows whose parts stand on no axis.
    """

    offsets: dict[int, int]
    widths: dict[int, int]
    cells: int
    single_rows: Small
    single_cells: Small
    shared_rows: Small
    shared_cells: Small
    first_rows: Small
    first_cells: Small
    sum_rows: Small
    sum_starts: Numbers
    sum_cells: Small
    max_rows: Small
    max_cells: Small
    off_axis: Numbers

    def combine(self, values: Floats) -> Floats:
        """float64[cell] from float64[row]."""
        out = np.full(self.cells, np.nan)
        out[self.single_cells] = values[self.single_rows]
        taken = values[self.first_rows]
        good = ~np.isnan(taken)
        out[self.first_cells[good]] = taken[good]
        if len(self.sum_rows):
            parts = values[self.sum_rows]
            known = ~np.isnan(parts)
            total = np.add.reduceat(np.where(known, parts, 0.0), self.sum_starts)
            total[np.add.reduceat(known.astype(np.int64), self.sum_starts) == 0] = np.nan
            np.fmax.at(out, self.sum_cells, total)
        if len(self.max_rows):
            np.fmax.at(out, self.max_cells, values[self.max_rows])
        return out

    def newest(self, at: Floats) -> Floats:
        """float64[cell]: the newest sample's time, -inf where none."""
        out = np.full(self.cells, -np.inf)
        out[self.single_cells] = at[self.single_rows]
        np.maximum.at(out, self.shared_cells, at[self.shared_rows])
        return out

    def oldest(self, first_at: Floats) -> Floats:
        """float64[cell]: the first sample's time, NaN where none."""
        out = np.full(self.cells, np.nan)
        out[self.single_cells] = first_at[self.single_rows]
        np.fmin.at(out, self.shared_cells, first_at[self.shared_rows])
        return out

    def intervals(self, interval: Floats) -> Floats:
        """float64[cell], ms: the shortest interval of the targets that report the cell, NaN where unknown."""
        return self.oldest(interval)


def make_plan(rows: Rows, feed_order: Numbers, column: Numbers, widths_by_kind: dict[str, int]) -> Plan:
    """A plan for the rows whose parts stand on an axis. feed_order: int64[feed], the place of each target in order of
    target ids; column: int64[part]."""
    n = len(rows)
    live = np.flatnonzero(rows.alive[:n])
    stands = column[rows.part[live]] >= 0
    live, off_axis = live[stands], live[~stands]
    signal = rows.signal[live]
    offsets: dict[int, int] = {}
    widths: dict[int, int] = {}
    start_of = np.zeros(len(SIGNAL_NAMES), np.int64)
    cells = 0
    for number in np.unique(signal).tolist():
        width = widths_by_kind[SIGNALS[SIGNAL_NAMES[number]].kind]
        offsets[number], widths[number] = cells, width
        start_of[number] = cells
        cells += width
    cell = start_of[signal] + column[rows.part[live]]
    alone = np.bincount(cell, minlength=cells)[cell] == 1
    single, single_cells = live[alone], cell[alone]
    live, cell, signal = live[~alone], cell[~alone], signal[~alone]
    order = np.lexsort((rows.position[live], feed_order[rows.feed[live]]))
    live, cell, how = live[order], cell[order], COMBINE[signal][order]
    first = np.flatnonzero(how == 0)[::-1]  # numpy keeps the last of equal indices: the first in order comes last
    largest = np.flatnonzero(how == 2)
    summed = np.flatnonzero(how == 1)
    # order is by target already: a stable sort by cell leaves the rows of one (cell, target) side by side
    summed = summed[np.argsort(cell[summed], kind="stable")]
    feed = rows.feed[live[summed]]
    at_cell = cell[summed]
    edge = np.ones(len(summed), np.bool_)
    edge[1:] = (at_cell[1:] != at_cell[:-1]) | (feed[1:] != feed[:-1])
    starts = np.flatnonzero(edge)
    return Plan(offsets, widths, cells, _small(single), _small(single_cells), _small(live), _small(cell), _small(live[first]),
                _small(cell[first]), _small(live[summed]), starts, _small(at_cell[starts]), _small(live[largest]),
                _small(cell[largest]), off_axis)


def _small(numbers: Numbers) -> Small:
    """Half the memory: a plan has two numbers for each of a fleet's rows."""
    return numbers.astype(np.int32)
