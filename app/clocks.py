"""The clock that Greylag runs on: the wall's, or the one that a bundled fleet announces.

The fleet's clock is paced: it stands on a slot until the owner has committed the tick of that slot, so a slow machine is
slow and never late. Its greatest speed is the fleet's business; nothing here assumes one.
"""

from __future__ import annotations

import asyncio

import httpx

from core.clock import Clock, WallClock, monotonic_seconds
from core.errors import Unavailable

RETRY_SECONDS = 0.5


class FleetClock:
    """Reads `GET /control/v1/clock`, waits by long poll, reports committed ticks."""

    def __init__(self, url: str, wall_seconds: float = 10.0) -> None:
        self._url = url.rstrip("/")
        self._wall = wall_seconds
        self._now = 0
        self._speed = 0.0
        self._read_at = monotonic_seconds()
        with httpx.Client(timeout=wall_seconds) as client:
            self._take(client.get(f"{self._url}/control/v1/clock").json())
        self._client: httpx.AsyncClient | None = None

    def _take(self, answer: dict[str, float]) -> None:
        self._now = max(self._now, int(answer["now_ms"]))
        self._speed = 0.0 if answer.get("paced") else float(answer.get("speed", 1.0))
        self._read_at = monotonic_seconds()

    def _async_client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._wall + 5)
        return self._client

    def now_ms(self) -> int:
        return self._now + int((monotonic_seconds() - self._read_at) * 1000 * self._speed)

    async def sleep_until(self, at_ms: int) -> None:
        while self.now_ms() < at_ms:
            try:
                answer = await self._async_client().get(
                    f"{self._url}/control/v1/clock", params={"after": at_ms, "wait": self._wall})
                self._take(answer.json())
            except (httpx.HTTPError, ValueError):
                await asyncio.sleep(RETRY_SECONDS)

    async def committed(self, tick_ms: int) -> None:
        while True:  # until it is told: a paced clock stands until then, and no later tick would tell it
            try:
                answer = await self._async_client().post(
                    f"{self._url}/control/v1/clock/committed", json={"tick_ms": tick_ms})
                self._take(answer.json())
            except (httpx.HTTPError, ValueError, KeyError):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def make_clock(url: str | None) -> Clock:
    """The wall clock, or the fleet's at `url`. Raises Unavailable when the fleet does not answer."""
    if url is None:
        return WallClock()
    try:
        return FleetClock(url)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise Unavailable(f"the fleet's clock at {url} does not answer ({error})") from None
