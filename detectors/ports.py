"""Whether a port has a link, where it says so and where it does not.

EFA's driver claims that its ports are active whatever they are (signals.md §0), so nothing is taken from that. What shows is
the device itself: it is gone from /sys/class/infiniband, and with it all its series, while those of its siblings on the same
pages go on. The same holds for any other RDMA adapter that falls off its bus. Also here: what a port is held back by, and which of a
job's ports are.
"""

from __future__ import annotations

import numpy as np

from core.types import Floats, JobState
from core.window import Window
from detectors import shared, stats
from detectors.stats import Bools, Ints

# What holds a port back: marks of congestion (RoCE), and data to send but no credit or turn to send it.
MARKS, WAITS = "nic.congestion_marks_per_second", "nic.wait_ticks_per_second"
# What every exporter of RDMA devices shows of each that is there.
SHOWN_BY = ("nic.rate_bytes_per_second", "nic.link_up", "nic.received_bytes_per_second", "nic.transmitted_bytes_per_second",
            "nic.received_packets_per_second")
# A page that breaks off lacks many devices at once: fewer than so many of a node's may be missing for one to be gone.
MANY = 0.5


def state(window: Window) -> Floats:
    """float64[tick, nic]: 1 with a link, 0 without one or gone, NaN where nothing tells. Detectors share it."""
    return window.once("state of ports", lambda: _state(window))


def _state(window: Window) -> Floats:
    return np.where(np.isnan(said := window.values("nic.link_up")), presence(window), said)


def presence(window: Window) -> Floats:
    """float64[tick, nic]: 1 where an RDMA device is shown; 0 where it was, and is not while its siblings are; else NaN."""
    nics = window.of_kind("nic")
    out = np.full((len(window.times), len(nics)), np.nan)
    rdma = is_rdma(window)
    if not out.size or not rdma.any():
        return out
    shown = np.zeros(out.shape, bool)
    for name in SHOWN_BY:
        if name in window.blocks:
            shown |= ~np.isnan(window.values(name))
    shown &= rdma
    out[shown] = 1.0
    absent = ~shown & np.logical_or.accumulate(shown, axis=0)
    columns = np.flatnonzero(absent.any(axis=0))
    if not len(columns):
        return out
    nodes = of_nodes(window)
    counts = np.zeros((len(shown), int(nodes.max(initial=0)) + 1))
    known = np.zeros(counts.shape[1])
    for e in np.flatnonzero(np.isin(nodes, nodes[columns]) & rdma):
        counts[:, nodes[e]] += shown[:, e]
        known[nodes[e]] += shown[:, e].any()
    there = (counts >= 1.0) & (known - counts <= np.maximum(1.0, np.ceil(MANY * known) - 1.0))
    gone = absent[:, columns] & there[:, nodes[columns]]
    out[:, columns] = np.where(gone, 0.0, out[:, columns])
    return out


def is_rdma(window: Window) -> Bools:
    """bool[nic]: the ports of RDMA devices (`mlx5_0/1`, `rdmap16s27/1`); interfaces come and go with containers."""
    nics = window.of_kind("nic")
    return shared.kept("RDMA ports", (nics,), lambda: np.array([nic.device is not None and "/" in nic.device for nic in nics], bool))


def of_nodes(window: Window) -> Ints:
    """int64[nic]: equal numbers for the ports of one node."""
    return shared.node_names(window.of_kind("nic"))[1]


def silent_about_link(window: Window) -> Bools:
    """bool[nic]: RDMA ports that were never seen to say whether they have a link (EFA's)."""
    return is_rdma(window) & np.isnan(window.block("nic.link_up").first_at)


def rails(window: Window) -> Ints:
    """int64[nic]: equal numbers for the ports of one name on nodes of one model: what a rail is, where no inventory tells."""
    return shared.model_codes(window, window.of_kind("nic"), True)


def few_ports_wait(window: Window, job: JobState, before: Ints, after: Ints, times: float, share: float) -> bool:
    """Since the change a few of the job's ports have data that they cannot send, and the others do not: flows share a path, or a port
    is slow. That is the network's to say, and nobody changed the job. before, after: rows; times: as often as before, and as at its other
    ports; share: of them that are few."""
    columns = shared.on_nodes(window.of_kind("nic"), job.nodes)
    if WAITS not in window.blocks or not len(columns):
        return False
    waits = window.values(WAITS)[:, columns]
    old, new = stats.median(waits[before]), stats.median(waits[after])
    known = ~np.isnan(old) & ~np.isnan(new)
    usual = float(np.median(new[known])) if known.any() else float("nan")
    up = known & stats.above(new, times * np.maximum(old, 1.0)) & stats.above(new, times * max(usual, 1.0))
    return bool(0 < up.sum() <= share * known.sum())
