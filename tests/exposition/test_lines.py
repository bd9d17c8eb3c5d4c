"""What the two formats say, line by line."""

from __future__ import annotations

import math

import pytest

from collectors.exposition import Limits, LineParser, Page, Sample, is_openmetrics, parse_exposition
from core.errors import SourceError
from core.reasons import SCRAPE_REASONS, TOLERATED

OM = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def text(body: bytes | str) -> Page:
    return parse_exposition(body.encode() if isinstance(body, str) else body)


def om(body: str) -> Page:
    return parse_exposition(f"{body}# EOF\n".encode(), OM)


def reason(body: bytes, content_type: str | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        parse_exposition(body, content_type)
    assert caught.value.reason in SCRAPE_REASONS
    return caught.value.reason


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", Sample("a", (), "untyped", 1.0, None)),
        ("a{} 1", Sample("a", (), "untyped", 1.0, None)),
        ("a:b_1 -2.5e3 1700000000123", Sample("a:b_1", (), "untyped", -2500.0, 1700000000123)),
        ('a{z="1",b="2"} 3', Sample("a", (("b", "2"), ("z", "1")), "untyped", 3.0, None)),
        ('a { z = "1" , } 3\t5 ', Sample("a", (("z", "1"),), "untyped", 3.0, 5)),
        ('a{z="1" b="2"}+Inf', Sample("a", (("b", "2"), ("z", "1")), "untyped", math.inf, None)),
        (r'a{p="C:\\dir\n\"x\" \d"} 1', Sample("a", (("p", 'C:\\dir\n"x" \\d'),), "untyped", 1.0, None)),
        ('a{p="one\ntwo",q="}"} 1', Sample("a", (("p", "one\ntwo"), ("q", "}")), "untyped", 1.0, None)),
        ('a{p="héé{}# ="} 1', Sample("a", (("p", "héé{}# ="),), "untyped", 1.0, None)),
        ('a{p=""} 1', Sample("a", (("p", ""),), "untyped", 1.0, None)),
        ('a{p="",p="x"} 1', Sample("a", (), "untyped", 1.0, None)),
        ("a-1", Sample("a", (), "untyped", -1.0, None)),
    ],
)
def test_text_samples(line: str, expected: Sample) -> None:
    """Names, labels, values and times of the text format, as loosely as Prometheus takes them."""
    assert text(f"\n# free words\n{line}\n").samples == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", Sample("a", (), "untyped", 1.0, None)),
        (
            'a{z="1",b="2"} 1 1700000000.123',
            Sample("a", (("b", "2"), ("z", "1")), "untyped", 1.0, 1700000000123),
        ),
        ("a 1 -5.5", Sample("a", (), "untyped", 1.0, -5500)),
        ('a_total 1 # {t="x}"} 0.5', Sample("a_total", (), "untyped", 1.0, None)),
        ('a_total{b="c"} 1 2 # {} 0.5 9', Sample("a_total", (("b", "c"),), "untyped", 1.0, 2000)),
        (
            'a_bucket{le="1"} 1 # {t="\\"",t="y"} NaN 9',
            Sample("a_bucket", (("le", "1"),), "untyped", 1.0, None),
        ),
    ],
)
def test_openmetrics_samples(line: str, expected: Sample) -> None:
    """Times are seconds in OpenMetrics, and exemplars are read and dropped."""
    assert om(line + "\n").samples == [expected]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"a\n", "bad_syntax"),
        (b" a 1\n", "bad_syntax"),
        (b"a 1 2 3\n", "bad_syntax"),
        (b"a 1\r\n", "bad_syntax"),
        (b"a 1 -5\n", "bad_syntax"),
        (b"a{,} 1\n", "bad_syntax"),
        (b'a{b="c",,} 1\n', "bad_syntax"),
        (b'a{b="1",b="2"} 1\n', "bad_syntax"),
        (b'a{__name__="b"} 1\n', "bad_syntax"),
        (b'a{b="\\\n"} 1\n', "bad_syntax"),
        (b'{a="b"} 1\n', "bad_syntax"),
        (b'a 1 # {t="x"} 1\n', "bad_syntax"),
        (b"# TYPE a unknown\n", "bad_syntax"),
        (b"# TYPE a  gauge\n", "bad_syntax"),
        (b"# HELP \n", "bad_syntax"),
        (b"\xef\xbb\xbfa 1\n", "bad_syntax"),
        (b'a{b="\xff"} 1\n', "bad_encoding"),
        (b"# HELP a \xff\n", "bad_encoding"),
        (b"", "empty_body"),
        (b'a 1\na{b="c', "truncated"),
        (b"a 1\na", "truncated"),
        (b'a 1\na{b="c\nd=e 1\n', "truncated"),
    ],
)
def test_text_refuses(body: bytes, expected: str) -> None:
    """Each page that Prometheus refuses has its named reason."""
    assert reason(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"a 1\n", "bad_openmetrics"),
        (b"a 1\n# EOF\n\n", "bad_openmetrics"),
        (b"a 1\n# EOF\na 1\n", "bad_openmetrics"),
        (b"a 1\n\n# EOF\n", "bad_openmetrics"),
        (b"# words\n# EOF\n", "bad_openmetrics"),
        (b"# HELP a\n# EOF\n", "bad_openmetrics"),
        (b"# UNIT a_s m\n# EOF\n", "bad_openmetrics"),
        (b'a 1 # {t="x"} 1\n# EOF\n', "bad_openmetrics"),
        (b'a_total 1 # {t="x"} 1 NaN\n# EOF\n', "bad_openmetrics"),
        (b"a 1 Inf\n# EOF\n", "bad_openmetrics"),
        (b'a_total 1 # {t="x",} 1\n# EOF\n', "bad_syntax"),
        (b"# TYPE a untyped\n# EOF\n", "bad_syntax"),
        (b"a  1\n# EOF\n", "bad_syntax"),
        (b'a{b="c",} 1\n# EOF\n', "bad_syntax"),
        (b'a{b="c"} 1 \n# EOF\n', "bad_syntax"),
        (b'a{b="\n"} 1\n# EOF\n', "bad_syntax"),
        (b'a_total 1 # {t="\xff"} 1\n# EOF\n', "bad_encoding"),
        (b"a 1\nb", "truncated"),
        (b"a 1\nb 2", "truncated"),
        (b"", "empty_body"),
    ],
)
def test_openmetrics_refuses(body: bytes, expected: str) -> None:
    """Each page that Prometheus refuses has its named reason."""
    assert reason(body, OM) == expected


