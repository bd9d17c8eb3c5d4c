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


class SignalBuffer:
    """One signal. last_at, first_at (ms), interval (ms): float64[column]; filled: rows of before, which are missing.

    Rows that are not filled yet are not touched either: the system gives memory to them when their tick comes.
    """

    def __init__(self, capacity: int, columns: int, filled: int = 0) -> None:
        self.rows: Floats = np.empty((capacity, columns))
        self.rows[:filled] = np.nan
        self.last_at: Floats = np.full(columns, -np.inf)
        self.first_at: Floats = np.full(columns, np.nan)
        self.interval: Floats = np.full(columns, np.nan)

    def regrid(self, former: Numbers, filled: int) -> None:
        """Moves the columns: former[new column] = old column, -1 = a new part."""
        known = former >= 0

        def moved(old: Floats, fill: float) -> Floats:
            fresh = np.full(len(former), fill)
            fresh[known] = old[former[known]]
            return fresh

        rows = np.empty((len(self.rows), len(former)))
        rows[:filled] = np.nan
        rows[:filled, known] = self.rows[:filled, former[known]]
        self.rows = rows
        self.last_at = moved(self.last_at, -np.inf)
        self.first_at = moved(self.first_at, np.nan)
        self.interval = moved(self.interval, np.nan)


class Buffers:
    """All signals over one axis of ticks."""

    def __init__(self, ticks: int) -> None:
        self.ticks = ticks
        self._capacity = ticks + max(4, ticks // SPARE_SHARE)
        self._times: Numbers = np.zeros(self._capacity, np.int64)
        self._filled = 0
        self.signals: dict[int, SignalBuffer] = {}

    def clear(self) -> None:
        """Forgets all ticks."""
        self._filled = 0
        self._times = np.zeros(self._capacity, np.int64)
        for number, buffer in self.signals.items():
            self.signals[number] = SignalBuffer(self._capacity, buffer.rows.shape[1])

    def regrid(self, numbers: list[int], former: Numbers) -> None:
        """Moves the columns of the signals of one kind."""
        for number in numbers:
            if number in self.signals:
                self.signals[number].regrid(former, self._filled)

    def push(self, tick: int, plan: Plan, values: Floats, newest: Floats, oldest: Floats, intervals: Floats) -> None:
        """One more tick; all arrays are float64[cell] of the plan."""
        if self._filled == self._capacity:
            self._renew()
        at = self._filled
        self._times[at] = tick
        self._filled += 1
        for number, offset in plan.offsets.items():
            width = plan.widths[number]
            buffer = self.signals.get(number)
            if buffer is None:
                buffer = self.signals[number] = SignalBuffer(self._capacity, width, at)
            cells = slice(offset, offset + width)
            buffer.rows[at] = values[cells]
            buffer.last_at = np.maximum(buffer.last_at, newest[cells])
            buffer.first_at = np.fmin(buffer.first_at, oldest[cells])
            buffer.interval = np.where(np.isnan(intervals[cells]), buffer.interval, intervals[cells])

    def _renew(self) -> None:
        keep = self.ticks - 1
        times = np.zeros(self._capacity, np.int64)
        times[:keep] = self._times[self._filled - keep:self._filled]
        for buffer in self.signals.values():
            rows = np.empty(buffer.rows.shape)
            rows[:keep] = buffer.rows[self._filled - keep:self._filled]
            buffer.rows = rows
        self._times, self._filled = times, keep

    def times(self) -> Numbers:
        """int64[tick]: the window's ticks, read-only."""
        view = self._times[max(0, self._filled - self.ticks):self._filled]
        view.flags.writeable = False
        return view

    def values(self, number: int) -> Floats:
        """float64[tick, column]: the window of a signal, read-only."""
        view = self.signals[number].rows[max(0, self._filled - self.ticks):self._filled]
        view.flags.writeable = False
        return view

    def block(self, number: int, tick: int, entities: tuple[Target, ...]) -> Block:
        """The window of a signal as detectors see it."""
        buffer = self.signals[number]
        age, interval = (tick - buffer.last_at) / 1000.0, buffer.interval / 1000.0
        first = buffer.first_at.copy()
        for array in (age, interval, first):
            array.flags.writeable = False
        return Block(SIGNAL_NAMES[number], entities, self.values(number), age, interval, first)
