"""A page that differs from an earlier one in its values alone, read without looking at its lines.

Most pages of a target differ in their values only. A template keeps every byte of a page that the strict parser read
but the values. A later page whose other bytes are the same has the same names, labels, types and comments in the same
order, so only its numbers are left to read: on a page of 240 samples 0.7 µs a sample where the strict parser took 6
(`greylag bench ingest`), less on larger pages. Whatever differs in anything else, or holds a number that Prometheus
would refuse, is declined, and the strict parser says what it is.

Pages with timestamps, exemplars, repeated series, raw line ends in labels or NUL bytes get no template: there the
place of a value cannot be told from the line alone.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from collectors.exposition import Page
from collectors.exposition_known import Known
from collectors.exposition_values import number
from core.types import Floats

LONGEST_VALUE = 64  # a longer text is left to the strict parser, which bounds the line
_LINE_FEED = 10


class PageTemplate:
    """See the module. It answers for pages of its own content type, up to `body_bytes`."""

    def __init__(self, page: Page, content_type: str | None, body: bytes, starts: NDArray[np.int32],
                 lines: NDArray[np.int64]) -> None:
        """starts: where each value starts in the body; lines: the index of each sample's line."""
        self.tolerated = page.tolerated
        self._content_type = content_type
        self._lines = lines
        feeds = _feeds(body)
        self._feeds = len(feeds)
        ends = feeds[lines].astype(np.int32)
        self._lengths = starts - np.concatenate([np.zeros(1, np.int32), ends[:-1]])
        self._between = pa.array(np.arange(0, 2 * len(lines), 2, dtype=np.int32))
        self._values = pa.array(np.arange(1, 2 * len(lines), 2, dtype=np.int32))
        self._tail = body[ends[-1]:]
        offsets = self._offsets(ends)
        self._kept = _strings(body, offsets).take(self._between)

    @staticmethod
    def of(page: Page, body: bytes, content_type: str | None, known: Known) -> PageTemplate | None:
        """The template of a page that the strict parser just read with `known`; None where it can have none."""
        if not page.samples or "duplicate_series" in page.tolerated or b"\x00" in body or not body.endswith(b"\n"):
            return None
        starts: list[int] = []
        lines: list[int] = []
        at = 0
        for index, line in enumerate(body.split(b"\n")):
            if line and not line.startswith(b"#"):
                start = _value_start(line, known)
                if start is None:
                    return None
                starts.append(at + start)
                lines.append(index)
            at += len(line) + 1
        if len(starts) != len(page.samples):
            return None
        made = PageTemplate(page, content_type, body, np.array(starts, np.int32), np.array(lines, np.int64))
        read = made.values(body, content_type)
        strict = np.fromiter((sample.value for sample in page.samples), np.float64, len(page.samples))
        return made if read is not None and read.tobytes() == strict.tobytes() else None

    def values(self, body: bytes, content_type: str | None) -> Floats | None:
        """float64[sample] of a page, in its order, with the bits that the strict parser gives; None = declined."""
        feeds = _feeds(body)
        if content_type != self._content_type or len(feeds) != self._feeds:
            return None
        ends = feeds[self._lines].astype(np.int32)
        offsets = self._offsets(ends)
        sizes = ends - offsets[1::2]
        if sizes.min() <= 0 or sizes.max() > LONGEST_VALUE or body[ends[-1]:] != self._tail:
            return None
        strings = _strings(body, offsets)
        if not strings.take(self._between).equals(self._kept):
            return None
        try:
            out = strings.take(self._values).cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return None
        return _exact(out, body, offsets)

    def _offsets(self, ends: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[2 n + 1]: what stands between two values and the values, by turns."""
        out = np.zeros(2 * len(ends) + 1, np.int32)
        out[2::2] = ends
        out[1::2] = out[0:-1:2] + self._lengths
        return out


def _feeds(body: bytes) -> NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(body, np.uint8) == _LINE_FEED)


def _strings(body: bytes, offsets: NDArray[np.int32]) -> pa.Array:
    """The pieces of the body between the offsets, without a copy. Their text is compared or read as numbers, never shown:
    it need not be UTF-8."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _value_start(line: bytes, known: Known) -> int | None:
    """Where the value of a sample line starts; None where the line is not `name value` or `name{...} value` with a label
    block that the grammar has matched as a whole."""
    cut = line.rfind(b"}") + 1
    brace = line.find(b"{") if cut else line.find(b" ")
    block = known.blocks.get(line[brace:cut])
    if brace < 0 or block is None or line[:brace] not in block.series:
        return None
    start = cut or brace
    if line[start:start + 1] != b" " or b" " in line[start + 1:]:
        return None
    return start + 1


def _exact(values: Floats, body: bytes, offsets: NDArray[np.int32]) -> Floats | None:
    """The values with the strict parser's word on all that are not finite: Arrow takes more spellings, and other NaN
    bits."""
    odd = np.flatnonzero(~np.isfinite(values))
    if not len(odd):
        return values
    out = values.copy()
    for i in odd.tolist():
        value = number(body[offsets[2 * i + 1]:offsets[2 * i + 2]])
        if value is None or math.isfinite(value):
            return None
        out[i] = value
    return out
