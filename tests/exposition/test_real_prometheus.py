"""Page by page the verdict of a real Prometheus, and series by series its answer."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from app.processes import free_port
from collectors.exposition import Page, parse_exposition
from core.errors import SourceError
from tests import needs
from tests.exposition import mutate, real

OWN = {
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
}
Case = tuple[str, str, bytes]  # corpus, content type, body
Series = dict[tuple[str, tuple[tuple[str, str], ...]], bytes]


def corpora() -> list[Case]:
    """All pages of the parsers' corpora, in the format that they are written for."""
    root = needs.shared("samples/parsers")

    def load(name: str) -> object:
        return json.loads((root / name).read_text())

    cases = [
        ("openmetrics", real.OPENMETRICS, base64.b64decode(one["metrics_b64"]))
        for one in load("openmetrics_testsuite.json").values()
    ]
    cases += [
        ("client_openmetrics", real.OPENMETRICS, one["text"].encode("utf-8", "surrogatepass"))
        for one in load("client_python_openmetrics.json")
    ]
    cases += [("client_text", real.TEXT, one["text"].encode()) for one in load("client_python_text.json")]
    cases += [
        ("expfmt", real.TEXT, base64.b64decode(one["b64"]))
        for one in load("prometheus_common_expfmt.json").values()
    ]
    found = load("victoriametrics_prometheus.json")
    cases += [
        ("victoriametrics", real.TEXT, one["text"].encode())
        for kind in ("failure", "success")
        for one in found[kind]
    ]
    for path in sorted([*root.glob("*.txt"), *root.parent.rglob("*.prom")]):
        cases += [
            ("files", content_type, path.read_bytes()) for content_type in (real.TEXT, real.OPENMETRICS)
        ]
    return cases


EDGES_TEXT = [
    b"a 0x1p-2\n", b"a 0x1\n", b"a 1_0\n", b"a 1e400\n", b"a 1e-400\n", b"a +NaN\n", b"a nan\n", b"a -infinity\n", b"a 1.\n",
    b"a .5\n", b"a 1 -5\n", b"a 1 +5\n", b"a 1 5.0\n", b"a 1 00005\n", b"a 1 9223372036854775807\n",
    b"a 1 9223372036854775808\n", b"a 1\r\n", b"# HELP a b\r\na 1\n", b"# TYPE a gauge\r\na 1\n", b"# hi\r\na 1\n",
    b'a{b="c" d="e"} 1\n', b'a{b="c",} 1\n', b"a{,} 1\n", b'a{b="c",,} 1\n', b'a{b="x",b="y"} 1\n', b'a{b="",b="y"} 1\n',
    b'a{__name__="y"} 1\n', b'a{b="x\ny"} 1\n', b'a{b="x\\\ny"} 1\n', b"a+1\n", b"a{}1\n", b"\x00x", b"a 1\n\x00%%\n",
    b"a 1\n  \x00%%\n", b"#x\x00\n%%\n", b"# x\x00\n%%\n", b"# \x00\n%%\n", b'a{b="\xff"} 1\n', b"# HELP a \xff\n",
    b"# HELP a\xff\n", b"# x \xff\n", b"\n", b"   ", b'a 1 # {x="y"} 1\n', b"# TYPE a  gauge\n", b"# TYPE a gauge \n",
    b"# TYPE a{gauge\n", b"# TYPE a\n", b"# HELP a\n", b"# HELP\n", b"# HELP \n", b"# HELP 1a b\n", b"# TYPE a unknown\n",
    b"# TYPE a untyped\n", b"a\n", b"a 1", b'a{b="c"', b'a{b="x"\x00} 1\n', b'a{b=\x00"x"} 1\n', b'a{b="\x00x"} 1\n',
    b"# T\x00YPE a nope\n", b"# TYPE a\x00gauge\n", b"a 1\t5\n", b"\ta\t1\n", b"a 1\n a 2\n", b'a{b="\\x"} 1\n', b"a 1 5 \n",
    b'{"a"} 1\n', b'a{"b"="c"} 1\n', b"a 1\x0b\n", b'a{b="c"}{} 1\n', b"\xef\xbb\xbfa 1\n", b"a\xc2\xa01\n", b"#", b"# ",
    b"# HELP\ta b\n", b" # HELP a b\n", b'a{b="x"} 1\na{b="x"} 2\n', b"# TYPE a gauge\n# TYPE a counter\n",
]  # fmt: skip
EDGES_OPENMETRICS = [
    b"a 0x1p-2\n", b"a 1e400\n", b"a NaN\n", b"a 1 NaN\n", b"a 1 Inf\n", b"a 1 1e300\n", b"a 1 1e3\n", b"a 1 -5.5\n",
    b"a 1 # {} 1\n", b"a_total 1 # {} 1\n", b"a_bucket 1 # {} 1\n", b'a_total 1 # {a="b",} 1\n',
    b'a_total 1 # {a="b",a="c"} 1\n', b'a_total 1 # {a="b"} 1 5\n', b'a_total 1 # {a="b"} 1 NaN\n',
    b'a_total 1 # {a="b"} NaN\n', b'a_total 1 # {a="b"}\n', b'a_total 1 # {a="\xff"} 1\n', b'a_total 1 # {a="\x00"} 1\n',
    b'a_total 1 # {a="' + b"x" * 200 + b'"} 1\n', b'a{b="c",} 1\n', b'a {b="c"} 1\n', b'a{b="c"}  1\n', b'a{b="c"} 1 \n',
    b'a{b="x\ny"} 1\n', b'a{b="\x00"} 1\n', b'a{b="c"\x00} 1\n', b"a{} 1\n", b"{} 1\n", b"# TYPE a gauge\r\n",
    b"# HELP a x\r\n", b"a 1\r\n", b"a 1\n\n", b"# foo\n", b"# HELP a\n", b"# HELP a \n", b"# UNIT a_s s\n", b"# UNIT a s\n",
    b"# UNIT a \n", b"# UNIT s s\n", b"# TYPE a untyped\n", b"# TYPE a stateset\n", b"# HELP a x\x00y\n",
    b"# HE\x00LP a x\n", b"#\x00 HELP a x\n", b"# HELP a\x00 x\n", b"#  HELP a x\n", b" a 1\n", b"\x00\n",
]  # fmt: skip
ENDS = [
    b"# EOF",
    b"# EOF\n\n",
    b"# EOF\r\n",
    b"# EOF ",
    b"a 1\n",
    b"a 1",
    b"# E\x00OF\n",
    b"# EOF\n\x00",
    b"# EOF\n# EOF\n",
]
CONTENT_TYPES = [
    "", "text/html", "application/openmetrics-text; version", "Application/OpenMetrics-Text", "application/openmetrics-text;",
    "application/openmetrics-text;a=1;a=2", ' application/openmetrics-text ; a="b;c"', "application/openmetrics-text, x",
]  # fmt: skip


