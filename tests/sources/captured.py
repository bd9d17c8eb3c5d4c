"""Pages of exporters through the strict parser and the mapper, as the collector does it."""

from __future__ import annotations

import textwrap

import numpy as np

from collectors.exposition import parse_exposition
from collectors.mapping import Mapper
from core.derive import derive
from core.plugins import load_plugins
from core.protocols import TargetInfo
from core.types import Series

SOURCES = {name: plugin for name, plugin in load_plugins("collectors.sources").items() if plugin.map_series is not None}
MAPPER = Mapper(SOURCES)
TARGET = TargetInfo("job/n1:9400", {"job": "job", "instance": "n1:9400"}, "n1")


def page(text: str, target: TargetInfo = TARGET):
    """(layout, raw values) of a page; the series in the order of the collector."""
    samples = parse_exposition(textwrap.dedent(text).encode()).samples
    rows = sorted((s.name, tuple(sorted(p for p in s.labels if p[1])), s.type, s.value) for s in samples)
    layout = MAPPER.layout(target, [Series(*row[:3]) for row in rows])
    return layout, MAPPER.clean(layout, np.array([row[3] for row in rows], np.float64))


def claims(one: Series, target: TargetInfo = TARGET) -> list[str]:
    """The sources that would take a series."""
    return [name for name, plugin in SOURCES.items()
            if (not plugin.prefixes or one.name.startswith(plugin.prefixes)) and plugin.map_series(one, target) is not None]


def told(text: str, target: TargetInfo = TARGET) -> list[tuple[str, str | None, str | None, float, bool]]:
    """(signal, node, device or job, canonical value, counter) of each meaning of a page, sorted, NaN as None."""
    layout, values = page(text, target)
    out = []
    for ref in layout.signals:
        value = float(derive(ref.signal, values[ref.index : ref.index + 1], ref.scale)[0])
        where = ref.target.job if ref.target.kind == "job" else ref.target.device
        out.append((ref.signal, ref.target.node, where, None if np.isnan(value) else round(value, 9), ref.counter))
    return sorted(out, key=str)
