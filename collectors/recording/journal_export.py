"""The journal's export format (`journalctl -o export`), entry by entry, as the lines that `journalctl -o json` would print.

An entry is fields, one a line, and ends with an empty line. A field whose value holds a line's end is written as its name, then
the value's length in 8 bytes (little endian), the value, and a line's end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

KEPT = frozenset({"__REALTIME_TIMESTAMP", "_TRANSPORT", "SYSLOG_IDENTIFIER", "_HOSTNAME", "MESSAGE"})
LONGEST_NAME, LONGEST_VALUE = 256, 1 << 20


def entries(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Each entry of the kernel's as a line of JSON. What is no export any more ends it; a last entry without its end counts."""
    reader = _Reader(blocks)
    fields: dict[str, str] = {}
    while (line := reader.line()) is not None:
        if not line:
            if fields:
                yield json.dumps(fields).encode()
            fields = {}
            continue
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(reader.take(8), "little")
            value = reader.value(size)
            reader.line()
        key = name[:LONGEST_NAME].decode("ascii", "replace")
        if key in KEPT:
            fields[key] = value.decode("utf-8", "replace")
    if "MESSAGE" in fields and "__REALTIME_TIMESTAMP" in fields:
        yield json.dumps(fields).encode()


class _Reader:
    """Takes lines and counted bytes off a stream of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._held = b""

    def _more(self) -> bool:
        block = next(self._blocks, b"")
        self._held += block
        return bool(block)

    def line(self) -> bytes | None:
        """The next line, cut at the greatest length of a value; None at the end."""
        start = 0
        while (end := self._held.find(b"\n", start)) < 0:
            start = len(self._held)
            if start > 2 * LONGEST_VALUE:
                self._held = self._held[:LONGEST_VALUE]
                start = LONGEST_VALUE
            if not self._more():
                rest, self._held = self._held, b""
                return rest[:LONGEST_VALUE] if rest else None
        out, self._held = self._held[:end], self._held[end + 1:]
        return out[:LONGEST_VALUE]

    def take(self, size: int) -> bytes:
        """So many bytes; fewer at the end."""
        while len(self._held) < size and self._more():
            pass
        out, self._held = self._held[:size], self._held[size:]
        return out

    def value(self, size: int) -> bytes:
        """A value of `size` bytes, of which the first are kept."""
        kept = self.take(min(size, LONGEST_VALUE))
        left = size - len(kept)
        while left > 0:
            gone = self.take(min(left, LONGEST_VALUE))
            if not gone:
                break
            left -= len(gone)
        return kept
