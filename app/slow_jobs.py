"""What the owner does once an hour beside its ticks: drift over the store's past, and the trained model over the last window.

Both only inform. They run in a thread of their own with pauses in between, one at a time; one that fails is told and tried
again an hour later. Time is the cluster's: a demo that runs fast has its hours as fast.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from app.drift import drift_report
from core.clock import rfc3339
from core.errors import GreylagError
from core.inventory import Inventory
from core.render import plain
from core.telemetry import Telemetry
from pipeline.drift import DriftReport
from pipeline.store.duck import DuckStore

HOUR_MS = 3_600_000
LOOK_SECONDS = 5.0
BREATH_SECONDS = 0.05  # between two pieces of work: the tick's turn


def breathe() -> None:
    """A pause in which other threads get the interpreter."""
    time.sleep(BREATH_SECONDS)


class SlowDrift:
    """The newest report. look() is called every few seconds and works once an hour of cluster time."""

    def __init__(self, store: DuckStore, now_ms: Callable[[], int], inventory: Callable[[], Inventory],
                 telemetry: Telemetry) -> None:
        self._store, self._now_ms, self._inventory, self._telemetry = store, now_ms, inventory, telemetry
        self._hour: int | None = None
        self._lock = threading.Lock()
        self.report: DriftReport | None = None
        self.failed: str | None = None

    def look(self) -> bool:
        """Works where an hour has begun since the last time; True where it did."""
        now = self._now_ms()
        if self._store.last_tick() is None or self._hour == now // HOUR_MS:
            return False
        self._hour = now // HOUR_MS
        self.work(now)
        return True

    def work(self, now: int) -> None:
        """One report at `now` (ms)."""
        with self._lock:
            try:
                self.report, self.failed = drift_report(self._store, now, self._inventory(), breathe=breathe), None
            except GreylagError as error:
                self.failed = str(error)
                print(f"greylag: drift was not looked for ({error}); again in an hour", file=sys.stderr, flush=True)
                return
        rows: dict[tuple[tuple[str, str], ...], float] = {
            (("signal", t.signal), ("node", t.target.node or ""), ("device", t.target.device or "")): t.days_to_go
            for t in self.report.tickets}
        self._telemetry.replace("greylag_drift_days_to_go", rows)

    def document(self) -> dict[str, Any]:
        """The API's answer; `at` is null before the first report."""
        return drift_document(self.report, self.failed)


def drift_document(report: DriftReport | None, failed: str | None = None) -> dict[str, Any]:
    """Tickets as `items`, with how many parts were looked at and of how many too few days are known, by signal."""
    if report is None:
        return {"at": None, "failed": failed, "items": [], "looked": {}, "unknown": {}, "next": None}
    return {"at": rfc3339(report.at), "failed": failed, "items": [plain(t) for t in report.tickets], "looked": dict(report.looked),
            "unknown": dict(report.blind), "next": None}
