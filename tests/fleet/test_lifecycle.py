"""Nodes outside service: provisioned and checked, replaced from the pool, repaired, retired, held by other hands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.types import Target
from fleet import health
from fleet.build import build_scenario, build_world
from fleet.frames import FleetDoor
from fleet.plants import NEVER
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario
from fleet.times import all_times, times
from tests.fleet.fleethelp import START, act, run_until

HOUR = 3600


def _world(durations: str = "real", nodes: int = 3, spares: int = 2, seed: int = 4):
    world, ops = build_world(nodes, spares, seed, START, before_seconds=300, durations=durations)
    return world, ops, FleetDoor(ops)


def _plant(world, name: str, node: str, device: str | None = None, severity: float | None = 0.4):
    planted = world.inject(name, Target("node", node, device), severity, seed=1, onset="step")
    planted.heals_at = NEVER
    world.advance(world.now_ms + 200_000)
    return planted


def _life(ops, node: str) -> list[str]:
    return [what for _, name, what in ops.life.history if name == node]


def _live(ops, hours: float) -> None:
    """Lets the nodes' lives go on without emulating what lies between."""
    world, end = ops.world, ops.world.now_ms + int(hours * HOUR * 1000)
    while (due := ops.life.next_ms) is not None and due <= end:
        world.now_ms = world._at = max(world.now_ms, due)
        world.knobs.reset()
        world.plants.apply(world, world.now_ms)
        ops.life.step(due)
    world.now_ms = world._at = end


# A defect, where it is, and the one test that finds it.
FOUND = [
    ("thermal_throttle", "5", "gpu_pressure"), ("gpu_slow", "1", "gpu_pressure"), ("power_cap", "0", "gpu_pressure"),
    ("ecc_correctable_storm", "2", "memory"), ("pcie_degraded", "3", "pcie"), ("packet_loss", "mlx5_4/1", "bandwidth"),
    ("nvlink_errors", "6", "bandwidth"), ("cpu_starved", None, "cpu"), ("disk_slow", None, "cpu"),
    ("service_down", None, "parts"), ("config_drift", None, "parts"), ("gpu_lost", "7", "parts"), ("pcie_nic", "mlx5_0/1", "nic_loopback"),
]


@pytest.mark.parametrize(("fault", "device", "test"), FOUND)
def test_each_test_finds_its_defects(fault, device, test):
    """The deep check fails on the test that can find the defect; healthy nodes beside it pass all of them."""
    world, _, _ = _world()
    _plant(world, fault, "n02", device)
    results = {r.test: r.passed for r in health.check(world, 1)}
    assert not results[test]
    assert not health.failed(health.check(world, 0))
    assert not health.failed(health.check(world, 4))


MISSED = [("gpu_slow", "1", 0.02), ("silent_corruption", "1", None)]


@pytest.mark.parametrize(("fault", "device", "severity"), MISSED)
def test_what_no_test_can_find_passes(fault, device, severity):
    """A slowness within the tolerance and a silent corruption pass the deepest check."""
    world, _, _ = _world()
    _plant(world, fault, "n02", device, severity)
    assert not health.failed(health.check(world, 1))


def test_shallow_checks_find_less():
    """Level 1 asks whether parts are there; only level 3 loads them."""
    world, _, _ = _world()
    _plant(world, "thermal_throttle", "n02", "5")
    assert [health.failed(health.check(world, 1, level)) for level in (1, 2, 3, 4)] == [False, False, True, True]


def test_a_switchs_fault_fails_the_spare_too():
    """Behind a lossy leaf every node fails the bandwidth test: a replacement does not take the switch's fault away."""
    world, _, door = _world("fast", nodes=4, spares=1)
    leaf = world.topology.leaf_name(4, 0)
    world.inject("leaf_loss", Target("switch", None, leaf), 0.5, seed=1, onset="step")
    world.advance(world.now_ms + 30_000)
    assert [r.test for r in health.check(world, 4) if not r.passed] == ["bandwidth"]
    act(door, "i/1/1", "replace", Target("node", "n01"))
    run_until(world, lambda: door.poll("i/1/1").state != "RUNNING")
    assert (door.poll("i/1/1").state, door.poll("i/1/1").reason) == ("FAILED", "diagnose_failed")
    assert world.faults[0].cured_at is None


