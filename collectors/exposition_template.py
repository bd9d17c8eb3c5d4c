"""A page that differs from an earlier one in its values alone, read without looking at its lines.

Most pages of a target differ in their values only. A template keeps every byte of a page that the strict parser read
but the values. A later page whose other bytes are the same has the same names, labels, types and comments in the same
order, so only its numbers are left to read: on a page of 2,459 samples 0.12 µs a sample where the strict parser takes 4.5
(`greylag bench parse`). Whatever differs in anything else, or holds a number that Prometheus
would refuse, is declined, and the strict parser says what it is.

Pages with timestamps, exemplars, repeated series, raw line ends in labels or NUL bytes get no template: there the
place of a value cannot be told from the line alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from collectors.exposition import Page, parse_exposition
from collectors.exposition_values import number
from core.types import Floats

LONGEST_VALUE = 64  # a longer text is left to the strict parser, which bounds the line
MOST_CHANGED = 0.75  # of the samples: where more have other labels, reading the whole page anew costs no more
_LINE_FEED, _BLANK, _HASH = 10, 32, 35
_ONE = np.uint64(1)


class PageTemplate:
    """See the module. It answers for pages of its own content type, up to `body_bytes`."""

    __slots__ = ("_between", "_content_type", "_feeds", "_kept", "_lengths", "_lines", "_tail", "_values", "tolerated")

    def __init__(self, tolerated: Mapping[str, int], content_type: str | None, body: bytes, starts: NDArray[np.int32],
                 lines: NDArray[np.int64]) -> None:
        """starts: where each value starts in the body; lines: the index of each sample's line."""
        self.tolerated = tolerated
        self._content_type = content_type
        self._lines = lines
        feeds = _feeds(body)
        self._feeds = len(feeds)
        ends = feeds[lines].astype(np.int32)
        self._lengths = starts - np.concatenate([np.zeros(1, np.int32), ends[:-1]])
        self._between, self._values = _turns(len(lines))
        self._tail = body[ends[-1]:]
        self._kept = _strings(body, self._offsets(ends), self._between)

    @staticmethod
    def of(page: Page, body: bytes, content_type: str | None) -> PageTemplate | None:
        """The template of a page that the strict parser just read; None where it can have none."""
        if not page.samples or not page.plain or "duplicate_series" in page.tolerated or b"\x00" in body:
            return None
        if not body.endswith(b"\n") or any(sample.at is not None for sample in page.samples):
            return None
        found = _value_starts(body)
        if found is None or len(found[0]) != len(page.samples):
            return None
        made = PageTemplate(page.tolerated, content_type, body, *found)
        read = made.values(body, content_type)
        strict = np.fromiter((sample.value for sample in page.samples), np.float64, len(page.samples))
        return made if read is not None and read.tobytes() == strict.tobytes() else None

    def values(self, body: bytes, content_type: str | None) -> Floats | None:
        """float64[sample] of a page, in its order, with the bits that the strict parser gives; None = declined."""
        ends = self._ends(body, content_type)
        if ends is None:
            return None
        offsets = self._offsets(ends)
        sizes = ends - offsets[1::2] - 1  # of 1 to LONGEST_VALUE octets: what is shorter is a huge number without its sign
        if sizes.view(np.uint32).max() >= LONGEST_VALUE or body[ends[-1]:] != self._tail:
            return None
        if not _strings(body, offsets, self._between).equals(self._kept):
            return None
        try:
            read = _strings(body, offsets, self._values).cast(pa.float64())
        except pa.ArrowInvalid:
            return None
        return _exact(np.frombuffer(read.buffers()[1], np.float64, len(read))[1::2].copy(), body, offsets)

    def relabelled(self, body: bytes, content_type: str | None) -> tuple[PageTemplate, dict[int, bytes]] | None:
        """For a page of as many lines, of whose samples some have other labels (a job starts, and each GPU series takes
        its name): (the template of that page, {sample: its line}) with the lines that are not as before. They are not
        judged here: who calls reads each by the strict grammar. None where anything else differs, comments included."""
        ends = self._ends(body, content_type)
        if ends is None or body[ends[-1]:] != self._tail or b"\x00" in body:
            return None
        before = np.concatenate([np.zeros(1, np.int32), ends[:-1]])
        starts = before + self._lengths
        # A piece that would reach behind its line is another one for sure: cut, so that it can be compared at all.
        offsets = np.zeros(2 * len(ends) + 1, np.int32)
        offsets[2::2], offsets[1::2] = ends, np.minimum(starts, ends)
        same = pc.equal(_strings(body, offsets, self._between), self._kept).fill_null(True).to_numpy(zero_copy_only=False)
        changed = np.flatnonzero(~same[::2]).tolist()
        if len(changed) > MOST_CHANGED * len(ends):
            return None
        feeds = _feeds(body)
        found: dict[int, bytes] = {}
        for i in changed:
            line_start = int(feeds[self._lines[i] - 1]) + 1 if self._lines[i] else 0
            line = body[line_start:int(ends[i])]
            old = self._kept[2 * i].as_buffer().to_pybytes()
            head = body[int(before[i]):line_start]
            start = line.rfind(b" ") + 1
            if not start or not old.startswith(head) or b"\n" in old[len(head):] or _name(line) != _name(old[len(head):]):
                return None
            starts[i] = line_start + start
            found[i] = line
        return PageTemplate(self.tolerated, content_type, body, starts, self._lines), found

    def _ends(self, body: bytes, content_type: str | None) -> NDArray[np.int32] | None:
        """int32[sample]: where each value ends; None where the page has another format or number of lines."""
        feeds = _feeds(body)
        if content_type != self._content_type or len(feeds) != self._feeds:
            return None
        return np.asarray(feeds[self._lines], np.int32)

    def _offsets(self, ends: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[2 n + 1]: what stands between two values and the values, by turns."""
        out = np.empty(2 * len(ends) + 1, np.int32)
        out[0] = 0
        out[2::2] = ends
        np.add(out[:-1:2], self._lengths, out=out[1::2])
        return out


def warm_up() -> None:
    """Reads a page of one line, so that no target's first page pays for what the libraries load at their first use."""
    body = b"a 1\n"
    PageTemplate.of(parse_exposition(body, None), body, None)


@lru_cache(maxsize=256)
def _turns(n: int) -> tuple[pa.Buffer, pa.Buffer]:
    """Bitmaps of 2 n places, the even ones and the odd ones; pages of one size share them."""
    even = np.arange(2 * n) % 2 == 0
    return pa.py_buffer(np.packbits(even, bitorder="little")), pa.py_buffer(np.packbits(~even, bitorder="little"))


def _name(line: bytes) -> bytes:
    return re.split(rb"[{ ]", line, maxsplit=1)[0]


def _feeds(body: bytes) -> NDArray[np.int64]:
    """int64[n] ascending: where the line feeds stand.

    Looked for in words of eight octets, nearly all of which have none: `flatnonzero` of the octets took a quarter of what
    reading a page costs. Lines of less than eight octets may share a word; such a page is looked at octet by octet.
    """
    n = len(body)
    hits = np.empty(-(-n // 8) * 8, np.bool_)
    np.equal(np.frombuffer(body, np.uint8), _LINE_FEED, out=hits[:n])
    hits[n:] = False
    words = hits.view("<u8")
    found = np.flatnonzero(words != 0)
    hit = words[found]
    if (hit & (hit - _ONE)).any():
        return np.flatnonzero(hits)
    # One octet of the word is 1: 2 ** (8 k), and its place is k. As a float64 it begins with 1023 + 8 k, which is 127 + k in eights.
    found <<= 3
    found += hit.astype(np.float64).view(np.int64) >> 55
    found -= 127
    return found


def _strings(body: bytes, offsets: NDArray[np.int32], shown: pa.Buffer) -> pa.Array:
    """The pieces of the body between the offsets, without a copy; those that are not shown (a bitmap, every other one) are null,
    and neither compared nor read: to take the shown ones out costs more than all that is done with them. Their text is
    compared or read as numbers, never printed: it need not be UTF-8."""
    n = len(offsets) - 1
    return pa.Array.from_buffers(pa.string(), n, [shown, pa.py_buffer(offsets), pa.py_buffer(body)], null_count=n // 2)


def _value_starts(body: bytes) -> tuple[NDArray[np.int32], NDArray[np.int64]] | None:
    """(where the value of each sample starts in the body, the index of its line): behind the last blank of its line.

    The strict parser has matched each of these lines as a whole, without a time behind the value: so what follows the
    last blank is the value, or is no number at all (a value glued to its labels, a blank at the end), which `values`
    declines. None where a line has no blank.
    """
    octets = np.frombuffer(body, np.uint8)
    ends = _feeds(body)
    firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    lines = np.flatnonzero((ends > firsts) & (octets[firsts] != _HASH))
    blanks = np.flatnonzero(octets == _BLANK)
    if not len(lines) or not len(blanks):
        return None
    last = blanks[np.maximum(np.searchsorted(blanks, ends[lines]) - 1, 0)]
    if (last <= firsts[lines]).any() or (last >= ends[lines]).any():
        return None
    return (last + 1).astype(np.int32), lines


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
