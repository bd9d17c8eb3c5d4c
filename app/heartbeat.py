"""Greylag's own sign of life: it stops when ingest, detect or notify is too far behind, so that its absence pages.

`greylag.yaml`: `heartbeat: {url: ..., interval_seconds: 60, limits: {...}}`. The URL is asked (GET) at each interval while all
is well; a dead man's switch behind it (healthchecks.io, Dead Man's Snitch, a PagerDuty heartbeat) pages when nothing comes.
The alert `GreylagWatchdog` at each Alertmanager stops with it. What is not known is not well.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

import httpx

from core.clock import monotonic_seconds
from core.config import HeartbeatConfig, LagLimits
from core.errors import GreylagError
from core.signing import read_secret
from core.telemetry import Telemetry

PARTS = ("ingest", "detect", "notify")
TIMEOUT_SECONDS = 10.0
LOOK_SECONDS = 5.0
STALE_SECONDS = 60.0  # a look, the asking of the URL and the pause after it are over by then


def lags(now_ms: int, workers: Mapping[str, float], last_tick: int | None, waiting_seconds: float | None) -> dict[str, float | None]:
    """Seconds that each part is behind at `now_ms`; None = not known. workers: lag of each collector that has leases."""
    return {"ingest": max(workers.values(), default=None), "detect": None if last_tick is None else max(0.0, (now_ms - last_tick) / 1000),
            "notify": waiting_seconds}


def behind(found: Mapping[str, float | None], limits: LagLimits) -> list[str]:
    """The parts that are beyond their limits, or of which nothing is known."""
    allowed = {"ingest": limits.ingest_seconds, "detect": limits.detect_seconds, "notify": limits.notify_seconds}
    return [part for part in PARTS if (lag := found.get(part)) is None or lag > allowed[part]]


class Heartbeat(threading.Thread):
    """Looks at the lags each few seconds and asks the URL at its interval. measure: the lags now."""

    def __init__(self, config: HeartbeatConfig, measure: Callable[[], Mapping[str, float | None]], telemetry: Telemetry,
                 resolve: Callable[[str], object] = str) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._config, self._measure, self._telemetry, self._resolve = config, measure, telemetry, resolve
        self._halt = threading.Event()
        self._behind: list[str] = list(PARTS)
        self._next = 0.0
        self._looked = monotonic_seconds()
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False)

    def well(self) -> bool:
        """False while any part is beyond its limit, or where the last look is too old to tell: what is measured may itself hang."""
        return not self._behind and monotonic_seconds() - self._looked < STALE_SECONDS

    def stop(self) -> None:
        """Ends the thread."""
        self._halt.set()
        if self.is_alive():
            self.join(TIMEOUT_SECONDS + 1)

    def run(self) -> None:
        while not self._halt.is_set():
            self.look(monotonic_seconds())
            self._halt.wait(min(LOOK_SECONDS, self._config.interval_seconds))

    def look(self, now: float) -> None:
        """Measures; sends a heartbeat where one is due and all is well. now: monotonic seconds."""
        try:
            found = self._measure()
        except Exception:
            found = {}
        for part in PARTS:
            lag = found.get(part)
            if lag is None:  # the number of before would look well
                self._telemetry.drop("greylag_lag_seconds", part=part)
            else:
                self._telemetry.set("greylag_lag_seconds", lag, part=part)
        fresh = behind(found, self._config.limits)
        asked = self._config.url is not None or self._config.url_file is not None
        if fresh != self._behind and asked:
            words = f"no heartbeat: {', '.join(fresh)} beyond the limit or not known" if fresh else "heartbeat: all is well"
            print(f"greylag: {words}", file=sys.stderr, flush=True)
        self._behind, self._looked = fresh, monotonic_seconds()
        if self._behind or now < self._next or not asked:
            return
        self._next = now + self._config.interval_seconds
        result = self._beat()
        self._telemetry.add("greylag_heartbeats_total", result=result)

    def _beat(self) -> str:
        try:
            url = self._config.url or read_secret(str(self._resolve(str(self._config.url_file))))
            answer = self._http.get(url)
        except (httpx.HTTPError, httpx.InvalidURL, GreylagError) as error:
            # The address may be a secret: only the kind of the error is said.
            print(f"greylag: the heartbeat was not taken ({type(error).__name__})", file=sys.stderr, flush=True)
            return "failed"
        if not 200 <= answer.status_code < 300:
            print(f"greylag: the heartbeat was not taken (HTTP {answer.status_code})", file=sys.stderr, flush=True)
            return "failed"
        return "sent"
