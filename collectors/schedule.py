"""When targets are read: each at its own offset within its interval, in slots that are read together.

A reading's time is its scheduled time, offset included, however late it began or long it took. On the wall clock the
offset is a stable hash of the target's id (so the load is spread, and stays where it was after a restart) and slots are
500 ms wide, because parsing many bodies back to back costs half of parsing one at each wake-up. On a paced clock the offset is
0 and a slot is the greatest common divisor of the intervals: tick T sees slot T whole.

A due time that can no longer be begun in time is counted as missed, never read twice.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from collectors.shards import stable_hash
from core.clock import TICK_MS

MOST_AT_ONCE = 64
SLOT_MS = 500
SHORTEST_STEP_MS = 1000
LATEST_BEGIN_MS = 5000  # a value must not be read much later than the time that it carries
MOST_COUNTED = 10_000  # due times of one target that are looked at one by one after a long pause
T = TypeVar("T")


def step_of(intervals_ms: Sequence[int]) -> int:
    """The slot of a paced clock: the greatest common divisor of the intervals and the tick, at least 1 s."""
    return max(math.gcd(TICK_MS, *intervals_ms), SHORTEST_STEP_MS)


def offset_of(target_id: str, interval_ms: int) -> int:
    """Where in its interval a target is read: a multiple of the slot, the same at every start."""
    return stable_hash(target_id) % max(1, interval_ms // SLOT_MS) * SLOT_MS


def latest_begin(interval_ms: int) -> int:
    """How late (ms) a reading may begin: 5 s, and never so late that the target's next one is near."""
    return min(LATEST_BEGIN_MS, max(SLOT_MS, interval_ms * 3 // 4))


@dataclass(frozen=True, slots=True)
class Due:
    """A reading to begin: of a target (its id) at its scheduled time."""

    target_id: str
    at: int


@dataclass(slots=True)
class _Entry:
    interval: int
    offset: int
    next: int


def first_after(after_ms: int, interval_ms: int, offset_ms: int) -> int:
    """The first k * interval + offset that is later than `after_ms`."""
    return ((after_ms - offset_ms) // interval_ms + 1) * interval_ms + offset_ms


class Calendar:
    """The next due time of every target. Taking what is due costs by what is due, not by how many targets there are.

    spread: targets have offsets. factor: how many times its interval a target waits now (1 where nobody widens it);
    it is asked each time a target's next reading is planned, so a widened target stays on its own grid.
    mine: whether (target, time) is this worker's to read; only those count as missed.
    """

    def __init__(self, spread: bool, mine: Callable[[str, int], bool] = lambda target, at: True,
                 factor: Callable[[str], int] = lambda target: 1) -> None:
        self._spread, self._mine, self._factor = spread, mine, factor
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[int, str]] = []
        self.missed = 0
        self.taken = 0  # newest slot that was taken

    def __len__(self) -> int:
        return len(self._entries)

    def set_targets(self, targets: Iterable[tuple[str, int]], after_ms: int) -> None:
        """(id, interval in ms) of all targets now. New ones, and those of another interval, start after `after_ms`."""
        fresh: dict[str, _Entry] = {}
        for target_id, interval in targets:
            known = self._entries.get(target_id)
            if known is not None and known.interval == interval:
                fresh[target_id] = known
            else:
                offset = offset_of(target_id, interval) if self._spread else 0
                fresh[target_id] = _Entry(interval, offset, first_after(after_ms, interval, offset))
        self._entries = fresh
        self._heap = [(one.next, target_id) for target_id, one in fresh.items()]
        heapq.heapify(self._heap)

    def rewind(self, after_ms: int, was_mine: Callable[[str, int], bool]) -> None:
        """Plans anew what became this worker's after it had passed: due times after `after_ms` that it did not own then."""
        for target_id, one in self._entries.items():
            at = first_after(max(after_ms, self.taken - MOST_COUNTED * one.interval), one.interval, one.offset)
            while at < one.next:
                if self._mine(target_id, at) and not was_mine(target_id, at):
                    one.next = at
                    heapq.heappush(self._heap, (at, target_id))
                    break
                at += one.interval

    def take(self, slot_ms: int, now_ms: int) -> list[Due]:
        """What is to be begun in the slot that ends at `slot_ms` and is this worker's. A target comes at most once: of
        several due times that have passed the newest, where it is not too late for it; the others are missed."""
        out = []
        while self._heap and self._heap[0][0] <= slot_ms:
            at, target_id = heapq.heappop(self._heap)
            one = self._entries.get(target_id)
            if one is None or one.next != at:
                continue  # of a list that is gone
            newest = at + (slot_ms - at) // one.interval * one.interval
            oldest_counted = max(at, newest - MOST_COUNTED * one.interval)
            for passed in range(oldest_counted, newest, one.interval):
                self.missed += self._mine(target_id, passed)
            if self._mine(target_id, newest):
                if now_ms - newest <= latest_begin(one.interval):
                    out.append(Due(target_id, newest))
                else:
                    self.missed += 1
            one.next = first_after(newest, one.interval * max(1, self._factor(target_id)), one.offset)
            heapq.heappush(self._heap, (one.next, target_id))
        self.taken = max(self.taken, slot_ms)
        return out


def slot_at_or_after(at_ms: int, step_ms: int) -> int:
    """The first multiple of the step at or after `at_ms`."""
    return -(-at_ms // step_ms) * step_ms


def next_slot(done_ms: int, now_ms: int, step_ms: int) -> int:
    """The slot after `done_ms`; where several have passed, the one in progress: the calendar says what was missed."""
    return max((done_ms // step_ms + 1) * step_ms, now_ms // step_ms * step_ms)


async def run_bounded(jobs: Sequence[Callable[[], Awaitable[T]]], at_once: int = MOST_AT_ONCE) -> list[T]:
    """Runs all jobs, at most `at_once` at a time; results in the order of the jobs."""
    gate = asyncio.Semaphore(at_once)

    async def one(job: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await job()

    return list(await asyncio.gather(*(one(job) for job in jobs)))
