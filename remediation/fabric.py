"""The nodes that share a leaf switch or a rail, so that repairs do not thin out one corner of the fabric.

From the inventory: a NIC's leaf and rail, else its node's leaf. A rail group is what hangs on one leaf with one rail; where
rails are not known, what hangs on one leaf. What the inventory does not say is not guessed: such a node is in no group, and
the guards of the fabric do not speak of it. A group of one node is none: it would never be repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from core.protocols import NodeView
from core.window import Topology

K = TypeVar("K")

UP = ("in_service",)


@dataclass(frozen=True, slots=True)
class Fabric:
    """leaves: the nodes behind each leaf. rails: the nodes of each rail group, by (leaf, rail). of_leaf, of_rail: the leaves
    and rail groups of each node."""

    leaves: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rails: Mapping[tuple[str, int | None], frozenset[str]] = field(default_factory=dict)
    of_leaf: Mapping[str, frozenset[str]] = field(default_factory=dict)
    of_rail: Mapping[str, frozenset[tuple[str, int | None]]] = field(default_factory=dict)

    @staticmethod
    def of(topology: Topology) -> Fabric:
        """The groups that the inventory knows."""
        rails: dict[tuple[str, int | None], set[str]] = {}
        for nic in topology.nics.values():
            if nic.leaf:
                rails.setdefault((nic.leaf, nic.rail), set()).add(nic.node)
        cabled = {node for nodes in rails.values() for node in nodes}
        for place in topology.places.values():
            if place.leaf and place.node not in cabled:
                rails.setdefault((place.leaf, None), set()).add(place.node)
        leaves: dict[str, set[str]] = {}
        for (leaf, _), nodes in rails.items():
            leaves.setdefault(leaf, set()).update(nodes)
        return Fabric({k: frozenset(v) for k, v in leaves.items()}, {k: frozenset(v) for k, v in rails.items()},
                      _turned(leaves), _turned(rails))


NO_FABRIC = Fabric()


def _turned(groups: Mapping[K, set[str]]) -> dict[str, frozenset[K]]:
    out: dict[str, set[K]] = {}
    for name, nodes in groups.items():
        for node in nodes:
            out.setdefault(node, set()).add(name)
    return {node: frozenset(names) for node, names in out.items()}


def out_of_service(nodes: Iterable[str], seen: Mapping[str, NodeView], busy: frozenset[str]) -> set[str]:
    """Those of the nodes that are out, whoever took them out, or that an attempt works on. Spares are not out: nothing hangs
    on them. A node that the world does not name is not counted either way."""
    return {n for n in nodes if n in busy or (n in seen and seen[n].state not in (*UP, "spare"))}


def in_service(nodes: Iterable[str], seen: Mapping[str, NodeView], busy: frozenset[str]) -> set[str]:
    """Those of the nodes that do work and that nobody is taking out."""
    return {n for n in nodes if n in seen and n not in busy and seen[n].state in UP and seen[n].held_by is None}
