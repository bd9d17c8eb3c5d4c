"""Which leaf switch loses packets of all its ports: no port under it is at fault.

A bad port loses what comes to it, or what it sends, or both, and its peers show the other end of that, shared out among them: by
itself it has as much of the traces as all of them together. Under a bad leaf every port that works loses the same share of its
packets, and repairs the same share, whichever job it carries. So a leaf is named where most of its working ports, on three
nodes at least, show the loss, none of them could account for what the others show, and none is far from the middle one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats
from core.window import Window
from detectors import stats
from detectors.stats import Bools, Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """Of `packet_loss.Params`: share of a leaf's working ports that lose, on so many nodes at least, the share of the others' traces
    below which no port accounts for them, and how far from the middle one each is (factor)."""

    most: float
    nodes_min: int
    lone: float
    even: float


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """By NIC. working: its counters are read and it carries traffic. loss: share of its packets that it lost or repaired, above the
    usual; seen: the part of it that it lost. holds: a trace stands over the whole span. begun: it has begun to show."""

    working: Bools
    loss: Floats
    seen: Floats
    holds: Bools
    begun: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """bool[nic] each. named: ports of leaves that lose. begun: ports of leaves that may be seen to in a moment: none of them is
    to be named alone."""

    named: Bools
    begun: Bools


def judge(window: Window, shown: Shown, limits: Limits) -> Leaves:
    """The ports of leaves that lose, and of those that begin to."""
    nics = window.of_kind("nic")
    out = Leaves(np.zeros(len(nics), bool), np.zeros(len(nics), bool))
    if shown.begun.sum() < limits.nodes_min:
        return out  # the usual case costs nothing more
    for ports in _under_leaves(window, shown):
        losing = ports[shown.begun[ports]]
        if not _alike(window, losing, len(ports), shown, limits):
            continue
        out.begun[losing] = True
        held = ports[shown.holds[ports]]
        if len(held) >= limits.most * len(losing) and _alike(window, held, len(ports), shown, limits):
            out.named[held] = True
    return out


def _under_leaves(window: Window, shown: Shown) -> list[Ints]:
    """The working ports of each leaf under which one has begun to lose, by the leaf's name."""
    nics = window.of_kind("nic")
    leaf_of = window.topology.leaf_of
    ill = {leaf_of(nics[e]) for e in np.flatnonzero(shown.begun).tolist()} - {None}
    found: dict[str, list[int]] = {}
    for e in np.flatnonzero(shown.working).tolist():
        leaf = leaf_of(nics[e])
        if leaf is not None and leaf in ill:
            found.setdefault(leaf, []).append(e)
    return [np.array(found[leaf], np.int64) for leaf in sorted(found)]


def _alike(window: Window, losing: Ints, working: int, shown: Shown, p: Limits) -> bool:
    """The rule of the module's text for some ports of a leaf, of which so many work."""
    nics = window.of_kind("nic")
    if len(losing) < p.most * working or len({nics[e].node for e in losing.tolist()}) < p.nodes_min:
        return False
    shares = shown.loss[losing]
    top = float(shares.max())
    return top <= p.lone * (float(shares.sum()) - top) and all(_near(one[losing], p.even) >= p.most for one in (shown.loss, shown.seen))


def _near(shares: Floats, even: float) -> float:
    """The share of them that are not far from the middle one."""
    middle = float(stats.quantile(shares, 0.5))
    return float(((shares <= even * middle) & (shares * even >= middle)).mean())
