"""A GPU or a NIC whose PCIe link runs on fewer lanes than its peers', or a GPU's at a lower generation while it works.

An idle GPU lowers its generation to save power, so the generation counts only at work; the width never changes with load.
What is right is the part's own maximum where the exporter shows it, else what the peers of the same model have. Many a
NIC stands in a slot with fewer lanes than it could use, by design: of a NIC, what the same slot of the model's other nodes has
is right, else what it had itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import shared, stats
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
    """A verdict for each GPU and NIC that shows its link's width, and for each GPU that shows its generation at work."""
    return _gpus(window, params) + _nics(window, params) if len(window.times) else []


def _gpus(window: Window, params: Params) -> list[Verdict]:
    gpus = window.of_kind("gpu")
    if not gpus or not len(window.times):
        return []
    groups = shared.model_codes(window, gpus)
    util = stats.span_of(window, "gpu.utilization_ratio", params.window_seconds)
    working = stats.above(util.low, params.busy)
    width, wide = _expected(window, "gpu.pcie_link_width", "gpu.pcie_max_link_width", groups, params, np.ones(len(gpus), bool))
    gen, fast = _expected(window, "gpu.pcie_link_generation", "gpu.pcie_max_link_generation", groups, params, working)
    narrow, slow = stats.below(width, wide - 0.5), stats.below(gen, fast - 0.5) & working
    known = ~np.isnan(width) & ~np.isnan(wide) | (~np.isnan(gen) & ~np.isnan(fast) & working)
    known &= shared.loud(window, gpus)
    out = shared.clears(gpus, known & ~(narrow | slow), FAULT)
    columns = stats.columns_where(known & (narrow | slow))
    symptom = stats.below(window.values("gpu.pcie_link_width")[:, columns], wide[columns] - 0.5) | stats.below(np.where(
        working[columns], window.values("gpu.pcie_link_generation")[:, columns], np.nan), fast[columns] - 0.5)
    onsets = stats.run_start(symptom, window.times, 4)
    for e, began in zip(columns.tolist(), onsets.tolist(), strict=True):
        rows: list[Evidence] = []
        if narrow[e]:
            rows.append(stats.evidence("gpu.pcie_link_width", width[e], wide[e], "its maximum, else its peers"))
        if slow[e]:
            rows.append(stats.evidence("gpu.pcie_link_generation", gen[e], fast[e], "its maximum, else its peers, at work"))
        out.append(Verdict(gpus[e], FAULT, "faulty", 0.6 if narrow[e] else 0.3, tuple(rows),
                           "fewer_lanes" if narrow[e] else "lower_generation", onset_at=int(began)))
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
    own_last = stats.newest(window.values(most))
    return shown, np.where(np.isnan(own_last), agreed, own_last)


# --- NICs -------------------------------------------------------------------------------------------------------------
# Interfaces (enp56s0np0) and EFA devices (rdmap113s0/1), which udev names by their place.
_NETDEV = re.compile(r"(?:en[ps]?|rdma)(?:P(?P<domain>\d+))?p(?P<bus>\d+)s(?P<slot>\d+)(?:f(?P<fn>\d+))?(?:np\d+|/\d+)?")


def _address(device: str) -> str | None:
    """The PCI address that the predictable name of a NIC holds (enp56s0np0 = 0000:38:00.0, rdmap16s27/1 = 0000:10:1b.0)."""
    found = _NETDEV.fullmatch(device)
    if found is None:
        return None
    return f"{int(found['domain'] or 0):04x}:{int(found['bus']):02x}:{int(found['slot']):02x}.{int(found['fn'] or 0)}"


def _pairs(nics: tuple[Target, ...], links: tuple[Target, ...]) -> tuple[stats.Ints, stats.Ints]:
    """The positions of the NICs whose PCI address is one of the links', and of those links."""
    places = {(t.node, t.device): e for e, t in enumerate(links)}
    found = [(e, places[nic.node, address]) for e, nic in enumerate(nics)
             if (address := _address(nic.device or "")) is not None and (nic.node, address) in places]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _nics(window: Window, p: Params) -> list[Verdict]:
    """Verdicts on the NICs whose PCI device tells its lanes."""
    block = window.block("link.pcie_width")
    if "link.pcie_width" not in window.blocks:
        return []
    nics = window.of_kind("nic")
    stalled = window.values("nic.pcie_stalled_ratio")
    ports, links = shared.kept("ports of links", (nics, block.entities), lambda: _pairs(nics, block.entities))
    ticks = window.ticks(p.window_seconds)
    tail = block.values[-ticks:]
    with np.errstate(all="ignore"):
        shown = np.where((stats.count(tail) >= max(2, ticks // 3)) & block.fresh(), np.fmax.reduce(tail, axis=0), np.nan)
    peers = stats.peers(shown, shared.model_codes(window, block.entities, True))
    own = stats.quantile(block.values, 1.0)
    agreed = np.where((peers.n >= p.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    right = np.fmax(agreed, np.where(np.isnan(agreed), own, np.nan))
    known = ~np.isnan(shown[links]) & ~np.isnan(right[links]) & shared.loud(window, nics)[ports]
    well = stats.above(shown, right - 0.5) & (shown != right - 0.5)
    out = shared.clears(nics, ports[known & well[links]], FAULT)
    for i in np.flatnonzero(known & ~well[links]):
        e, link = int(ports[i]), int(links[i])
        nic = nics[e]
        rows = [stats.evidence("link.pcie_width", shown[link], right[link], "the same slot of its peers, else its own past")]
        waits = float(stats.mean(stalled[-ticks:, e:e + 1])[0])
        if not np.isnan(waits):
            rows.append(stats.evidence("nic.pcie_stalled_ratio", waits, 0.0, "share of time in which the port waited for the host"))
        onset = stats.run_start(stats.below(block.values[:, link:link + 1], right[link] - 0.5), window.times, 4)[0]
        out.append(Verdict(nic, FAULT, "faulty", 0.6, tuple(rows), "fewer_lanes",
                           onset_at=int(onset)))
    return out


PLUGIN = DetectorPlugin(
    name="pcie_degraded", fault=FAULT, judge=judge, params=Params, needs=(("gpu.pcie_link_width", "gpu.pcie_link_generation", "link.pcie_width"),),
    hold=Hold(on=4, of=5, off=8), must_not=("generation 1 on an idle GPU", "a board whose slot has fewer lanes by design",
                                            "a link that trains anew for a moment"),
)