def test_error_names_the_line() -> None:
    """The error says where and what, in a bounded number of characters."""
    with pytest.raises(SourceError, match=r"^bad_syntax: line 3: not a number: b'xyz'$"):
        text("a 1\na 2\na xyz\n")


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "text/html; charset=x", f"{OM}; version", "x", f"{OM}, x"]
)
def test_text_is_the_fallback(content_type: str | None) -> None:
    """What is not a well-formed OpenMetrics content type means text, as in Prometheus."""
    assert not is_openmetrics(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        OM,
        "Application/OpenMetrics-Text",
        "application/openmetrics-text;",
        ' application/openmetrics-text; a="b;c"',
    ],
)
def test_content_type_of_openmetrics(content_type: str) -> None:
    """The media type counts in any case, with any parameters."""
    assert is_openmetrics(content_type)


def test_protobuf_is_refused() -> None:
    """Protobuf is never read as text."""
    assert reason(b"a 1\n", "application/vnd.google.protobuf; proto=x") == "bad_syntax"


def test_types_follow_the_family_in_text() -> None:
    """Each line of a histogram or summary has the type of its family; other suffixes mean nothing."""
    page = text(
        "# TYPE h histogram\nh_bucket 1\nh_sum 1\nh_count 1\nh_total 1\n# TYPE s summary\ns 1\ns_sum 1\ns_count 1\ns_bucket 1\n"
    )
    assert {one.name: one.type for one in page.samples} == {
        "h_bucket": "histogram", "h_sum": "histogram", "h_count": "histogram", "h_total": "untyped",
        "s": "summary", "s_sum": "summary", "s_count": "summary", "s_bucket": "untyped",
    }  # fmt: skip


def test_types_follow_the_family_in_openmetrics() -> None:
    """OpenMetrics' suffixes belong to their types."""
    page = om(
        "# TYPE c counter\nc_total 1\nc_created 1\n# TYPE g gaugehistogram\ng_bucket 1\ng_gsum 1\ng_gcount 1\n"
        "# TYPE i info\ni_info 1\n# TYPE u unknown\nu 1\n# TYPE s stateset\ns 1\nc 1\n"
    )
    assert [one.type for one in page.samples] == [
        "counter", "counter", *["gaugehistogram"] * 3, "info", "untyped", "stateset", "counter",
    ]  # fmt: skip


