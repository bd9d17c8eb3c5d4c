"""What a scraper says of its targets: Prometheus' `up`, in recordings of its own store and in what it pushes.

Greylag tells by itself whether a target answers; where a recording holds another scraper's word, the worse of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Row, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

UP = gauge("exporter.state")


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """`up` as the state of the target itself."""
    if series.name != "up" or not target.node or not (series.label("job") and series.label("instance")):
        return None
    return UP.ref(Target("exporter", target.node, target.id))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row("up", UP, "target (`job`, `instance`); 0 of `up` is state 2")


PLUGIN = SourcePlugin("scraper", map_series=map_series, prefixes=("up",))
