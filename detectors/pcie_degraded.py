"""A GPU whose PCIe link runs on fewer lanes than its peers', or at a lower generation while it works.

An idle GPU lowers its generation to save power, so the generation counts only at work; the width never changes with load.
What is right is the part's own maximum where the exporter shows it, else what the peers of the same model have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Bools

FAULT = "pcie_degraded"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §2 and §11; gen 1 at idle is healthy (nvidia-smi's own help).

    window_seconds: how long it must hold. busy: utilisation from which a GPU is at work. peers_min: others of the same
    model that must agree on what is right where no maximum is shown.
    """

    window_seconds: float = 120.0
    busy: float = 0.5
    peers_min: int = 3


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that shows its link's width, or its generation at work."""
    gpus = window.of_kind("gpu")
    if not gpus or not len(window.times):
        return []
    groups = stats.codes([stats.model_of(window, g.node) for g in gpus])
    util = stats.span_of(window, "gpu.utilization_ratio", params.window_seconds)
    working = stats.above(util.low, params.busy)
    width, wide = _expected(window, "gpu.pcie_link_width", "gpu.pcie_max_link_width", groups, params, np.ones(len(gpus), bool))
    gen, fast = _expected(window, "gpu.pcie_link_generation", "gpu.pcie_max_link_generation", groups, params, working)
    narrow, slow = stats.below(width, wide - 0.5), stats.below(gen, fast - 0.5) & working
    known = ~np.isnan(width) & ~np.isnan(wide) | (~np.isnan(gen) & ~np.isnan(fast) & working)
    symptom = stats.below(window.values("gpu.pcie_link_width"), wide - 0.5) | stats.below(
        np.where(working, window.values("gpu.pcie_link_generation"), np.nan), fast - 0.5)
    onsets = stats.run_start(symptom, window.times, 4)
    out = []
    for e in np.flatnonzero(known):
        if gpus[e].node in window.silent_nodes:
            continue
        if not (narrow[e] or slow[e]):
            out.append(Verdict(gpus[e], FAULT, "clear", reason="clear"))
            continue
        rows: list[Evidence] = []
        if narrow[e]:
            rows.append(stats.evidence("gpu.pcie_link_width", width[e], wide[e], "its maximum, else its peers"))
        if slow[e]:
            rows.append(stats.evidence("gpu.pcie_link_generation", gen[e], fast[e], "its maximum, else its peers, at work"))
        out.append(Verdict(gpus[e], FAULT, "faulty", 0.6 if narrow[e] else 0.3, tuple(rows),
                           "fewer_lanes" if narrow[e] else "lower_generation", onset_at=int(onsets[e])))
    return out


def _expected(window: Window, signal: str, most: str, groups: stats.Ints, p: Params, when: Bools) -> tuple[Floats, Floats]:
    """(what is shown in all of the span, its best value; what is right), NaN where either is not known or not fresh."""
    block = window.block(signal)
    ticks = window.ticks(p.window_seconds)
    tail = block.values[-ticks:]
    with np.errstate(all="ignore"):
        shown = np.where(stats.count(tail) >= max(2, ticks // 3), np.fmax.reduce(tail, axis=0), np.nan)
    shown = np.where(block.fresh(), shown, np.nan)
    peers = stats.peers(np.where(when, shown, np.nan), groups)
    # The peers must agree: where most differ among themselves nobody knows what is right.
    agreed = np.where((peers.n >= p.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    own = stats.filled(window.values(most))
    own_last = own[-1] if len(own) else np.full(len(shown), np.nan)
    return shown, np.where(np.isnan(own_last), agreed, own_last)


PLUGIN = DetectorPlugin(
    name="pcie_degraded", fault=FAULT, judge=judge, params=Params, needs=(("gpu.pcie_link_width", "gpu.pcie_link_generation"),),
    hold=Hold(on=4, of=5, off=8), must_not=("generation 1 on an idle GPU", "a board whose slot has fewer lanes by design",
                                            "a link that trains anew for a moment"),
)
