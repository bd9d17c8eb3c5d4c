"""How long a fault that lasts already goes on, and when acting on it costs least: optimal stopping.

Faults of a kind are two sorts: those that go away by themselves, after a log-normal time, and those that stay until somebody
acts. While one lasts nobody can tell which it is; each minute makes it likelier that it stays. What is learnt by waiting is that
alone, so every way to act is a time to wait for: the loss until then, and the attempt's cost for the share of cases that are
still there. The best time is where that sum is least. A job on many nodes is stopped often by what kills it, and a part that is slow is
changed in that stop for next to nothing: the larger the job, the more a stop of its own costs and the sooner the next one comes.
All of it is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Waits that are compared, in seconds, beside the moments after the job's next checkpoints.
WAITS = (60, 120, 180, 300, 450, 600, 900, 1200, 1500, 1800, 2400, 3000, 3600, 4500, 5400, 7200, 9000, 10_800, 14_400, 18_000, 21_600,
         28_800, 36_000, 43_200, 57_600, 72_000)
CHECKPOINTS = 4  # that many of the next ones are looked at
AFTER_SAVE = 15.0  # a save is known to be complete a tick later


def _below(x: float) -> float:
    """The normal distribution's share below x."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


class Lasting:
    """How long a fault of this age goes on. share: of such faults, at their onset, that go away by themselves; mean, sigma: of
    the log-normal time in seconds that those take; age: seconds since the onset; stops: how often in a second its job is stopped by
    something else, at which the part is changed in passing."""

    def __init__(self, share: float, mean: float, sigma: float, age: float, stops: float = 0.0) -> None:
        self.sigma, self.age, self.stops = max(1e-3, sigma), max(0.0, age), max(0.0, stops)
        self._sums: list[tuple[float, float, float]] = []  # by time: expected seconds with stops until then, and without
        self.mean, self.mu = mean, math.log(max(1.0, mean)) - self.sigma**2 / 2
        healing = min(1.0, max(0.0, share)) * self._beyond(self.age)
        rest = 1.0 - min(1.0, max(0.0, share))
        self.heals = healing / (healing + rest) if healing + rest > 0 else 1.0

    def _beyond(self, t: float) -> float:
        """The share of the healing ones that last longer than t."""
        return 1.0 if t <= 0 else max(1e-300, _below(-(math.log(t) - self.mu) / self.sigma))

    def _until(self, t: float) -> float:
        """Seconds that the healing ones have on average by t."""
        if t <= 0:
            return 0.0
        return self.mean * _below((math.log(t) - self.mu) / self.sigma - self.sigma) + t * self._beyond(t)

    def still(self, wait: float) -> float:
        """The chance that it is there after `wait` seconds more."""
        lasts = self.heals * self._beyond(self.age + wait) / self._beyond(self.age) + 1.0 - self.heals
        return lasts * math.exp(-self.stops * wait)

    def expected(self, wait: float) -> float:
        """Seconds of the next `wait` that it is expected to be there. Between two of WAITS the stops count by their mean."""
        if self.stops <= 0:
            return self._alone(wait)
        if not self._sums:
            self._sums = [(0.0, 0.0, 0.0)]
            for edge in WAITS:
                self._sums.append(self._further(self._sums[-1], float(edge)))
        return self._further(next(row for row in reversed(self._sums) if row[0] <= max(0.0, wait)), max(0.0, wait))[1]

    def _further(self, row: tuple[float, float, float], to: float) -> tuple[float, float, float]:
        """A row of `_sums` for a later time."""
        begins, stopped, alone = row
        if to <= begins:
            return row
        there = self._alone(to)
        mean = (math.exp(-self.stops * begins) - math.exp(-self.stops * to)) / (self.stops * (to - begins))
        return to, stopped + (there - alone) * mean, there

    def _alone(self, wait: float) -> float:
        """As `expected`, where nothing else stops the job."""
        healing = (self._until(self.age + wait) - self._until(self.age)) / self._beyond(self.age)
        return self.heals * min(wait, max(0.0, healing)) + (1.0 - self.heals) * wait


def waits(horizon: float, next_save: float | None, interval: float | None) -> list[float]:
    """The waits to compare, 0 left out."""
    out = [float(w) for w in WAITS if w < horizon]
    if next_save is not None:
        every = interval or 0.0
        out += [next_save + AFTER_SAVE + n * every for n in range(CHECKPOINTS if every > 0 else 1)]
    return sorted(w for w in out if w < horizon)


def best_wait(lasting: Lasting, rate: float, cost_at: Callable[[float], float], candidates: list[float]) -> tuple[float, float]:
    """(seconds to wait, expected cost) of the best time to act, never acting left out. rate: what is lost in a second while the
    fault is there; cost_at: what acting costs after a wait, in the same unit."""
    best = 0.0, cost_at(0.0)
    for wait in candidates:
        cost = rate * lasting.expected(wait) + lasting.still(wait) * cost_at(wait)
        if cost < best[1]:
            best = wait, cost
    return best
