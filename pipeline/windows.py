"""The arrays that windows show: float64[tick, column] for each signal, extended by one row a tick.

A buffer has some ticks more than a window; when it is full, a new one takes over the last of it. Windows are views:
rows that a window shows are never written again, and an old buffer lives as long as a window looks at it. Reading 30
minutes of 1,000 nodes from the store at each tick would cost seconds; a row costs milliseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Target
from core.window import Block
from pipeline.ring_rows import SIGNAL_NAMES, Plan

Numbers = NDArray[np.int64]
SPARE_SHARE = 4  # spare rows: a quarter of a window; memory against how often a buffer is copied
# Signals have up to so many spare rows less than others: their buffers are copied at different ticks. All of 10,000 nodes at once
# would be seconds of one tick, and twice the memory for as long as the window before is looked at.
APART = 24


class SignalBuffer:
    """One signal. last_at, first_at (ms), interval (ms): float64[column], never written in place; filled: rows that are in use,
    at first those of before, which are missing.

    Rows that are not filled yet are not touched either: the system gives memory to them when their tick comes.
    """

    def __init__(self, capacity: int, columns: int, filled: int = 0) -> None:
        self.filled = filled
        self.rows: Floats = np.empty((capacity, columns))
        self.rows[:filled] = np.nan
        self.last_at: Floats = np.full(columns, -np.inf)
        self.first_at: Floats = np.full(columns, np.nan)
        self.interval: Floats = np.full(columns, np.nan)

    def push(self, values: Floats, keep: int) -> None:
        """One more row; where there is no room, a new buffer takes over the last `keep`."""
        if self.filled == len(self.rows):
            rows = np.empty(self.rows.shape)
            rows[:keep] = self.rows[self.filled - keep:self.filled]
            self.rows, self.filled = rows, keep
        self.rows[self.filled] = values
        self.filled += 1

    def regrid(self, former: Numbers) -> None:
        """Moves the columns: former[new column] = old column, -1 = a new part."""
        known = former >= 0

        def moved(old: Floats, fill: float) -> Floats:
            fresh = np.full(len(former), fill)
            fresh[known] = old[former[known]]
            return fresh

        rows = np.empty((len(self.rows), len(former)))
        rows[:self.filled] = np.nan
        rows[:self.filled, known] = self.rows[:self.filled, former[known]]
        self.rows = rows
        self.last_at = moved(self.last_at, -np.inf)
        self.first_at = moved(self.first_at, np.nan)
        self.interval = moved(self.interval, np.nan)


class Buffers:
    """All signals over one axis of ticks."""

    def __init__(self, ticks: int) -> None:
        self.ticks = ticks
        spare = max(4, ticks // SPARE_SHARE)
        self._capacity, self._apart = ticks + spare, max(1, min(APART, spare // 2))
        self._times: Numbers = np.zeros(0, np.int64)
        self._rhythm: tuple[Floats, Floats] | None = None  # the last first times and intervals: they seldom change
        self.signals: dict[int, SignalBuffer] = {}

    def clear(self) -> None:
        """Forgets all ticks."""
        self._times = np.zeros(0, np.int64)
        self._rhythm = None
        for number, buffer in self.signals.items():
            self.signals[number] = SignalBuffer(len(buffer.rows), buffer.rows.shape[1])

    def regrid(self, numbers: list[int], former: Numbers) -> None:
        """Moves the columns of the signals of one kind."""
        for number in numbers:
            if number in self.signals:
                self.signals[number].regrid(former)

    def push(self, tick: int, plan: Plan, values: Floats, newest: Floats, oldest: Floats, intervals: Floats) -> None:
        """One more tick; all arrays are float64[cell] of the plan, and written no more."""
        before = len(self._times)
        self._times = np.append(self._times, tick)[-self.ticks:]
        self._times.flags.writeable = False
        same = self._rhythm is not None and self._rhythm[0] is oldest and self._rhythm[1] is intervals
        self._rhythm = oldest, intervals
        for number, buffer in self.signals.items():
            if number not in plan.offsets:  # nobody tells it any more
                buffer.push(np.full(buffer.rows.shape[1], np.nan), self.ticks - 1)
        for number, offset in plan.offsets.items():
            width = plan.widths[number]
            known = self.signals.get(number)
            if known is None:
                known = self.signals[number] = SignalBuffer(self._capacity - number % self._apart, width, before)
            cells = slice(offset, offset + width)
            known.push(values[cells], self.ticks - 1)
            known.last_at = np.maximum(known.last_at, newest[cells])
            if not same:
                known.first_at = np.fmin(known.first_at, oldest[cells])
                known.interval = np.where(np.isnan(intervals[cells]), known.interval, intervals[cells])

    def times(self) -> Numbers:
        """int64[tick]: the window's ticks, read-only."""
        return self._times

    def values(self, number: int) -> Floats:
        """float64[tick, column]: the window of a signal, read-only."""
        buffer = self.signals[number]
        view = buffer.rows[buffer.filled - len(self._times):buffer.filled]
        view.flags.writeable = False
        return view

    def block(self, number: int, tick: int, entities: tuple[Target, ...]) -> Block:
        """The window of a signal as detectors see it."""
        buffer = self.signals[number]
        age, interval, first = (tick - buffer.last_at) / 1000.0, buffer.interval / 1000.0, buffer.first_at
        for array in (age, interval, first):
            array.flags.writeable = False
        return Block(SIGNAL_NAMES[number], entities, self.values(number), age, interval, first)
