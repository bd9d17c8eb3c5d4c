"""Syslog's sockets: TCP and UDP on one port. Syslog has no answers: a TCP sender is held back while the spool cannot take
its lines (it stops being read), a datagram that cannot be kept is dropped and counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from collectors.push.parts import PushRefused
from collectors.push.syslog import LONGEST_MESSAGE, Frames

log = logging.getLogger("greylag.push")
MOST_CONNECTIONS = 1024
MOST_WAITING = 20_000  # datagrams
READ_BYTES = 64 * 1024
MOST_AT_ONCE = 2_000  # messages of one spool record
RETRY_SECONDS = 1.0
IDLE_SECONDS = 3_600.0
Take = Callable[[Sequence[str], str], Awaitable[None]]


class SyslogServer:
    """take: puts messages of a peer into the spool; raises PushRefused where it cannot just now. counts: by reason."""

    def __init__(self, take: Take, counts: Counter[str]) -> None:
        self._take, self._counts = take, counts
        self._tcp: asyncio.Server | None = None
        self._udp: asyncio.DatagramTransport | None = None
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue(MOST_WAITING)
        self._reading: asyncio.Task[None] | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._tcp is not None
        return int(self._tcp.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listens on TCP, and on the same port on UDP. Raises OSError."""
        self._tcp = await asyncio.start_server(self._accept, host, port)
        loop = asyncio.get_running_loop()
        try:
            self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self._heard), local_addr=(host, self.port))
        except OSError:
            self._tcp.close()
            raise
        self._reading = asyncio.create_task(self._datagrams())

    async def stop(self) -> None:
        """Listens no more; what was read is spooled."""
        if self._tcp is not None:
            self._tcp.close()
        if self._udp is not None:
            self._udp.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._waiting.join()
        for writer in self._open.values():
            writer.transport.abort()
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._open:
            await asyncio.wait(set(self._open), timeout=2.0)

    # --- TCP ----------------------------------------------------------------------------------------------------------
    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._open) >= MOST_CONNECTIONS:
                return
            self._open[task] = writer
            name = writer.get_extra_info("peername")
            await self._stream(reader, str(name[0]) if name else "local")
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _stream(self, reader: asyncio.StreamReader, peer: str) -> None:
        frames = Frames()
        cut = 0
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await reader.read(READ_BYTES)
            messages = frames.feed(data) if data else frames.end()
            self._counts["too_long"] += frames.too_long - cut
            cut = frames.too_long
            for start in range(0, len(messages), MOST_AT_ONCE):
                await self._until_taken(messages[start:start + MOST_AT_ONCE], peer)
            if not data:
                return

    async def _until_taken(self, messages: Sequence[str], peer: str) -> None:
        while True:
            try:
                return await self._take(messages, peer)
            except PushRefused:
                await asyncio.sleep(RETRY_SECONDS)

    # --- UDP ----------------------------------------------------------------------------------------------------------
    def _heard(self, data: bytes, peer: str) -> None:
        if len(data) > LONGEST_MESSAGE:
            self._counts["too_long"] += 1
        try:
            self._waiting.put_nowait((data[:LONGEST_MESSAGE].decode("utf-8", "replace"), peer))
        except asyncio.QueueFull:
            self._counts["udp_dropped"] += 1

    async def _datagrams(self) -> None:
        while True:
            rows = [await self._waiting.get()]
            while len(rows) < MOST_AT_ONCE and not self._waiting.empty():
                rows.append(self._waiting.get_nowait())
            by_peer: dict[str, list[str]] = {}
            for text, peer in rows:
                by_peer.setdefault(peer, []).append(text)
            for peer, messages in by_peer.items():
                try:
                    await self._take(messages, peer)
                except PushRefused:
                    self._counts["udp_dropped"] += len(messages)
            for _ in rows:
                self._waiting.task_done()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, heard: Callable[[bytes, str], None]) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._heard(data, addr[0])
