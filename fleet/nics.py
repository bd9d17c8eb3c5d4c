"""All NIC ports of the fleet as arrays: what moves over them, their links, and what the physical layer counts.

Counters follow the traffic of the jobs and what the network does to it; the counters of the transport (RoCE, InfiniBand or
EFA's SRD) are in `fleet.transports`. Every draw is made whether it is needed or not, so that a fault on one port leaves the
others as they would have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import Node, NodeType
from fleet.knobs import NicKnobs
from fleet.network import Network, slot_share
from fleet.transports import Moved, Srd, Verbs, counts, packet_bytes, sprinkle
from fleet.work import Work

if TYPE_CHECKING:
    from fleet.logs import KernelLogs

ACTIVE, INIT, DOWN = 4.0, 2.0, 1.0
LINK_UP, POLLING, DISABLED = 5.0, 2.0, 3.0
# What a port without a carrier reports as its rate: the narrowest that it can do (4X QDR on Ethernet, 4X SDR on InfiniBand).
RATE_WITHOUT_LINK = {"roce": 5e9, "infiniband": 1.25e9}
LANES = 4
LINK = ("downed", "recoveries", "carrier_changes", "symbol_errors", "corrected_bits", "uncorrected_symbols",
        *(f"lane_errors_{lane}" for lane in range(LANES)))
# PAM4 lanes: bits that error correction repairs on a good link, as a share of its bits, and the spread of ports (log).
BIT_ERRORS, BIT_ERRORS_SPREAD = 2e-9, 0.8
# Of each symbol error beyond the healthy: bits that are repaired, and the share of those that cannot be.
REPAIRED_BITS, BEYOND_REPAIR = 900.0, 0.02
SYMBOLS_PER_SECOND = 0.0009
# Siblings' bytes: how far the GPUs of a node differ for good, and a port from one sub-step to the next.
BIAS, JITTER = 0.0012, 0.0012


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A port's link went up or down in this sub-step."""

    node: int
    nic: int
    up: bool


