"""The same answer as prometheus-client on every well-formed page under the shared samples."""

from __future__ import annotations

import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as client_openmetrics
from prometheus_client.parser import text_string_to_metric_families as client_text

from collectors.exposition import parse_exposition
from core.errors import SourceError
from tests import needs

OM = "application/openmetrics-text"
# Not well-formed: labels elided with "...", and lines indented with tabs (a real Prometheus refuses all four).
NOT_WELL_FORMED = {
    "dcgm/conformance_viettel_elided_BAD.prom",
    "inference/conformance_viettel.prom",
    "infiniband/expected_hca_test.prom",
    "infiniband/expected_switch_test.prom",
}
# (The client refuses prom_alltypes.5mfs.om.txt, which a real Prometheus takes: test_real_prometheus reads it.)
OPENMETRICS = {"parsers/prom_1histogram.om.txt"}
TEXT = {"parsers/prom_alltypes.237mfs.nometa.prom.txt", "parsers/prom_alltypes.237mfs.prom.txt"}
Row = tuple[str, tuple[tuple[str, str], ...], bytes, int | None]


def bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def client_rows(text: str, read: Any) -> list[Row]:
    """The client's samples, with its own renaming of text counters (`x` to `x_total`) undone."""
    rows = []
    for family in read(text):
        for one in family.samples:
            name = one.name
            if read is client_text and family.type == "counter" and f"\n{name}" not in f"\n{text}":
                name = name.removesuffix("_total")
            at = None if one.timestamp is None else round(float(one.timestamp) * 1000)
            rows.append((name, tuple(sorted(one.labels.items())), bits(one.value), at))
    return rows


def pages() -> list[str]:
    root = needs.SHARED / "samples"
    found = {str(path.relative_to(root)) for path in root.rglob("*.prom")} | OPENMETRICS | TEXT
    return sorted(name for name in found - NOT_WELL_FORMED if (root / name).exists())


@pytest.mark.parametrize("name", pages())
def test_agrees_with_prometheus_client(name: str) -> None:
    """Names, labels, values and times are the client's; of a series that stands twice the first is kept."""
    body = Path(needs.shared("samples") / name).read_bytes()
    openmetrics = name in OPENMETRICS
    page = parse_exposition(body, OM if openmetrics else None)
    mine = [(one.name, one.labels, bits(one.value), one.at) for one in page.samples]
    theirs = client_rows(body.decode(), client_openmetrics if openmetrics else client_text)
    first = {(row[0], tuple(p for p in row[1] if p[1]), row[3]): row for row in reversed(theirs)}
    assert Counter(mine) == Counter(first.values())
    assert page.tolerated.get("duplicate_series", 0) == len(theirs) - len(first)


@pytest.mark.parametrize("name", sorted(NOT_WELL_FORMED))
def test_refuses_what_is_not_well_formed(name: str) -> None:
    """A page with elided labels or indented samples is refused by name."""
    body = needs.shared(f"samples/{name}").read_bytes()
    with pytest.raises(SourceError, match="bad_syntax"):
        parse_exposition(body)


def test_there_are_pages() -> None:
    """The list of pages is not empty where the samples are there."""
    needs.shared("samples")
    assert len(pages()) > 35