def test_a_spare_that_fails_its_check_is_passed_over():
    """The faulty spare goes to repair, the next one serves; it all takes two provisionings."""
    world, ops, door = _world()
    _plant(world, "gpu_slow", "n04", "1")
    act(door, "i/1/1", "replace", Target("node", "n02"), 4 * HOUR)
    run_until(world, lambda: door.poll("i/1/1").state != "RUNNING", HOUR)
    outcome = door.poll("i/1/1")
    assert outcome.state == "DONE"
    assert 2 * 600 <= outcome.took_seconds <= 2 * 900 + 10
    states = {n.name: n.state for n in world.nodes}
    assert (states["n02"], states["n04"], states["n05"]) == ("drained", "drained", "in_service")
    assert "ticket" in _life(ops, "n04")


def test_provisioning_takes_ten_to_fifteen_minutes_and_ends_in_a_check():
    """A node that is set up anew joins the spares only after every test has passed."""
    world, ops, _ = _world()
    node = world.nodes[4]
    ops.life.provision(node, world.now_ms)
    took = run_until(world, lambda: node.state != "provisioning", HOUR)
    assert 600 <= took <= 905
    assert node.state == "spare"
    assert [name for _, name, _ in ops.life.reports] == ["n05"]
    assert {r.test for r in ops.life.reports[0][2]} == {name for name, _, _ in health.TESTS}


def test_a_replaced_node_is_repaired_and_comes_back_as_a_spare():
    """Ticket, repair by another hand, provisioning, spare; the defect is gone and the counters begin anew."""
    world, ops, door = _world()
    ops.life.times = replace(times("real"), recurs=0.0)
    planted, boards = _plant(world, "gpu_slow", "n02", "1"), world.nodes[1].uuids
    act(door, "i/1/1", "replace", Target("node", "n02"), 4 * HOUR)
    run_until(world, lambda: door.poll("i/1/1").state != "RUNNING", HOUR)
    assert planted.cured_by == "replace"
    assert planted.present
    _live(ops, 20)
    assert "repair" in _life(ops, "n02") or world.nodes[1].held_by == "greylag"
    _live(ops, 100)
    assert not planted.present
    assert (world.nodes[1].state, world.nodes[1].held_by) == ("spare", None)
    # The repaired GPU is another board in the same slot; its neighbours are the same.
    assert [a == b for a, b in zip(world.nodes[1].uuids, boards, strict=True)] == [i != 1 for i in range(8)]
    assert world.gpu_target(1, 1).id == world.nodes[1].uuids[1]
    assert _life(ops, "n02")[:3] == ["ticket", "repair", "provisioning"]


def test_a_node_under_repair_is_another_hands():
    """While somebody works on it every operation is refused by name."""
    world, ops, door = _world()
    node = world.nodes[4]
    node.state, node.held_by = "drained", "greylag"
    ops.life.send_to_repair(node, world.now_ms)
    while node.held_by != "repair":
        _live(ops, 1)
    assert (node.state, node.up) == ("down", False)
    assert act(door, "i/1/1", "undrain", Target("node", "n05")).reason == "other_hand"


def test_some_repaired_parts_fail_again_and_are_retired_in_the_end():
    """With every repair failing to hold, a node is given up after three."""
    world, ops, _ = _world()
    _plant(world, "gpu_slow", "n05", "1", 0.5)
    node = world.nodes[4]
    for _ in range(times("real").repairs_at_most + 1):
        node.state, node.held_by = "drained", "greylag"
        ops.life.send_to_repair(node, world.now_ms)
        _live(ops, 100)
    assert (node.state, node.held_by) == ("down", "retired")
    assert _life(ops, "n05").count("repair") == times("real").repairs_at_most


def test_a_recurring_defect_is_the_same_again():
    """When a repair does not hold, the same fault comes back on the same part within days."""
    world, ops, _ = _world(seed=11)
    first = _plant(world, "gpu_slow", "n05", "1", 0.5)
    ops.life.times = replace(times("real"), recurs=1.0)
    ops.life._repaired(world.nodes[4], world.now_ms, None)
    assert not first.present
    _live(ops, 300)
    again = world.faults[-1]
    assert again is not first
    assert (again.plugin.name, again.culprit, again.severity) == ("gpu_slow", first.culprit, first.severity)


