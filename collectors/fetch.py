"""Gets a body over HTTP within a deadline and a bound on memory; every failure is a SourceError with a named reason.

`Fetch` is the seam, `HttpFetch` the reader behind it, with kept connections. Bodies are asked for uncompressed, because
inside a cluster compressing costs the exporter more than the bytes cost the network; a gzip answer is read all the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from collectors.http_reader import Addresses, HttpReader, place_of
from core.errors import SourceError

# What Prometheus 2 sends: OpenMetrics first, then the text format.
ACCEPT = ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
          "text/plain;version=0.0.4;q=0.3,*/*;q=0.1")
USER_AGENT = "greylag"


@dataclass(frozen=True, slots=True)
class Request:
    """timeout_seconds: wall time for the whole exchange. body_limit: bytes after decompression."""

    url: str
    timeout_seconds: float
    body_limit: int
    accept: str = ACCEPT
    allow_empty: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """What came, decompressed. next_offset: of a log's door, where it says so itself."""

    data: bytes
    content_type: str | None = None
    next_offset: int | None = None


class Fetch(Protocol):
    """Reads one body."""

    async def get(self, request: Request) -> Body:
        """The body of a 200 answer. Raises SourceError with a reason of `core.reasons.SCRAPE_REASONS`."""
        ...


class HttpFetch:
    """Fetch over plain HTTP. Close it with `aclose`. addresses: how names are looked up (see `HttpReader`)."""

    def __init__(self, addresses: Addresses | None = None) -> None:
        self._reader = HttpReader(addresses)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._reader.aclose()

    async def get(self, request: Request) -> Body:
        place = place_of(request.url)
        headers = (f"Accept: {request.accept}\r\nAccept-Encoding: identity\r\nUser-Agent: {USER_AGENT}\r\n"
                   f"X-Prometheus-Scrape-Timeout-Seconds: {request.timeout_seconds:g}\r\n")
        try:
            async with asyncio.timeout(request.timeout_seconds):
                answer = await self._reader.get(place, headers, request.body_limit)
        except TimeoutError:
            raise SourceError("timeout", f"no whole answer within {request.timeout_seconds:g} s") from None
        data = answer.body
        if not data and not request.allow_empty:
            raise SourceError("empty_body", "status 200 without a body")
        offset = answer.headers.get("x-next-offset", "")
        return Body(data, answer.headers.get("content-type"), int(offset) if _is_offset(offset) else None)


def _is_offset(text: str) -> bool:
    return len(text) <= 18 and text.isascii() and text.isdigit()
