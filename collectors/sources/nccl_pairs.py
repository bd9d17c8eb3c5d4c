"""Bandwidth between pairs of nodes, as a site measures it with nccl-tests (`all_reduce_perf` on two nodes) and writes it down.

`nccl_pair_busbw_bytes_per_second{a="n644",b="n699"}`: the bus bandwidth of the pair. Which of the two comes first means nothing.
The part is the path between them, kind link, named `n644<->n699`.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Row, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

NAME = "nccl_pair_busbw_bytes_per_second"
BANDWIDTH = gauge("link.pair_bytes_per_second")


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The bandwidth of a pair of nodes."""
    a, b = sorted((series.label("a"), series.label("b")))
    if series.name != NAME or not a or a == b:
        return None
    return BANDWIDTH.ref(Target("link", None, f"{a}<->{b}"))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row(NAME, BANDWIDTH, "path between two nodes (`a`, `b`)")


PLUGIN = SourcePlugin("nccl_pairs", map_series=map_series, prefixes=("nccl_pair_",))
