"""A GPU whose power limit is lower than its peers', or lower than it was.

Running at the limit is what the limit is for and no fault; only a limit that differs is: somebody set it, or the board
fell back to a lower one. Nothing is said of a fleet whose limits differ by design.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import stats

FAULT = "power_cap"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (POWER_MGMT_LIMIT lower); P13 (a low clock at the limit is healthy).

    share: of the right limit, below which it is low. peers_min: others of the same model that must agree.
    past_seconds: the own past.
    """

    share: float = 0.97
    peers_min: int = 3
    past_seconds: int = 86400


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that shows its power limit."""
    block = window.block("gpu.power_limit_watts")
    if not len(window.times) or not len(block.entities):
        return []
    now = np.where(block.fresh(), block.last, np.nan)
    peers = stats.peers(now, stats.codes([stats.model_of(window, g.node) for g in block.entities]))
    agreed = np.where((peers.n >= params.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    past = window.baseline("gpu.power_limit_watts", params.past_seconds)
    # Where the peers do not agree, the own past is asked; a limit that the whole fleet was given is nobody's fault.
    right = np.where(np.isnan(agreed), np.where(past.n >= 10, past.median, np.nan), agreed)
    onsets = stats.run_start(stats.below(block.values, params.share * right), window.times, 4)
    out = []
    for e in np.flatnonzero(~np.isnan(now) & ~np.isnan(right)):
        gpu = block.entities[e]
        if gpu.node in window.silent_nodes:
            continue
        if not now[e] < params.share * right[e]:
            out.append(Verdict(gpu, FAULT, "clear", reason="clear"))
            continue
        who = "its own past" if np.isnan(agreed[e]) else f"{peers.n[e]} peers"
        rows = (stats.evidence("gpu.power_limit_watts", now[e], right[e], who),)
        out.append(Verdict(gpu, FAULT, "faulty", 0.3, rows, "limit_lower", onset_at=int(onsets[e])))
    return out


PLUGIN = DetectorPlugin(
    name="power_cap", fault=FAULT, judge=judge, params=Params, needs=(("gpu.power_limit_watts",),),
    hold=Hold(on=4, of=5, off=4), must_not=("a low clock at the power limit", "a limit that the whole fleet was given",
                                            "boards of another model"),
)
