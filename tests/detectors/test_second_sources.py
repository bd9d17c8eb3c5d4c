"""What detectors tell by a second source where the first is not shown: who is missing, what stands, whose slot is narrow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, Target, Verdict
from pipeline.correlate import correlate
from pipeline.detect import DetectLoop
from tests.contract.windows import JOB, START, STEP, Cluster, hang, slow_down

PLUGINS = load_plugins("detectors")


def judge(cluster: Cluster, detector: str) -> list[Verdict]:
    plugin = PLUGINS[detector]
    return [v for v in plugin.judge(cluster.window(), plugin.params()) if v.state == "faulty"]


def said(cluster: Cluster, detector: str) -> list[tuple[str, str]]:
    return [(v.target.key, v.reason) for v in judge(cluster, detector)]


# --- a hang: who never came -----------------------------------------------------------------------------------------------
def logged() -> Cluster:
    """The log of rank 0 is all that is known of the ranks, and rank 0 never came."""
    cluster = watched((0,))
    cluster.entities["rank"] = (Target("rank", job=JOB, rank=0),)
    cluster.signals = {n: v[:, :1] if n.startswith("rank.") else v for n, v in cluster.signals.items()}
    cluster.job = replace(cluster.job, ranks=(0,))
    return cluster


def watched(silent: tuple[int, ...], seq: int = 90, sized: bool = True) -> Cluster:
    """Two nodes hang, and the watchdogs of all ranks but the silent ones speak at once."""
    cluster = hang(Cluster(nodes=2, without=("rank.collective_seq",)), 20)
    cluster.job = replace(cluster.job, ranks_per_node=8 if sized else None)
    cluster.events += [Event(START + 1_100_000, Target("rank", None, job=JOB, rank=r), "nccl_watchdog", {"rank": r, "seq": seq})
                       for r in range(16) if r not in silent]
    return cluster


def blocked(cluster: Cluster, *nodes: str, at: int = 600) -> Cluster:
    cluster.events += [Event(START + at * 1000, Target("node", n), "kernel_error", {"subsystem": "hung_task"},
                             "INFO: task pt_data_worker:9 blocked for more than 122 seconds.") for n in nodes]
    cluster.events.sort(key=lambda e: e.at)
    return cluster


@pytest.mark.parametrize(("cluster", "key", "reason"), [
    (watched((4,)), f"rank:{JOB}/4", "never_entered"), (logged(), f"rank:{JOB}/0", "never_entered"),
    (watched(tuple(range(8, 16))), "node:n001/", "never_entered"),
    (watched((4,), sized=False), f"job:{JOB}/", "watchdog_equal"),
    (watched((4, 12)), f"job:{JOB}/", "watchdog_equal"),
    (watched((4, 5)), f"job:{JOB}/", "watchdog_equal"),
    (watched(()), f"job:{JOB}/", "watchdog_equal"),
], ids=["one rank", "the rank that logs", "one node", "size unknown", "on two nodes", "a part of a node", "nobody"])
def test_who_never_entered_the_collective_is_named(cluster: Cluster, key: str, reason: str) -> None:
    """Where all others of a job of known size wait in one collective, the rank or the node that says nothing is behind."""
    assert said(cluster, "stalled_loss") == [(key, reason)]


@pytest.mark.parametrize(("kernel", "low", "high"), [(False, 0.7, 0.78), (True, 0.8, 0.88)])
def test_a_node_that_never_came_is_sure_enough_to_act_on_only_where_its_kernel_says_so(kernel: bool, low: float, high: float) -> None:
    """Which node a rank stands on is inferred: without a word of the node itself the incident stays below what policies act on."""
    cluster = watched(tuple(range(8, 16)))
    window = (blocked(cluster, "n001", at=1000) if kernel else cluster).window()
    loop = DetectLoop({"stalled_loss": PLUGINS["stalled_loss"]}, {})
    (group,) = correlate(window, loop.run(window).opened)
    assert (group.culprit.target.node, group.culprit.scope) == ("n001", "node")
    assert low <= group.culprit.confidence <= high


@pytest.mark.parametrize(("nodes", "at", "key"), [
    (("n001",), 600, "node:n001/"), (("n000", "n001"), 600, f"job:{JOB}/"), (("n001",), 100, f"job:{JOB}/")])
def test_the_node_with_blocked_tasks_holds_the_job_up(nodes: tuple[str, ...], at: int, key: str) -> None:
    """Only one node's kernel, and only since the job stopped."""
    cluster = blocked(hang(Cluster(nodes=2, without=("rank.collective_seq",)), 20), *nodes, at=at)
    assert [k for k, _ in said(cluster, "stalled_loss")] == [key]


