"""The HTTP server against all that a sender may send."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from collectors.push.http import HttpLimits
from tests.push.encode import snappy, write_request
from tests.push.site import START_MS, WRITE, post, raw, receiver

BODY = snappy(write_request([({"__name__": "m", "job": "j", "instance": "i"}, [(START_MS, 1.0)])]))
HEAD = b"POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Encoding: snappy\r\nContent-Type: application/x-protobuf\r\n"
SHORT = HttpLimits(connections=4, body_bytes=1000, held_bytes=1500, idle_seconds=5.0, head_seconds=0.3, body_seconds=0.3)


def chunked(*sizes: int) -> bytes:
    out, pos = b"", 0
    for size in (*sizes, len(BODY) - sum(sizes)):
        out += b"%x;ext=1\r\n%s\r\n" % (size, BODY[pos:pos + size])
        pos += size
    return out + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize(("data", "status"), [
    (HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY) + BODY, 204),
    (HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunked(1, 20, 7), 204),
    (HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, 204),
    (HEAD + b"\r\n", 411),
    (HEAD + b"Content-Length: x\r\n\r\n", 400),
    (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
    (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", 400),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
    (HEAD + b"Content-Length: 1001\r\n\r\n", 413),
    (HEAD + b"Content-Length: 5\r\nExpect: something\r\n\r\n", 417),
    (HEAD + b"X: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    (b"GARBAGE\r\n\r\n", 400),
    (HEAD + b"no colon here\r\n\r\n", 400),
    (HEAD, 408),  # the head never ends
    (HEAD + b"Content-Length: 900\r\n\r\nabc", 408),  # the body never ends
    (b"POST /nowhere HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 404),
    (b"GET /api/v1/write HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
    (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS where none is spoken
])
def test_requests_of_all_kinds(tmp_path: Path, data: bytes, status: int) -> None:
    """Each gets the status that says what is wrong with it, within the time limits."""
    async def go() -> None:
        async with receiver(tmp_path, limits=SHORT) as one:
            found, _, body = await raw(one.port, data)
            assert found == status
            assert status == 204 or body.count(b"\n") == 1
            assert (await raw(one.port, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"))[0] == 200
            assert one._http._held == 0
    asyncio.run(go())


@pytest.mark.parametrize(("headers", "body", "status", "sentence"), [
    ({**WRITE, "Content-Encoding": "zstd"}, BODY, 415, "the content encoding 'zstd' is not taken here, snappy is needed."),
    ({**WRITE, "Content-Type": "text/plain"}, BODY, 415, "the content type 'text/plain' is not taken here, application/x-protobuf is needed."),
    ({**WRITE, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}, BODY, 415,
     "remote write 2.0 is not taken, version 1.0 (prometheus.WriteRequest) is."),
    (WRITE, b"no snappy at all", 400, None),
    (WRITE, snappy(b"\x0a\xff"), 400, "the body is no remote write 1.0 request: a number has no end."),
    (WRITE, snappy(b""), 204, ""),
])
def test_wrong_writes(tmp_path: Path, headers: dict[str, str], body: bytes, status: int, sentence: str | None) -> None:
    """4xx with one sentence: the sender's log says what is wrong, and the sender does not try again."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            found, _, said = await post(one.port, "/api/v1/write", body, headers)
            assert found == status
            assert sentence is None or said.decode().strip() == sentence
    asyncio.run(go())


def test_a_connection_carries_many_requests(tmp_path: Path) -> None:
    """Keep-alive, pipelined, with Expect: 100-continue in between."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            plain = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
            writer.write(plain * 3)
            for _ in range(3):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 204 No Content\r\n\r\n"
            writer.write(HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BODY))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.close()
    asyncio.run(go())


def test_a_connection_that_says_nothing_is_closed_soon(tmp_path: Path) -> None:
    """Places are for senders: silence from the start ends after the time for a head, not after that between requests."""
    async def go() -> None:
        async with receiver(tmp_path, limits=SHORT) as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()
    asyncio.run(go())


def test_connections_and_held_bytes_are_bounded(tmp_path: Path) -> None:
    """The fifth connection is told to come again; so is a body that is too much together with the others."""
    async def go() -> None:
        async with receiver(tmp_path, limits=SHORT) as one:
            held = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(4)]
            await asyncio.sleep(0.05)
            status, headers, _ = await raw(one.port, b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (status, headers["retry-after"]) == (503, "5")
            for _, writer in held[1:]:
                writer.close()
            held[0][1].write(HEAD + b"Content-Length: 900\r\n\r\n")
            await asyncio.sleep(0.1)
            status, headers, _ = await raw(one.port, HEAD + b"Content-Length: 900\r\n\r\n")
            assert (status, headers["retry-after"]) == (503, "5")
            for _, writer in held:
                writer.close()
    asyncio.run(go())


@pytest.mark.parametrize(("path", "headers", "body", "status"), [
    ("/v1/metrics", {"Content-Type": "application/json", "Content-Encoding": "gzip"}, gzip.compress(bytes(50_000_000), mtime=0), 413),
    ("/v1/logs", {"Content-Type": "application/x-protobuf"}, b"\xff\xff", 400),
    ("/v1/logs", {"Content-Type": "application/json"}, b"[" * 10_000, 400),
    ("/v1/metrics", {"Content-Type": "application/json", "Content-Encoding": "gzip"}, b"no gzip", 400),
    ("/v1/metrics", {"Content-Type": "application/json"}, b'{"resourceMetrics": 5}', 400),
    ("/loki/api/v1/push", {"Content-Type": "application/json"}, b"[" * 100_000, 400),
    ("/loki/api/v1/push", {"Content-Type": "application/json"}, b'{"streams": [{"stream": {"a": 1}, "values": []}]}', 400),
    ("/loki/api/v1/push", {"Content-Type": "application/json"}, b'{"streams": [{"stream": {}, "values": [["x", "y"]]}]}', 400),
    ("/loki/api/v1/push", {"Content-Type": "application/x-protobuf"}, snappy(b"\x0a\x03\x0a\x01x"), 400),
])
def test_hostile_bodies(tmp_path: Path, path: str, headers: dict[str, str], body: bytes, status: int) -> None:
    """Bombs, damage and depth: 4xx, and the receiver goes on."""
    async def go() -> None:
        small = HttpLimits(body_bytes=16_000_000)
        from core.config import BudgetsConfig, TargetBudget
        async with receiver(tmp_path, limits=small, budgets=BudgetsConfig(TargetBudget(body_bytes=16_000_000))) as one:
            found, _, said = await post(one.port, path, body, headers)
            assert (found, bool(said)) == (status, True)
            assert (await raw(one.port, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"))[0] == 200
    asyncio.run(go())
