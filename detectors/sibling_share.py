"""Which device of a sprayed fabric carries less than its siblings: it is slower than they are.

EFA deals a node's messages out over all its devices, so under one collective all carry alike: within 1 % of each other on a
real p4d after 1 TB each, within 0.8 % on a p5 (signals.md §3.4). A device with less rate is handed less. It shows in both
directions; a neighbour that sends to it or hears from it has less in one only, and so has who reads or writes files.

Compared are shares, reading by reading, so pauses, steps and loads that all devices of a node have together cancel out; low in
most readings is low, low in one is a moment (a device that is gone for seconds). What a device carries on other nodes of the
model is right for it, else what it carried itself. Where the siblings differ among themselves (experts of different load, GPUs
of different pipeline stages) nobody stands out. A device that loses packets is handed less as well: that is another fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Verdict
from core.window import Window
from detectors import ports, shared, stats
from detectors.stats import Bools

WAYS = ("nic.received_bytes_per_second", "nic.transmitted_bytes_per_second")
SLOW = 0.6


@dataclass(frozen=True, slots=True)
class Limits:
    """window_seconds: how far back is looked. less: share by which it carries less than its siblings and than is right for
    it. sigmas: of the siblings' own spread. floor: the least spread, as a share. busy_bytes: what the siblings carry a
    second at least. siblings_min, nodes_min: siblings and other nodes that must be known. lost, resent: packets lost a
    second and sent again per packet from which it is loss."""

    window_seconds: float
    less: float
    sigmas: float
    floor: float
    busy_bytes: float
    siblings_min: int
    nodes_min: int
    lost: float
    resent: float


# Low in so many of the readings, of which so many must be of a node at work.
MOST_READINGS, FEWEST_BUSY = 0.75, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """columns: int64[node, place], the devices of each node on the axis of NICs, -1 where a node has fewer than others."""

    columns: NDArray[np.int64]

    @staticmethod
    def of(window: Window, which: Bools) -> Devices:
        """Those of the NICs that `which` says."""
        nodes: dict[str | None, list[int]] = {}
        for e in np.flatnonzero(which).tolist():
            nodes.setdefault(window.of_kind("nic")[e].node, []).append(e)
        width = max(map(len, nodes.values()), default=0)
        return Devices(np.array([mine + [-1] * (width - len(mine)) for mine in nodes.values()], np.int64).reshape(-1, width))

    def taken(self, values: Floats) -> Floats:
        """float64[..., nic] as float64[..., node, place]."""
        return np.where(self.columns >= 0, values[..., self.columns], np.nan)

    def given(self, values: Floats, size: int) -> Floats:
        """float64[node, place] as float64[nic], NaN for those that are none of them."""
        out = np.full(size, np.nan)
        out[self.columns[self.columns >= 0]] = values[self.columns >= 0]
        return out


def judge(window: Window, fault: str, limits: Limits) -> list[Verdict]:
    """A verdict for each device of a sprayed fabric whose siblings are at work."""
    mute = ports.silent_about_link(window)
    if not mute.any() or not len(window.times):
        return []
    nics, devices, block = window.of_kind("nic"), Devices.of(window, mute), window.block(WAYS[0])
    interval = int(stats.interval_ticks(block, window.step_seconds)[mute].max(initial=1))
    ticks = max(window.ticks(limits.window_seconds), 3 * interval)
    shares = _shares(window, devices, slice(-ticks, None), limits)
    share = devices.given(_held(shares), len(nics))
    spread = devices.given(_spread(shares), len(nics))
    siblings = devices.given(_siblings(shares), len(nics))
    right, who = _right(window, devices, share, ticks, limits)
    known = block.fresh() & ~np.isnan(share) & ~np.isnan(right) & (siblings >= limits.siblings_min)
    low = stats.below(share, (1.0 - limits.less) * np.fmin(1.0, right)) & stats.below(
        share, 1.0 - limits.sigmas * np.fmax(spread, limits.floor))
    known &= shared.loud(window, nics)
    out = shared.clears(nics, known & ~low, fault)
    for e in np.flatnonzero(known & low & ~_loses(window, ticks, limits)).tolist():
        carried = float(stats.mean(window.values(WAYS[1])[-ticks:, e:e + 1])[0])
        row = stats.evidence(WAYS[1], carried, carried / share[e] * min(1.0, right[e]), who[e],
                             f"it carries {100 * share[e]:.0f} % of what its siblings on the node do, in both directions")
        out.append(Verdict(nics[e], fault, "faulty", SLOW, (row,), "below_siblings",
                           onset_at=_onset(window, devices, e, (1.0 - limits.less) * min(1.0, right[e]), limits)))
    return out


def _shares(window: Window, devices: Devices, rows: slice, p: Limits) -> Floats:
    """float64[tick, node, place]: what each device carries as a share of its node's median, in the way in which it carries
    more; NaN where the node rests."""
    best = np.full((len(window.times[rows]), *devices.columns.shape), np.nan)
    for way in WAYS:
        carried = devices.taken(window.values(way)[rows])
        middle = stats.median(carried, axis=2)[:, :, None]
        best = np.fmax(best, np.where(stats.above(middle, p.busy_bytes), stats.ratio(carried, middle), np.nan))
    return best


def _held(shares: Floats) -> Floats:
    """float64[node, place]: the share that most of the readings do not exceed; NaN with too few of a node at work."""
    enough = stats.count(shares) >= max(2.0, FEWEST_BUSY * len(shares))
    return np.where(enough, stats.quantile(shares, MOST_READINGS), np.nan)


def _spread(shares: Floats) -> Floats:
    """float64[node, place]: the robust sigma of the shares of a node's devices."""
    middle = stats.median(shares)
    around = np.abs(middle - stats.median(middle, axis=1)[:, None])
    return np.broadcast_to(stats.MAD_TO_SIGMA * stats.median(around, axis=1)[:, None], middle.shape)


