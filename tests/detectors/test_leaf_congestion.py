"""A leaf switch that holds all its ports back: told from congestion, which meets many leaves or few ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from core.plugins import load_plugins
from core.types import Verdict
from core.window import NicPlace, Window
from tests.contract.windows import Cluster

PLUGIN = load_plugins("detectors")["link_slow"]
MARKS, WAITS = "nic.congestion_marks_per_second", "nic.wait_ticks_per_second"
CARRIED = "nic.received_bytes_per_second"
RAIL = list(range(3, 32, 8))


def railed(window: Window) -> Window:
    """NIC i of each node hangs on the leaf of rail i."""
    nics = {(t.node or "", t.device or ""): NicPlace(t.node or "", t.device or "", c % 8, f"leaf-r{c % 8}")
            for c, t in enumerate(window.of_kind("nic"))}
    return replace(window, topology=replace(window.topology, nics=nics))


def verdicts(cluster: Cluster, rails: bool = True) -> list[Verdict]:
    window = cluster.window()
    found = PLUGIN.judge(railed(window) if rails else window, PLUGIN.params())
    return [v for v in found if v.state == "faulty"]


@pytest.mark.parametrize(("signal", "value"), [(MARKS, 9000.0), (WAITS, 8e6)], ids=["marks", "credits"])
def test_all_ports_of_a_rail_s_leaf_are_named(signal: str, value: float) -> None:
    """The other rails of the same nodes carry the same collectives and are well."""
    found = verdicts(Cluster().put(signal, value, 70, None, RAIL))
    assert [v.target.device for v in found] == ["mlx5_3/1"] * 4
    assert {(v.reason, v.onset_at) for v in found} == {("leaf_congested", int(Cluster().window().times[70]))}


def test_where_all_ports_of_a_node_share_a_leaf_its_job_s_other_nodes_are_the_measure() -> None:
    """Nodes 1 and 3 hang on one leaf, 0 and 2 on the other; one job runs on all of them."""
    columns = [*range(8, 16), *range(24, 32)]
    found = verdicts(Cluster().put(MARKS, 9000.0, 70, None, columns), rails=False)
    assert sorted({v.target.node for v in found}) == ["n001", "n003"]
    assert len(found) == 16


def test_a_fabric_that_gives_less_is_the_fleet_s() -> None:
    """All ports are held back and every job carries less: one port of each node, and no leaf alone."""
    cluster = Cluster().put(MARKS, 9000.0, 70).put("nic.received_bytes_per_second", 6e9, 70)
    found = two_jobs(cluster)
    assert sorted(v.target.node for v in found) == ["n000", "n001", "n002", "n003"]
    assert {v.reason for v in found} == {"fabric_congested"}


@pytest.mark.parametrize("alike", [
    lambda c: c.put(MARKS, 9000.0, 70),
    lambda c: c.put(MARKS, 9000.0, 70).put(CARRIED, 7.6e9, 70),
    lambda c: c.put(MARKS, 9000.0, 70).put(CARRIED, 6e9, 70, None, range(16)),
    lambda c: c.put(CARRIED, 6e9, 70),
    lambda c: c.put(MARKS, 9000.0, 70, None, range(28)).put(CARRIED, 6e9, 70),
], ids=["as much as before", "a little less", "one job less", "no port is held back", "some ports are not"])
def test_crowds_and_slow_jobs_are_no_slow_fabric(alike: Callable[[Cluster], Cluster]) -> None:
    """Much traffic marks all ports as well; a job that sends less has its own reason."""
    assert two_jobs(alike(Cluster())) == []


def two_jobs(cluster: Cluster) -> list[Verdict]:
    """As `verdicts`, with a job on each half of the nodes."""
    window = railed(cluster.window())
    jobs = tuple(replace(window.jobs[0], id=name, nodes=nodes) for name, nodes in (("a", ("n000", "n001")), ("b", ("n002", "n003"))))
    return [v for v in PLUGIN.judge(replace(window, jobs=jobs), PLUGIN.params()) if v.state == "faulty"]


@pytest.mark.parametrize("alike", [
    lambda c: c.put(MARKS, 9000.0, 70),
    lambda c: c.put(MARKS, 9000.0, 70, None, RAIL[:3]),
    lambda c: c.put(MARKS, 9000.0, 70, None, RAIL).put(MARKS, 3000.0, 70, None, [4, 5, 12, 13]),
    lambda c: c.put(MARKS, 9000.0, 96, None, RAIL),
    lambda c: c.put(MARKS, 9000.0, 0, None, RAIL),
    lambda c: c.put(MARKS, 500.0, 70, None, RAIL),
], ids=["everywhere", "not all of its ports", "others too", "a moment", "always so", "few marks"])
def test_congestion_is_no_fault(alike: Callable[[Cluster], Cluster]) -> None:
    """What many leaves, few ports or a moment show opens nothing."""
    assert verdicts(alike(Cluster())) == []
