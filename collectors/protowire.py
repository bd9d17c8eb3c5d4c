"""Writing protobuf: the two things of which all messages that Greylag writes are made."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Base 128, the lowest seven bits first; a negative number as its 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, body: bytes) -> bytes:
    """A length-delimited field: bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(body)) + body
