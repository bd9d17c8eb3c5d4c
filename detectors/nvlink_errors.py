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
from detectors import fatal_events, stats

FAULT = "nvlink_errors"
_COUNTERS = ("gpu.nvlink_errors_per_second", "gpu.nvlink_recoveries_per_second")


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml (74, and 144-150 by the line's own word); signals.md §10 and §11: healthy counters stand at 0.

    fatal_by: whose list of fatal codes counts. worked_seconds: work after which a bare line is over; our judgement.
    window_seconds: how far back counters are read. rate: errors a second over the window, in each third of it.
    """

    fatal_by: str = "nvidia"
    worked_seconds: float = 600.0
    window_seconds: float = 300.0
    rate: float = 0.05


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met a fatal link error, or shows its link's counters."""
    if not len(window.times):
        return []
    out = {v.target.key: v for v in fatal_events.judge(window, FAULT, params.fatal_by, params.worked_seconds)
           if v.state == "faulty"}
    gpus = window.of_kind("gpu")
    spans = [stats.span_of(window, signal, params.window_seconds) for signal in _COUNTERS]
    fresh = [window.block(signal).fresh() & ~np.isnan(span.mean) for signal, span in zip(_COUNTERS, spans, strict=True)]
    going_on = [stats.above(span.mean, params.rate) & stats.above(span.low, 1e-9) for span in spans]
    symptom = stats.above(window.values(_COUNTERS[0]), 1e-9) | stats.above(window.values(_COUNTERS[1]), 1e-9)
    onsets = stats.run_start(symptom, window.times, 8)
    for e, gpu in enumerate(gpus):
        if gpu.node in window.silent_nodes or gpu.key in out or not any(one[e] for one in fresh):
            continue
        rows = tuple(stats.evidence(signal, span.mean[e], 0.0, "a link without errors")
                     for signal, span, bad, ok in zip(_COUNTERS, spans, going_on, fresh, strict=True) if bad[e] and ok[e])
        if rows:
            out[gpu.key] = Verdict(gpu, FAULT, "faulty", 0.6, rows, "link_errors", onset_at=int(onsets[e]))
        else:
            out[gpu.key] = Verdict(gpu, FAULT, "clear", reason="clear")
    return [out[key] for key in sorted(out)]


PLUGIN = DetectorPlugin(
    name="nvlink_errors", fault=FAULT, judge=judge, params=Params,
    needs=(("gpu.nvlink_errors_per_second", "gpu.nvlink_recoveries_per_second", "xid"),), hold=Hold(on=3, of=4, off=8),
    must_not=("a link that trains while its node boots", "a single error", "a board without NVLink"),
)
