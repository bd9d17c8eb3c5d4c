"""Correctable memory errors of a GPU at a rate that no healthy part has.

Nobody else alarms on the rate: limits in the tens of millions of a running total pass a GPU that corrects thousands of
errors a second while its monitoring starves. A healthy GPU meets one in months; the count of the board's life, which
jumps when a board is swapped, is not looked at. XID 92 is the driver's own word on the rate: it counts where the site's list of
fatal codes has it, which the default has not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared, stats

FAULT = "ecc_correctable_storm"
DEGRADED, TICKET = 0.6, 0.3


@dataclass(frozen=True)
class Params:
    """Sources: rules.md §3e (a real storm: 4,647 and 17,657 a second); signals.md §10 (healthy: 1e-7 a second).

    window_seconds: how far back: at least four readings, for an exporter asks a GPU every 30 s. rate: errors a second over the
    window, in each third of it: six orders of magnitude above healthy (which meets 24 errors in two minutes never), four below the
    storms that people met. degraded: from this rate work suffers. xids: the codes that count (92).
    worked_seconds: work after which such a line is over.
    """

    window_seconds: float = 120.0
    rate: float = 0.2
    degraded: float = 100.0
    xids: XidPolicy = OURS
    worked_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU whose count of correctable errors is fresh, or that met the XID."""
    block = window.block("gpu.ecc_correctable_per_second")
    if not len(window.times):
        return []
    span = stats.span_of(window, "gpu.ecc_correctable_per_second", params.window_seconds)
    known = block.fresh() & ~np.isnan(span.mean) & shared.loud(window, block.entities)
    storm = stats.above(span.mean, params.rate) & stats.above(span.low, 1e-9)
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds, "error_rate").words
    told = {key: replace(v, severity=DEGRADED) for key, v in met.items() if v.state == "faulty"}
    out = [*told.values(), *shared.clears(block.entities, shared.without(block.entities, known & ~storm, told), FAULT)]
    storm = shared.without(block.entities, known & storm, told)
    columns = stats.columns_where(storm)
    onsets = stats.run_start(stats.above(block.values[:, columns], 1e-9), window.times, 8)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        gpu = block.entities[e]
        severity = DEGRADED if span.mean[e] >= params.degraded else TICKET
        rows = (stats.evidence("gpu.ecc_correctable_per_second", span.mean[e], 0.0, "a healthy part: one in months"),)
        out.append(Verdict(gpu, FAULT, "faulty", severity, rows, "error_rate", onset_at=int(onset)))
    return out


PLUGIN = DetectorPlugin(
    name="ecc_correctable_storm", fault=FAULT, judge=judge, params=Params, needs=(("gpu.ecc_correctable_per_second",),),
    hold=Hold(on=4, of=5, off=8), must_not=("single errors", "the count of a board's life after a swap", "a count that begins anew"),
)
