"""GET over TLS with httpcore, the library below httpx: certificates, server names and client certificates are its work.

httpx itself is not used here because it follows proxies of the environment and unpacks bodies without a bound; of httpcore
the body is taken in pieces, as it came, and unpacked within the limit. One small pool of connections for each server and
`tls_config`; files of certificates are looked at again, and a changed one makes a new pool.
"""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpcore

from collectors.access import Tls
from collectors.http_answer import Gunzip
from collectors.http_reader import Addresses, Place, place_of
from collectors.watched_files import Stamp, WatchedFiles
from core.clock import monotonic_seconds
from core.errors import SourceError, quote

LOOK_SECONDS = 5.0  # how long certificate files are taken to be as they were
IDLE_SECONDS = 300.0  # how long a connection is kept unused, as Prometheus does
MOST_SERVERS, OF_A_SERVER = 4096, 8
MOST_PEM_BYTES = 16 * 1024 * 1024
VERSIONS = {"TLS10": ssl.TLSVersion.TLSv1, "TLS11": ssl.TLSVersion.TLSv1_1, "TLS12": ssl.TLSVersion.TLSv1_2,
            "TLS13": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class SecureAnswer:
    """A whole 200 answer: its headers by lower-case name, the body unpacked."""

    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class _Context:
    """A tls_config with its files read. stamps: of the files as they were."""

    context: ssl.SSLContext
    stamps: tuple[Stamp, ...]
    looked_at: float


@dataclass(slots=True)
class _Server:
    """Connections to one server. users: exchanges in progress; a pool that is no more wanted is closed after the last."""

    pool: httpcore.AsyncConnectionPool
    context: ssl.SSLContext
    users: int = 0
    retired: bool = False


class _Network(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that `addresses` gives for a name."""

    def __init__(self, addresses: Addresses | None) -> None:
        self._addresses = addresses
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
                          socket_options: Iterable[Any] | None = None) -> httpcore.AsyncNetworkStream:
        hosts = (host,) if self._addresses is None else await self._addresses(host)
        for one in hosts[:-1]:
            try:
                return await self._inner.connect_tcp(one, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                continue
        return await self._inner.connect_tcp(hosts[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context of a tls_config; TLS 1.2 at least where it says nothing else. Raises OSError, ssl.SSLError, ValueError."""
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TLS 1.0 and 1.1: who asks for them has a reason
        context.minimum_version = VERSIONS[tls.min_version or "TLS12"]
    if tls.cert_file:
        # An encrypted key has no password here: without one OpenSSL would ask on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    return context


@dataclass
class SecureReader:
    """GET over https, for one event loop. Close it with `aclose`."""

    files: WatchedFiles
    addresses: Addresses | None = None
    _contexts: dict[Tls, _Context] = field(default_factory=dict)
    _gates: dict[Tls, asyncio.Lock] = field(default_factory=dict)  # one look for all targets that are due together
    _servers: OrderedDict[tuple[str, int, Tls], _Server] = field(default_factory=OrderedDict)

    async def aclose(self) -> None:
        """Closes all connections."""
        servers = list(self._servers.values())
        self._servers.clear()
        for one in servers:
            await self._retire(one)

    async def get(self, url: str, tls: Tls, headers: list[tuple[str, str]], limit: int) -> SecureAnswer:
        """The answer. limit: bytes of the body, unpacked. It has no time-out of its own.

        Raises SourceError: `tls_failed` (handshake, certificates, their files), `connect_failed`, `redirect_refused`,
        `http_status`, `body_too_large`, `bad_encoding`, `truncated`.
        """
        place = _place(url)
        target = httpcore.URL(scheme=b"https", host=place.host.encode(), port=place.port, target=place.path.encode("latin-1"))
        sent = [(name.encode(), value.encode("latin-1")) for name, value in (("Host", place.name), *headers)]
        extensions = {"sni_hostname": tls.server_name} if tls.server_name else {}
        async with self._gates.setdefault(tls, asyncio.Lock()):
            context = await self._context(tls)
        try:
            async with (self._used((place.host, place.port, tls), context) as pool,
                        pool.stream("GET", target, headers=sent, extensions=extensions) as response):
                return await _read(response, limit)
        except httpcore.ConnectError as error:
            reason = "tls_failed" if _of_tls(error) else "connect_failed"
            raise SourceError(reason, str(error) or type(error).__name__) from None
        except (httpcore.UnsupportedProtocol, httpcore.LocalProtocolError, UnicodeError) as error:
            raise SourceError("connect_failed", str(error)) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            # With TLS 1.3 a server refuses a client's certificate only after the handshake: SSLError (an OSError) comes as it is.
            reason = "tls_failed" if _of_tls(error) else "truncated"
            raise SourceError(reason, str(error) or "the connection broke, as it also does where a server "
                              "wants a client's certificate and gets none") from None

    # --- contexts -----------------------------------------------------------------------------------------------------
    async def _context(self, tls: Tls) -> ssl.SSLContext:
        known, now = self._contexts.get(tls), monotonic_seconds()
        if known is not None and now < known.looked_at + LOOK_SECONDS:
            return known.context
        try:
            stamps = tuple([(await self.files.read(one, None, MOST_PEM_BYTES))[0] for one in tls.files])
        except SourceError as error:
            if error.reason != "file_unreadable" and known is not None:
                return known.context  # the helper did not answer, which says nothing of the files
            raise SourceError("tls_failed", error.detail) from None
        if known is None or known.stamps != stamps:
            try:
                known = _Context(await asyncio.to_thread(context_of, tls), stamps, now)
            except (OSError, ValueError) as error:  # SSLError is an OSError
                raise SourceError("tls_failed", f"{', '.join(tls.files)}: {error}") from None
            self._contexts[tls] = known
        known.looked_at = now
        return known.context

    # --- pools --------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def _used(self, key: tuple[str, int, Tls], context: ssl.SSLContext) -> AsyncIterator[httpcore.AsyncConnectionPool]:
        server = self._servers.pop(key, None)
        if server is not None and server.context is not context:
            await self._retire(server)
            server = None
        if server is None:
            # A pool for each server: httpcore's looks at all its connections at each request.
            server = _Server(httpcore.AsyncConnectionPool(
                ssl_context=context, max_connections=OF_A_SERVER, keepalive_expiry=IDLE_SECONDS,
                network_backend=_Network(self.addresses)), context)
        self._servers[key] = server
        server.users += 1
        try:
            if len(self._servers) > MOST_SERVERS:
                await self._retire(self._servers.popitem(last=False)[1])
            yield server.pool
        finally:
            server.users -= 1
            if server.retired:
                await self._retire(server)

    @staticmethod
    async def _retire(server: _Server) -> None:
        server.retired = True
        if not server.users:
            await server.pool.aclose()


def _of_tls(error: BaseException | None) -> bool:
    """Whether an error of TLS is behind it; the library leaves it in the context."""
    for _ in range(10):
        if error is None:
            return False
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(url: str) -> Place:
    place = place_of("http" + url.removeprefix("https"))
    return place if urlsplit(url).port is not None else place._replace(port=443)


async def _read(response: httpcore.Response, limit: int) -> SecureAnswer:
    """The body of a 200 answer, unpacked within the limit."""
    if 300 <= response.status < 400:
        raise SourceError("redirect_refused", f"status {response.status}")
    if response.status != 200:
        raise SourceError("http_status", f"status {response.status}")
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    packed = headers.get("content-encoding", "identity").lower()
    if packed not in ("", "identity", "gzip", "x-gzip"):
        raise SourceError("bad_encoding", f"content encoding {quote(packed)}")
    unpack = Gunzip(limit) if packed.endswith("gzip") else None
    pieces, size = [], 0
    async for raw in response.aiter_stream():
        piece = unpack.feed(raw) if unpack is not None else raw
        size += len(piece)
        if size > limit:
            raise SourceError("body_too_large", f"more than {limit} bytes")
        pieces.append(piece)
    if unpack is not None:
        unpack.finish()
    return SecureAnswer(headers, b"".join(pieces))
