"""An uncorrectable memory error of a GPU: XID 48, 94 or 95, or the driver's volatile count that grows.

Each counts once. A count that stands is the past: only its growth is an event, and a count that begins anew after a reset
is none. The aggregate count is not looked at: it jumps when a board is swapped; nor is a count of remapped rows that grows by many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared, stats
from detectors.stats import Bools

FAULT = "ecc_uncorrectable"
# The driver records a row for remapping once it met an error in it that could not be corrected; exporters that show no errors (the
# default of dcgm-exporter) show that count.
MOST_ROWS = 2.0
ERRORS, ROWS = "gpu.ecc_uncorrectable_per_second", "gpu.uncorrectable_rows"


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml; DCGM: a volatile double-bit error asks for a reset (rules.md §3e).

    xids: the codes that count. worked_seconds: work without another one
    after which an event is over; our judgement.
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met an uncorrectable error in the window; GPUs whose count stands are clear."""
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds)
    out = met.words
    block = window.block("gpu.ecc_uncorrectable_per_second")
    loud = shared.loud(window, block.entities)
    known = block.fresh() & loud
    # A count that is late clears nobody: what the gauge of XIDs says may be late with it.
    clear = shared.without(block.entities, met.none | (known & ~np.isnan(block.last)), out)
    _grown(window, params, ERRORS, stats.above(block.values, 1e-9), known, out, clear)
    rows = window.block(ROWS)
    if ROWS in window.blocks and np.isfinite(rows.values).any():
        more = np.zeros(rows.values.shape, bool)
        grown = np.diff(stats.filled(rows.values), axis=0)
        more[1:] = stats.above(grown, 0.5) & stats.below(grown, MOST_ROWS)
        _grown(window, params, ROWS, more, rows.fresh() & loud, out, clear)
    return [*out.values(), *shared.clears(block.entities, clear, FAULT)]


def _grown(window: Window, p: Params, signal: str, grew: Bools, known: Bools, out: dict[str, Verdict], clear: Bools) -> None:
    """Adds the GPUs whose count grew (bool[tick, gpu]) and that have not worked for long since; they are not `clear`."""
    values = window.values(signal)
    for e in np.flatnonzero(known & grew.any(axis=0)).tolist():
        gpu = window.of_kind("gpu")[e]
        told, row = out.get(gpu.key), int(np.flatnonzero(grew[:, e])[-1])
        at = int(window.times[row])
        # A count that is seen to have grown after a boot grew before it, and the boot is what the error asks for.
        before = np.flatnonzero(~np.isnan(values[:row, e]))
        seen_before = int(window.times[before[-1]]) if len(before) else at
        if ((told is not None and told.state == "faulty") or fatal_events.booted_at(window, gpu.node) > seen_before
                or fatal_events.worked(window, gpu, at, p.worked_seconds) or fatal_events.worked_since(window, gpu, at, p.worked_seconds)):
            continue
        clear[e] = False
        seen = stats.evidence(signal, float(values[row, e]), 0.0 if signal == ERRORS else None, "no such error")
        out[gpu.key] = Verdict(gpu, FAULT, "faulty", fatal_events.FATAL, (seen,), "uncorrectable_errors", True, at)


PLUGIN = DetectorPlugin(
    name="ecc_uncorrectable", fault=FAULT, judge=judge, params=Params,
    needs=((ERRORS, ROWS, "gpu.xid", "xid"),), hold=Hold(on=1, of=1, off=4),
    must_not=("a volatile count that stands", "an aggregate count after a board swap", "a count that begins anew",
              "XID 63 by itself, rows that were remapped before, or after correctable errors"),
)