def test_a_node_that_does_not_come_back_is_down_until_the_next_reboot():
    """Some reboots fail: the node is down, its exporters are silent, another reboot may bring it back."""
    world, ops, door = _world()
    node, results = world.nodes[4], set()
    for i in range(200):
        op = f"i/{i}/1"
        act(door, op, "reboot", Target("node", "n05"), 4 * HOUR)
        work = ops.running()[0]
        at = work.work.due()
        world.now_ms = world._at = at
        ops.step(at)
        results.add(door.poll(op).state)
        if door.poll(op).state == "FAILED":
            assert (node.state, node.up, node.held_by) == ("down", False, "greylag")
            assert door.poll(op).reason == "backend_failed"
            act(door, f"{op}/again", "reboot", Target("node", "n05"), 4 * HOUR)
            assert node.state == "rebooting"
            break
    assert "FAILED" in results


def test_a_reset_of_one_gpu_leaves_the_others_faults():
    """What a reset cures is cured on the GPU that was reset."""
    world, _, door = _world("fast")
    for device in ("1", "2"):
        world.inject("xid_95", Target("gpu", "n02", device), seed=1)
    act(door, "i/1/1", "drain", Target("node", "n02"))
    run_until(world, lambda: door.poll("i/1/1").state != "RUNNING")
    act(door, "i/1/2", "reset_gpu", Target("gpu", "n02", "1"))
    run_until(world, lambda: door.poll("i/1/2").state != "RUNNING")
    assert [p.cured_by for p in world.faults] == ["reset_gpu", None]


def test_restarting_a_service_does_not_touch_the_job():
    """`process` names a service of the node: its exporter is well again, the job runs on."""
    world, _, door = _world("fast")
    world.inject("exporter_stale", Target("node", "n02"), seed=1)
    run = world.jobs["train-1"].run
    act(door, "i/1/1", "restart_process", Target("node", "n02"), process="dcgm-exporter")
    run_until(world, lambda: door.poll("i/1/1").state != "RUNNING")
    assert world.faults[0].cured_by == "restart_process"
    assert world.jobs["train-1"].run == run


def test_hands_of_a_scenario_take_and_give_nodes():
    """Another hand drains a spare for a while; the door shows who."""
    scenario = Scenario("x", FleetSpec(2, 1, times="fast", before="1m"), duration="10m",
                        schedule=(Entry(hand="ann", node="n03", at="1m", for_="2m"),))
    world, _, _ = build_scenario(scenario)
    world.advance(scenario.start_ms + 90_000)
    assert (world.nodes[2].state, world.nodes[2].held_by) == ("drained", "ann")
    world.advance(scenario.start_ms + 200_000)
    assert (world.nodes[2].state, world.nodes[2].held_by) == ("spare", None)


def test_a_cold_fleet_is_provisioned_before_its_jobs_start():
    """All nodes are set up and checked for 10 to 15 minutes; then the job loads and trains."""
    scenario = Scenario("x", FleetSpec(2, 1, cold=True), (JobSpec("train-1"),), duration="30m")
    world, ops, _ = build_scenario(scenario)
    job = world.jobs["train-1"]
    assert {n.state for n in world.nodes} == {"provisioning"}
    took = run_until(world, lambda: job.alive)
    assert 600 <= took <= 910
    assert {node for _, node, _ in ops.life.reports} >= {"n01", "n02"}
    assert {n.state for n in world.nodes} <= {"in_service", "spare", "provisioning"}


def test_nobody_restarts_a_failed_job_unless_the_scenario_says_so():
    """`restart` brings a crashed job back after its time; without it the job stays as it is."""
    for restart, state in (("2m", "running"), (None, "failed")):
        scenario = Scenario("x", FleetSpec(2, 0, before="5m", times="fast"), (JobSpec("train-1", restart=restart),), duration="10m",
                            schedule=(Entry(fault="xid_94", at="1m", node="n01", device="0"),))
        world, _, _ = build_scenario(scenario)
        world.advance(scenario.start_ms + 260_000)
        assert world.jobs["train-1"].state == state


@pytest.mark.parametrize("name", sorted(all_times()))
def test_sets_of_times_know_every_stage(name):
    """Both sets have the same stages, spans that are spans, and shares that are shares."""
    one = times(name)
    assert set(one.seconds) == set(times("fast").seconds)
    assert all(0 <= low <= high for low, high in one.seconds.values())
    assert all(0 <= share < 0.5 for share in one.fails.values())
