"""A GPU that can remap no more bad memory rows: XID 64, or the driver's own flag.

The flag is a level that no reset takes away; it and the log line are one finding. A pending remap is no failure: the next
reset does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared, stats

FAULT = "row_remap_failure"


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml; the flag is DCGM's field 395 (row remap failure), 1 = failed.

    xids: the codes that count. worked_seconds: a day of work after which
    a bare log line is over where no flag is shown; our judgement.
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 86400.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that shows the flag, or met the XID."""
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds)
    out = met.words
    block = window.block("gpu.row_remap_failed")
    known = block.fresh() & ~np.isnan(block.last) & shared.loud(window, block.entities)
    columns = stats.columns_where(known & (block.last >= 1))
    clear = shared.without(block.entities, met.none | known, out)
    clear[columns] = False
    onsets = stats.run_start(stats.above(block.values[:, columns], 1.0), window.times, 4) if len(columns) else columns
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        gpu = block.entities[e]
        told = out.get(gpu.key)
        flag = stats.evidence("gpu.row_remap_failed", block.last[e], 0.0, "no failed remap")
        out[gpu.key] = Verdict(gpu, FAULT, "faulty", fatal_events.FATAL, (flag, *(told.evidence if told else ())),
                               "remap_failed", onset_at=int(onset))
    return [*out.values(), *shared.clears(block.entities, clear, FAULT)]


PLUGIN = DetectorPlugin(
    name="row_remap_failure", fault=FAULT, judge=judge, params=Params, needs=(("gpu.row_remap_failed", "gpu.xid", "xid"),),
    hold=Hold(on=2, of=3, off=4), must_not=("a remap that is pending", "rows that were remapped long ago"),
)
