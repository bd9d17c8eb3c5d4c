"""GET over plain HTTP/1.1 with kept connections, on asyncio: what a scrape needs and nothing more.

A general client costs more than all the parsing behind it: on a page of 44 KB httpx took 2.6 ms of CPU, this reader 0.3 ms
(one run of `greylag bench ingest`, which measures both). Only `http://`; redirects are refused, cookies, proxies
and the environment are not looked at.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from collectors.http_answer import AnswerReader
from core.errors import SourceError
from core.errors import quote as quoted

BUFFER_BYTES = 256 * 1024  # as much as one look at a socket takes; one such buffer for all connections
IDLE_OF_A_SERVER, IDLE_IN_ALL = 64, 512  # kept connections: of one address, and together (below the usual 1024 files)
Addresses = Callable[[str], Awaitable[tuple[str, ...]]]
_PATH_SAFE = "!#$%&'()*+,/:;=?@[]~"


class Place(NamedTuple):
    """Where a URL points. name: the Host header. path: with the query, ready for the request line."""

    host: str
    port: int
    name: str
    path: str


def place_of(url: str) -> Place:
    """The place of a URL. Raises SourceError(`connect_failed`) for one that cannot be read."""
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
    except ValueError as error:
        raise SourceError("connect_failed", f"not an address: {quoted(url)} ({error})") from None
    host = parts.hostname or ""
    if parts.scheme != "http" or not host or "@" in parts.netloc:
        raise SourceError("connect_failed", f"not an address: {quoted(url)}, http://host:port/path is needed")
    if not host.isascii() or not host.isprintable() or " " in host:
        raise SourceError("connect_failed", f"not a host name: {quoted(host)}")
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    return Place(host, port, parts.netloc, f"{path}?{quote(parts.query, safe=_PATH_SAFE)}" if parts.query else path)


class _NeverBegan(Exception):
    """The connection was closed before the first byte of an answer."""


class _Connection(asyncio.BufferedProtocol):
    """One connection, one exchange at a time. gone: called once, when it is closed."""

    def __init__(self, buffer: memoryview, gone: Callable[[_Connection], None]) -> None:
        self._buffer, self._gone = buffer, gone
        self._transport: asyncio.Transport | None = None
        self._answer: AnswerReader | None = None
        self._whole: asyncio.Future[None] | None = None
        self.usable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.usable = transport, True

    def get_buffer(self, sizehint: int) -> memoryview:
        # The loop fills it and calls buffer_updated at once, so one buffer serves all connections of the loop.
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None:
            self.abort()  # it speaks without being asked
            return
        try:
            if self._answer.feed(bytes(self._buffer[:nbytes])):
                self._settle(None)
        except SourceError as error:
            self._settle(error)

    def eof_received(self) -> None:
        self.usable = False
        if self._answer is None:
            return
        try:
            self._answer.end()
        except SourceError as error:
            self._settle(error if self._answer.began else _NeverBegan())
        else:
            self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._answer is not None:
            self._settle(SourceError("truncated", str(exc) or "the connection broke")
                         if self._answer.began else _NeverBegan())
        self._gone(self)

    def _settle(self, error: Exception | None) -> None:
        if self._whole is None or self._whole.done():
            return
        if error is None:
            self._whole.set_result(None)
        else:
            self._whole.set_exception(error)

    async def ask(self, request: bytes, answer: AnswerReader) -> None:
        """Sends the request and returns when the answer is whole. A connection that cannot go on is closed."""
        assert self._transport is not None
        if not self.usable:
            raise _NeverBegan
        self._answer, self._whole = answer, asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._whole
        except BaseException:
            self.abort()
            raise
        finally:
            self._answer = self._whole = None
        if not answer.reusable:
            self.abort()

    def abort(self) -> None:
        """Closes it at once."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()


class HttpReader:
    """Kept connections to any number of servers, for one event loop. Close it with `aclose`.

    addresses: gives the addresses of a name (see `collectors.disposable.Resolver`); without it the loop's own threads look
    names up, and a look-up that hangs keeps its thread.
    """

    def __init__(self, addresses: Addresses | None = None) -> None:
        self._addresses = addresses
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._all: set[_Connection] = set()
        self._idle: OrderedDict[_Connection, tuple[str, int]] = OrderedDict()  # the longest unused first
        self._of: dict[tuple[str, int], list[_Connection]] = {}  # idle ones by server, the last used last

    async def aclose(self) -> None:
        """Closes all connections; exchanges in progress fail."""
        for one in list(self._all):
            one.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    async def get(self, place: Place, headers: str, limit: int) -> AnswerReader:
        """The whole answer to a GET. headers: complete lines, each with its CR LF. limit: bytes of the body, unpacked.

        Raises SourceError as `AnswerReader` does, and `connect_failed`. It has no time-out of its own.
        """
        request = f"GET {place.path} HTTP/1.1\r\nHost: {place.name}\r\n{headers}\r\n".encode("latin-1")
        server = place.host, place.port
        kept = self._take(server)
        if kept is not None:
            try:
                return await self._exchange(kept, server, request, limit)
            except _NeverBegan:
                pass  # it was closed while it lay idle: that says nothing of the server, so ask once more
        fresh = await self._connect(server)
        try:
            return await self._exchange(fresh, server, request, limit)
        except _NeverBegan:
            raise SourceError("truncated", "the connection was closed without an answer") from None

    async def _exchange(self, connection: _Connection, server: tuple[str, int], request: bytes,
                        limit: int) -> AnswerReader:
        answer = AnswerReader(limit)
        await connection.ask(request, answer)
        if connection.usable:
            self._keep(connection, server)
        return answer

    async def _connect(self, server: tuple[str, int]) -> _Connection:
        host, port = server
        hosts = (host,) if self._addresses is None else await self._addresses(host)
        for i, one in enumerate(hosts):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._buffer, self._forget), one, port)
                break
            except (OSError, UnicodeError) as error:
                if i == len(hosts) - 1:
                    raise SourceError("connect_failed", str(error) or type(error).__name__) from None
        if connection.usable:  # else it is lost again already
            self._all.add(connection)
        return connection

    # --- the pool -----------------------------------------------------------------------------------------------------
    def _take(self, server: tuple[str, int]) -> _Connection | None:
        kept = self._of.get(server)
        if not kept:
            return None
        found = kept[-1]
        self._lift(found)
        return found

    def _keep(self, connection: _Connection, server: tuple[str, int]) -> None:
        kept = self._of.setdefault(server, [])
        kept.append(connection)
        self._idle[connection] = server
        if len(kept) > IDLE_OF_A_SERVER:
            self._drop(kept[0])
        elif len(self._idle) > IDLE_IN_ALL:
            self._drop(next(iter(self._idle)))

    def _lift(self, connection: _Connection) -> None:
        """Takes it out of the pool, where it is in it."""
        server = self._idle.pop(connection, None)
        if server is None:
            return
        kept = self._of[server]
        kept.remove(connection)
        if not kept:
            del self._of[server]

    def _drop(self, connection: _Connection) -> None:
        self._lift(connection)
        connection.abort()

    def _forget(self, connection: _Connection) -> None:
        self._lift(connection)
        self._all.discard(connection)
