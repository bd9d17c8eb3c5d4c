"""Every detector keeps these promises; a new one is picked up by itself and must bring a scenario of its own fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest

from core.events import KINDS as EVENT_KINDS
from core.faults import faults
from core.plugins import load_plugins
from core.signals import SIGNALS
from core.types import Event, Target
from core.window import Block, Window
from pipeline.detect import BOOT_GRACE_MS, DetectLoop
from tests.contract import gpu_plants, host_plants, windows
from tests.contract.windows import Cluster

PLUGINS = load_plugins("detectors")
NAMES = sorted(PLUGINS)


@dataclass(frozen=True)
class Scenario:
    """How to plant the detector's own fault, and the key of the part that it must name.

    of_greylag: the parts are Greylag's own processes, which say the same whether or not nodes are silent. of_several: it
    takes several nodes to be seen.
    """

    plant: Callable[[object, int], object]
    culprit: str
    of_greylag: bool = False
    of_several: bool = False


SCENARIOS: dict[str, Scenario] = {
    "thermal_throttle": Scenario(lambda c, at: windows.throttle(c, 11, at), "gpu:GPU-n001-3"),
    "packet_loss": Scenario(lambda c, at: windows.lose(c, 11, at), "nic:n001/mlx5_3/1"),
    "collector_starved": Scenario(lambda c, at: windows.starve(c, 11, at), "collector:/collector-n001", of_greylag=True),
    "nvlink_errors": Scenario(lambda c, at: c.put("gpu.nvlink_errors_per_second", 3.0, at, None, [11]), "gpu:GPU-n001-3"),
    "exporter_stale": Scenario(lambda c, at: windows.stand(c, 1, at), "node:n001/"),
    "cpu_starved": Scenario(lambda c, at: c.put("node.cpu_steal_ratio", 0.3, at, None, [1]), "node:n001/"),
    "link_down": Scenario(lambda c, at: c.put("nic.link_up", 0.0, at, None, [11]), "nic:n001/mlx5_3/1"),
    "link_flap": Scenario(lambda c, at: c.put("nic.link_downed_per_second", 0.02, at, None, [11]), "nic:n001/mlx5_3/1"),
    "link_slow": Scenario(lambda c, at: c.put("nic.rate_bytes_per_second", 2.5e10, at, None, [11]), "nic:n001/mlx5_3/1"),
    "power_brake": Scenario(lambda c, at: c.put("gpu.throttle_reasons_bits", float(0x88), at, None, [11]), "gpu:GPU-n001-3"),
    "power_cap": Scenario(lambda c, at: c.put("gpu.power_limit_watts", 400.0, at, None, [11]), "gpu:GPU-n001-3"),
    "memory_pressure": Scenario(lambda c, at: windows.press(c, 1, at), "node:n001/"),
    "clock_skew": Scenario(lambda c, at: c.put("node.clock_offset_seconds", 0.2, at, None, [1]), "node:n001/"),
    "disk_full": Scenario(lambda c, at: c.put("mount.available_bytes", 1e10, at, None, [1]), "mount:n001//scratch"),
    "xid_fatal": Scenario(lambda c, at: windows.gauge_xid(c, 11, at, 119), "gpu:GPU-n001-3"),
    "ecc_uncorrectable": Scenario(lambda c, at: windows.gauge_xid(c, 11, at, 48), "gpu:GPU-n001-3"),
    "row_remap_failure": Scenario(lambda c, at: c.put("gpu.row_remap_failed", 1.0, at, None, [11]), "gpu:GPU-n001-3"),
    "gpu_lost": Scenario(lambda c, at: windows.vanish(c, 11, at), "gpu:GPU-n001-3"),
    "nonfinite_loss": Scenario(windows.not_finite, "job:llm/"),
    "ecc_correctable_storm": Scenario(lambda c, at: c.put("gpu.ecc_correctable_per_second", 40.0, at, None, [11]),
                                      "gpu:GPU-n001-3"),
    "pcie_degraded": Scenario(lambda c, at: c.put("gpu.pcie_link_width", 8.0, at, None, [11]), "gpu:GPU-n001-3"),
    "clock_loss": Scenario(lambda c, at: gpu_plants.lose_clock(c, 11, at), "gpu:GPU-n001-3"),
    "gpu_slow": Scenario(lambda c, at: gpu_plants.slow_rank(c, 11, at), "gpu:GPU-n001-3"),
    "gpu_memory_leaked": Scenario(lambda c, at: gpu_plants.leak(c, 11, at), "gpu:GPU-n001-3"),
    "cooling_fault": Scenario(gpu_plants.heat_loop, "cooling:/loop1", of_several=True),
    "throughput_drop": Scenario(windows.slow_down, "job:llm/"),
    "straggler": Scenario(lambda c, at: windows.lag(c, 11, at), "rank:llm/11"),
    "data_stall": Scenario(windows.wait_for_data, "job:llm/"),
    "exporter_partial": Scenario(lambda c, at: host_plants.drop_fields(c, [11], at), "gpu:GPU-n001-3"),
    "target_down": Scenario(lambda c, at: host_plants.stop_exporter(c, 1, at), "node:n001/"),
    "service_down": Scenario(lambda c, at: host_plants.stop_service(c, 1, at), "node:n001/"),
    "config_drift": Scenario(lambda c, at: host_plants.set_label(c, 1, at), "node:n001/", of_several=True),
    "storage_slow": Scenario(host_plants.slow_storage, "storage:/scratch", of_several=True),
    "disk_slow": Scenario(lambda c, at: host_plants.slow_disk(c, 1, at), "disk:n001/nvme1n1"),
    "stalled_loss": Scenario(lambda c, at: windows.hang(c, at, behind=11), "rank:llm/11"),
    "loss_spike": Scenario(windows.spike, "job:llm/"),
    "checkpoint_stale": Scenario(windows.stop_saving, "job:llm/"),
    "job_crash_loop": Scenario(windows.crash_at_one_step, "job:llm/"),
    "silent_corruption": Scenario(lambda c, at: windows.corrupt(c, 11, at), "rank:llm/11"),
    "inference_slow": Scenario(windows.answer_slowly, "job:chat/"),
}


def judge(name: str, window: Window) -> list:
    plugin = PLUGINS[name]
    return list(plugin.judge(window, plugin.params()))


def states(verdicts: list) -> dict[str, tuple]:
    return {v.target.key: (v.state, v.reason, v.severity, v.onset_at, tuple((t.key, w, r) for t, w, r in v.suspects))
            for v in verdicts}


def faulty(verdicts: list) -> list[str]:
    return [v.target.key for v in verdicts if v.state == "faulty"]


@pytest.mark.parametrize("name", NAMES)
def test_declares_itself(name: str) -> None:
    """Fault, needs, parameters, hold and look-alikes are declared with known names and documented fields."""
    plugin = PLUGINS[name]
    assert plugin.fault in faults()
    assert plugin.needs
    assert all(s in SIGNALS or s in EVENT_KINDS for group in plugin.needs for s in group)
    assert is_dataclass(plugin.params)
    assert all(f"{f.name}" in (plugin.params.__doc__ or "") for f in fields(plugin.params))
    assert "Sources:" in (plugin.params.__doc__ or "")
    assert 1 <= plugin.hold.on <= plugin.hold.of
    assert plugin.hold.off >= 1
    assert plugin.must_not


def test_every_fault_has_a_detector() -> None:
    """The closed list of faults is that of the detectors."""
    assert {plugin.fault for plugin in PLUGINS.values()} == set(faults())


@pytest.mark.parametrize("name", NAMES)
def test_has_a_scenario(name: str) -> None:
    """A detector without a scenario of its own fault is not tested."""
    assert name in SCENARIOS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("interval", [15, 30, 60])
def test_finds_its_own_fault_on_the_right_part_only(name: str, interval: int) -> None:
    """The planted fault is named at its place, with evidence and onset, and nothing else is."""
    cluster = SCENARIOS[name].plant(Cluster(interval=interval), 60)
    found = judge(name, cluster.window())
    assert faulty(found) == [SCENARIOS[name].culprit]
    verdict = next(v for v in found if v.state == "faulty")
    assert verdict.fault == PLUGINS[name].fault
    assert verdict.evidence
    assert 0.3 <= verdict.severity <= 1.0
    assert verdict.reason
    assert abs(verdict.onset_at - (windows.START + 60 * 15_000)) <= 60_000 + interval * 1000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", [8, 20, 60])
def test_speaks_in_time_and_keeps_its_word(name: str, start: int) -> None:
    """Within four minutes the fault is seen, and it stays seen for as long as it lasts."""
    cluster = SCENARIOS[name].plant(Cluster(ticks=120), start)
    for upto in (start + 17, start + 30, 120):
        assert faulty(judge(name, cluster.window(upto))) == [SCENARIOS[name].culprit], upto


@cache
def healthy(nic: str, seed: int) -> tuple[Window, ...]:
    """Windows of several lengths, shared by all detectors: they are read-only."""
    cluster = Cluster(nodes=3, seed=seed, nic=nic)
    return tuple(cluster.window(upto) for upto in (1, 2, 5, 9, 17, 33, 64, 100))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nic", ["rdma", "efa", "ethernet"])
def test_is_silent_on_a_healthy_fleet(name: str, nic: str) -> None:
    """Healthy noise of several seeds and all lengths of the window gives no fault, and says clear at its end."""
    for seed in range(3):
        for window in healthy(nic, seed):
            found = judge(name, window)
            assert not faulty(found), (seed, len(window.times))
        assert any(v.state == "clear" for v in found)


@pytest.mark.parametrize("name", NAMES)
def test_leaves_its_input_untouched_and_says_the_same_twice(name: str) -> None:
    """Windows are read-only (writing raises), and the answer depends on nothing else."""
    window = SCENARIOS[name].plant(Cluster(), 60).window()
    assert judge(name, window) == judge(name, window)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("planted", [True, False])
def test_order_of_parts_does_not_matter(name: str, planted: bool) -> None:
    """Permuted columns give the same words on the same parts."""
    cluster = Cluster()
    if planted:
        SCENARIOS[name].plant(cluster, 60)
    rng = np.random.default_rng(5)
    order = {kind: rng.permutation(len(parts)) for kind, parts in cluster.entities.items()}
    assert states(judge(name, cluster.window(order=order))) == states(judge(name, cluster.window()))


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_window_says_nothing(name: str) -> None:
    """No parts, no ticks: no verdict and no error."""
    nothing = Window(windows.START, 15, np.zeros(0, np.int64), {}, {})
    no_parts = Window(windows.START, 15, np.array([windows.START]), {}, {}, jobs=(Cluster(ticks=1).job,))
    assert judge(name, nothing) == []
    assert judge(name, replace(no_parts, jobs=(replace(no_parts.jobs[0], ranks=()),))) == []


@pytest.mark.parametrize("name", NAMES)
def test_all_missing_is_unknown(name: str) -> None:
    """Parts of which every value is missing are neither faulty nor clear."""
    cluster = SCENARIOS[name].plant(Cluster(), 60)
    for values in cluster.signals.values():
        values[:] = np.nan
    assert judge(name, cluster.window()) == []


@pytest.mark.parametrize("name", NAMES)
def test_old_data_is_unknown(name: str) -> None:
    """What is ten minutes old is no evidence of the present, bad or good."""
    cluster = SCENARIOS[name].plant(Cluster(), 40)
    for values in cluster.signals.values():
        values[-38:] = np.nan
    assert judge(name, cluster.window()) == []


@pytest.mark.parametrize("name", NAMES)
def test_silent_nodes_say_nothing(name: str) -> None:
    """Where no input of the nodes and of the job goes on, nothing is judged."""
    cluster = SCENARIOS[name].plant(Cluster(), 60)
    cluster.job = replace(cluster.job, silent=True)
    found = judge(name, cluster.window(silent=tuple(cluster.names)))
    assert found == (judge(name, cluster.window()) if SCENARIOS[name].of_greylag else [])


@pytest.mark.parametrize("name", NAMES)
def test_a_single_node_is_judged(name: str) -> None:
    """Eight GPUs and NICs are peers enough."""
    healthy = judge(name, Cluster(nodes=1).window())
    plant = SCENARIOS[name].plant
    culprit = SCENARIOS[name].culprit.replace("n001", "n000").replace("/11", "/3")

    class Shifted(Cluster):
        pass

    cluster = Shifted(nodes=2)
    plant(cluster, 60)
    one = Cluster(nodes=1)
    for signal, values in cluster.signals.items():
        half = values.shape[1] // 2
        one.signals[signal] = values[:, half:].copy()
    assert not faulty(healthy)
    assert faulty(judge(name, one.window())) == ([] if SCENARIOS[name].of_several else [culprit])


def late(cluster: Cluster, ticks: int, node: str | None) -> Cluster:
    """The newest ticks of all parts of the node, and of what stands on none, did not come (None: of all parts)."""
    for signal, values in cluster.signals.items():
        parts = cluster.entities[SIGNALS[signal].kind]
        values[-ticks:, [e for e, part in enumerate(parts) if node is None or part.node in (None, node)]] = np.nan
    return cluster


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ticks", [1, 2])
@pytest.mark.parametrize("node", [None, "n001"])
def test_late_readings_change_no_word(name: str, ticks: int, node: str | None) -> None:
    """Where the newest readings are late, of one node or of all, a part is what it was or unknown, and no other is at fault."""
    plant = SCENARIOS[name].plant
    in_time = {v.target.key: v.state for v in judge(name, plant(Cluster(), 60).window())}
    changed = [(v.target.key, v.state) for v in judge(name, late(plant(Cluster(), 60), ticks, node).window())
               if v.state not in ("unknown", in_time.get(v.target.key, "clear"))]
    assert changed == []
    assert not faulty(judge(name, late(Cluster(), ticks, node).window()))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_opens_within_the_grace_of_a_boot(name: str) -> None:
    """What a node shows in the five minutes after its boot opens nothing on its parts; ranks, jobs and what stands on no node have none."""
    at, ticks = 40, BOOT_GRACE_MS // 15_000
    cluster = SCENARIOS[name].plant(Cluster(ticks=at + ticks + 4), at)
    cluster.events += [Event(windows.START + 15_000 * (at - 1), Target("node", node), "boot", {}) for node in cluster.names]
    loop = DetectLoop({name: PLUGINS[name]}, {})
    opened = [f.target for upto in range(at - 4, at + ticks) for f in loop.run(cluster.window(upto)).opened]
    assert [t.key for t in opened if t.node is not None and t.kind not in ("rank", "job")] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [4, 12])
def test_a_gap_is_no_fault(name: str, length: int) -> None:
    """Minutes without any scrape, and the counters' missing rate after them, are no fault."""
    cluster = Cluster()
    for values in cluster.signals.values():
        values[90 - length:90] = np.nan
    for upto in (91, 93, 100):
        assert not faulty(judge(name, cluster.window(upto))), upto