def _siblings(shares: Floats) -> Floats:
    """float64[node, place]: how many others of the node are known."""
    known = ~np.isnan(stats.median(shares))
    return (known.sum(axis=1)[:, None] - known).astype(np.float64)


def _right(window: Window, devices: Devices, share: Floats, ticks: int, p: Limits) -> tuple[Floats, list[str]]:
    """The share that is right for each NIC, and by whose word: what it has on the model's other nodes, else its own past."""
    others = stats.peers(share, np.where(np.isnan(share), -1, ports.rails(window)))
    by_others = others.n >= p.nodes_min
    right = np.where(by_others, others.middle, np.nan)
    alone = ~by_others & ~np.isnan(share)
    if alone.any() and len(window.times) > 3 * ticks:
        past = devices.given(_held(_shares(window, devices, slice(None, -2 * ticks), p)), len(share))
        right = np.where(alone, past, right)
    return right, ["its siblings, as on the model's other nodes" if one else "its siblings, as in its own past" for one in by_others]


def _loses(window: Window, ticks: int, p: Limits) -> Bools:
    """bool[nic]: it loses packets, or sends far more of them again than a healthy device ever does."""
    lost = stats.mean(window.values("nic.packets_lost_per_second")[-ticks:])
    again = stats.mean(window.values("nic.retransmits_per_second")[-ticks:])
    sent = stats.mean(window.values("nic.transmitted_packets_per_second")[-ticks:])
    return stats.above(lost, p.lost) | stats.above(stats.ratio(again, sent), p.resent)


def _onset(window: Window, devices: Devices, e: int, bar: float, p: Limits) -> int:
    """Since when it carries less than the bar."""
    row = np.flatnonzero((devices.columns == e).any(axis=1))
    mine = Devices(devices.columns[row])
    share = _shares(window, mine, slice(None), p)[:, 0, int(np.flatnonzero(mine.columns[0] == e)[0])]
    return int(stats.run_start(stats.below(share, bar)[:, None], window.times, 4)[0])
