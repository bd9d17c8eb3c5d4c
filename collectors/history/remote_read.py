"""Prometheus' remote read (`/api/v1/read`): raw samples with their own times, stale markers included.

Asks for the response type SAMPLES: one Snappy block, decoded as arrays. STREAMED_XOR_CHUNKS would let the server use
less memory, but chunks are bit streams that cost Python some 50 times as much CPU for each sample; slices of time bound the
memory of both sides instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cramjam

from collectors.history.pieces import Piece, TooMuch
from collectors.history.protobuf import read_request, read_response
from collectors.history.web import MOST_BODY_BYTES, Server
from core.errors import BadInput, SourceError
from core.protocols import Matcher

PATH = "/api/v1/read"
HEADERS = {
    "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "Accept-Encoding": "identity",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
}
MOST_UNPACKED_BYTES = 2 * MOST_BODY_BYTES


class RemoteRead:
    """`HistoryReader` over remote read."""

    way = "remote_read"
    samples_at_once = 400_000
    exact = True

    def __init__(self, server: Server) -> None:
        self._server = server

    def there(self) -> None:
        """Asks for nothing. Raises NotThere where the server has no remote read."""
        self._ask((Matcher("__name__", "=", "greylag_asks_whether_you_can"),), 0, 0)

    def _ask(self, matchers: Sequence[Matcher], start: int, end: int) -> bytes:
        request = bytes(cramjam.snappy.compress_raw(read_request(matchers, start, end)))
        body = self._server.whole("POST", PATH, content=request, headers=HEADERS)
        if not body:
            return b""
        try:
            size = cramjam.snappy.decompress_raw_len(body)
            if size > MOST_UNPACKED_BYTES:
                raise TooMuch(f"an answer of {size >> 20} MiB")
            return bytes(cramjam.snappy.decompress_raw(body))
        except cramjam.DecompressionError as error:
            raise BadInput(self._server.url + PATH, "", "an answer that is no Snappy block", f"a remote read endpoint is needed ({error})") from None

    def read(self, matchers: Sequence[Matcher], start: int, end: int) -> Iterator[Piece]:
        try:
            yield from read_response(self._ask(matchers, start, end))
        except SourceError as error:
            raise BadInput(self._server.url + PATH, "", "an answer that does not parse", f"a remote read endpoint is needed ({error})") from None
