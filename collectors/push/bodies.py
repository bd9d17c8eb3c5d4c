"""Request bodies unpacked within a bound: snappy (block format, as remote write and Loki have it), gzip, deflate, or plain."""

from __future__ import annotations

import zlib

import cramjam

from collectors.http_answer import Gunzip
from collectors.push.parts import PushRefused, bad
from core.errors import SourceError, quote

# snappy cannot pack better than about 21 : 1 (64 bytes in 3); a header that promises more is a lie or a bomb.
MOST_SNAPPY_RATIO = 24


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before `encoding`. Never holds more than `limit` bytes (413 `body_too_large`)."""
    if encoding in ("", "identity"):
        if len(body) > limit:
            raise _too_large(limit)
        return body
    if encoding == "snappy":
        return unsnappy(body, limit)
    if encoding in ("gzip", "x-gzip"):
        return _gunzip(body, limit)
    if encoding == "deflate":
        return _inflate(body, limit)
    raise PushRefused(415, "bad_encoding", f"the content encoding {quote(encoding)} is not taken here.")


def unsnappy(body: bytes, limit: int) -> bytes:
    """A snappy block. Its own length is checked before a byte of it is unpacked."""
    if not body:
        raise bad("bad_encoding", "the body is empty, a snappy block is needed.")
    try:
        size = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError:
        raise bad("bad_encoding", "the body is no snappy block (the block format is needed, not the framed one).") from None
    if size > limit:
        raise _too_large(limit)
    if size > len(body) * MOST_SNAPPY_RATIO + 64:
        raise bad("bad_encoding", f"the snappy block of {len(body)} bytes cannot hold the {size} bytes that it announces.")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise bad("bad_encoding", "the body is no snappy block (the block format is needed, not the framed one).") from None


def _too_large(limit: int) -> PushRefused:
    return PushRefused(413, "body_too_large", f"the body has more than {limit} bytes when unpacked: send smaller requests.")


def _gunzip(body: bytes, limit: int) -> bytes:
    unpacker = Gunzip(limit)
    try:
        out = unpacker.feed(body)
        unpacker.finish()
    except SourceError as error:
        if error.reason == "body_too_large":
            raise _too_large(limit) from None
        raise bad("bad_encoding", f"the body is no gzip stream ({error.detail}).") from None
    if not out and not body:
        raise bad("bad_encoding", "the body is empty, a gzip stream is needed.")
    return out


def _inflate(body: bytes, limit: int) -> bytes:
    z = zlib.decompressobj()
    try:
        out = z.decompress(body, limit + 1)
    except zlib.error as error:
        raise bad("bad_encoding", f"the body is no deflate stream ({error}).") from None
    if len(out) > limit:
        raise _too_large(limit)
    if not z.eof:
        raise bad("bad_encoding", "the deflate stream ends early.")
    return out
