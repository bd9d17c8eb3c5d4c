"""Hostile and broken targets: each gives its named reason, within its time and memory."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.fetch import HttpFetch, Request
from collectors.http_answer import Gunzip
from core.clock import monotonic_seconds
from core.errors import SourceError
from tests.collect.doors import Raw, reply, serve

BOMB = gzip.compress(b"\0" * 50_000_000, mtime=0)


def get(answer, limit=1000, timeout=5.0, allow_empty=False):
    """One fetch from a server with this answer; the second of two on one connection, so keep-alive is in it."""

    async def act():
        fetch = HttpFetch()
        try:
            async with serve(lambda path, body: answer) as url:
                return await fetch.get(Request(url + "/metrics", timeout, limit, allow_empty=allow_empty))
        finally:
            await fetch.aclose()

    return asyncio.run(act())


GOOD = [
    (reply(b"a 1\n"), b"a 1\n"),
    (reply(gzip.compress(b"a 1\n", mtime=0), content_encoding="gzip"), b"a 1\n"),
    (reply(gzip.compress(b"a 1\n", mtime=0) + gzip.compress(b"b 2\n", mtime=0), content_encoding="gzip"), b"a 1\nb 2\n"),
    (Raw(b"HTTP/1.1 200 OK\r\n\r\na 1\n"), b"a 1\n"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n", b"a 1\n"),
]


@pytest.mark.parametrize(("answer", "body"), GOOD)
def test_reads_bodies_in_every_framing(answer, body):
    """Length, chunks, close and gzip all give the body."""
    assert get(answer).data == body


BAD = [
    (reply(b""), "empty_body"),
    (reply(b"x" * 2000), "body_too_large"),
    (Raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000), "body_too_large"),
    (reply(BOMB, content_encoding="gzip"), "body_too_large"),
    (reply(b"not gzip", content_encoding="gzip"), "bad_encoding"),
    (reply(b"x", content_encoding="br"), "bad_encoding"),
    (reply(gzip.compress(b"a 1\n" * 99, mtime=0)[:-12], content_encoding="gzip"), "truncated"),
    (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n"), "truncated"),
    (Raw(b"nonsense\r\n\r\n"), "truncated"),
    (reply(b"", "302 Found", location="/elsewhere"), "redirect_refused"),
    (reply(b"oh", "500 Oh"), "http_status"),
    (reply(b"", "204 No Content"), "http_status"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_names_what_is_wrong(answer, reason):
    """Each broken answer is a SourceError with its reason from the closed list."""
    with pytest.raises(SourceError) as error:
        get(answer)
    assert error.value.reason == reason


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na"])
def test_a_slow_target_ends_at_its_deadline(answer):
    """A target that says nothing, or stops in the middle, is given up at the time-out."""
    started = monotonic_seconds()
    with pytest.raises(SourceError) as error:
        get(answer, timeout=0.2)
    assert error.value.reason == "timeout"
    assert monotonic_seconds() - started < 2.0


def test_a_target_that_is_not_there():
    """A refused connection has its own name."""

    async def act():
        fetch = HttpFetch()
        try:
            await fetch.get(Request("http://127.0.0.1:1/metrics", 2.0, 1000))
        finally:
            await fetch.aclose()

    with pytest.raises(SourceError) as error:
        asyncio.run(act())
    assert error.value.reason == "connect_failed"


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 400))
def test_gunzip_equals_zlib_in_pieces(data, step):
    """Whatever the pieces, what comes out is what went in."""
    packed = gzip.compress(data, mtime=0)
    unpack = Gunzip(10_000)
    out = b"".join(unpack.feed(packed[i : i + step]) for i in range(0, len(packed), step))
    unpack.finish()
    assert out == data


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=500))
def test_gunzip_never_raises_anything_unnamed(data):
    """Hostile bytes end in a SourceError or in bytes."""
    reasons = set()
    for packed in (data, zlib.compress(data), gzip.compress(data, mtime=0)[: len(data)]):
        try:
            Gunzip(100).feed(packed)
        except SourceError as error:
            reasons.add(error.reason)
    assert reasons <= {"bad_encoding", "body_too_large"}
