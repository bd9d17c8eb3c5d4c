"""A push receiver on a free port, with a clock that a test moves, or that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.mapping import Mapper
from collectors.push.http import HttpLimits
from collectors.push.receiver import PushReceiver
from core.clock import Clock, ManualClock, WallClock
from core.config import GreylagConfig
from core.plugins import load_plugins
from core.telemetry import Telemetry
from core.types import Event, Layout, Scrape
from tests.push.encode import snappy

START_MS = 1_790_000_000_000
WRITE = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"}
SOURCES = load_plugins("collectors.sources")


@asynccontextmanager
async def receiver(folder: Path, clock: Clock | None = None, limits: HttpLimits | None = None,
                   **config: Any) -> AsyncIterator[PushReceiver]:
    """A running receiver. config: keys of GreylagConfig."""
    made = replace(GreylagConfig(), data_dir=str(folder), push_listen="127.0.0.1:0", **config)
    one = PushReceiver(made, "collector-0", Mapper(SOURCES), SOURCES, Telemetry(), clock or ManualClock(START_MS), limits)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def post(port: int, path: str, body: bytes, headers: Mapping[str, str] = WRITE, method: str = "POST",
               ) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: (status, headers, body)."""
    head = {"Host": "x", "Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return await raw(port, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)


async def raw(port: int, data: bytes, finish: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Sends bytes as they are and reads one answer; the connection is then closed by the server (status 0: no answer)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if finish:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
    if not answer:
        return 0, {}, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in rest)}, body


async def write(port: int, data: bytes) -> tuple[int, str]:
    """A remote write of an unpacked request: (status, sentence)."""
    status, _, body = await post(port, "/api/v1/write", snappy(data))
    return status, body.decode().strip()


def points(results: list[tuple[Layout, Scrape]]) -> list[tuple[str, tuple[tuple[str, str], ...], int, bytes]]:
    """(name, labels, ms, value's bytes) of all values that stand in the scrapes, sorted; ended series aside."""
    return sorted((series.name, series.labels, scrape.at, value.tobytes())
                  for layout, scrape in results
                  for series, value in zip(layout.series, scrape.values, strict=True))


def drain(one: PushReceiver, now_ms: int) -> tuple[list[tuple[Layout, Scrape]], list[Event]]:
    """Takes and commits until nothing comes any more."""
    results: list[tuple[Layout, Scrape]] = []
    events: list[Event] = []
    while True:
        more, more_events, mark = one.take(now_ms)
        one.committed(mark)
        if not more and not more_events:
            return results, events
        results += more
        events += more_events


__all__ = ["SOURCES", "START_MS", "WRITE", "WallClock", "drain", "points", "post", "raw", "receiver", "write"]
