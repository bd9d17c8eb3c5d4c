"""A small HTTP/1.1 server for pushes on asyncio streams: POST bodies by Content-Length or in chunks, keep-alive,
`Expect: 100-continue`. Everything that a sender can choose is bounded: connections, head, body, bytes held by all requests
together, and the time that each of them may take, so a slow or a hostile sender costs one connection and no more.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

log = logging.getLogger("greylag.push")
LINGER_SECONDS, MOST_LINGER_BYTES = 1.0, 8 * 1024 * 1024
_REQUEST = re.compile(r"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
PHRASES = {100: "Continue", 200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
           417: "Expectation Failed", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
           500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """idle: seconds between requests of a connection. head, body: seconds that a head or a body may take to arrive.
    held_bytes: of the bodies of all requests that are under way."""

    connections: int = 512
    head_bytes: int = 32 * 1024
    body_bytes: int = 32 * 1024 * 1024
    held_bytes: int = 128 * 1024 * 1024
    idle_seconds: float = 300.0
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    answer_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """headers: by lower-case name; repeated ones joined by commas. body: as it came, still packed."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back. body may be empty."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class _Stop(Exception):
    """The connection ends, after this answer where there is one."""

    def __init__(self, status: int = 0, sentence: str = "", retry: bool = False) -> None:
        super().__init__(sentence)
        self.answer = Answer(status, f"{sentence}\n".encode(), headers={"Retry-After": "5"} if retry else {}) if status else None


