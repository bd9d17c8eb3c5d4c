"""The bytes of an answer: every framing in any pieces, and what a hostile server can write."""

from __future__ import annotations

import contextlib
import gzip

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.http_answer import MOST_HEAD_BYTES, AnswerReader
from core.errors import SourceError

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(b"a 1\n" * 3, mtime=0)


def read(data: bytes, step: int = 1 << 20, limit: int = 1000, close: bool = True) -> AnswerReader:
    """An answer read in pieces of `step` bytes, then the end of the connection."""
    reader = AnswerReader(limit)
    for i in range(0, len(data), step):
        reader.feed(data[i:i + step])
    if close:
        reader.end()
    return reader


WHOLE = [
    ("length", OK + b"Content-Length: 4\r\n\r\na 1\n", b"a 1\n", True),
    ("bare line ends", b"HTTP/1.1 200 OK\nContent-Length: 4\n\na 1\n", b"a 1\n", True),
    ("status without words", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b"", True),
    ("a length twice", OK + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\na 1\n", b"a 1\n", True),
    ("closing", OK + b"Connection: close\r\nContent-Length: 4\r\n\r\na 1\n", b"a 1\n", False),
    ("old", b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\na 1\n", b"a 1\n", False),
    ("old and kept", b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\na", b"a", True),
    ("to the close", OK + b"\r\na 1\n", b"a 1\n", False),
    ("nothing to the close", OK + b"\r\n", b"", False),
    ("chunks", CHUNKED + b"2\r\na \r\n2;x=y\r\n1\n\r\n0\r\n\r\n", b"a 1\n", True),
    ("chunks with trailers", CHUNKED + b"1\r\na\r\n0\r\nX: y\r\n\r\n", b"a", True),
    ("chunks and a length", OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\na\r\n0\r\n\r\n", b"a", False),
    ("packed", OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED, b"a 1\n" * 3, True),
    ("packed to the close", OK + b"Content-Encoding: GZIP\r\n\r\n" + PACKED, b"a 1\n" * 3, False),
    ("after an interim answer", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a", True),
    ("more than announced", OK + b"Content-Length: 1\r\n\r\nab", b"a", False),
]


@pytest.mark.parametrize(("data", "body", "reusable"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE])
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_reads_every_framing_in_any_pieces(data, body, reusable, step):
    """Body and fate of the connection are the same however the bytes come."""
    answer = read(data, step)
    assert (answer.done, answer.body) == (True, body)
    if step == 1 << 20:
        assert answer.reusable is reusable


BAD = [
    ("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "truncated"),
    ("another version", b"HTTP/2 200\r\n\r\n", "truncated"),
    ("garbage status", b"HTTP/1.1 2x0 OK\r\n\r\n", "truncated"),
    ("switching protocols", b"HTTP/1.1 101 Up\r\n\r\n", "http_status"),
    ("not modified", b"HTTP/1.1 304 Same\r\n\r\n", "redirect_refused"),
    ("a header without colon", OK + b"nonsense\r\n\r\n", "truncated"),
    ("a folded header", OK + b"A: b\r\n c\r\n\r\n", "truncated"),
    ("a negative length", OK + b"Content-Length: -1\r\n\r\n", "truncated"),
    ("a length with a sign", OK + b"Content-Length: +1\r\n\r\na", "truncated"),
    ("a length of many digits", OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", "truncated"),
    ("two lengths", OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "truncated"),
    ("too long by its word", OK + b"Content-Length: 1001\r\n\r\n", "body_too_large"),
    ("another transfer encoding", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "bad_encoding"),
    ("another content encoding", OK + b"Content-Encoding: zstd\r\n\r\n", "bad_encoding"),
    ("closed before the head", OK, "truncated"),
    ("closed in the body", OK + b"Content-Length: 9\r\n\r\na", "truncated"),
    ("closed in a chunk", CHUNKED + b"9\r\na", "truncated"),
    ("closed before the last chunk", CHUNKED + b"1\r\na\r\n", "truncated"),
    ("closed in the trailers", CHUNKED + b"0\r\nX: y\r\n", "truncated"),
    ("a chunk without size", CHUNKED + b"\r\n", "truncated"),
    ("a negative chunk", CHUNKED + b"-1\r\n", "truncated"),
    ("a chunk of many digits", CHUNKED + b"1" * 30 + b"\r\n", "truncated"),
    ("a chunk longer than its size", CHUNKED + b"1\r\nab\r\n", "truncated"),
    ("chunks beyond the limit", CHUNKED + b"400\r\n" + b"x" * 0x400 + b"\r\n", "body_too_large"),
    ("an endless size line", CHUNKED + b"1;" + b"x" * 10_000, "truncated"),
    ("endless trailers", CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000, "truncated"),
    ("one endless header", OK + b"A: " + b"x" * (2 * MOST_HEAD_BYTES), "truncated"),
    ("endless headers", OK + b"A: b\r\n" * 20_000, "truncated"),
    ("headers too large, but ended", OK + b"A: b\r\n" * 20_000 + b"\r\n", "truncated"),
    ("endless interim answers", b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000, "truncated"),
    ("packed, cut short", OK + b"Content-Encoding: gzip\r\n\r\n" + PACKED[:-9], "truncated"),
    ("packed, a bomb in chunks", OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n"
     + gzip.compress(b"\0" * 5_000_000, mtime=0)[:0x800], "body_too_large"),
]


@pytest.mark.parametrize(("data", "reason"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_names_what_breaks_the_protocol(data, reason, step):
    """Each breach has its named reason, whatever the pieces."""
    with pytest.raises(SourceError) as error:
        read(data, step)
    assert error.value.reason == reason


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\nA: " + b"x" * 10_000_000, CHUNKED + b"1" * 10_000_000])
def test_holds_no_more_than_its_bounds(data):
    """A server that never ends a line is left early, not collected."""
    with pytest.raises(SourceError) as error:
        read(data[:MOST_HEAD_BYTES + 2000], 1000, close=False)
    assert error.value.reason == "truncated"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 50))
@example(b"\n\n", 1)
def test_never_raises_anything_unnamed(tail, step):
    """Hostile bytes behind any prefix end in an answer or in a SourceError, never in anything else."""
    for prefix in (b"", OK, OK + b"\r\n", CHUNKED, OK + b"Content-Encoding: gzip\r\n\r\n"):
        with contextlib.suppress(SourceError):
            assert read(prefix + tail, step).done


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.integers(1, 90), st.booleans())
def test_chunks_are_what_was_cut(parts, step, packed):
    """However a body is cut into chunks and the chunks into pieces, the body comes back."""
    body = b"".join(parts)
    pieces = [gzip.compress(body)] if packed else parts
    head = OK + b"Transfer-Encoding: chunked\r\n" + (b"Content-Encoding: gzip\r\n" if packed else b"") + b"\r\n"
    wire = head + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    answer = read(wire, step, close=False)
    assert (answer.done, answer.reusable, answer.body) == (True, True, body)
