"""Cabling: rails, pods, racks, what feeds and cools them, sized from the fleet."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from core.inventory import inventory_from
from fleet.hardware import NODE_TYPES, build_nodes, kind_named
from fleet.state import inventory
from fleet.topology import PATHS, POD_NODES, Topology
from tests.fleet.fleethelp import small


def _built(kind: str, nodes: int) -> tuple[list, Topology]:
    made = build_nodes(kind_named(kind), nodes, 0, 0, np.random.default_rng(0))
    return made, Topology.of(made, kind_named(kind).nics)


@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 33, 64, 200])
def test_rails_have_a_leaf_of_their_own_in_each_pod(nodes):
    """NIC i of every node of a pod hangs on one leaf, and no other NIC does."""
    made, topology = _built("h100-8x-roce", nodes)
    leaves = topology.leaf_of
    assert topology.rails
    for pod in np.unique(topology.pods):
        rows = leaves[topology.pods == pod]
        assert len(rows) <= POD_NODES
        assert (rows == rows[0]).all()
        assert len(set(rows[0].tolist())) == 8
    assert len(np.unique(leaves)) == len(topology.leaves()) == 8 * (int(topology.pods.max()) + 1)
    assert all(node.leaf == "" for node in made)


@pytest.mark.parametrize("nodes", [4, 5, 64])
def test_a_fleet_of_some_nodes_has_two_pods_racks_and_loops(nodes):
    """A switch, a rack, a PDU and a cooling loop are each a part of the fleet and never all of it."""
    made, topology = _built("h100-8x-roce", nodes)
    assert len(np.unique(topology.pods)) >= 2
    for group in ("rack", "pdu", "cooling"):
        assert max(Counter(getattr(n, group) for n in made).values()) < nodes
    assert max(len({n.pdu for n in made if n.rack == rack}) for rack in {n.rack for n in made}) == 2


def test_instances_of_a_cloud_hang_on_one_leaf_a_rack():
    """All EFA devices of a rack's instances share a leaf, and the node says which."""
    made, topology = _built("p5.48xlarge", 40)
    assert not topology.rails
    for node in made:
        assert {topology.leaf_name(node.index, i) for i in range(32)} == {node.leaf}
    assert len({n.leaf for n in made}) == len({n.rack for n in made})


def test_nvlink_domains_fill_their_racks():
    """The 18 nodes of an UltraServer stand in one rack and share one domain."""
    made, _ = _built("gb200-ultraserver", 36)
    assert Counter(n.rack for n in made) == {"rack-1": 18, "rack-2": 18}
    assert len({(n.rack, n.nvlink_domain) for n in made}) == 2


@pytest.mark.parametrize("kind", sorted(NODE_TYPES))
def test_the_same_fleet_is_cabled_the_same(kind):
    """Nothing is drawn; names are unique and every path leads over a spine."""
    (_, one), (_, other) = _built(kind, 24), _built(kind, 24)
    assert one.switches == other.switches
    assert np.array_equal(one.leaf_of, other.leaf_of)
    assert len(set(one.switches)) == len(one.switches)
    spines = one.spine_of(np.arange(PATHS))
    assert set(spines.tolist()) == set(range(len(one.leaves()), len(one.switches)))


def test_the_inventory_names_each_nics_own_leaf():
    """The strict reader takes it, and two NICs of a node are on two leaves while siblings of a rail share one."""
    world, _ = small()
    topology = inventory_from(inventory(world), "fleet").topology()
    leaf = {(n, i): topology.nics[(n, f"mlx5_{i}/1")].leaf for n in ("n01", "n02", "n04") for i in range(8)}
    assert len({leaf["n01", i] for i in range(8)}) == 8
    assert leaf["n01", 3] == leaf["n02", 3] != leaf["n04", 3]
    assert topology.nics[("n01", "mlx5_3/1")].rail == 3