def test_type_of_a_repeated_family_may_change() -> None:
    """A later TYPE holds for the samples after it."""
    page = text('# TYPE a gauge\na 1\n# TYPE a counter\na{x="y"} 2\n')
    assert [one.type for one in page.samples] == ["gauge", "counter"]


def test_help_and_unit_are_kept() -> None:
    """Comments of a family are there for the metadata, unescaped."""
    page = om('# TYPE a_s gauge\n# UNIT a_s s\n# HELP a_s one\\ntwo \\"x\\"\n')
    family = page.families["a_s"]
    assert (family.type, family.unit, family.help) == ("gauge", "s", 'one\ntwo "x"')


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("# TYPE a gauge\na 1", {"missing_newline": 1}),
        ("# TYPE a gauge\n# HELP a x\r\na 1\n", {"crlf": 1}),
        ('# TYPE a gauge\na 1\n# TYPE a gauge\na{x="y"} 1\n', {"repeated_family": 1}),
        ("a 1\n# TYPE a gauge\n", {"no_type": 1, "type_after_sample": 1}),
        ("# TYPE a gauge\na 1\na 2\n", {"duplicate_series": 1}),
        ('# TYPE a gauge\na 1\na{x=""} 2\n', {"duplicate_series": 1}),
        ("# TYPE a gauge\na 1 5\na 2 4\n", {"unsorted_timestamps": 1}),
        ('# TYPE a gauge\n# TYPE b gauge\na 1\nb 1\na{x="y"} 1\n', {"interleaved": 1}),
        ("# TYPE a gauge\na 1\n\x00\x01garbage", {"other": 1, "missing_newline": 1}),
        ("# TYPE a gauge\na 1 5\na 2 6\n", {}),
    ],
)
def test_text_tolerates_by_name(body: str, expected: dict[str, int]) -> None:
    """What breaks the standard and is let pass is counted by its name."""
    page = text(body)
    assert page.tolerated == expected
    assert set(expected) <= set(TOLERATED)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("# TYPE a counter\na 1\n", {"name_without_suffix": 1}),
        ("# TYPE a gauge\na 1 1e300\n", {"other": 1}),
        ("# TYPE a gauge\na 1\n", {}),
    ],
)
def test_openmetrics_tolerates_by_name(body: str, expected: dict[str, int]) -> None:
    """What breaks OpenMetrics and Prometheus lets pass is counted by its name."""
    assert om(body).tolerated == expected


def test_of_a_duplicate_the_first_is_kept() -> None:
    """As in Prometheus, the second sample of a series at one time is dropped."""
    assert [
        one.value for one in text('a{x="1",y="2"} 1\na{y="2",x="1"} 2\na{x="1",y="2"} 3 7\n').samples
    ] == [1.0, 3.0]


def test_recording_lets_joined_pages_pass() -> None:
    """A recording may join pages: CR LF, blank lines, comments, and lines after # EOF."""
    parser = LineParser(True, recording=True)
    lines = [
        b"# TYPE a gauge\r\n",
        b'a{x="y"} 1 1.5\r\n',
        b"# EOF\r\n",
        b"\r\n",
        b"# words\n",
        b'a{x="y"} 2 16.5',
    ]
    samples = [parser.line(raw) for raw in lines]
    parser.finish()
    assert [(one.value, one.at, one.type) for one in samples if one] == [
        (1.0, 1500, "gauge"),
        (2.0, 16500, "gauge"),
    ]


def test_recording_goes_on_after_a_broken_line() -> None:
    """A line cut short costs that line and no other."""
    parser = LineParser(False, recording=True)
    with pytest.raises(SourceError, match="truncated"):
        parser.line(b'a{x="y\n')
    assert parser.line(b'a{x="y"} 1 5\n') == Sample("a", (("x", "y"),), "untyped", 1.0, 5)


def test_page_goes_on_over_a_raw_line_end() -> None:
    """The text format's label values may hold raw line ends, also when read line by line."""
    parser = LineParser(False)
    found = [parser.line(raw) for raw in (b'a{x="1\n', b"2\n", b'3",y="\n', b'"} 1\n')]
    assert found == [None, None, None, Sample("a", (("x", "1\n2\n3"), ("y", "\n")), "untyped", 1.0, None)]


def test_finish_inside_a_label_value_is_truncated() -> None:
    """A page may not end inside a label value."""
    parser = LineParser(False, Limits())
    parser.line(b'a{x="1\n')
    with pytest.raises(SourceError, match="truncated"):
        parser.finish()