def stuck(*nodes: int, since: int = 40, kernel: tuple[str, ...] = ()) -> Cluster:
    """A hang after tick 40, and mounts that node_exporter cannot ask since a tick."""
    cluster = blocked(hang(Cluster(nodes=2, without=("rank.collective_seq",)), 40), *kernel, at=900)
    cluster.signals["mount.device_error"] = np.zeros((100, 2))
    for node in nodes:
        cluster.put("mount.device_error", 1.0, since, None, [node])
    return cluster


@pytest.mark.parametrize(("cluster", "key", "reason"), [
    (stuck(1), "node:n001/", "mount_silent"), (stuck(1, kernel=("n001",)), "node:n001/", "mount_silent"),
    (stuck(1, since=24), "node:n001/", "mount_silent"), (stuck(0, 1), f"job:{JOB}/", "no_step"), (stuck(1, since=2), f"job:{JOB}/", "no_step"),
    (stuck(1, kernel=("n000",)), f"job:{JOB}/", "no_step")],
    ids=["its mount", "its kernel too", "while its queue lasted", "on all nodes", "long before", "another's kernel"])
def test_the_node_whose_mount_answers_no_more_holds_the_job_up(cluster: Cluster, key: str, reason: str) -> None:
    """A stuck mount is told of by node_exporter, on one node and since the job stopped."""
    assert said(cluster, "stalled_loss") == [(key, reason)]


# --- what stands ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("since", "found"), [(50, [("node:n001/", "clock_stands")]), (96, [])])
def test_an_old_page_of_node_exporter_shows_by_its_clock(since: int, found: list[tuple[str, str]]) -> None:
    """The node's clock stands on pages that come; four pages of it are needed, and two minutes."""
    times = START / 1000 + STEP * np.arange(100.0)
    cluster = Cluster().put("node.time_seconds", times[:, None], 0)
    cluster.put("node.time_seconds", times[since], since, None, [1])
    assert said(cluster, "exporter_stale") == found


def held(stands: str) -> Cluster:
    """A GPU at two thirds of its clock; its power stands and the clock wanders, or the other way round."""
    cluster = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio"))
    rng = cluster.rng("held")
    power, clock = np.full(50, 400.0) + rng.uniform(-6, 6, 50), np.full(50, 1320e6)
    if stands == "power":
        clock = clock + 15e6 * rng.integers(-2, 3, 50)
    else:
        power = power + rng.normal(0, 15, 50)
    cluster.put("gpu.power_watts", power[:, None], 50, None, [11])
    return cluster.put("gpu.sm_clock_hertz", clock[:, None], 50, None, [11])


@pytest.mark.parametrize(("stands", "fault"), [("power", "power_cap"), ("clock", "clock_loss")])
def test_what_stands_tells_what_holds_a_clock(stands: str, fault: str) -> None:
    """Under a hidden limit of power the power stands; where the clock itself is stuck, it does."""
    cluster = held(stands)
    found = {name: [v.target.key for v in judge(cluster, name)] for name in ("power_cap", "clock_loss")}
    assert found == {"power_cap": [], "clock_loss": [], fault: ["gpu:GPU-n001-3"]}


def test_a_clock_that_fell_in_two_readings_and_stands_is_held_by_no_limit_of_power() -> None:
    """The first low reading is on its way to where the clock stands, beside a power that stands too."""
    cluster = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio"))
    power = np.full(12, 400.0) + cluster.rng("stands").uniform(-2, 2, 12)
    cluster.put("gpu.power_watts", power[:, None], 88, None, [11]).put("gpu.sm_clock_hertz", 1320e6, 88, None, [11])
    cluster.put("gpu.sm_clock_hertz", 1410e6, 88, 89, [11])
    assert judge(cluster, "power_cap") == []


