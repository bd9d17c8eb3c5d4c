"""Pages that differ in their values alone: what the short way reads, the strict parser reads too, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.exposition import parse_exposition
from collectors.exposition_template import PageTemplate, _feeds
from core.errors import SourceError

PAGE = b"""# HELP a what } it is
# TYPE a counter
a{gpu="0",path="x} 5"} 1
a{gpu="1",path="y z"} 2.5e+09
# TYPE up gauge
up 1

# TYPE b gauge
b{gpu="0"} NaN
b{gpu="1"} -4
"""
OPENMETRICS = b'# TYPE a gauge\na{x="1"} 1\na 2\n# EOF\n'
OM_TYPE = "application/openmetrics-text; version=1.0.0"
NUMBERS = [b"NaN", b"nan", b"+NaN", b"-nan", b"Inf", b"+inf", b"-Inf", b"Infinity", b"1e999", b"1e-999", b"0x1p-2", b"1_0",
           b"+5", b".5", b"5.", b"1E5", b"-0", b"", b" 1", b"1 ", b"1\t", b"1\r", b"1 1700000000000", b"1 # {} 2", b"true",
           b"9" * 40, b"0" * 70 + b"1", b"\xff", b"1\x00", b"4.9e-324", b"1.7976931348623159e308", b"1,5", b"--1", b"e"]


def strict(body, content_type=None):
    """What the strict parser says: (names, labels, types, times), values as bits, breaches; None where it refuses."""
    try:
        page = parse_exposition(body, content_type)
    except SourceError:
        return None
    return ([(s.name, s.labels, s.type, s.at) for s in page.samples],
            np.array([s.value for s in page.samples]).tobytes(), page.tolerated)


def template(body, content_type=None):
    """The template of a page, None where it has none."""
    return PageTemplate.of(parse_exposition(body, content_type), body, content_type)


def agrees(made, page, body, content_type=None):
    """True where the template declines the body, or reads what the strict parser reads, in the shape of its page."""
    found = made.values(body, content_type)
    if found is None:
        return True
    said, first = strict(body, content_type), strict(page, content_type)
    return said is not None and said == (first[0], found.tobytes(), first[2])


@pytest.mark.parametrize(("page", "content_type"), [(PAGE, None), (OPENMETRICS, OM_TYPE)])
def test_reads_its_own_page(page, content_type):
    """A page is like itself: values in its order, NaN with the bits that Prometheus stores."""
    found = template(page, content_type).values(page, content_type)
    assert found.tobytes() == strict(page, content_type)[1]


def test_reads_other_values():
    """Longer and shorter numbers move everything behind them; they are read all the same."""
    body = PAGE.replace(b" 2.5e+09", b" 7").replace(b"up 1", b"up 123456.75").replace(b"NaN", b"-1")
    assert template(PAGE).values(body, None).tolist() == [1.0, 7.0, 123456.75, -1.0, -4.0]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_the_strict_ones(text):
    """Every spelling of a number is read as the strict parser reads it, or left to it."""
    assert agrees(template(PAGE), PAGE, PAGE.replace(b" -4\n", b" " + text + b"\n"))


CHANGED = [
    ("a label", PAGE.replace(b'gpu="1"', b'gpu="2"')), ("a name", PAGE.replace(b"\nup ", b"\nuq ")),
    ("a help text", PAGE.replace(b"what", b"that")), ("a type", PAGE.replace(b"counter", b"gauge")),
    ("a line more", PAGE + b"c 1\n"), ("a line less", PAGE[:PAGE.index(b"b{gpu=\"1\"")]),
    ("lines in another order", PAGE.replace(b"up 1\n\n", b"\nup 1\n")), ("no line end", PAGE[:-1]), ("nothing", b""),
    ("a comment at the end", PAGE + b"# x\n"), ("the comment for a value", PAGE.replace(b"up 1\n\n", b"up\n1 \n")),
]


@pytest.mark.parametrize("body", [row[1] for row in CHANGED], ids=[row[0] for row in CHANGED])
def test_declines_everything_else(body):
    """A page that differs in more than its values is for the strict parser."""
    assert template(PAGE).values(body, None) is None


def test_declines_another_format():
    """The same bytes under another content type may mean something else."""
    assert template(PAGE).values(PAGE, OM_TYPE) is None


HARD = [
    (b"a 1 1700000000000\n", None), (b"a 1\na 1\n", None), (b'a{x="} 5\nb"} 6\n', None), (b"a 1\n# x\x00\n", None),
    (b"a 1", None), (b"a\t1\n", None), (b"# TYPE a counter\n", None), (b"a{} 1 \n", None),
    (b'# TYPE a counter\na_total{x="1"} 1 # {} 1\n# EOF\n', OM_TYPE),
]


@pytest.mark.parametrize(("page", "content_type"), HARD)
def test_hard_pages_get_no_template(page, content_type):
    """Where the place of a value cannot be told from its line there is no short way."""
    assert template(page, content_type) is None


LINES = st.sampled_from([b'a{x="1"}', b'a{x="2"}', b"b", b"c{}", b'd{e="}"}', b"# TYPE a gauge", b"# b", b""])
VALUES = st.one_of(st.sampled_from(NUMBERS), st.floats().map(lambda v: repr(v).encode()),
                   st.integers(-10**20, 10**20).map(lambda v: str(v).encode()))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LINES, VALUES), min_size=1, max_size=6), st.lists(VALUES, min_size=6, max_size=6))
@example([(b"b", b"1")], [b"1_0"] * 6)
def test_never_says_what_the_strict_parser_does_not(lines, others):
    """Whatever the pages, a template agrees with the strict parser or says nothing."""
    def page(values):
        return b"".join(head + (b" " + value if head[:1] not in b"#" else b"") + b"\n"
                        for (head, _), value in zip(lines, values, strict=False))

    first = page([value for _, value in lines])
    made = template(first) if strict(first) is not None else None
    assert made is None or agrees(made, first, page(others))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(PAGE) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_a_broken_page_is_never_misread(at, put, drop):
    """Bytes changed anywhere: the template agrees with the strict parser or says nothing."""
    assert agrees(template(PAGE), PAGE, PAGE[:at] + put + PAGE[at + drop:])


@given(st.lists(st.integers(0, 30), max_size=60), st.binary(max_size=9))
def test_line_feeds_are_found_however_long_the_lines_are(lengths: list[int], tail: bytes) -> None:
    """Words of eight octets give what looking at each octet gives, short lines and a last line without an end included."""
    body = b"".join(b"x" * n + b"\n" for n in lengths) + tail
    assert _feeds(body).tolist() == [i for i, octet in enumerate(body) if octet == 10]
