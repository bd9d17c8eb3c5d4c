"""NVLink errors of a GPU: a fatal XID of the link, or CRC errors, replays and recoveries that go on.

A link is retrained while a node boots and now and then recovers from a single error; what counts is that errors keep coming.
A board without NVLink shows no such counter and is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared, stats

FAULT = "nvlink_errors"
_COUNTERS = ("gpu.nvlink_errors_per_second", "gpu.nvlink_recoveries_per_second")


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml (74, and 144-150 by the line's own word); signals.md §10 and §11: healthy counters stand at 0.

    xids: the codes that count. worked_seconds: work after which a bare line is over; our judgement.
    window_seconds: how far back counters are read. rate: errors a second over the window, in each third of it.
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 600.0
    window_seconds: float = 300.0
    rate: float = 0.05


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met a fatal link error, or shows its link's counters."""
    if not len(window.times):
        return []
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds)
    out = {key: v for key, v in met.words.items() if v.state == "faulty"}
    gpus = window.of_kind("gpu")
    spans = [stats.span_of(window, signal, params.window_seconds) for signal in _COUNTERS]
    fresh = [window.block(signal).fresh() & ~np.isnan(span.mean) for signal, span in zip(_COUNTERS, spans, strict=True)]
    going_on = [stats.above(span.mean, params.rate) & stats.above(span.low, 1e-9) for span in spans]
    shown = shared.without(gpus, np.logical_or.reduce(fresh) & shared.loud(window, gpus), out)
    hit = shown & np.logical_or.reduce([bad & ok for bad, ok in zip(going_on, fresh, strict=True)])
    columns = stats.columns_where(hit)
    symptom = np.logical_or(*(stats.above(window.values(counter)[:, columns], 1e-9) for counter in _COUNTERS))
    onsets = stats.run_start(symptom, window.times, 8)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        rows = tuple(stats.evidence(signal, span.mean[e], 0.0, "a link without errors")
                     for signal, span, bad, ok in zip(_COUNTERS, spans, going_on, fresh, strict=True) if bad[e] and ok[e])
        out[gpus[e].key] = Verdict(gpus[e], FAULT, "faulty", 0.6, rows, "link_errors", onset_at=int(onset))
    return [*out.values(), *shared.clears(gpus, shown & ~hit, FAULT)]


PLUGIN = DetectorPlugin(
    name="nvlink_errors", fault=FAULT, judge=judge, params=Params,
    needs=(("gpu.nvlink_errors_per_second", "gpu.nvlink_recoveries_per_second", "gpu.xid", "xid"),), hold=Hold(on=3, of=4, off=8),
    must_not=("a link that trains while its node boots", "a single error", "a board without NVLink"),
)