def all_cases() -> list[Case]:
    rng = random.Random(11)
    cases = corpora()
    cases += [("edges", real.TEXT, body) for body in EDGES_TEXT]
    cases += [("edges", real.OPENMETRICS, body + b"# EOF\n") for body in EDGES_OPENMETRICS]
    cases += [("edges", real.OPENMETRICS, body) for body in ENDS]
    cases += [("content_types", content_type, b"a 1\n") for content_type in CONTENT_TYPES]
    for n in range(400):
        content_type = real.OPENMETRICS if n % 2 else real.TEXT
        cases.append(("mutated", content_type, mutate.page(rng, content_type == real.OPENMETRICS)))
    return cases


@pytest.fixture(scope="module")
def verdicts(scraped: tuple[list[Case], real.Scraped]) -> list[tuple[Page | None, str]]:
    """Our own verdict on each case."""
    return [verdict(content_type, body) for _, content_type, body in scraped[0]]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], real.Scraped]:
    """All cases, and what one real Prometheus made of them."""
    program = needs.program("prometheus")
    cases = all_cases()
    port = free_port()

    def spawn(*args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    folder: Path = tmp_path_factory.mktemp("prometheus")
    return cases, real.scrape(program, [case[1:] for case in cases], folder, port, spawn, interval="4s")


def verdict(content_type: str, body: bytes) -> tuple[Page | None, str]:
    try:
        return parse_exposition(body, content_type), ""
    except SourceError as error:
        return None, str(error)


CORPORA = [
    "openmetrics", "client_openmetrics", "client_text", "expfmt", "victoriametrics", "files", "edges", "content_types", "mutated",
]  # fmt: skip


@pytest.mark.parametrize("corpus", CORPORA)
def test_takes_and_refuses_the_same_pages(
    corpus: str, scraped: tuple[list[Case], real.Scraped], verdicts: list[tuple[Page | None, str]]
) -> None:
    """A page is read exactly when the real scrape is up; only an empty body is an error here and none there."""
    cases, result = scraped
    differ = []
    for (name, content_type, body), theirs, (_, mine) in zip(cases, result.errors, verdicts, strict=True):
        if name == corpus and bool(mine) != bool(theirs) and body:
            differ.append((content_type, body[:200], theirs, mine))
    assert sum(case[0] == corpus for case in cases) > 7
    assert differ == []


def bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def stored(series: list[dict]) -> dict[int, Series]:
    """What Prometheus stored, by page, without its own series and target labels."""
    found: dict[int, Series] = {}
    for one in series:
        metric = dict(one["metric"])
        name, page = metric.pop("__name__"), int(metric.pop("page"))
        target = {metric.pop(key) for key in ("job", "instance")}
        if name not in OWN and target:
            found.setdefault(page, {})[name, tuple(sorted(metric.items()))] = bits(float(one["value"][1]))
    return found


def comparable(page: Page, keep: Callable[[tuple], bool]) -> Series:
    """Our series by name and labels that have a value; those whose labels Prometheus would rename are left out."""
    rows = {}
    for one in page.samples:
        key = one.name, tuple(pair for pair in one.labels if pair[1])
        if keep(key) and key not in rows:
            rows[key] = bits(one.value)
    return rows


def test_stores_the_same_series(
    scraped: tuple[list[Case], real.Scraped], verdicts: list[tuple[Page | None, str]]
) -> None:
    """Names, labels (unescaped) and values are those that the real Prometheus answers with."""
    cases, result = scraped
    theirs = stored(result.series)
    compared, differ = 0, []
    for n, (_, content_type, body) in enumerate(cases):
        page = verdicts[n][0]
        if page is None:
            continue
        timed = {
            (one.name, tuple(pair for pair in one.labels if pair[1]))
            for one in page.samples
            if one.at is not None
        }

        def keep(key: tuple, timed: set = timed) -> bool:
            renamed = any(
                name in ("job", "instance", "page") or name.startswith("exported_") for name, _ in key[1]
            )
            return key not in timed and key[0] not in OWN and not renamed

        mine = comparable(page, keep)
        other = {key: value for key, value in theirs.get(n, {}).items() if keep(key)}
        compared += len(mine)
        if mine != other:
            differ.append((content_type, body[:100], list(mine.items() ^ other.items())[:4]))
    assert compared > 5_000
    assert differ == []
