"""What holds for any page: round trips, no error but SourceError, the same answer from memory and line by line."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as client_openmetrics
from prometheus_client.parser import text_string_to_metric_families as client_text

from collectors.exposition import Known, LineParser, Sample, parse_exposition
from core.errors import SourceError
from core.reasons import SCRAPE_REASONS, TOLERATED
from tests.exposition import mutate

OM = "application/openmetrics-text"
NAMES = st.text("abz_", min_size=1, max_size=4)
VALUES = st.text('ab"\\\n{}=,# \t\r\x00éß\u2028\U0001f600', max_size=8)
LABELS = st.dictionaries(NAMES, VALUES, max_size=4)
NUMBERS = st.floats(allow_nan=True)
TIMES = st.one_of(st.none(), st.integers(0, 4_000_000_000_000))
# Suffixes with a meaning and names of other families would be another family: names end in a letter and a number.
FAMILIES = st.lists(
    st.tuples(
        st.sampled_from(["gauge", "counter", "untyped", "histogram", "summary"]),
        st.lists(st.tuples(LABELS, NUMBERS, TIMES), min_size=1, max_size=4),
        VALUES,
    ),
    min_size=1,
    max_size=4,
)


def escaped(value: str, quote: bool = True) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace('"', '\\"') if quote else value


def bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def write(families: list[tuple], openmetrics: bool, rng: random.Random) -> tuple[str, list[Sample]]:
    """A page in the format, and the samples that it holds (each series once)."""
    lines, samples = [], []
    for n, (kind, rows, words) in enumerate(families):
        family = f"fam_m{n}"
        shown = "unknown" if openmetrics and kind == "untyped" else kind
        lines += [f"# HELP {family} {escaped(words, openmetrics)}", f"# TYPE {family} {shown}"]
        suffix = {"histogram": "_sum", "summary": "_count", "counter": "_total" if openmetrics else ""}.get(
            kind, ""
        )
        for k, (labels, value, at) in enumerate(rows):
            shuffled = (
                [*labels.items(), ("row", str(k))]
                if "row" not in labels
                else [*labels.items(), ("row2", str(k))]
            )
            rng.shuffle(shuffled)
            block = ",".join(f'{name}="{escaped(text)}"' for name, text in shuffled)
            when = "" if at is None else f" {at / 1000:.3f}" if openmetrics else f" {at}"
            lines.append(
                f"{family}{suffix}{{{block}}} {repr(value).replace('inf', 'Inf').replace('nan', 'NaN')}{when}"
            )
            samples.append(Sample(family + suffix, tuple(sorted(shuffled)), kind, value, at))
    return "\n".join([*lines, "# EOF"] if openmetrics else lines) + "\n", samples


def rows(samples: list[Sample]) -> list[tuple]:
    return [(one.name, one.labels, one.type, bits(one.value), one.at) for one in samples]


@settings(max_examples=60, deadline=None)
@given(FAMILIES, st.booleans(), st.randoms(use_true_random=False))
def test_round_trip(families: list[tuple], openmetrics: bool, rng: random.Random) -> None:
    """What was written is read: names, labels, types, values to the bit, times."""
    text, samples = write(families, openmetrics, rng)
    page = parse_exposition(text.encode(), OM if openmetrics else None)
    assert rows(page.samples) == rows(samples)
    assert set(page.tolerated) <= {"crlf"}  # a help text may end in CR


@settings(max_examples=40, deadline=None)
@given(FAMILIES, st.booleans(), st.randoms(use_true_random=False))
def test_prometheus_client_agrees(families: list[tuple], openmetrics: bool, rng: random.Random) -> None:
    """prometheus-client reads the same from every generated page that it takes."""
    text, _ = write(families, openmetrics, rng)
    read = client_openmetrics if openmetrics else client_text
    try:
        theirs = [one for family in read(text) for one in family.samples]
    except (ValueError, IndexError):  # it checks values of counters and histograms, which Prometheus does not
        return
    found = Counter(
        (
            tuple(sorted(one.labels.items())),
            bits(one.value),
            one.timestamp and round(float(one.timestamp) * 1000),
        )
        for one in theirs
    )
    mine = parse_exposition(text.encode(), OM if openmetrics else None).samples
    assert Counter((one.labels, bits(one.value), one.at) for one in mine) == found


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_nothing_but_source_errors(seed: int, openmetrics: bool, recording: bool) -> None:
    """A damaged page is read or refused with a named reason, whole and line by line."""
    body = mutate.page(random.Random(seed), openmetrics)
    found, counted = answer(body, openmetrics, None)
    assert found in SCRAPE_REASONS if isinstance(found, str) else set(counted) <= set(TOLERATED)
    parser = LineParser(openmetrics, recording=recording)
    for raw in body.splitlines(keepends=True):
        with contextlib.suppress(SourceError):
            parser.line(raw)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(body: bytes, openmetrics: bool) -> None:
    """Any bytes at all are read or refused by name."""
    found, counted = answer(body, openmetrics, None)
    assert found in SCRAPE_REASONS if isinstance(found, str) else set(counted) <= set(TOLERATED)


def answer(body: bytes, openmetrics: bool, known: Known | None) -> tuple:
    try:
        page = parse_exposition(body, OM if openmetrics else None, known=known)
    except SourceError as error:
        return error.reason, error.detail
    return rows(page.samples), page.tolerated


def test_memory_changes_no_answer() -> None:
    """Damaged pages give the same answer with and without what earlier pages left in memory."""
    rng, known = random.Random(7), {False: Known(300), True: Known()}
    for n in range(4_000):
        openmetrics = n % 2 == 1
        body = mutate.page(rng, openmetrics)
        assert answer(body, openmetrics, known[openmetrics]) == answer(body, openmetrics, None), body
