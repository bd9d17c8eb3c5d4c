"""An uncorrectable memory error of a GPU: XID 48, 94 or 95, or the driver's volatile count that grows.

Each counts once. A count that stands is the past: only its growth is an event, and a count that begins anew after a reset
is none. The aggregate count is not looked at: it jumps when a board is swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import fatal_events, stats

FAULT = "ecc_uncorrectable"


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml; DCGM: a volatile double-bit error asks for a reset (rules.md §3e).

    fatal_by: whose list of fatal codes counts: nvidia, eks, azure, aznhc or meta. worked_seconds: work without another one
    after which an event is over; our judgement.
    """

    fatal_by: str = "nvidia"
    worked_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met an uncorrectable error in the window; GPUs whose count stands are clear."""
    out = {v.target.key: v for v in fatal_events.judge(window, FAULT, params.fatal_by, params.worked_seconds)}
    block = window.block("gpu.ecc_uncorrectable_per_second")
    grew = stats.above(block.values, 1e-9)
    fresh = block.fresh()
    for e, gpu in enumerate(block.entities):
        known = out.get(gpu.key)
        if not fresh[e] or gpu.node in window.silent_nodes or (known is not None and known.state == "faulty"):
            continue
        rows = np.flatnonzero(grew[:, e])
        if not len(rows) or fatal_events.worked(window, gpu, int(window.times[rows[-1]]), params.worked_seconds):
            out[gpu.key] = Verdict(gpu, FAULT, "clear", reason="clear")
            continue
        rate = stats.evidence("gpu.ecc_uncorrectable_per_second", float(block.values[rows[-1], e]), 0.0, "no such error")
        out[gpu.key] = Verdict(gpu, FAULT, "faulty", fatal_events.FATAL, (rate,), "uncorrectable_errors", True,
                               int(window.times[rows[-1]]))
    return [out[key] for key in sorted(out)]


PLUGIN = DetectorPlugin(
    name="ecc_uncorrectable", fault=FAULT, judge=judge, params=Params,
    needs=(("gpu.ecc_uncorrectable_per_second", "xid"),), hold=Hold(on=1, of=1, off=4),
    must_not=("a volatile count that stands", "an aggregate count after a board swap", "a count that begins anew",
              "XID 63, a row that is remapped"),
)
