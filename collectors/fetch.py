"""Gets a body over HTTP within a deadline and a bound on memory; every failure is a SourceError with a named reason.

`Fetch` is the seam: today's reader is httpx, with keep-alive. Bodies are asked for uncompressed, because inside a
cluster compressing costs the exporter more than the bytes cost the network; a gzip answer is read all the same.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Protocol

import httpx

from core.errors import SourceError

# What Prometheus 2 sends: OpenMetrics first, then the text format.
ACCEPT = ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
          "text/plain;version=0.0.4;q=0.3,*/*;q=0.1")
USER_AGENT = "greylag"
MOST_CONNECTIONS = 64


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
    """Fetch over plain HTTP with keep-alive. Close it with `aclose`."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            follow_redirects=False, trust_env=False, timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=MOST_CONNECTIONS),
        )

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def get(self, request: Request) -> Body:
        try:
            async with asyncio.timeout(request.timeout_seconds):
                return await self._get(request)
        except TimeoutError:
            raise SourceError("timeout", f"no whole answer within {request.timeout_seconds:g} s") from None
        except httpx.RemoteProtocolError as error:
            raise SourceError("truncated", str(error)) from None
        except (httpx.ReadError, httpx.WriteError) as error:
            raise SourceError("truncated", str(error) or "the connection broke") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise SourceError("connect_failed", str(error) or type(error).__name__) from None

    async def _get(self, request: Request) -> Body:
        headers = {
            "Accept": request.accept, "Accept-Encoding": "identity", "User-Agent": USER_AGENT,
            "X-Prometheus-Scrape-Timeout-Seconds": f"{request.timeout_seconds:g}",
        }
        async with self._client.stream("GET", request.url, headers=headers) as answer:
            if 300 <= answer.status_code < 400:
                raise SourceError("redirect_refused", f"status {answer.status_code}")
            if answer.status_code != 200:
                raise SourceError("http_status", f"status {answer.status_code}")
            data = await _read(answer, request.body_limit)
            if not data and not request.allow_empty:
                raise SourceError("empty_body", "status 200 without a body")
            offset = answer.headers.get("x-next-offset", "")
            return Body(data, answer.headers.get("content-type"), int(offset) if offset.isdigit() else None)


async def _read(answer: httpx.Response, limit: int) -> bytes:
    """The body as sent, decompressed piece by piece: a bomb is stopped at `limit`, whatever its ratio."""
    length = answer.headers.get("content-length", "")
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        if length.isdigit() and int(length) > limit:
            raise SourceError("body_too_large", f"{length} bytes are announced, {limit} are allowed")
        unpack = None
    elif encoding in ("gzip", "x-gzip"):
        unpack = Gunzip(limit)
    else:
        raise SourceError("bad_encoding", f"content encoding {encoding[:40]!r}")
    pieces: list[bytes] = []
    size = 0
    async for raw in answer.aiter_raw():
        piece = unpack.feed(raw) if unpack else raw
        size += len(piece)
        if size > limit:
            raise SourceError("body_too_large", f"more than {limit} bytes")
        pieces.append(piece)
    if unpack:
        unpack.finish()
    return b"".join(pieces)


class Gunzip:
    """Bounded gzip: never holds more than the limit and one piece. Several members in a row are read as one body."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._any = False

    def feed(self, raw: bytes) -> bytes:
        """The bytes that `raw` unpacks to. Raises SourceError(`bad_encoding` | `body_too_large`)."""
        out = []
        self._any = self._any or bool(raw)
        try:
            while raw:
                if self._z.eof:
                    self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)
                piece = self._z.decompress(raw, self._left + 1)
                self._left -= len(piece)
                if self._left < 0:
                    raise SourceError("body_too_large", "the body unpacks to more than is allowed")
                out.append(piece)
                raw = self._z.unconsumed_tail or (self._z.unused_data if self._z.eof else b"")
        except zlib.error as error:
            raise SourceError("bad_encoding", f"broken gzip ({error})") from None
        return b"".join(out)

    def finish(self) -> None:
        """Raises SourceError(`truncated`) where the stream ended early."""
        if self._any and not self._z.eof:
            raise SourceError("truncated", "the gzip stream ends early")