@pytest.mark.parametrize(("nodes", "clock", "apart", "ramp", "found"), [
    (3, 1320e6, 6.0, 1, 24), (3, 1320e6, 6.0, 60, 24), (4, 1320e6, 6.0, 1, 0), (3, 1980e6, 6.0, 1, 0), (3, 1320e6, 60.0, 1, 0)],
    ids=["most of a job", "bit by bit", "all boards there are", "lighter work", "each at its own"])
def test_a_limit_that_many_boards_were_given_at_once(nodes: int, clock: float, apart: float, ramp: int, found: int) -> None:
    """Their power stands at one value below what each drew, their clocks below what they were, and other boards keep theirs."""
    cluster = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio"))
    rng, columns = cluster.rng("together"), list(range(8 * nodes))
    own, shape = rng.uniform(-apart, apart, len(columns)), (50, len(columns))
    level = 620.0 - 200.0 * np.minimum(1.0, (np.arange(50)[:, None] + 1) / ramp)
    cluster.put("gpu.power_watts", level + own + rng.uniform(-6, 6, shape), 50, None, columns)
    cluster.put("gpu.sm_clock_hertz", clock + (clock < 1980e6) * 15e6 * rng.integers(-2, 3, shape), 50, None, columns)
    assert len(judge(cluster, "power_cap")) == found


def test_boards_at_the_limit_that_they_always_had_are_well() -> None:
    """Kernels that ask for more bring a job's boards to their limit; that they drew less in a save lowers the mean, not the limit."""
    cluster = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio"))
    rng, columns = cluster.rng("asked for more"), list(range(24))
    cluster.put("gpu.power_watts", 685.0 + rng.uniform(-12, 12, (60, 24)), 40, None, columns)
    cluster.put("gpu.sm_clock_hertz", 1815e6 + 15e6 * rng.integers(-2, 3, (60, 24)), 40, None, columns)
    cluster.put("gpu.power_watts", 480.0, 90, 92, columns).put("gpu.sm_clock_hertz", 1980e6, 90, 92, columns)
    assert judge(cluster, "power_cap") == []


def test_the_hungriest_board_at_its_limit_is_well_though_a_save_lowers_its_mean() -> None:
    """It stands at the limit above what the others draw; readings in saves bring its mean of minutes below theirs."""
    cluster = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio"))
    rng = cluster.rng("hungry")
    cluster.put("gpu.power_watts", (685.0 + rng.uniform(-8, 8, 60))[:, None], 40, None, [11])
    cluster.put("gpu.sm_clock_hertz", (1845e6 + 15e6 * rng.integers(-2, 3, 60))[:, None], 40, None, [11])
    for row in range(40, 100, 4):
        cluster.put("gpu.power_watts", 125.0, row, row + 1, [11]).put("gpu.sm_clock_hertz", 1980e6, row, row + 1, [11])
    assert judge(cluster, "power_cap") == []


# --- links and slots ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("resting", "ticks", "found"), [(True, 12, 0), (True, 50, 8), (False, 12, 8)])
def test_works_on_a_switch_that_nobody_uses_are_no_fault(resting: bool, ticks: int, found: int) -> None:
    """Ports that go down on a resting node are told when they stay down, those of a working node at once."""
    cluster = Cluster()
    if resting:
        cluster.put("gpu.utilization_ratio", 0.0, 100 - ticks - 6, None, list(range(8, 16)))
    cluster.put("nic.link_up", 0.0, 100 - ticks, None, list(range(8, 16)))
    assert len(judge(cluster, "link_down")) == found


def slots(cluster: Cluster, nodes: tuple[int, ...], lanes: float, since: int) -> Cluster:
    """Each node has a NIC enp56s0np0; those of some nodes have so many lanes."""
    cluster.entities["link"] = tuple(Target("link", n, "0000:38:00.0") for n in cluster.names)
    cluster.entities["nic"] = tuple(Target("nic", t.node, "enp56s0np0") if c % 8 == 3 else t for c, t in enumerate(cluster.entities["nic"]))
    cluster.put("link.pcie_width", 16.0, 0)
    return cluster.put("link.pcie_width", lanes, since, None, list(nodes))


@pytest.mark.parametrize(("nodes", "since", "found"), [((1,), 50, 1), ((1,), 0, 1), ((0, 1, 2, 3), 0, 0)],
                         ids=["trained down", "narrower than its peers", "all by design"])
