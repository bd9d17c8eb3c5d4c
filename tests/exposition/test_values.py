"""Numbers, times and DCGM's blanks."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collectors.exposition import is_blank
from collectors.exposition_values import as_milliseconds, milliseconds, number, seconds
from core.errors import SourceError

GOOD = {
    b"0": 0.0,
    b"-0": -0.0,
    b"1": 1.0,
    b"+5": 5.0,
    b"1.": 1.0,
    b".5": 0.5,
    b"1E5": 1e5,
    b"1.234e+09": 1.234e9,
    b"1e-400": 0.0,
    b"5e-324": 5e-324,
    b"9223372036854775807": 2.0**63,
    b"000000000000000000000000000000001": 1.0,
    b"Inf": math.inf,
    b"+inf": math.inf,
    b"-Infinity": -math.inf,
    b"iNfInItY": math.inf,
}
BAD = [
    b"", b" 1", b"1 ", b"1_0", b"0x1p-2", b"0X1P3", b"0x10", b"1e400", b"-1e400", b"+NaN", b"-nan", b"infinit", b"--1",
    b"1e", b"e5", b".", b"1e5.5", b"1,5", b"1\r", b"1\x0b", b"1\x00", b"\xd9\xa1", "１".encode(), b"1f", b"0b1", b"true",
]  # fmt: skip


@pytest.mark.parametrize("raw", GOOD)
def test_number_reads(raw: bytes) -> None:
    """What Go's parser reads is read to the last bit."""
    assert struct.pack("<d", number(raw) or 0.0 * math.copysign(1, GOOD[raw])) == struct.pack("<d", GOOD[raw])


@pytest.mark.parametrize("raw", BAD)
def test_number_refuses(raw: bytes) -> None:
    """What Prometheus refuses is refused, though Python's float would take some of it."""
    assert number(raw) is None


@pytest.mark.parametrize("raw", [b"NaN", b"nan", b"NAN"])
def test_nan_keeps_prometheus_bits(raw: bytes) -> None:
    """A written NaN is Prometheus' ordinary NaN and never the stale marker."""
    assert struct.pack(">d", number(raw)).hex() == "7ff8000000000001"


@given(st.floats(allow_nan=False))
@example(1.7976931348623157e308)
def test_every_float_round_trips(value: float) -> None:
    """A float64 written as Python writes it comes back bit by bit."""
    assert struct.pack("<d", number(repr(value).encode())) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"0", 0),
        (b"00005", 5),
        (b"1700000000123", 1700000000123),
        (b"9223372036854775807", 2**63 - 1),
        (b"0000000000009223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"-5", None),
        (b"+5", None),
        (b"5.0", None),
        (b"1_0", None),
        (b"", None),
    ],
)
def test_milliseconds(raw: bytes, expected: int | None) -> None:
    """The text format takes decimal digits within int64 and nothing else."""
    assert milliseconds(raw) == expected


@pytest.mark.parametrize("raw", [b"NaN", b"Inf", b"-Inf", b"1e400", b"0x1p3", b"1_0"])
def test_seconds_refuses(raw: bytes) -> None:
    """An OpenMetrics time is a finite number."""
    assert seconds(raw) is None


@given(st.integers(0, 4_102_444_800_000))
@example(1520879607789)
def test_whole_milliseconds_survive_seconds(at: int) -> None:
    """A time written in seconds with three digits comes back as exactly its milliseconds."""
    assert as_milliseconds(float(f"{at // 1000}.{at % 1000:03d}")) == at


@pytest.mark.parametrize(("value", "expected"), [(0.0019, 1), (-0.0019, -1), (-5.5, -5500), (1e3, 1_000_000)])
def test_fractions_are_cut_off(value: float, expected: int) -> None:
    """Below the millisecond Prometheus cuts off, towards zero."""
    assert as_milliseconds(value) == expected


def test_times_outside_of_int64_are_refused() -> None:
    """A time that int64 cannot hold never comes back as another one."""
    with pytest.raises(SourceError):
        as_milliseconds(1e300)


@pytest.mark.parametrize(
    "value",
    [
        *(float(0x7FFFFFF0 + n) for n in range(4)),
        *(float(0x7FFFFFFFFFFFFFF0 + n) for n in range(4)),
        *(140737488355328.0 + n for n in range(4)),
        9223372036854775794.0,
    ],
)
def test_blanks(value: float) -> None:
    """DCGM's blanks and their three variants are blanks, also after float64 has rounded them."""
    assert is_blank(value)


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -1.0,
        2147483631.0,
        2147483636.0,
        4e9,
        140737488355327.0,
        140737488355332.0,
        9e18,
        math.inf,
        math.nan,
    ],
)
def test_no_blanks(value: float) -> None:
    """Large counters, infinities and NaN are values."""
    assert not is_blank(value)
