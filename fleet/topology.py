"""How the nodes hang together: leaves and spines, racks, PDUs, cooling loops, storage targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.hardware import Node

SPINES = 2
STORAGE_TARGETS = 8


@dataclass(frozen=True, slots=True)
class Topology:
    """switches: leaves, then spines, by name. leaf_of: int64[node, nic], index into switches. targets: names of the object
    storage targets. storage: the name of the file system."""

    switches: tuple[str, ...]
    leaf_of: NDArray[np.int64]
    targets: tuple[str, ...]
    storage: str = "checkpoints"

    @staticmethod
    def of(nodes: list[Node], nics: int) -> Topology:
        """The topology of these nodes: a leaf for each name that they give, and spines above them."""
        leaves = sorted({n.leaf for n in nodes})
        leaf_of = np.array([[leaves.index(n.leaf)] * nics for n in nodes], dtype=np.int64)
        spines = tuple(f"spine-{i + 1}" for i in range(SPINES))
        return Topology((*leaves, *spines), leaf_of, tuple(f"scratch-OST{i:04x}" for i in range(STORAGE_TARGETS)))

    def leaves(self) -> range:
        """The indexes of the leaves in `switches`."""
        return range(len(self.switches) - SPINES)
