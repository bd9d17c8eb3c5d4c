"""A GPU that is slowed by the power brake: an outside signal (a PDU, a power shelf, the board's supply) cuts its clock.

Its own bit or the driver's counter of time under the brake tell; the general hardware-slowdown bit does not, since heat
sets it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Verdict
from core.window import Window
from detectors import shared, stats

FAULT = "power_brake"
BRAKE_BIT = 0x80


@dataclass(frozen=True)
class Params:
    """Sources: rules.md §3d (bit 0x80), signals.md §11 (clock at half or less).

    window_seconds: how far back. duty: share of samples with the bit. share: seconds per second under the brake.
    """

    window_seconds: float = 120.0
    duty: float = 0.5
    share: float = 0.05


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that shows its throttle reasons, or its time under the brake."""
    block = window.block("gpu.throttle_reasons_bits")
    if not len(window.times) or not len(block.entities):
        return []
    intervals = stats.intervals_of(window, "gpu.throttle_reasons_bits")
    ticks = window.ticks(params.window_seconds)
    # No span is longer than three of the longest intervals.
    recent = block.values[-max(ticks, stats.PARTS * stats.LONGEST_INTERVAL_TICKS):]
    duty = stats.span(_braked(recent), intervals, ticks)
    timed = stats.span_of(window, "gpu.power_brake_ratio", params.window_seconds)
    braked = (stats.above(duty.mean, params.duty) & stats.above(duty.known / intervals, 1.5)) | stats.above(timed.low, params.share)
    counter = window.block("gpu.power_brake_ratio")
    known = (block.fresh() & ~np.isnan(duty.mean)) | (counter.fresh() & ~np.isnan(timed.mean))
    known &= shared.loud(window, block.entities)
    out = shared.clears(block.entities, known & ~braked, FAULT)
    columns = stats.columns_where(known & braked)
    bits = _braked(block.values[:, columns])
    symptom = stats.above(bits, 0.5) | stats.above(window.values("gpu.power_brake_ratio")[:, columns], params.share)
    onsets = stats.run_start(symptom, window.times, 4)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        gpu = block.entities[e]
        rows: list[Evidence] = []
        if duty.mean[e] > 0:
            rows.append(Evidence("gpu.throttle_reasons_bits", "ratio", round(float(duty.mean[e]), 4), 0.0,
                                 "share of samples with the power-brake bit"))
        if timed.mean[e] > 0:
            rows.append(stats.evidence("gpu.power_brake_ratio", timed.mean[e], 0.0, "no time under the brake"))
        out.append(Verdict(gpu, FAULT, "faulty", 0.7, tuple(rows), "brake_asserted", onset_at=int(onset)))
    return out


def _braked(values: Floats) -> Floats:
    """1 where the bit is set, 0 where it is not, NaN where nothing is known."""
    return np.where(np.isnan(values), np.nan, (np.nan_to_num(values).astype(np.int64) & BRAKE_BIT) > 0)


PLUGIN = DetectorPlugin(
    name="power_brake", fault=FAULT, judge=judge, params=Params, needs=(("gpu.throttle_reasons_bits", "gpu.power_brake_ratio"),),
    hold=Hold(on=3, of=4, off=8), must_not=("the software power cap", "hardware slowdown by heat", "one sample with the bit"),
)
