"""Sources of exporters of which no page was captured, against the lists that their makers publish (shared samples)."""

from __future__ import annotations

import re

import pytest

from tests.sources.test_captures import described, text_of

# source → (its maker's list, metrics of another exporter that the source reads as well)
LISTS = {
    "amd": (["amd/device-metrics-exporter_metricslist.md"], r"amd_gpu_"),  # amd_smi_exporter's own names
    "tgi": (["inference/tgi_metrics.md"], r"$^"),
    "triton": (["inference/triton_metrics.md"], r"$^"),
}


@pytest.mark.parametrize("source", LISTS)
def test_every_metric_stands_in_its_makers_list(source) -> None:
    """A name that no such exporter has would never be seen; a histogram's parts stand under the histogram's own name."""
    names, other = LISTS[source]
    known = {word.lower() for name in names for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text_of(name))}
    asked = {re.split(r"[{ ]", row.metric)[0].removeprefix("[amd_]").lower() for row in described(source)}
    asked = {one for one in asked if not re.match(other, one)}
    assert len(asked) >= 7
    assert {one for one in asked if one not in known and re.sub(r"_(sum|count)$", "", one) not in known} == set()
