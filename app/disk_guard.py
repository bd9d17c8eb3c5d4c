"""What the owner does when the disk below its data directory fills up: first the past goes, then raw samples stop.

Below `budgets.process.disk_free_ratio_min` the retention of raw samples is halved, step by step, until there is room again;
below half of it raw samples are not stored any more. Findings, incidents, events, ticks and rollups go on all the time. Each
step has a named reason, and is taken back once there is clearly room again.

`DiskGuard` is the decision: readings in, a state out. `DiskWatch` reads the disk and carries the decision out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from core.clock import monotonic_seconds
from core.errors import GreylagError
from core.telemetry import Telemetry

HOUR_MS = 3_600_000
LEAST_RETENTION_MS = HOUR_MS
SETTLE_SECONDS = 60.0  # files that were dropped leave the disk a round later: a second step would answer to the same lack
REPEAT_SECONDS = 600.0  # how often a shortened retention is applied again while it lasts
ROOM_FACTOR = 1.5  # of the bound: free space from which a step is taken back
ROOM_SECONDS = 600.0
ENOUGH_RATIO = 0.02  # without a bound of its own: from here on a disk that was full is full no more
LOOK_SECONDS = 15.0
RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DiskState:
    """retention_ms: how long raw samples are kept now. raw_paused: none are stored now. reason: of `core.reasons`, why it
    changed at this look, None where it did not. apply: the retention is to be applied to what is stored now."""

    retention_ms: int
    raw_paused: bool = False
    reason: str | None = None
    apply: bool = False


class DiskGuard:
    """See the module. free_ratio_min 0 = never. Times are seconds of one monotonic clock."""

    def __init__(self, free_ratio_min: float, retention_ms: int) -> None:
        self._min, self._configured = free_ratio_min, retention_ms
        self.state = DiskState(retention_ms)
        self._changed_at = self._applied_at = float("-inf")
        self._room_since: float | None = None

    def look(self, now: float, free_ratio: float | None) -> DiskState:
        """The state from now on. free_ratio: of the file system; None = it could not be read, nothing changes."""
        before = self.state
        retention, paused, reason = before.retention_ms, before.raw_paused, None
        if free_ratio is None:
            self.state = DiskState(retention, paused)
            return self.state
        if self._min <= 0:  # nobody asked for a bound: only what a full disk enforced is taken back
            back = (paused or retention < self._configured) and free_ratio >= ENOUGH_RATIO
            self.state = DiskState(self._configured, False, "disk_recovered") if back else DiskState(retention, paused)
            return self.state
        if free_ratio < self._min / 2 and not paused:
            paused, reason = True, "disk_full"
        elif paused and free_ratio >= self._min:
            paused, reason = False, "disk_recovered"
        shorter = max(LEAST_RETENTION_MS, retention // 2 // HOUR_MS * HOUR_MS)
        if free_ratio < self._min:
            self._room_since = None
            if shorter < retention and now - self._changed_at >= SETTLE_SECONDS:
                retention, reason = shorter, reason or "disk_low"
        elif free_ratio >= ROOM_FACTOR * self._min and retention < self._configured:
            self._room_since = now if self._room_since is None else self._room_since
            if now - max(self._room_since, self._changed_at) >= ROOM_SECONDS:
                retention, reason = min(self._configured, 2 * retention), reason or "disk_recovered"
        else:
            self._room_since = None
        if retention != before.retention_ms:
            self._changed_at = now
        low = free_ratio < self._min
        apply = retention < before.retention_ms or (low and now - self._applied_at >= REPEAT_SECONDS)
        if apply:
            self._applied_at = now
        self.state = DiskState(retention, paused, reason, apply)
        return self.state

    def full(self, now: float) -> DiskState:
        """A commit failed because the disk is full: the shortest retention and no raw samples, at once."""
        if self.state.raw_paused and now - self._applied_at < SETTLE_SECONDS:
            self.state = DiskState(self.state.retention_ms, True)
            return self.state
        self.state = DiskState(min(self.state.retention_ms, LEAST_RETENTION_MS), True, "disk_full", True)
        self._changed_at = self._applied_at = now
        self._room_since = None
        return self.state


class Store(Protocol):
    """What the guard needs of the store."""

    raw_paused: bool

    def shorten(self, retention_ms: int) -> int:
        """Drops raw hours that are older, now."""
        ...


@dataclass
class DiskWatch:
    """call: runs work in the store's writer thread. free: reads the disk (an argument, so that tests need no full one)."""

    guard: DiskGuard
    store: Store
    call: Callable[[Callable[[], Any]], Future[Any]]
    telemetry: Telemetry
    free: Callable[[], float | None]

    def look(self, now: float) -> Future[Any] | None:
        """One look; what it asked the writer to do, None where nothing. To be called every LOOK_SECONDS."""
        free = self.free()
        if free is not None:
            self.telemetry.set("greylag_disk_free_ratio", round(free, 4))
        return self._carry_out(self.guard.look(now, free), free)

    def failed(self, error: BaseException) -> None:
        """A write failed: where that was for want of space, space is made at once."""
        if no_space(error):
            self._carry_out(self.guard.full(monotonic_seconds()), self.free())

    def committed(self, commit: Callable[[], Future[Any]], given_up: Callable[[], bool],
                  complain: Callable[[str | None], None], pause_seconds: float = RETRY_SECONDS) -> None:
        """Commits, and waits for space where there is none: what is to be committed is whole in memory, and a commit that
        failed has left nothing behind. Raises GreylagError for every other failure, and once it is given up."""
        waited = False
        while True:
            try:
                commit().result()
            except GreylagError as error:
                if not no_space(error) or given_up():
                    raise
                complain(f"disk_full: {error}")
                self.failed(error)
                waited = True
                time.sleep(pause_seconds)
            else:
                if waited:
                    complain(None)
                return

    def _carry_out(self, state: DiskState, free: float | None) -> Future[Any] | None:
        self.telemetry.set("greylag_retention_seconds", state.retention_ms / 1000)
        if state.reason is not None:
            self.telemetry.add("greylag_disk_steps_total", reason=state.reason)
            room = "an unknown share" if free is None else f"{free:.1%}"
            raw = "not stored" if state.raw_paused else f"kept for {state.retention_ms / HOUR_MS:.0f} h"
            print(f"greylag: {state.reason}: {room} of the disk is free; raw samples are {raw}", file=sys.stderr, flush=True)
        if state.reason is None and not state.apply:
            return None
        return self.call(lambda: self._write(state))

    def _write(self, state: DiskState) -> None:
        self.store.raw_paused = state.raw_paused
        if state.apply:
            self.store.shorten(state.retention_ms)


def free_ratio(path: Path) -> float | None:
    """The free share of the file system below `path`, as an ordinary user sees it; None where it cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    used = found.f_blocks - found.f_bfree
    return found.f_bavail / (used + found.f_bavail) if used + found.f_bavail > 0 else None


def no_space(error: BaseException) -> bool:
    """Whether a failed write failed for want of space on the disk."""
    text = str(error).lower()
    return "no space left" in text or "disk full" in text or "enospc" in text
