"""Slots: moments on multiples of an interval at which targets are read, so that tick T sees slot T.

A target of 15 s is read at each multiple of 15 s and its samples carry that time, however long the reading took. A slot
that passed while the worker was busy is counted as missed, never read twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from collectors.discovery import ScrapeTarget
from core.clock import TICK_MS

MOST_AT_ONCE = 32
SHORTEST_STEP_MS = 1000
T = TypeVar("T")


@dataclass(slots=True)
class Slots:
    """The worker's slots. step_ms: greatest common divisor of the targets' intervals and the tick, at least 1 s."""

    step_ms: int = TICK_MS
    missed: int = 0

    def set_intervals(self, intervals_ms: Sequence[int]) -> None:
        """Chooses the step for these intervals."""
        self.step_ms = max(math.gcd(TICK_MS, *intervals_ms), SHORTEST_STEP_MS)

    def first(self, now_ms: int) -> int:
        """The first slot at or after `now_ms`."""
        return -(-now_ms // self.step_ms) * self.step_ms

    def next(self, done_ms: int, now_ms: int) -> int:
        """The slot after `done_ms`; slots that are over already are counted in `missed` and skipped.

        The slot in progress (it began at most one step ago) is still taken: late, with its own time.
        """
        following = (done_ms // self.step_ms + 1) * self.step_ms
        current = now_ms // self.step_ms * self.step_ms
        if current > following:
            self.missed += (current - following) // self.step_ms
            return current
        return following


def due(targets: Sequence[ScrapeTarget], slot_ms: int, step_ms: int) -> list[ScrapeTarget]:
    """The targets whose interval has a multiple in the step that ends at this slot (itself included)."""
    return [t for t in targets if slot_ms // t.interval_ms != (slot_ms - step_ms) // t.interval_ms]


async def run_bounded(jobs: Sequence[Callable[[], Awaitable[T]]], at_once: int = MOST_AT_ONCE) -> list[T]:
    """Runs all jobs, at most `at_once` at a time; results in the order of the jobs."""
    gate = asyncio.Semaphore(at_once)

    async def one(job: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await job()

    return list(await asyncio.gather(*(one(job) for job in jobs)))
