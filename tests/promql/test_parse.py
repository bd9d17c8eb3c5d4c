"""What a query's text means, and what is refused."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocols import Matcher
from pipeline.promql.numbers import number, seconds
from pipeline.promql.parse import QueryError, Scalar, Selector, parse, selector

UP = Matcher("__name__", "=", "up")


@pytest.mark.parametrize(("query", "expected"), [
    ("up", Selector((UP,))),
    ("(up)", Selector((UP,))),
    ("up{}", Selector((UP,))),
    ("node:x:rate", Selector((Matcher("__name__", "=", "node:x:rate"),))),
    ('{__name__="up"}', Selector((UP,))),
    ('up{a="b",c!="d",e=~"f.*",g!~"h"}',
     Selector((UP, Matcher("a", "=", "b"), Matcher("c", "!=", "d"), Matcher("e", "=~", "f.*"), Matcher("g", "!~", "h")))),
    (r'up{a="x\ny\\d"}', Selector((UP, Matcher("a", "=", "x\ny\\d")))),
    (r"up{a=`x\ny`}", Selector((UP, Matcher("a", "=", r"x\ny")))),
    ('up{a="é☃"}', Selector((UP, Matcher("a", "=", "é☃")))),
    ("up offset 5m", Selector((UP,), 300_000)),
    ("up offset -1m30s", Selector((UP,), -90_000)),
])
def test_a_selector_is_understood(query: str, expected: Selector) -> None:
    """Matchers in order, the name first, values unescaped, the offset in ms."""
    assert parse(query) == expected


@pytest.mark.parametrize(("query", "value"), [
    ("1+1", 2.0), ("-1", -1.0), ("(1 + 2) * 3", 9.0), ("2 ^ 3 ^ 2", 512.0), ("7 % 4", 3.0), ("-7 % 4", -3.0), ("1 / 0", math.inf),
    ("-1 / 0", -math.inf), ("0 / 0", math.nan), ("1 % 0", math.nan), ("0x1F", 31.0), ("1e3", 1000.0), ("Inf", math.inf),
    ("-(2)", -2.0), ("10 ^ 400", math.inf), ("(-8) ^ 0.5", math.nan), ("0 ^ -1", math.inf), ("(-10) ^ 401", -math.inf),
])
def test_arithmetic_of_numbers_is_done(query: str, value: float) -> None:
    """As Go does it: division by zero is no error."""
    found = parse(query)
    assert isinstance(found, Scalar)
    assert found.value == value or (math.isnan(found.value) and math.isnan(value))


@pytest.mark.parametrize("query", [
    "rate(up[5m])", "up[5m]", "sum(up)", "up + 1", "1 > bool 2", "up @ 1000", "up[5m:1m]", '"text"', "-up", "up and up",
    'up{a="b" or c="d"}', "time()", "1 + sum(up)",
])
def test_more_than_selectors_is_not_supported_yet(query: str) -> None:
    """One sentence that says what is."""
    with pytest.raises(QueryError, match="is not supported yet: only plain selectors"):
        parse(query)


@pytest.mark.parametrize("query", ["", "  ", "up{", "{}", '{a=""}', "up{a=b}", "1 +", "up offset", "x" * 10_001, 'up{a=~"("}'])
def test_what_does_not_parse_is_refused(query: str) -> None:
    """One sentence, never another kind of exception."""
    with pytest.raises(QueryError) as error:
        parse(query)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_gives_an_answer_or_a_query_error(text: str) -> None:
    """No input makes the parser fail in another way."""
    with contextlib.suppress(QueryError):
        parse(text)


@pytest.mark.parametrize("query", ["1", "up offset 5m", "sum(up)"])
def test_a_match_takes_only_a_selector(query: str) -> None:
    """`match[]` with anything else is refused."""
    with pytest.raises(QueryError):
        selector(query)


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (-3.5, "-3.5"), (0.1, "0.1"), (1e15, "1000000000000000"), (123456789.123, "123456789.123"),
    (1e20, "100000000000000000000"), (1.5e20, "150000000000000000000"), (1e21, "1e+21"), (1.25e300, "1.25e+300"), (1e-6, "0.000001"),
    (1.5e-5, "0.000015"), (9.9e-7, "9.9e-07"), (5e-324, "5e-324"), (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"),
    (9007199254740993.0, "9007199254740992"), (1 / 3, "0.3333333333333333"),
])
def test_numbers_are_written_as_prometheus_does(value: float, text: str) -> None:
    """Shortest decimal text, exponents only below 1e-6 and from 1e21."""
    assert number(value) == text


def test_a_scalar_answer_has_all_digits() -> None:
    """Prometheus writes no exponent there."""
    assert [number(v, exponents=False) for v in (-1e-7, 1e21)] == ["-0.0000001", "1000000000000000000000"]


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_as_itself(value: float) -> None:
    """No digit is lost."""
    assert float(number(value)) == value


@pytest.mark.parametrize(("at", "shown"), [(1_700_000_000_000, 1_700_000_000), (1_700_000_000_125, 1_700_000_000.125)])
def test_times_are_seconds(at: int, shown: float) -> None:
    """Whole where they are whole."""
    assert repr(seconds(at)) == repr(shown)
