"""Fakes of what a collector talks to: an HTTP server whose answers are bytes, and an owner that takes batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from core.types import Batch
from core.wire import decode_batch

Answer = Callable[[str, bytes], bytes | None]


def reply(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP answer; header names with _ for -."""
    lines = [f"HTTP/1.1 {status}"]
    if "content_length" not in headers:
        headers["content_length"] = str(len(body))
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Raw(bytes):
    """An answer after which the server closes the connection."""


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[str]:
    """A server on a free port; `answer(path, body)` gives the raw answer, None = say nothing until the client goes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0])) if length else b""
                said = answer(head.split(b" ")[1].decode(), body)
                if said is None:
                    await reader.read()
                    break
                writer.write(said)
                await writer.drain()
                if isinstance(said, Raw):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class FakeOwner:
    """Grants epochs and commits batches; `script` gives status and body for the next answers to batches, in order.

    leases: the answer to heartbeats; None = it issues none (404). beats: the heartbeats that came.
    """

    def __init__(self, *script: tuple[str, dict[str, object]]) -> None:
        self.script = list(script)
        self.batches: list[Batch] = []
        self.tried: list[tuple[int, int]] = []
        self.epoch = 0
        self.leases: dict[str, object] | None = None
        self.beats: list[dict[str, object]] = []
        self.arrived = asyncio.Event()

    def __call__(self, path: str, body: bytes) -> bytes:
        if path.endswith("/epoch"):
            self.epoch += 1
            return reply(json.dumps({"epoch": self.epoch}).encode())
        if path.endswith("/leases"):
            self.beats.append(json.loads(body))
            return reply(b"{}", "404 Not Found") if self.leases is None else reply(json.dumps(self.leases).encode())
        batch = decode_batch(body)
        self.tried.append((batch.epoch, batch.seq))
        if self.script:
            status, said = self.script.pop(0)
            return reply(json.dumps(said).encode(), status)
        self.batches.append(batch)
        self.arrived.set()
        return reply(json.dumps({"committed": batch.seq}).encode())
