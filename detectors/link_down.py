"""A link that was up and is down, or an RDMA device that is gone.

A port that was never up is not in use. A whole switch that goes, or a node that reboots, shows here port by port; telling
that from one bad cable is localisation's work, and a node's boot is waited out by the runner.

EFA's ports claim to be up whatever they are. What is seen of them is that the device goes while its siblings stay
(`detectors.ports`); only one that had carried something is missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import ports, shared, stats
from detectors.stats import Bools

FAULT = "link_down"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §0 and §11; gpud drops a port that is down for 4 minutes, Health Validation one that is out for
    30 s; NVSentinel takes a device that three readings in a row lack for lost.

    past_seconds: how far back the port must have been up, open findings left out. idle_seconds: how long a port must be down
    that nobody used when it went down (works on a switch are done while its nodes rest: a reboot of one takes three to five
    minutes); idle: utilisation of the node's GPUs below which nobody did. before_seconds: how long before is looked at.
    carried_bytes: traffic a second that a device had at some time, to be missed when it is gone.
    """

    past_seconds: int = 86400
    idle_seconds: float = 600.0
    idle: float = 0.1
    before_seconds: float = 45.0
    carried_bytes: float = 1000.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port that shows whether it has a carrier and was up before, and for each RDMA device."""
    block, state = window.block("nic.link_up"), ports.state(window)
    if not len(window.times) or not len(block.entities):
        return []
    says = block.fresh() & ~np.isnan(block.last)
    fresh = says | (np.isnan(block.last) & ~np.isnan(state[-1]) & _missed(window, params))
    past = window.baseline("nic.link_up", params.past_seconds)
    was_up = stats.above(stats.quantile(state, 1.0), 0.5) | ((past.n >= 10) & stats.above(past.median, 0.5))
    judged = fresh & was_up & shared.loud(window, block.entities)
    down = stats.below(state[-1], 0.5)
    out = shared.clears(block.entities, judged & ~down, FAULT)
    columns = stats.columns_where(judged & down)
    if not len(columns):
        return out
    onsets = stats.run_start(stats.below(state[:, columns], 0.5), window.times, 1)
    unused = _unused(window, columns, onsets, params)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        if e in unused and window.end - onset < 1000 * params.idle_seconds:
            continue
        row = stats.evidence("nic.link_up", 0.0, 1.0, "it was up before") if says[e] else stats.evidence(
            "nic.link_up", 0.0, 1.0, "its siblings on the node, which are there", "the device is gone: none of its series is shown")
        out.append(Verdict(block.entities[e], FAULT, "faulty", 0.9, (row,), "no_carrier" if says[e] else "device_gone",
                           onset_at=int(onset)))
    return out


def _missed(window: Window, p: Params) -> Bools:
    """bool[nic]: it carried something while it was shown. Devices that are handed to containers one by one did not."""
    out = np.zeros(len(window.of_kind("nic")), bool)
    for name in ("nic.received_bytes_per_second", "nic.transmitted_bytes_per_second"):
        out |= stats.above(stats.quantile(window.values(name), 1.0), p.carried_bytes)
    return out


def _unused(window: Window, columns: stats.Ints, onsets: stats.Ints, p: Params) -> frozenset[int]:
    """Those of the ports that were down on a node whose GPUs all rested when they went down. onsets: ms, one for each."""
    gpus = shared.columns_by_node(window.of_kind("gpu"))
    used, nics = window.values("gpu.utilization_ratio"), window.of_kind("nic")
    found = set()
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        mine = gpus.get(nics[e].node, np.zeros(0, np.int64))
        row = int(np.searchsorted(window.times, onset))
        before = used[max(0, row - window.ticks(p.before_seconds)):row + 1][:, mine]
        if len(mine) and not np.isnan(before).all() and not stats.above(before, p.idle).any():
            found.add(e)
    return frozenset(found)


PLUGIN = DetectorPlugin(
    name="link_down", fault=FAULT, judge=judge, params=Params,
    needs=(("nic.link_up", "nic.rate_bytes_per_second", "nic.received_bytes_per_second"),), hold=Hold(on=3, of=4, off=4),
    must_not=("a port that was never up", "a flap of a few seconds", "a node that reboots", "works on a switch that no job uses",
              "a page that lacks many devices", "a device that is handed to a container"),
)
