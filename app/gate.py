"""Decides when a tick may be judged.

Tick T is judged when every live collector has reported slot T, at latest one interval later; a collector that has not
been heard of for `silent_wall_seconds` of wall time no longer holds the tick back. Pure but for its lock.
"""

from __future__ import annotations

import threading

from core.clock import TICK_MS, tick_at_or_after, tick_at_or_before


class TickGate:
    """Watermarks of the collectors, and the next tick to judge."""

    def __init__(self, last_tick: int | None, silent_wall_seconds: float = 20.0, reported: int | None = None) -> None:
        """last_tick: the newest committed tick. reported: the newest watermark (ms) in the store, None = none.

        A slot that was acknowledged before a restart, and whose tick was not committed, is reported by nobody again: its
        tick is due at once. After it the next report decides where to go on, so a long outage is not judged tick by tick.
        """
        self._changed = threading.Condition()
        self._marks: dict[str, tuple[int, float]] = {}
        self._last = last_tick
        left = None if reported is None else tick_at_or_before(reported)
        self._owed = left if left is not None and (last_tick is None or left > last_tick) else None
        self._next = self._owed
        self._silent = silent_wall_seconds

    def report(self, worker: str, watermark: int, wall_seconds: float) -> None:
        """A collector has reported every slot up to `watermark` (ms)."""
        with self._changed:
            known = self._marks.get(worker, (0, 0.0))[0]
            self._marks[worker] = (max(known, watermark), wall_seconds)
            if self._next is None:
                first = tick_at_or_after(watermark)
                self._next = first if self._last is None else max(first, self._last + TICK_MS)
            self._changed.notify_all()

    def leave(self, worker: str) -> None:
        """The worker is gone, or has nothing to report any more: no tick waits for it."""
        with self._changed:
            self._marks.pop(worker, None)
            self._changed.notify_all()

    def wait(self, now_ms: int, wall_seconds: float, timeout: float) -> int | None:
        """The tick to judge now, or None after `timeout` wall seconds without one."""
        with self._changed:
            due = self._due(now_ms, wall_seconds)
            if due is None:
                self._changed.wait(timeout)
                due = self._due(now_ms, wall_seconds)
            return due

    def _due(self, now_ms: int, wall_seconds: float) -> int | None:
        if self._next is None or self._next == self._owed:
            return self._next
        live = [mark for mark, heard in self._marks.values() if wall_seconds - heard <= self._silent]
        if live and min(live) >= self._next:
            return self._next
        if now_ms >= self._next + TICK_MS:
            return self._next
        if not live and now_ms >= self._next:
            return self._next
        return None

    def done(self, tick: int) -> None:
        """Tick `tick` is committed."""
        with self._changed:
            owed, self._owed = tick == self._owed, None
            self._last, self._next = tick, tick + TICK_MS
            if owed:
                marks = [mark for mark, _ in self._marks.values()]
                self._next = max(tick_at_or_after(min(marks)), self._next) if marks else None

    def workers(self, wall_seconds: float) -> dict[str, int]:
        """Live workers and their watermarks (ms)."""
        with self._changed:
            return {w: mark for w, (mark, heard) in self._marks.items() if wall_seconds - heard <= self._silent}
