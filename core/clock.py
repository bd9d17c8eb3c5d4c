"""The only place that asks the system for the time.

Cluster time is integer milliseconds since the epoch, UTC. Time-outs of I/O are wall time and use
`monotonic_seconds`. Everything else in Greylag takes the time as an argument.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

TICK_SECONDS = 15
TICK_MS = TICK_SECONDS * 1000


def wall_ms() -> int:
    """Wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_seconds() -> float:
    """Monotonic seconds for time-outs and durations of work; never stored as a timestamp."""
    return time.monotonic()


def process_cpu_seconds() -> float:
    """CPU seconds of this process, all threads."""
    return time.process_time()


def tick_at_or_after(at_ms: int) -> int:
    """The first multiple of 15 s at or after `at_ms`."""
    return -(-at_ms // TICK_MS) * TICK_MS


def tick_at_or_before(at_ms: int) -> int:
    """The last multiple of 15 s at or before `at_ms`."""
    return at_ms // TICK_MS * TICK_MS


def rfc3339(at_ms: int) -> str:
    """`2026-11-28T01:02:03.000Z`: UTC, milliseconds, `Z`."""
    seconds, ms = divmod(at_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"


def parse_rfc3339(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time; without a zone it is UTC.

    Raises ValueError on anything else.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1000 + moment.microsecond // 1000


class Clock(Protocol):
    """Cluster time. One clock per process; the fleet's may run faster than the wall's."""

    def now_ms(self) -> int:
        """Cluster time now, milliseconds since the epoch."""
        ...

    async def sleep_until(self, at_ms: int) -> None:
        """Returns once cluster time has reached `at_ms` (at once if it has)."""
        ...

    async def committed(self, tick_ms: int) -> None:
        """Tells the clock that the tick `tick_ms` is committed; a paced clock then goes on."""
        ...


class WallClock:
    """The clock of a real cluster: the system's."""

    def now_ms(self) -> int:
        return wall_ms()

    async def sleep_until(self, at_ms: int) -> None:
        import asyncio

        while (left := at_ms - wall_ms()) > 0:
            await asyncio.sleep(min(left, 1000) / 1000)

    async def committed(self, tick_ms: int) -> None:
        return None


class ManualClock:
    """A clock that stands until it is told to move: replay, tests, virtual time."""

    def __init__(self, at_ms: int = 0) -> None:
        self._at = at_ms

    def now_ms(self) -> int:
        return self._at

    def advance_to(self, at_ms: int) -> None:
        """Moves the clock forward; it never goes back (ValueError)."""
        if at_ms < self._at:
            raise ValueError(f"a clock cannot go back from {self._at} to {at_ms}")
        self._at = at_ms

    async def sleep_until(self, at_ms: int) -> None:
        self.advance_to(max(at_ms, self._at))

    async def committed(self, tick_ms: int) -> None:
        return None
