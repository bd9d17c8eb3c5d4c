"""Gets a body over HTTP within a deadline and a bound on memory; every failure is a SourceError with a named reason.

`Fetch` is the seam. `HttpFetch` stands behind it: plain HTTP by its own reader (`collectors.http_reader`), https by a
library (`collectors.secure_fetch`), both with kept connections. Bodies are asked for uncompressed, because inside a cluster
compressing costs the exporter more than the bytes cost the network; a gzip answer is read all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from collectors.access import OPEN, Access
from collectors.credentials import Credentials
from collectors.http_reader import Addresses, HttpReader, place_of
from collectors.secure_fetch import SecureReader
from collectors.watched_files import WatchedFiles
from core.errors import SourceError

# What Prometheus 2 sends: OpenMetrics first, then the text format.
ACCEPT = ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
          "text/plain;version=0.0.4;q=0.3,*/*;q=0.1")
USER_AGENT = "greylag"


@dataclass(frozen=True, slots=True)
class Request:
    """timeout_seconds: wall time for the whole exchange. body_limit: bytes after decompression. access: TLS, who asks."""

    url: str
    timeout_seconds: float
    body_limit: int
    accept: str = ACCEPT
    allow_empty: bool = True
    access: Access = OPEN


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
    """Fetch over HTTP and https. Close it with `aclose`.

    addresses: how names are looked up (see `HttpReader`). files: reads secrets and certificates.
    """

    def __init__(self, addresses: Addresses | None = None, files: WatchedFiles | None = None) -> None:
        files = files or WatchedFiles()
        self._reader = HttpReader(addresses)
        self._secure = SecureReader(files, addresses)
        self._credentials = Credentials(files)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._reader.aclose()
        await self._secure.aclose()

    async def get(self, request: Request) -> Body:
        try:
            async with asyncio.timeout(request.timeout_seconds):
                data, headers = await self._answer(request)
        except TimeoutError:
            raise SourceError("timeout", f"no whole answer within {request.timeout_seconds:g} s") from None
        if not data and not request.allow_empty:
            raise SourceError("empty_body", "status 200 without a body")
        offset = headers.get("x-next-offset", "")
        return Body(data, headers.get("content-type"), int(offset) if _is_offset(offset) else None)

    async def _answer(self, request: Request) -> tuple[bytes, Mapping[str, str]]:
        """(body, headers by lower-case name)."""
        secure = request.url.startswith("https://")
        place = None if secure else place_of(request.url)
        headers = [("Accept", request.accept), ("Accept-Encoding", "identity"), ("User-Agent", USER_AGENT),
                   ("X-Prometheus-Scrape-Timeout-Seconds", f"{request.timeout_seconds:g}")]
        if request.access.scheme:
            headers.append(("Authorization", await self._credentials.header(request.access)))
        if place is None:
            got = await self._secure.get(request.url, request.access.tls, headers, request.body_limit)
            return got.body, got.headers
        answer = await self._reader.get(place, "".join([f"{name}: {value}\r\n" for name, value in headers]), request.body_limit)
        return answer.body, answer.headers


def _is_offset(text: str) -> bool:
    return len(text) <= 18 and text.isascii() and text.isdigit()