class NicBank:
    """Counters float64[node, nic] by name in `counters` (LINK, and the transport's). kind decides which transport.

    Gauges float64[node, nic]: state and physical_state (as /sys/class/infiniband has them), rate_bytes (the link's rate, in
    bytes a second), pci_stalled (percent of the time in which the port waits for the host's PCIe). present: bool, whether
    the device is there (an EFA device without a link is not; its state claims to be active as long as it is).
    """

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator, knobs: NicKnobs) -> None:
        shape = (nodes, kind.nics)
        self.kind, self._rng, self.knobs = kind, rng, knobs
        self.efa = kind.fabric == "efa"
        self.counters: dict[str, Floats] = {name: np.zeros(shape) for name in LINK}
        self.transport = (Srd if self.efa else Verbs)(kind, shape, rng, self.counters)
        # Ports of one GPU carry the same bytes; GPUs differ a little.
        per_gpu = max(1, kind.nics // kind.gpus)
        groups = -(-kind.nics // per_gpu)
        bias = np.clip(rng.normal(0, BIAS, (nodes, groups)), -2.5 * BIAS, 2.5 * BIAS)
        self._bias = 1.0 + np.repeat(bias, per_gpu, axis=1)[:, : kind.nics]
        self._errors = BIT_ERRORS * rng.lognormal(0.0, BIT_ERRORS_SPREAD, shape) * 8 * kind.nic_bytes_per_second
        self._lanes = rng.dirichlet(np.full(LANES, 6.0), shape)
        self.counters["symbol_errors"] += rng.poisson(30.0, shape)
        self.counters["carrier_changes"] += 1.0
        self.counters["corrected_bits"] += np.rint(self._errors * 8e5)
        for lane in range(LANES):
            self.counters[f"lane_errors_{lane}"] += np.rint(self._errors * 8e5 * self._lanes[:, :, lane])
        self._up: NDArray[np.bool_] = np.ones(shape, bool)
        self.changes: list[LinkChange] = []
        self._all_of_it, self._steady = np.ones(shape), False
        self.present: NDArray[np.bool_] = np.ones(shape, bool)
        self.state: Floats = np.full(shape, ACTIVE)
        self.physical_state: Floats = np.full(shape, LINK_UP)
        self.rate_bytes: Floats = np.full(shape, kind.nic_bytes_per_second)
        self.pci_stalled: Floats = np.zeros(shape)

    def reset(self, row: int) -> None:
        """A reboot clears every counter of the node."""
        for name, values in self.counters.items():
            values[row] = self.transport.constants.get(name, 0.0)
        self.counters["carrier_changes"][row] = 1.0

    def step(self, seconds: int, work: Work, network: Network) -> None:
        """Moves all ports on by `seconds`."""
        moved = self._move(seconds, work, network)
        self.changes = []
        # While nothing is wrong the links stay as they are.
        if not (network.quiet and self._steady):
            self._links(network)
            self.pci_stalled = np.where(moved.loaded, np.rint(100.0 * (1.0 - moved.pcie)), 0.0)
        self._steady = network.quiet and not self.changes
        self._physics(seconds)
        self.transport.step(seconds, moved, network, self.knobs)

    def _move(self, seconds: int, work: Work, network: Network) -> Moved:
        shape = self._up.shape
        noise = 1.0 + JITTER * self._rng.standard_normal((2, *shape))
        asked = per_nic(work.traffic, self.kind.nics) * (network.volume * network.linked)[:, None]
        if network.sprayed and network.endpoint.max() > 1.0:
            # Messages are dealt to the device that is free: a slow one gets fewer.
            pull = 1.0 / np.sqrt(network.endpoint)
            asked = asked * pull / pull.mean(axis=1, keepdims=True)
        if network.quiet:
            asked = asked * self._bias
            sent, received, pcie = np.rint(asked * noise[0]), np.rint(asked * noise[1]), self._all_of_it
        else:
            asked = asked * network.up * self._bias
            sent = np.rint(asked * ~network.stalled * noise[0])
            arriving = asked * noise[1]
            if network.stalled.any() or not network.up.all():
                arriving = arriving * network.from_senders((network.up & ~network.stalled).astype(float))
            received, pcie = np.rint(arriving), slot_share(self.knobs.pcie_width, self.kind.pcie_width)
        size = packet_bytes(self.kind)
        busy = np.minimum(1.0, sent / (seconds * self.kind.nic_bytes_per_second))
        return Moved(sent, received, np.rint(sent / size), np.rint(received / size), asked > 0, busy, pcie)

    # --- links -------------------------------------------------------------------------------------------------------
    def _links(self, network: Network) -> None:
        kind, up, count = self.kind, network.up, self.counters
        changed = up != self._up
        if changed.any():
            count["carrier_changes"] += changed
            count["downed"] += changed & ~up
            count["recoveries"] += changed & up
            self.changes = [LinkChange(int(n), int(i), bool(up[n, i])) for n, i in np.argwhere(changed)]
        back = changed & up
        self._up = up.copy()
        if self.efa:
            self.present = up.copy()
            return
        waits = kind.fabric == "infiniband"
        state, physical = np.full(up.shape, DOWN), np.full(up.shape, POLLING if waits else DISABLED)
        rate = np.full(up.shape, RATE_WITHOUT_LINK[kind.fabric])
        state[up], physical[up], rate[up] = ACTIVE, LINK_UP, kind.nic_bytes_per_second * self.knobs.rate[up]
        if waits:
            # An InfiniBand port is up before the subnet manager has made it active.
            state[back] = INIT
        self.state, self.physical_state, self.rate_bytes = state, physical, rate

    def _physics(self, seconds: int) -> None:
        rng, count, shape = self._rng, self.counters, self._up.shape
        wobble, draw = rng.standard_normal(shape), rng.random(shape)
        sprinkle(rng, count["symbol_errors"], SYMBOLS_PER_SECOND * seconds)
        if self.efa:
            return
        repaired = seconds * self._errors * self._up
        wrong = self.knobs.symbol_errors_per_second
        ill = not self._steady and bool(wrong.any())
        if ill:
            repaired = repaired + seconds * REPAIRED_BITS * wrong
            count["symbol_errors"] += counts(seconds * wrong, draw)
            count["uncorrected_symbols"] += counts(seconds * BEYOND_REPAIR * wrong, draw)
        repaired = np.maximum(0.0, np.rint(repaired + np.sqrt(repaired) * wobble))
        count["corrected_bits"] += repaired
        for lane in range(LANES):
            share = self._lanes[:, :, lane]
            if ill:
                # A bad cable is bad on one lane.
                share = np.where(wrong > 0, 0.94 if lane == 2 else 0.02, share)
            count[f"lane_errors_{lane}"] += np.rint(repaired * share)

    def tell(self, kernel: KernelLogs, nodes: Sequence[Node], at: int) -> None:
        """The kernel's lines for the links that changed in this sub-step: those of the driver's interface (Ethernet only) and
        of the RDMA core. EFA's driver knows no link: it says that a device goes, and that it is set up anew."""
        for change in self.changes:
            node = nodes[change.node]
            if not node.up:
                continue
            pci, name = self.kind.nic_pci(change.nic), self.kind.nic_names[change.nic]
            if self.efa:
                kernel.write(node, at, f"efa {pci}: Setup irq:efa-mgmnt@pci:{pci}" if change.up
                             else f"efa {pci} {name}: Unregister ib device")
                continue
            states = (("INIT", "ACTIVE") if self.kind.fabric == "infiniband" else ("ACTIVE",)) if change.up else ("DOWN",)
            if self.kind.fabric == "roce":
                kernel.write(node, at, f"mlx5_core {pci} {netdev(self.kind, change.nic)}: Link {'up' if change.up else 'down'}")
            for after, state in enumerate(states, 1):
                kernel.write(node, at + 6 * after**4, f"mlx5_core {pci} {name}: Port: 1 Link {state}")


def netdev(kind: NodeType, nic: int) -> str:
    """The network interface over a RoCE or InfiniBand port, by the PCI bus that it is on: `enp24s0np0`, `ibp24s0`."""
    bus = int(kind.nic_buses[nic], 16)
    return f"ibp{bus}s0" if kind.fabric == "infiniband" else f"enp{bus}s0np0"


def per_nic(traffic: Floats, nics: int) -> Floats:
    """What GPUs send, float64[node, gpu], as float64[node, nic]: a GPU's NICs share its bytes, or GPUs share a NIC."""
    gpus = traffic.shape[1]
    if nics == gpus:
        return traffic
    if nics % gpus == 0:
        return np.repeat(traffic / (nics // gpus), nics // gpus, axis=1)
    if gpus % nics == 0:
        return np.asarray(traffic.reshape(len(traffic), nics, -1).sum(axis=2))
    return np.repeat(traffic.sum(axis=1, keepdims=True) / nics, nics, axis=1)
