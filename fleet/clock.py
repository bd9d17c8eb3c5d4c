"""The fleet's clock: cluster time that never runs ahead of the wall clock and, when paced, never ahead of the watcher.

Paced: it stands on a slot (a multiple of 15 s) and goes to the next one once that slot's tick is committed; having met
the wall clock it goes no faster than it. Else it runs at a fixed speed from its start (1 = real time).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.clock import TICK_MS, monotonic_seconds, wall_ms

LONGEST_WAIT_SECONDS = 10.0


class FleetClock:
    """start_ms: a multiple of 15 s when paced. advance: called with each new time, before anybody is told of it."""

    def __init__(self, start_ms: int, speed: float | None, advance: Callable[[int], None]) -> None:
        self._at, self.speed, self._advance = start_ms, speed, advance
        self._start, self._wall_start = start_ms, wall_ms()
        self._committed = -1
        self._changed = asyncio.Condition()
        self._closed = False

    @property
    def paced(self) -> bool:
        return self.speed is None

    def now_ms(self) -> int:
        """Cluster time; the world stands at it when this returns."""
        if self.speed is not None:
            wall = wall_ms()
            now = min(wall, self._start + int((wall - self._wall_start) * self.speed)) if self.speed != 1 else wall
            if now > self._at:
                self._at = now
                self._advance(now)
        return self._at

    def state(self) -> dict[str, object]:
        """What the door shows. speed: the greatest that it may run at now; null = as fast as ticks are committed."""
        now = self.now_ms()
        met = wall_ms() - now <= 2 * TICK_MS
        return {"now_ms": now, "speed": self.speed if self.speed is not None else (1.0 if met else None),
                "paced": self.paced}

    async def committed(self, tick_ms: int) -> None:
        """Tick `tick_ms` is committed; the clock may go on to the slot after it."""
        async with self._changed:
            self._committed = max(self._committed, tick_ms)
            if self.paced and self._may_go():
                self._go()

    def _may_go(self) -> bool:
        return self._committed >= self._at and wall_ms() >= self._at + TICK_MS

    def _go(self) -> None:
        self._at += TICK_MS
        self._advance(self._at)
        self._changed.notify_all()

    async def wait(self, after_ms: int, seconds: float) -> None:
        """Returns once the time is at least `after_ms`, at latest after `seconds` of wall time."""
        end = monotonic_seconds() + min(max(0.0, seconds), LONGEST_WAIT_SECONDS)
        while not self._closed and self.now_ms() < after_ms and (left := end - monotonic_seconds()) > 0:
            if self.speed is not None:
                await asyncio.sleep(min(left, max(0.005, (after_ms - self._at) / 1000 / self.speed), 0.25))
                continue
            async with self._changed:
                if self._may_go():
                    self._go()
                    continue
                # A tick committed early waits for the wall clock, which tells nobody: look again a little later.
                nap = left if self._committed < self._at else min(left, 0.1)
                try:
                    await asyncio.wait_for(self._changed.wait(), nap)
                except TimeoutError:
                    continue

    async def close(self) -> None:
        """Lets all who wait go."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()
