"""Numbers and times as they stand in an exposition: what Go's parser takes, and nothing that only Python takes.

Prometheus reads values with Go's `strconv.ParseFloat` and refuses every text with `p`, `P` or `_` before it. So hex
floats never pass (they need a `p`), nor do `1_0`, ` 1`, digits of other scripts, a signed NaN, and a number too large
for float64. Too small a number is 0. (All of this was seen on a real Prometheus 2.42; a test scrapes it again.)
"""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from core.errors import SourceError
from core.types import Floats

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NORMAL_NAN = struct.unpack("<d", (0x7FF8000000000001).to_bytes(8, "little"))[0]
"""The NaN that Prometheus stores for a written NaN: not the stale marker, so a NaN loss stays a value."""

_PLAIN = b"0123456789.eE+-"
_WORDS = {
    sign + word: value * (-1 if sign == b"-" else 1)
    for sign in (b"", b"+", b"-")
    for word, value in ((b"inf", math.inf), (b"infinity", math.inf))
} | {b"nan": NORMAL_NAN}

# DCGM writes these where a field has no value (dcgm_structs.h; facts/signals.md, fact 10); +1, +2, +3 stand for
# not found, not supported, not permissioned. DCGM itself takes every value at or above a blank as blank.
INT32_BLANK = 0x7FFFFFF0
INT64_BLANK = 0x7FFFFFFFFFFFFFF0
FP64_BLANK = 140737488355328.0
_INT32_BLANKS = frozenset(float(INT32_BLANK + n) for n in range(4))
# float64 has a step of 1024 there: all four int64 blanks (and the 20-digit texts of them) round to 2**63.
_INT64_BLANK_AS_FLOAT = float(INT64_BLANK)
_FP64_BLANKS = frozenset(FP64_BLANK + n for n in range(4))
_EXACT_BLANKS = np.array(sorted(_INT32_BLANKS | _FP64_BLANKS))


def is_blank(value: float) -> bool:
    """True for a value by which DCGM says that it has none.

    The exact int32 and fp64 blanks with their three variants, and all from the int64 blank up (2**63 once it is a
    float64). A byte or energy counter may well pass 2**31 and 2**47, so there only the exact constants count.
    """
    return value in _INT32_BLANKS or value in _FP64_BLANKS or _INT64_BLANK_AS_FLOAT <= value < math.inf


def blank(values: Floats) -> NDArray[np.bool_]:
    """`is_blank` of an array: bool like `values`."""
    # np.isin costs as much as a tenth of reading a page: it is asked for a handful of values of each page.
    nearest = _EXACT_BLANKS[np.minimum(np.searchsorted(_EXACT_BLANKS, values), len(_EXACT_BLANKS) - 1)]
    return np.asarray((nearest == values) | ((values >= _INT64_BLANK_AS_FLOAT) & (values < math.inf)))


def number(raw: bytes) -> float | None:
    """The float64 of `raw`, or None where Prometheus refuses it. NaN comes back as `NORMAL_NAN`."""
    if not raw.isdigit() and raw.translate(None, _PLAIN):
        return _WORDS.get(raw.lower())
    try:
        value = float(raw)
    except ValueError:
        return None
    return None if value in (math.inf, -math.inf) else value


def milliseconds(raw: bytes) -> int | None:
    """A timestamp of the text format: decimal digits, within int64; None where Prometheus refuses it."""
    if not raw.isdigit():
        return None
    if len(raw) > 19:
        raw = raw.lstrip(b"0")
        if len(raw) > 19:
            return None
    value = int(raw or b"0")
    return value if value <= INT64_MAX else None


def seconds(raw: bytes) -> float | None:
    """A timestamp of OpenMetrics as float seconds; None where Prometheus refuses it (NaN and infinities, too)."""
    value = number(raw)
    return value if value is not None and math.isfinite(value) else None


def as_milliseconds(value: float) -> int:
    """Float seconds as whole milliseconds: cut off as Prometheus does, but not for the float's own rounding.

    1700000000.123 is ...123, whichever neighbour float64 takes for it; 0.0019 is 1. SourceError where the time is
    outside of int64 (Prometheus takes the line and drops the sample as out of bounds).
    """
    scaled = value * 1000.0
    if not -9.2e18 < scaled < 9.2e18:
        raise SourceError("bad_syntax", "the timestamp is out of range")
    near = round(scaled)
    return near if abs(scaled - near) <= 4 * math.ulp(scaled) else int(scaled)
