"""A link that came up at less than its rate: no error counter tells, only its peers or its own past.

Right is what the port of the same name has on the other nodes, where they agree; else what the port itself had before. Where
a site measures pairs of nodes, a node that is slow with every partner has a slow link, too, whatever its ports say.

The rate that EFA shows is the device's greatest, not the link's. Its traffic is dealt out over a node's devices, so a slow one
carries less than its siblings (`sibling_share`). A leaf switch with less capacity holds all its ports back (`leaf_congestion`),
a fabric with less all ports there are, and every job carries less (`fabric_congestion`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import fabric_congestion, leaf_congestion, pairs, ports, shared, sibling_share, stats

FAULT = "link_slow"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (400 Gb/s falls to 200 or 100: half and less).

    nccl-tests issue 106 (pairs at 49 instead of 88 GB/s). share: of the right rate, below which it is slow. peers_min: nodes that
    must agree. past_seconds: the own past. pair_share, pairs_min: the same share for a pair of nodes, and how many fast pairs
    there must be.
    EFA (signals.md §3.4: siblings carry alike within 1 %): less: share by which a device carries less than its siblings; sigmas,
    floor: of their spread, and its least; window_seconds: over which bytes are summed; busy_bytes: what siblings carry a second
    at least; siblings_min, nodes_min: how many must be known; lost, resent: packets lost a second and sent again per packet
    from which it is loss (packet_loss's own).
    A leaf (our judgement; a port sends one CNP in 50 us at most, a tick of waiting is some 22 ns): held_seconds: how long its ports
    are held back; marks, waits: a second at each of them; times_others, times_past: as often as elsewhere, and as before;
    ports_min, leaf_nodes_min: ports and nodes under it.
    The whole fabric (our judgement): fabric_share: of all ports, and of each job's, that show it; fabric_less: by how much less they
    carry than before (contention by itself costs less); fabric_leaves, fabric_jobs: on how many leaves and in how many jobs.
    """

    share: float = 0.9
    peers_min: int = 3
    past_seconds: int = 86400
    pair_share: float = 0.75
    pairs_min: int = 2
    less: float = 0.05
    sigmas: float = 8.0
    floor: float = 0.003
    window_seconds: float = 120.0
    busy_bytes: float = 1e8
    siblings_min: int = 3
    nodes_min: int = 2
    lost: float = 0.5
    resent: float = 1e-5
    held_seconds: float = 180.0
    marks: float = 1000.0
    waits: float = 1e6
    times_others: float = 10.0
    times_past: float = 5.0
    ports_min: int = 3
    leaf_nodes_min: int = 2
    fabric_share: float = 0.9
    fabric_less: float = 0.1
    fabric_leaves: int = 2
    fabric_jobs: int = 2


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port that is up and shows its rate, and for nodes that were measured in pairs."""
    limits = sibling_share.Limits(params.window_seconds, params.less, params.sigmas, params.floor, params.busy_bytes,
                                  params.siblings_min, params.nodes_min, params.lost, params.resent)
    by_share = sibling_share.judge(window, FAULT, limits)
    # That EFA shows the right rate says nothing.
    mute = {nic.key for nic, silent in zip(window.of_kind("nic"), ports.silent_about_link(window), strict=True) if silent}
    by_rate = _ports(window, params)
    if mute:
        by_rate = [v for v in by_rate if v.state == "faulty" or v.target.key not in mute]
    leaf = leaf_congestion.Limits(params.held_seconds, params.marks, params.waits, params.times_others, params.times_past,
                                  params.ports_min, params.leaf_nodes_min)
    by_rate += leaf_congestion.judge(window, FAULT, leaf)
    fabric = fabric_congestion.Limits(params.held_seconds, params.marks, params.waits, params.times_past, params.fabric_share,
                                      params.fabric_less, params.fabric_leaves, params.fabric_jobs)
    by_rate += fabric_congestion.judge(window, FAULT, fabric)
    return by_share + by_rate + pairs.judge(window, FAULT, params.pair_share, params.pairs_min)


def _ports(window: Window, params: Params) -> list[Verdict]:
    block = window.block("nic.rate_bytes_per_second")
    if not len(window.times) or not len(block.entities):
        return []
    up = ~stats.below(window.last("nic.link_up"), 0.5)
    now = np.where(block.fresh() & up, block.last, np.nan)
    right, by_peers = _right(window, block.values, now, params)
    slow = stats.below(now, params.share * right)
    judged = ~np.isnan(now) & ~np.isnan(right) & shared.loud(window, block.entities)
    out = shared.clears(block.entities, judged & ~slow, FAULT)
    columns = stats.columns_where(judged & slow)
    if not len(columns):
        return out
    onsets = stats.run_start(stats.below(block.values[:, columns], params.share * right[columns]), window.times, 2)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        rows = (stats.evidence("nic.rate_bytes_per_second", now[e], right[e],
                               "the same port of the other nodes" if by_peers[e] else "its own past"),)
        out.append(Verdict(block.entities[e], FAULT, "faulty", 0.6, rows, "below_rate", onset_at=int(onset)))
    return out


def _right(window: Window, values: Floats, now: Floats, p: Params) -> tuple[Floats, stats.Bools]:
    """The right rate of each port, and whether by its peers' word (else by its own past)."""
    peers = stats.peers(now, shared.model_codes(window, window.of_kind("nic"), True))
    agreed = np.where((peers.n >= p.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    past = window.baseline("nic.rate_bytes_per_second", p.past_seconds)
    own = np.fmax(np.where(past.n >= 10, past.median, np.nan), stats.quantile(values, 0.75) if len(values) >= 8 else np.nan)
    by_peers = ~np.isnan(agreed)
    return np.where(by_peers, agreed, own), by_peers


PLUGIN = DetectorPlugin(
    name="link_slow", fault=FAULT, judge=judge, params=Params, needs=(("nic.rate_bytes_per_second", "link.pair_bytes_per_second", "nic.received_bytes_per_second"),),
    hold=Hold(on=4, of=5, off=4),
    must_not=("a port of another kind", "a link that is down", "a port that always had this rate", "pauses and idle nodes",
              "devices that carry unlike amounts", "files over one of the devices", "a device that loses packets", "congestion of many leaves or few ports, while jobs carry as much as before"),
)