class HttpServer:
    """Answers requests with `handle`, which must not raise."""

    def __init__(self, handle: Callable[[Request], Awaitable[Answer]], limits: HttpLimits | None = None) -> None:
        self._handle, self._limits = handle, limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._busy: set[asyncio.Task[None]] = set()
        self._held = 0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises OSError where the address is taken."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=self._limits.head_bytes, backlog=512)

    async def stop(self) -> None:
        """Listens no more, lets requests that are whole be answered, closes the rest."""
        if self._server is not None:
            self._server.close()
        self._abort(self._open.keys() - self._busy)
        if self._open:
            await asyncio.wait(set(self._open), timeout=5.0)
            self._abort(self._open.keys())
            await asyncio.sleep(0)

    def _abort(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Ends connections from below: their tasks see the end of their input."""
        for task in list(tasks):
            self._open[task].transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        peer = writer.get_extra_info("peername")
        try:
            if len(self._open) > self._limits.connections:
                await self._answer(writer, _busy_answer(), False)
                await _linger(reader, writer, 0.2)
                return
            await self._serve(reader, writer, str(peer[0]) if peer else "local", task)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            self._open.pop(task, None)
            writer.close()
            with suppress(OSError, asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str, task: asyncio.Task[None]) -> None:
        keep = True
        idle = self._limits.head_seconds  # who has sent nothing yet is not worth a place for long
        while keep:
            held = 0
            try:
                head = await self._head(reader, idle)
                idle = self._limits.idle_seconds
                if head is None:
                    return
                method, path, version, headers = head
                keep = _keeps(version, headers)
                held, body = await self._body(reader, writer, method, headers)
                self._busy.add(task)
                answer = await self._handle(Request(method, path, headers, body, peer))
                await self._answer(writer, answer, keep)
            except _Stop as stop:
                if stop.answer is not None:
                    await self._answer(writer, stop.answer, False)
                    await _linger(reader, writer, LINGER_SECONDS)
                return
            finally:
                self._held -= held
                self._busy.discard(task)

    async def _head(self, reader: asyncio.StreamReader, idle: float) -> tuple[str, str, str, dict[str, str]] | None:
        try:
            async with asyncio.timeout(idle):
                first = await reader.read(1)
        except TimeoutError:
            return None
        if not first:
            return None
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                rest = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise _Stop(408, "the head of the request did not arrive in time.") from None
        except asyncio.LimitOverrunError:
            raise _Stop(431, f"the head of the request has more than {self._limits.head_bytes} bytes.") from None
        lines = (first + rest).decode("latin-1").strip("\r\n").split("\r\n")
        match = _REQUEST.fullmatch(lines[0])
        if match is None:
            raise _Stop(400, "the first line is no HTTP/1.1 request line.")
        return match[1], match[2].partition("?")[0], match[3], _headers(lines[1:])

    async def _body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str,
                    headers: Mapping[str, str]) -> tuple[int, bytes]:
        """(bytes that are held for it, body)."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (length is not None or coding.lower() != "chunked"):
            raise _Stop(400, "a body is sent either with one Content-Length or with Transfer-Encoding: chunked.")
        if coding is None and length is None:
            if method == "POST":
                raise _Stop(411, "a Content-Length is needed.")
            return 0, b""
        if length is not None and _LENGTH.fullmatch(length) is None:
            raise _Stop(400, "the Content-Length is no number.")
        announced = int(length) if length is not None else 0
        if announced > self._limits.body_bytes:
            raise _Stop(413, f"the body has {announced} bytes, {self._limits.body_bytes} are allowed: send smaller requests.")
        if self._held + announced > self._limits.held_bytes:
            raise _Stop(503, "too many requests are under way.", retry=True)
        await self._expected(writer, headers)
        self._held += announced
        held = announced
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                if coding is None:
                    return held, await reader.readexactly(announced)
                body = bytearray()
                while piece := await self._chunk(reader, len(body)):
                    body += piece
                    held += len(piece)
                    self._held += len(piece)
                    if self._held > self._limits.held_bytes:
                        raise _Stop(503, "too many requests are under way.", retry=True)
                return held, bytes(body)
        except TimeoutError:
            self._held -= held
            raise _Stop(408, "the body did not arrive in time.") from None
        except BaseException:
            self._held -= held
            raise

    async def _expected(self, writer: asyncio.StreamWriter, headers: Mapping[str, str]) -> None:
        expect = headers.get("expect")
        if expect is None:
            return
        if expect.lower() != "100-continue":
            raise _Stop(417, "the only expectation that is met is 100-continue.")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()

    async def _chunk(self, reader: asyncio.StreamReader, so_far: int) -> bytes:
        """The next chunk, empty at the end of the body."""
        try:
            line = await reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError:
            raise _Stop(400, "the size line of a chunk is too long.") from None
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise _Stop(400, "a chunk has no size.")
        length = int(size[1], 16)
        if so_far + length > self._limits.body_bytes:
            raise _Stop(413, f"the body has more than {self._limits.body_bytes} bytes: send smaller requests.")
        if not length:
            trailer = 0
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                trailer += len(line)
                if trailer > self._limits.head_bytes:
                    raise _Stop(431, "the trailers are too long.")
            return b""
        piece = await reader.readexactly(length)
        if await reader.readexactly(2) != b"\r\n":
            raise _Stop(400, "a chunk is longer than its size.")
        return piece

    async def _answer(self, writer: asyncio.StreamWriter, answer: Answer, keep: bool) -> None:
        head = [f"HTTP/1.1 {answer.status} {PHRASES.get(answer.status, 'Answer')}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.status != 204:
            head += [f"Content-Type: {answer.content_type}", f"Content-Length: {len(answer.body)}"]
        if not keep:
            head.append("Connection: close")
        writer.write("\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n" + (answer.body if answer.status != 204 else b""))
        async with asyncio.timeout(self._limits.answer_seconds):
            await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Reads on for a moment after an answer that came before the request's end: a socket closed with unread input is reset,
    and the sender would not see why."""
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(seconds):
            left = MOST_LINGER_BYTES
            while left > 0 and (piece := await reader.read(64 * 1024)):
                left -= len(piece)


def _busy_answer() -> Answer:
    return Answer(503, b"too many connections are open.\n", headers={"Retry-After": "5"})


def _keeps(version: str, headers: Mapping[str, str]) -> bool:
    options = headers.get("connection", "").lower()
    return "keep-alive" in options if version == "0" else "close" not in options


def _headers(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise _Stop(400, "a header line is none.")
        key, value = name.lower(), value.strip(" \t")
        if key in found and not (key == "content-length" and found[key] == value):
            value = f"{found[key]}, {value}"
        found[key] = value
    return found
