"""How the nodes hang together: pods, leaves and spines, racks, PDUs, cooling loops, NVLink domains, storage targets.

Sized from the fleet and the same for the same fleet. Two ways of cabling: *rails* (NIC i of each node of a pod hangs on the
pod's leaf of rail i, so that a collective along a rail stays on one leaf) and *racks* (all NICs of a rack's nodes hang on
the rack's leaf). Spines join the leaves over `PATHS` equal-cost paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import Node, NodeType

STORAGE_TARGETS = 8
# A pod is what the ports of one 64-port leaf serve when half of them go up; as many paths lead up.
POD_NODES = 32
PATHS = 32
RACKS_A_LOOP = 4
MOST_SPINES = 16


@dataclass(frozen=True, slots=True)
class Topology:
    """switches: leaves, then `spines` spines, by name. leaf_of: int64[node, nic], index into switches. rails: whether NIC i
    hangs on the leaf of rail i. pods: int64[node]. targets: names of the object storage targets. storage: the name of the
    file system."""

    switches: tuple[str, ...]
    spines: int
    leaf_of: NDArray[np.int64]
    rails: bool
    pods: NDArray[np.int64]
    targets: tuple[str, ...]
    storage: str = "checkpoints"

    @staticmethod
    def of(nodes: list[Node], nics: int) -> Topology:
        """Cables nodes that stand in their racks: gives each its leaf, PDU and cooling loop, and returns the whole."""
        total = len(nodes)
        rails = railed(nodes[0].kind)
        racks = _feed(nodes)
        # A small fleet has two pods as well: a leaf is a part of it, and some traffic crosses a spine.
        pods = np.arange(total) // min(POD_NODES, max(2, -(-total // 2))) if rails else np.zeros(total, np.int64)
        if rails:
            names = [f"leaf-p{p + 1}r{r}" for p in range(int(pods.max()) + 1) for r in range(nics)]
            leaf_of = pods[:, None] * nics + np.arange(nics)[None, :]
        else:
            names = [f"leaf-{r + 1}" for r in range(int(racks.max()) + 1)]
            leaf_of = np.repeat(racks[:, None], nics, axis=1)
        for node in nodes:
            # Where each NIC has a leaf of its own the node has none.
            node.leaf = "" if rails else names[int(racks[node.index])]
        spines = min(MOST_SPINES, max(2, len(names) // 8))
        targets = tuple(f"scratch-OST{i:04x}" for i in range(STORAGE_TARGETS))
        return Topology((*names, *(f"spine-{i + 1}" for i in range(spines))), spines, leaf_of.astype(np.int64), rails,
                        pods.astype(np.int64), targets)

    def leaves(self) -> range:
        """The indexes of the leaves in `switches`."""
        return range(len(self.switches) - self.spines)

    def leaf_name(self, node: int, nic: int) -> str:
        """The name of the leaf that a NIC hangs on."""
        return self.switches[int(self.leaf_of[node, nic])]

    def spine_of(self, path: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index in `switches` of the spine that each path leads over."""
        return len(self.switches) - self.spines + path % self.spines

    def under(self, values: Floats) -> Floats:
        """Per switch to per NIC: float64[switch] to float64[node, nic], the value of the leaf that the NIC hangs on."""
        return values[self.leaf_of]


def railed(kind: NodeType) -> bool:
    """Whether nodes of this kind are cabled by rails. AWS's fabric is not: all NICs of an instance share a network node."""
    return kind.fabric != "efa"


def _feed(nodes: list[Node]) -> NDArray[np.int64]:
    """Two PDUs a rack feed its nodes in turn; a cooling loop serves a few racks, and there are two loops at least wherever
    there are two racks. Returns int64[node]: the number of each node's rack, from 0."""
    names = list(dict.fromkeys(node.rack for node in nodes))
    numbers = {name: number for number, name in enumerate(names)}
    per_loop = max(1, min(RACKS_A_LOOP, len(names) // 2))
    seen = [0] * len(names)
    for node in nodes:
        rack = numbers[node.rack]
        node.cooling, node.pdu = f"loop-{rack // per_loop + 1}", f"pdu-{rack + 1}{'ab'[seen[rack] % 2]}"
        seen[rack] += 1
    return np.array([numbers[node.rack] for node in nodes], dtype=np.int64)
