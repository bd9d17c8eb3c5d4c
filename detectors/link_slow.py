"""A link that came up at less than its rate: no error counter tells, only its peers or its own past.

Right is what the port of the same name has on the other nodes, where they agree; else what the port itself had before. Where
a site measures pairs of nodes, a node that is slow with every partner has a slow link, too, whatever its ports say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import pairs, stats

FAULT = "link_slow"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (400 Gb/s falls to 200 or 100: half and less).

    nccl-tests issue 106 (pairs at 49 instead of 88 GB/s). share: of the right rate, below which it is slow. peers_min: nodes that
    must agree. past_seconds: the own past. pair_share, pairs_min: the same share for a pair of nodes, and how many fast pairs
    there must be.
    """

    share: float = 0.9
    peers_min: int = 3
    past_seconds: int = 86400
    pair_share: float = 0.75
    pairs_min: int = 2


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port that is up and shows its rate, and for nodes that were measured in pairs."""
    return _ports(window, params) + pairs.judge(window, FAULT, params.pair_share, params.pairs_min)


def _ports(window: Window, params: Params) -> list[Verdict]:
    block = window.block("nic.rate_bytes_per_second")
    if not len(window.times) or not len(block.entities):
        return []
    up = ~stats.below(window.last("nic.link_up"), 0.5)
    now = np.where(block.fresh() & up, block.last, np.nan)
    right, who = _right(window, block.values, now, params)
    slow = stats.below(now, params.share * right)
    onsets = stats.run_start(stats.below(block.values, params.share * right), window.times, 2)
    out = []
    for e in np.flatnonzero(~np.isnan(now) & ~np.isnan(right)):
        nic = block.entities[e]
        if nic.node in window.silent_nodes:
            continue
        if not slow[e]:
            out.append(Verdict(nic, FAULT, "clear", reason="clear"))
            continue
        rows = (stats.evidence("nic.rate_bytes_per_second", now[e], right[e], who[e]),)
        out.append(Verdict(nic, FAULT, "faulty", 0.6, rows, "below_rate", onset_at=int(onsets[e])))
    return out


def _right(window: Window, values: Floats, now: Floats, p: Params) -> tuple[Floats, list[str]]:
    """The right rate of each port, and by whose word."""
    nics = window.of_kind("nic")
    peers = stats.peers(now, stats.codes([(nic.device or "", stats.model_of(window, nic.node)) for nic in nics]))
    agreed = np.where((peers.n >= p.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    past = window.baseline("nic.rate_bytes_per_second", p.past_seconds)
    own = np.fmax(np.where(past.n >= 10, past.median, np.nan), stats.quantile(values, 0.75) if len(values) >= 8 else np.nan)
    by_peers = ~np.isnan(agreed)
    who = ["the same port of the other nodes" if one else "its own past" for one in by_peers]
    return np.where(by_peers, agreed, own), who


PLUGIN = DetectorPlugin(
    name="link_slow", fault=FAULT, judge=judge, params=Params, needs=(("nic.rate_bytes_per_second", "link.pair_bytes_per_second"),),
    hold=Hold(on=4, of=5, off=4), must_not=("a port of another kind", "a link that is down", "a port that always had this rate"),
)
