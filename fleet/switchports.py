"""What the switches count at each of their ports: the other ends of the nodes' cables, and both ends of the cables between leaf
and spine.

Whatever a NIC sends its leaf receives and the other way round, octet for octet; so do the ends of a cable between switches,
over which goes what the flows of the jobs send from leaf to leaf. A switch counts what it drops itself (`out_discards`)
and what came damaged (`in_errors`); what a NIC or its cable loses on the way out of the switch, only the NIC knows. Nothing
here is drawn: whether a site watches its switches changes nothing in its world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.network import Connections
from fleet.stations import Station
from fleet.topology import PATHS, POD_NODES

if TYPE_CHECKING:
    from fleet.world import World

COUNTERS = ("in_octets", "out_octets", "in_packets", "out_packets", "in_errors", "out_errors", "in_discards", "out_discards",
            "pause_in", "pause_out", "transitions")
# The switch's counter, and the NIC's at the other end that it follows.
FAR_ENDS = (("in_octets", "sent_bytes"), ("out_octets", "received_bytes"), ("in_packets", "sent_packets"),
            ("out_packets", "received_packets"), ("pause_in", "pause_sent"), ("pause_out", "pause_received"),
            ("transitions", "carrier_changes"))
# A bad cable damages both directions: of the symbols that are beyond repair at the NIC, as many frames at the switch.
DAMAGED_HERE = 0.5
NOBODY = -1


class SwitchPorts:
    """Counters float64[port] by the names in COUNTERS, gauges `up` and `rate` (bytes a second), `changed_ms` (when the port's
    state last changed). A port's number: those of the nodes' cables (node * NICs + NIC), then the leaves' up-links (leaf *
    PATHS + path), then the spines' ends of those.

    stations: the switches. ports: of each switch its ports' numbers in the order of their names; names, peers: of each port
    its own name and what is at its other end. Made when a site watches its switches; stepped by the world from then on.
    """

    def __init__(self, world: World) -> None:
        topology, nics = world.topology, world.kind.nics
        self._shape, self._leaves = topology.leaf_of.shape, len(topology.leaves())
        self._cables, self._links = int(topology.leaf_of.size), self._leaves * PATHS
        total = self._cables + 2 * self._links
        self.stations = [Station(i, name) for i, name in enumerate(topology.switches)]
        self.names, self.peers = [""] * total, [""] * total
        self.ports: list[list[int]] = [[] for _ in self.stations]
        for number, leaf in enumerate(topology.leaf_of.ravel().tolist()):
            node = world.nodes[number // nics]
            self.ports[leaf].append(number)
            self.names[number], self.peers[number] = f"Ethernet{len(self.ports[leaf])}", f"{node.name} {node.kind.nic_names[number % nics]}"
        paths = np.arange(PATHS)
        spines = topology.spine_of(paths).tolist()
        for leaf in range(self._leaves):
            for path, spine in zip(paths.tolist(), spines, strict=True):
                here = self._cables + leaf * PATHS + path
                there = here + self._links
                self.ports[leaf].append(here)
                self.ports[spine].append(there)
                self.names[here], self.names[there] = f"Ethernet{POD_NODES + path + 1}", f"Ethernet{len(self.ports[spine])}"
                self.peers[here] = f"{topology.switches[spine]} {self.names[there]}"
                self.peers[there] = f"{topology.switches[leaf]} {self.names[here]}"
        self._spines = np.array(spines)
        # Both ends of a cable have counted since it was laid.
        self.counters: dict[str, Floats] = {name: np.zeros(total) for name in COUNTERS}
        self._seen = {name: values.copy() for name, values in world.nics.counters.items()}
        for name, far in FAR_ENDS:
            self.counters[name][: self._cables] = self._seen[far].ravel()
        self.up, self.rate, self.changed_ms = np.ones(total), np.zeros(total), np.full(total, float(world.start_ms))
        self._gauges(world, world.start_ms)

    def step(self, world: World, at: int) -> None:
        """Takes over what the NICs counted in the sub-step that ends at `at` (ms)."""
        fresh = {name: self._since(world, name) for name in {*(far for _, far in FAR_ENDS), "out_of_sequence", "uncorrected_symbols"}}
        count, cables = self.counters, self._cables
        for name, far in FAR_ENDS:
            count[name][:cables] += fresh[far].ravel()
        count["in_errors"][:cables] += np.floor(DAMAGED_HERE * fresh["uncorrected_symbols"].ravel())
        if world.knobs.switch.loss_per_million.any():
            self._drop(world, fresh["out_of_sequence"])
        for flows in world.network.connections:
            self._cross(world, flows, fresh["sent_bytes"], fresh["sent_packets"])
        self._gauges(world, at)

    def _since(self, world: World, name: str) -> Floats:
        """What a NIC's counter has gained; one that a reboot has set back counts from 0."""
        now, before = world.nics.counters[name], self._seen[name]
        self._seen[name] = now.copy()
        return np.where(now >= before, now - before, now)

    def _drop(self, world: World, lost: Floats) -> None:
        """What the leaf dropped on its way to its ports: its part of what is missing there."""
        own = world.topology.under(world.knobs.switch.loss_per_million)
        share = own / np.maximum(world.network.loss, 1e-9)
        self.counters["out_discards"][: self._cables] += np.round(np.minimum(1.0, share) * lost).ravel()

    def _cross(self, world: World, flows: Connections, sent: Floats, packets: Floats) -> None:
        """What a job's flows send over the spines, queue pair by queue pair."""
        if not flows.crosses.any():
            return
        leaf, slots = world.topology.leaf_of, flows.path.shape[2]
        shape = flows.path.shape
        up = (leaf[flows.ring][:, :, None] * PATHS + flows.path)[flows.crosses]
        down = (leaf[flows.to].transpose(0, 2, 1) * PATHS + flows.path)[flows.crosses]
        for moved, arrived, left in ((sent, "in_octets", "out_octets"), (packets, "in_packets", "out_packets")):
            each = np.floor(np.broadcast_to(moved[flows.ring][:, :, None] / slots, shape)[flows.crosses])
            rises = np.bincount(up, each, minlength=self._links)
            falls = np.bincount(down, each, minlength=self._links)
            first, second = slice(self._cables, self._cables + self._links), slice(self._cables + self._links, None)
            self.counters[left][first] += rises
            self.counters[arrived][second] += rises
            self.counters[left][second] += falls
            self.counters[arrived][first] += falls

    def _gauges(self, world: World, at: int) -> None:
        knobs, kind = world.knobs.switch, world.kind
        leaves, spines = knobs.up[: self._leaves] > 0, knobs.up[self._spines] > 0
        cabled = leaves[:, None] & spines[None, :]
        up = np.concatenate([world.network.up.ravel(), cabled.ravel(), cabled.ravel()]).astype(np.float64)
        changed = up != self.up
        self.changed_ms = np.where(changed, float(at), self.changed_ms)
        self.counters["transitions"][self._cables:] += changed[self._cables:]
        between = kind.nic_bytes_per_second * np.minimum(knobs.rate[: self._leaves, None], knobs.rate[self._spines][None, :])
        nics = kind.nic_bytes_per_second * world.knobs.nic.rate
        self.up, self.rate = up, np.concatenate([nics.ravel(), between.ravel(), between.ravel()])
        for station, alive in zip(self.stations, (knobs.up > 0).tolist(), strict=True):
            station.up = alive


def places_of(ports: SwitchPorts) -> NDArray[np.int64]:
    """int64[switch, column]: the number of each switch's port at each column, NOBODY where it has fewer."""
    width = max(len(one) for one in ports.ports)
    out = np.full((len(ports.ports), width), NOBODY)
    for row, one in enumerate(ports.ports):
        out[row, : len(one)] = one
    return out
