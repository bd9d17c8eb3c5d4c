"""A link that was up and is down.

A port that was never up is not in use. A whole switch that goes, or a node that reboots, shows here port by port; telling
that from one bad cable is localisation's work, and a node's boot is waited out by the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import stats

FAULT = "link_down"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11; gpud drops a port that is down for 4 minutes, Health Validation one that is out for 30 s.

    past_seconds: how far back the port must have been up, open findings left out. idle_seconds: how long a port must be down
    that nobody used when it went down (works on a switch are done while its nodes rest: a reboot of one takes three to five
    minutes); idle: utilisation of the node's GPUs below which nobody did. before_seconds: how long before is looked at.
    """

    past_seconds: int = 86400
    idle_seconds: float = 600.0
    idle: float = 0.1
    before_seconds: float = 45.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port that shows whether it has a carrier and was up before."""
    block = window.block("nic.link_up")
    if not len(window.times) or not len(block.entities):
        return []
    fresh = block.fresh() & ~np.isnan(block.last)
    past = window.baseline("nic.link_up", params.past_seconds)
    was_up = stats.above(stats.quantile(block.values, 1.0), 0.5) | ((past.n >= 10) & stats.above(past.median, 0.5))
    down = stats.below(block.values, 0.5)
    onsets = stats.run_start(down, window.times, 1)
    unused = _unused(window, stats.columns_where(fresh & was_up & down[-1]), onsets, params) if down.any() else frozenset()
    out = []
    for e in np.flatnonzero(fresh & was_up):
        nic = block.entities[e]
        if nic.node in window.silent_nodes:
            continue
        if not down[-1, e]:
            out.append(Verdict(nic, FAULT, "clear", reason="clear"))
            continue
        if e in unused and window.end - int(onsets[e]) < 1000 * params.idle_seconds:
            continue
        rows = (stats.evidence("nic.link_up", 0.0, 1.0, "it was up before"),)
        out.append(Verdict(nic, FAULT, "faulty", 0.9, rows, "no_carrier", onset_at=int(onsets[e])))
    return out


def _unused(window: Window, columns: stats.Ints, onsets: stats.Ints, p: Params) -> frozenset[int]:
    """Those of the ports that were down on a node whose GPUs all rested when they went down."""
    gpus: dict[str | None, list[int]] = {}
    for column, gpu in enumerate(window.of_kind("gpu")):
        gpus.setdefault(gpu.node, []).append(column)
    used, nics = window.values("gpu.utilization_ratio"), window.of_kind("nic")
    found = set()
    for e in columns.tolist():
        mine = gpus.get(nics[e].node, [])
        row = int(np.searchsorted(window.times, onsets[e]))
        before = used[max(0, row - window.ticks(p.before_seconds)):row + 1][:, mine]
        if len(mine) and not np.isnan(before).all() and not stats.above(before, p.idle).any():
            found.add(e)
    return frozenset(found)


PLUGIN = DetectorPlugin(
    name="link_down", fault=FAULT, judge=judge, params=Params, needs=(("nic.link_up",),), hold=Hold(on=3, of=4, off=4),
    must_not=("a port that was never up", "a flap of a few seconds", "a node that reboots", "works on a switch that no job uses"),
)
