"""Correctable memory errors of a GPU at a rate that no healthy part has.

Nobody else alarms on the rate: limits in the tens of millions of a running total pass a GPU that corrects thousands of
errors a second while its monitoring starves. A healthy GPU meets one in months; the count of the board's life, which
jumps when a board is swapped, is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import shared, stats

FAULT = "ecc_correctable_storm"


@dataclass(frozen=True)
class Params:
    """Sources: rules.md §3e (a real storm: 4,647 and 17,657 a second); signals.md §10 (healthy: 1e-7 a second).

    window_seconds: how far back: at least four readings, for an exporter asks a GPU every 30 s. rate: errors a second over the
    window, in each third of it: six orders of magnitude above healthy (which meets 24 errors in two minutes never), four below the
    storms that people met. degraded: from this rate work suffers.
    """

    window_seconds: float = 120.0
    rate: float = 0.2
    degraded: float = 100.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU whose count of correctable errors is fresh."""
    block = window.block("gpu.ecc_correctable_per_second")
    if not len(window.times):
        return []
    span = stats.span_of(window, "gpu.ecc_correctable_per_second", params.window_seconds)
    known = block.fresh() & ~np.isnan(span.mean) & shared.loud(window, block.entities)
    storm = stats.above(span.mean, params.rate) & stats.above(span.low, 1e-9)
    out = shared.clears(block.entities, known & ~storm, FAULT)
    columns = stats.columns_where(known & storm)
    onsets = stats.run_start(stats.above(block.values[:, columns], 1e-9), window.times, 8)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        gpu = block.entities[e]
        severity = 0.6 if span.mean[e] >= params.degraded else 0.3
        rows = (stats.evidence("gpu.ecc_correctable_per_second", span.mean[e], 0.0, "a healthy part: one in months"),)
        out.append(Verdict(gpu, FAULT, "faulty", severity, rows, "error_rate", onset_at=int(onset)))
    return out


PLUGIN = DetectorPlugin(
    name="ecc_correctable_storm", fault=FAULT, judge=judge, params=Params, needs=(("gpu.ecc_correctable_per_second",),),
    hold=Hold(on=4, of=5, off=8), must_not=("single errors", "the count of a board's life after a swap", "a count that begins anew"),
)