@pytest.mark.parametrize("name", NAMES)
def test_a_counter_reset_is_no_fault(name: str) -> None:
    """An exporter that starts again gives one missing rate on all its counters."""
    cluster = Cluster()
    for signal, values in cluster.signals.items():
        if "per_second" in signal or signal.endswith("violation_ratio"):
            values[92, :8] = np.nan
    for upto in range(93, 100):
        assert not faulty(judge(name, cluster.window(upto)))


@pytest.mark.parametrize("name", NAMES)
def test_recovery_is_seen(name: str) -> None:
    """Ten minutes after the fault is gone the part is clear."""
    healthy = Cluster(ticks=120)
    cluster = SCENARIOS[name].plant(Cluster(ticks=120), 30)
    for signal, values in cluster.signals.items():
        values[80:] = healthy.signals[signal][80:] if signal in healthy.signals else 0
    found = {v.target.key: v.state for v in judge(name, cluster.window())}
    assert found[SCENARIOS[name].culprit] == "clear"


def _large() -> Window:
    """1,000 nodes × 8, 120 ticks; columns repeat a small cluster's."""
    base = Cluster(nodes=4, ticks=120)
    big = Cluster(nodes=4, ticks=1)
    big.nodes, big.ticks = 1000, 120
    names = [f"n{i:04d}" for i in range(1000)]
    kinds = {kind: len(parts) // 4 for kind, parts in base.entities.items()}
    entities = {k: tuple(replace(base.entities[k][c % per], node=n, id=None, rank=i * 8 + c if k == "rank" else None)
                         for i, n in enumerate(names) for c in range(per)) for k, per in kinds.items()}
    window = base.window()
    blocks: dict[str, Block] = {}
    for name, block in window.blocks.items():
        n = len(entities[SIGNALS[name].kind])
        one = np.ones(n)
        blocks[name] = Block(name, entities[SIGNALS[name].kind], np.tile(block.values, (1, 250)), 0 * one, 15 * one,
                             one * windows.START)
    job = replace(window.jobs[0], nodes=tuple(names), ranks=tuple(range(8000)))
    return replace(window, entities=entities, blocks=blocks, jobs=(job,))


LARGE: list[Window] = []


@pytest.mark.parametrize("name", NAMES)
def test_time_budget(name: str) -> None:
    """1,000 nodes cost no more than a few sorts of one signal: a ratio, for machines differ."""
    if not LARGE:
        LARGE.append(_large())
    window = LARGE[0]
    values = np.random.default_rng(1).random((120, 8000))
    best = min(_seconds(lambda: np.sort(values, axis=0)) for _ in range(3))
    mine = min(_seconds(lambda: judge(name, window)) for _ in range(2))
    assert mine <= 40 * best, (mine, best)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
