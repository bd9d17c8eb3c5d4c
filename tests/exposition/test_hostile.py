"""Hostile pages: named errors, and bounds on time and memory."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable

import pytest

from collectors.exposition import Known, Limits, LineParser, parse_exposition
from core.errors import SourceError

OM = "application/openmetrics-text"
WIDE = Limits(line_bytes=1 << 30, labels=10**9, label_value_bytes=1 << 30, samples=10**9, lines=10**9)


def reason(body: bytes, limits: Limits, content_type: str | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        parse_exposition(body, content_type, limits)
    assert len(str(caught.value)) < 300
    return caught.value.reason


@pytest.mark.parametrize(
    ("body", "limits", "expected"),
    [
        (b"a 1\n" * 100, Limits(body_bytes=399), "body_too_large"),
        (b"\n" * 100, Limits(lines=99), "body_too_large"),
        (b"".join(b"a%d 1\n" % n for n in range(11)), Limits(samples=10), "too_many_samples"),
        (b'a{b="' + b"x" * 200 + b'"} 1\n', Limits(line_bytes=100), "line_too_long"),
        (b"a " + b"1" * 200 + b"\n", Limits(line_bytes=100), "line_too_long"),
        (b"# " + b"x" * 200, Limits(line_bytes=100), "line_too_long"),
        (b'a{b="' + b"x\n" * 200 + b'"} 1\n', Limits(line_bytes=100), "line_too_long"),
        (b'a{b="' + b"x" * 20 + b'"} 1\n', Limits(label_value_bytes=10), "line_too_long"),
        (b"a{" + b",".join(b'l%d="v"' % n for n in range(11)) + b"} 1\n", Limits(labels=10), "line_too_long"),
        (b'a{b="\n' + b'\\"\n' * 11 + b'"} 1\n', Limits(labels=10), "line_too_long"),
        (
            b"a{" + b"".join(b'l%d="\n",' % n for n in range(11)) + b"} 1\n",
            Limits(labels=10),
            "line_too_long",
        ),
    ],
)
def test_limits_have_names(body: bytes, limits: Limits, expected: str) -> None:
    """Each bound refuses with its own reason and a short message."""
    assert reason(body, limits) == expected


def million_labels(n: int) -> bytes:
    return b"a{" + b",".join(b'l%d="v"' % k for k in range(n)) + b"} 1\n"


SHAPES: dict[str, tuple[Callable[[int], bytes], int]] = {
    "labels of one line": (million_labels, 8_000),
    "labels, unclosed": (lambda n: million_labels(n)[:-5], 8_000),
    "one label again": (lambda n: b"a{" + b'l="v",' * n + b"} 1\n", 8_000),
    "escapes": (lambda n: b'a{b="' + rb"\\\"\n" * n + b'"} 1\n', 8_000),
    "escapes, unclosed": (lambda n: b'a{b="' + rb"\\\"\n" * n, 8_000),
    "quotes": (lambda n: b"a{b=" + b'"' * n + b"} 1\n", 50_000),
    "braces": (lambda n: b"a" + b"{" * n + b"} 1\n", 50_000),
    "digits": (lambda n: b"a " + b"1" * n + b"\n", 50_000),
    "fraction": (lambda n: b"a 0." + b"1" * n + b"\n", 50_000),
    "blanks": (lambda n: b"a" + b" " * n + b"x y z\n", 50_000),
    "NULs in a label": (lambda n: b'a{b="\\' + b"\x00" * n + b'x"' + b"\x00" * n + b"} 1\n", 50_000),
    "NULs in a comment": (lambda n: b"# H" + b"\x00" * n + b"ELP " + b"\x00" * n + b"a x\n", 50_000),
    "name": (lambda n: b"a" * n + b" 1\n", 50_000),
    "families": (lambda n: b"".join(b"# TYPE a%d gauge\n" % k for k in range(n)), 2_000),
    "type back and forth": (lambda n: b"# TYPE a gauge\na 1 1\n# TYPE a counter\nb 1 1\n" * n, 800),
    "open lines": (lambda n: b'a{b="' + b"x\n" * n + b'"} 1\n', 8_000),
    "open lines, unclosed": (lambda n: b'a{b="' + b"x\n" * n, 8_000),
    "samples": (lambda n: b"".join(b'a{b="%d"} 1\n' % k for k in range(n)), 2_000),
    "many times": (lambda n: b"".join(b"a 1 %d\n" % k for k in range(n)), 2_000),
}


def seconds_for(body: bytes, content_type: str | None) -> float:
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        with contextlib.suppress(SourceError):
            parse_exposition(body, content_type, WIDE)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("content_type", [None, OM])
@pytest.mark.parametrize("shape", SHAPES)
def test_time_grows_with_the_size_only(shape: str, content_type: str | None) -> None:
    """Four times the page takes about four times as long: a square law would take sixteen times."""
    make, n = SHAPES[shape]
    small, large = seconds_for(make(n), content_type), seconds_for(make(4 * n), content_type)
    assert large < 9 * small + 0.02


@pytest.mark.parametrize("openmetrics", [False, True])
def test_memory_does_not_grow_with_a_recording(openmetrics: bool) -> None:
    """A parser of lines keeps bounded state, however many series and families go by."""
    limits = Limits(families=100, known=200)
    parser = LineParser(openmetrics, limits, recording=True)

    def feed(first: int, last: int) -> int:
        for n in range(first, last):
            parser.line(b"# TYPE f%d gauge\n" % n)
            parser.line(b"# HELP f%d words\n" % n)
            parser.line(b'f%d{l="%d"} 1 5\n' % (n, n))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        feed(0, 1_000)  # allocators and caches settle
        early, late = feed(1_000, 1_500), feed(1_500, 4_000)
    finally:
        tracemalloc.stop()
    assert late < early + 100_000


def test_known_is_bounded_and_right_after_forgetting() -> None:
    """What was forgotten is read anew, with the same answer."""
    known = Known(50)
    body = b"".join(b'a{b="%d"} %d\n' % (n, n) for n in range(200))
    pages = [parse_exposition(body, known=known) for _ in range(2)]
    assert len(known) <= 50
    assert pages[0].samples == pages[1].samples


def test_known_does_not_cross_formats() -> None:
    """A block that text takes is not taken for OpenMetrics from memory."""
    known = Known()
    parse_exposition(b'a{b="c",} 1\n', None, known=known)
    with pytest.raises(SourceError, match="bad_syntax"):
        parse_exposition(b'a{b="c",} 1\n# EOF\n', OM, known=known)