def test_a_nic_in_a_narrow_slot_is_told_by_its_address(nodes: tuple[int, ...], since: int, found: int) -> None:
    """The name of the interface holds the PCI address whose lanes are shown; the same slot of other nodes says what is right."""
    assert [v.target.device for v in judge(slots(Cluster(), nodes, 4.0, since), "pcie_degraded")] == ["enp56s0np0"] * found


# --- clients of shared storage ----------------------------------------------------------------------------------------------------
def storage(slow: tuple[int, ...], pressed: bool = True) -> Cluster:
    """Four clients of two targets; the calls of some take twice as long from tick 50 on."""
    cluster = Cluster(trainer=False)
    cluster.entities["storage"] = tuple(Target("storage", n, f"scratch-OST000{i}") for n in cluster.names for i in range(2))
    cluster.put("storage.wait_seconds", 0.001 * cluster.rng("waits").normal(1, 0.05, (100, 8)), 0)
    for node in slow:
        cluster.put("storage.wait_seconds", 0.0022, 50, None, [2 * node, 2 * node + 1])
        cluster.put("node.io_waiting_ratio", 0.4 if pressed else 0.006, 50, None, [node])
    return cluster


@pytest.mark.parametrize(("cluster", "found"), [
    (storage((1,)), [("mount:n001//scratch", "client_slow")]), (storage((1,), pressed=False), []), (storage((0, 1, 2)), []), (storage(()), [])],
    ids=["one client", "whose node does not wait", "most clients", "none"])
def test_a_client_that_is_slow_alone_stalls_its_node(cluster: Cluster, found: list[tuple[str, str]]) -> None:
    """Its calls take twice as long, the others' do not, and its node's tasks wait for I/O."""
    assert said(cluster, "data_stall") == found


# --- CPU ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("spans", "found"), [
    ([(50, 58), (68, 76), (86, 100)], ["waits_for_cpu"]), ([(94, 100)], []), ([(50, 58)], [])],
    ids=["again and again", "a burst", "long ago"])
def test_waiting_for_cpu_that_comes_and_goes_counts_together(spans: list[tuple[int, int]], found: list[str]) -> None:
    """Minutes of it within a quarter of an hour are starvation, one burst is none."""
    cluster = Cluster()
    for start, stop in spans:
        cluster.put("node.cpu_waiting_ratio", 0.7, start, stop, [1])
    assert [reason for _, reason in said(cluster, "cpu_starved")] == found


@pytest.mark.parametrize(("columns", "found"), [([1], ["throttles_itself"]), ([0, 1, 2, 3], [])])
def test_a_package_that_slows_itself_for_heat_starves_its_node(columns: list[int], found: list[str]) -> None:
    """Its kernel counts throttles all the time and those of the others do not."""
    cluster = Cluster().put("node.cpu_throttles_per_second", 0.0, 0).put("node.cpu_throttles_per_second", 4.0, 50, None, columns)
    assert [reason for _, reason in said(cluster, "cpu_starved")] == found


# --- a slower job ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ports", "found"), [([3, 11], []), ([], ["slower_than_before"]), (list(range(32)), ["slower_than_before"])],
                         ids=["two ports wait", "none does", "all do"])
def test_flows_that_share_a_path_are_no_drop_of_the_job(ports: list[int], found: list[str]) -> None:
    """A few ports that have data and cannot send slow everybody; that is the network's, and nobody changed the job."""
    cluster = slow_down(Cluster(trainer=True), 50)
    cluster.put("nic.wait_ticks_per_second", 4e7, 50, None, ports)
    assert [reason for _, reason in said(cluster, "throughput_drop")] == found


@pytest.mark.parametrize(("power", "clock", "found"), [
    (1.08, 0.9, []), (0.85, 0.9, ["slower_than_before"]), (1.0, 1.0, ["slower_than_before"])],
    ids=["more power, less clock", "less of both", "as before"])
def test_kernels_that_run_into_the_boards_limit_are_no_drop(power: float, clock: float, found: list[str]) -> None:
    """A low clock at the limit of power is what the limit is for, for all GPUs of a job as for one."""
    cluster = slow_down(Cluster(), 50)
    for signal, factor in (("gpu.power_watts", power), ("gpu.sm_clock_hertz", clock)):
        cluster.signals[signal][50:] *= factor
    assert [reason for _, reason in said(cluster, "throughput_drop")] == found
