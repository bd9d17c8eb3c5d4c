"""The protobuf wire format, read by hand and without trust: every length is checked before it is used."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
_F64 = struct.Struct("<d")


class WireError(ValueError):
    """The bytes are no protobuf message."""


def varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """(unsigned 64-bit value, position behind it)."""
    if pos < end and data[pos] < 0x80:
        return data[pos], pos + 1
    value = shift = 0
    stop = min(end, pos + LONGEST_VARINT)
    while pos < stop:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, pos
        shift += 7
    raise WireError("a number has no end")


def signed(value: int) -> int:
    """An int64 from its varint."""
    return value - (1 << 64) if value >= 1 << 63 else value


def span(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """(start, end) of a length-delimited value whose length stands at `pos`."""
    size, pos = varint(data, pos, end)
    if size > end - pos:
        raise WireError("a length points behind the end of its message")
    return pos, pos + size


def fields(data: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field of a message, in order. A varint's own value is `start`."""
    while pos < end:
        tag, pos = varint(data, pos, end)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"{number} is no field number")
        if kind == LENGTH:
            start, pos = span(data, pos, end)
            yield number, kind, start, pos
        elif kind == VARINT:
            value, pos = varint(data, pos, end)
            yield number, kind, value, pos
        elif kind in (FIXED64, FIXED32):
            start, pos = pos, pos + (8 if kind == FIXED64 else 4)
            if pos > end:
                raise WireError("a number points behind the end of its message")
            yield number, kind, start, pos
        else:
            raise WireError(f"{kind} is no wire type that is in use")


def text(data: bytes, start: int, stop: int) -> str:
    """A string field. Raises WireError where it is not valid UTF-8."""
    try:
        return data[start:stop].decode("utf-8")
    except UnicodeDecodeError:
        raise WireError("a text is not valid UTF-8") from None


def double(data: bytes, start: int) -> float:
    """A double field."""
    return float(_F64.unpack_from(data, start)[0])
