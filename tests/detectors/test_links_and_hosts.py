"""Links, power, memory, clocks and file systems: what must stay silent, and what is told by other means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, Target
from tests.contract.windows import START, Cluster

PLUGINS = load_plugins("detectors")
NIC, NODE = Target("nic", "n001", "mlx5_3/1"), Target("node", "n001")


def faulty(cluster: Cluster, detector: str, **more: object) -> list[str]:
    plugin = PLUGINS[detector]
    return [v.target.key for v in plugin.judge(cluster.window(**more), plugin.params()) if v.state == "faulty"]


def events(cluster: Cluster, target: Target, kind: str, *ticks: int) -> Cluster:
    cluster.events += [Event(START + 15_000 * t, target, kind, {}, f"a line about {kind}") for t in ticks]
    return cluster


def never_up(c: Cluster) -> Cluster:
    return c.put("nic.link_up", 0.0, 0, None, [11])


def one_flap(c: Cluster) -> Cluster:
    c.put("nic.link_downed_per_second", 1 / 15, 90, 91, [11])
    return c.put("nic.link_up", 0.0, 90, 92, [11])


def two_flaps_far_apart(c: Cluster) -> Cluster:
    return c.put("nic.link_downed_per_second", 1 / 15, 65, 66, [11]).put("nic.link_downed_per_second", 1 / 15, 95, 96, [11])


def two_flaps_of_a_node(c: Cluster) -> Cluster:
    for tick in (80, 92):
        c.put("nic.link_downed_per_second", 1 / 15, tick, tick + 1, list(range(8, 16)))
    return c


def flaps_long_ago(c: Cluster) -> Cluster:
    return c.put("nic.link_downed_per_second", 1 / 15, 2, 8, [11])


def storage_nic(c: Cluster) -> Cluster:
    return c.put("nic.rate_bytes_per_second", 1.25e10, 0, None, list(range(3, 32, 8)))


def capped(c: Cluster) -> Cluster:
    c.put("gpu.power_watts", 698.0, 20, None, [11])
    c.put("gpu.throttle_reasons_bits", 4.0, 20, None, [11])
    return c.put("gpu.sm_clock_hertz", 1500e6, 20, None, [11])


def fleet_wide_limit(c: Cluster) -> Cluster:
    return c.put("gpu.power_limit_watts", 500.0, 50)


def heat(c: Cluster) -> Cluster:
    return c.put("gpu.throttle_reasons_bits", float(0x48), 50, None, [11])


def little_left(c: Cluster) -> Cluster:
    return c.put("node.memory_available_bytes", 4e10, 50, None, [1])


def cache_stalls(c: Cluster) -> Cluster:
    return c.put("node.memory_stalled_ratio", 0.3, 50, None, [1])


def clock_step(c: Cluster) -> Cluster:
    return c.put("node.clock_offset_seconds", 3.0, 60, 62, [1])


def lost_source(c: Cluster) -> Cluster:
    c.put("node.clock_error_seconds", 0.5, 60, None, [1])
    return c.put("node.clock_synced", 0.0, 60, None, [1])


def a_moment_without(c: Cluster) -> Cluster:
    """Its source is away for three minutes, and the kernel's bound grows meanwhile."""
    c.put("node.clock_error_seconds", 0.004 + 0.0005 * 15 * np.arange(12)[:, None], 70, 82, [1])
    return c.put("node.clock_synced", 0.0, 70, 82, [1])


def busy_everywhere(c: Cluster) -> Cluster:
    return c.put("node.cpu_waiting_ratio", 0.5, 40)


def busy_minute(c: Cluster) -> Cluster:
    return c.put("node.cpu_waiting_ratio", 0.8, 92, 96, [1])


def slow_cycle(c: Cluster) -> Cluster:
    for name, values in c.signals.items():
        if name.startswith("gpu."):
            values[:] = values[np.arange(c.ticks) // 8 * 8]
    return c


def idle(c: Cluster) -> Cluster:
    c.put("gpu.utilization_ratio", 0.0, 0)
    c.put("gpu.sm_clock_hertz", 345e6, 0)
    for name in ("temperature_celsius", "memory_temperature_celsius"):
        c.put(f"gpu.{name}", 31.0, 0)
    for name in ("tensor_active_ratio", "graphics_active_ratio"):
        c.put(f"gpu.{name}", 0.0, 0)
    return c


def whole_watts(c: Cluster) -> Cluster:
    for name, values in c.signals.items():
        if name.startswith("gpu."):
            values[60:] = values[60]
    return c.put("gpu.power_watts", 118.0, 0)


def exporter_gone(c: Cluster) -> Cluster:
    for name, values in c.signals.items():
        if name.startswith("gpu."):
            values[60:, 8:16] = np.nan
    return c


def image(c: Cluster) -> Cluster:
    c.put("mount.available_bytes", 0.0, 0)
    return c.put("mount.readonly", 1.0, 0)


def small(c: Cluster) -> Cluster:
    c.put("mount.size_bytes", 8e6, 0)
    c.put("mount.available_bytes", 5e6, 0)
    return c.put("mount.available_bytes", 1e4, 50, None, [1])


def never_synced(c: Cluster) -> Cluster:
    c.put("node.clock_error_seconds", 16.0, 0)
    return c.put("node.clock_synced", 0.0, 0)


@pytest.mark.parametrize(("detector", "alike"), [
    ("link_down", never_up), ("link_flap", one_flap), ("link_flap", flaps_long_ago),
    ("link_flap", two_flaps_far_apart), ("link_flap", two_flaps_of_a_node), ("link_slow", storage_nic),
    ("power_cap", capped), ("power_cap", fleet_wide_limit), ("power_brake", capped), ("power_brake", heat),
    ("memory_pressure", little_left), ("memory_pressure", cache_stalls), ("clock_skew", clock_step),
    ("cpu_starved", busy_everywhere), ("cpu_starved", busy_minute), ("exporter_stale", slow_cycle), ("exporter_stale", idle), ("exporter_stale", whole_watts),
    ("exporter_stale", exporter_gone), ("clock_skew", lost_source), ("clock_skew", never_synced),
    ("clock_skew", a_moment_without),
    ("disk_full", image), ("disk_full", small),
], ids=lambda x: getattr(x, "__name__", x))
def test_stays_silent_on_look_alikes(detector: str, alike: Callable[[Cluster], Cluster]) -> None:
    """What only looks like the fault opens nothing."""
    assert faulty(alike(Cluster()), detector) == []


def carrier(c: Cluster) -> Cluster:
    return c.put("nic.carrier_changes_per_second", 2 / 15, 80, 84, [11])


def kernel_lines(c: Cluster) -> Cluster:
    return events(c, NIC, "link_down", 70, 80, 90)


def seen_falling(c: Cluster) -> Cluster:
    for tick in (70, 80, 90):
        c.put("nic.link_up", 0.0, tick, tick + 2, [11])
    return c


@pytest.mark.parametrize("nic", ["rdma", "ethernet"])
@pytest.mark.parametrize("told", [carrier, kernel_lines, seen_falling], ids=lambda x: x.__name__)
def test_three_flaps_are_found_by_whatever_tells(told: Callable[[Cluster], Cluster], nic: str) -> None:
    """Carrier changes, kernel lines or the state itself."""
    cluster = Cluster(nic=nic)
    if nic == "rdma":
        cluster.signals["nic.carrier_changes_per_second"] = np.zeros_like(cluster.signals["nic.link_up"])
    found = faulty(told(cluster), "link_flap")
    expected = f"nic:n001/{'mlx5_3/1' if nic == 'rdma' else 'eth3'}"
    assert found == ([] if told is kernel_lines and nic == "ethernet" else [expected])


def test_a_port_that_flaps_again_within_minutes_is_found() -> None:
    """Twice in five minutes, alone on its node and under a job."""
    cluster = Cluster()
    for tick in (80, 92):
        cluster.put("nic.link_downed_per_second", 1 / 15, tick, tick + 1, [11])
    assert faulty(cluster, "link_flap") == ["nic:n001/mlx5_3/1"]


def test_an_oom_kill_is_told_with_its_line() -> None:
    """One kill in the last ten minutes, on the node whose kernel said so."""
    cluster = events(Cluster(), NODE, "oom", 95)
    verdict = next(v for v in PLUGINS["memory_pressure"].judge(cluster.window(), PLUGINS["memory_pressure"].params())
                   if v.state == "faulty")
    assert (verdict.target.key, verdict.reason, verdict.evidence[0].text) == ("node:n001/", "oom_kill", "a line about oom")


@pytest.mark.parametrize(("put", "reason"), [
    (lambda c: c.put("mount.readonly", 1.0, 60, None, [1]), "read_only"),
    (lambda c: c.put("mount.available_bytes", 1e10, 0, None, [1]), "full"),
    (lambda c: c.put("mount.size_bytes", 5e7, 0).put("mount.available_bytes", 4e7, 0).put(
        "mount.available_bytes", 0.0, 70, None, [1]), "full"),
])
def test_a_file_system_that_changed_or_differs_is_found(put: Callable[[Cluster], Cluster], reason: str) -> None:
    """Read-only since a moment, or full from the start where other nodes have room."""
    plugin = PLUGINS["disk_full"]
    found = [v for v in plugin.judge(put(Cluster()).window(), plugin.params()) if v.state == "faulty"]
    assert [(v.target.key, v.reason) for v in found] == [("mount:n001//scratch", reason)]


@pytest.mark.parametrize(("lines", "discrete"), [
    ([], False),
    ([("n001", 58, "EXT4-fs (nvme1n1): Remounting filesystem read-only")], True),
    ([("n002", 58, "EXT4-fs (nvme1n1): Remounting filesystem read-only")], False),
    ([("n001", 20, "EXT4-fs (nvme1n1): Remounting filesystem read-only")], False),
    ([("n001", 58, "EXT4-fs error (device nvme1n1): ext4_journal_check_start:83: Detected aborted journal")], False),
])
def test_a_read_only_mount_of_which_its_kernel_tells_needs_no_third_reading(lines: list[tuple[str, int, str]], discrete: bool) -> None:
    """A line of the same node, of the time of the first such reading."""
    plugin, cluster = PLUGINS["disk_full"], Cluster().put("mount.readonly", 1.0, 60, None, [1])
    cluster.events += [Event(START + tick * 15_000, Target("disk", node, "nvme1n1"), "kernel_error",
                             {"subsystem": "filesystem", "message": message}) for node, tick, message in lines]
    found = [v for v in plugin.judge(cluster.window(), plugin.params()) if v.state == "faulty"]
    assert [(v.reason, v.discrete) for v in found] == [("read_only", discrete)]


def stolen(c: Cluster) -> Cluster:
    return c.put("node.cpu_steal_ratio", 0.4, 91, None, [1])


def starving(c: Cluster) -> Cluster:
    return c.put("node.cpu_waiting_ratio", 0.9, 91, None, [1])


def standing(c: Cluster) -> Cluster:
    return c.put("node.memory_stalled_ratio", 0.7, 96, None, [1])


def thrashing(c: Cluster) -> Cluster:
    return c.put("node.memory_stalled_ratio", 0.45, 79, None, [1])


def unguided(c: Cluster) -> Cluster:
    c.put("node.clock_error_seconds", 0.004 + 0.0005 * 15 * np.arange(17)[:, None], 83, None, [1])
    return c.put("node.clock_synced", 0.0, 83, None, [1])


@pytest.mark.parametrize(("detector", "plant", "reason"), [
    ("cpu_starved", stolen, "steal"), ("cpu_starved", starving, "waits_for_cpu"), ("memory_pressure", standing, "stalls_for_memory"),
    ("memory_pressure", thrashing, "stalls_for_memory"), ("clock_skew", unguided, "not_synchronised"),
], ids=lambda x: getattr(x, "__name__", x))
def test_what_is_plain_is_told_within_minutes(detector: str, plant: Callable[[Cluster], Cluster], reason: str) -> None:
    """Two minutes of much stolen or missing CPU, four without a source; work that stands for memory, whatever is left of it, for
    a minute, or for five where a part of it goes on."""
    plugin = PLUGINS[detector]
    found = [v for v in plugin.judge(plant(Cluster()).window(), plugin.params()) if v.state == "faulty"]
    assert [(v.target.key, v.reason) for v in found] == [("node:n001/", reason)]


@pytest.mark.parametrize("since", [0, 60])
def test_a_clock_that_lost_its_source_for_hours_is_told(since: int) -> None:
    """The kernel's bound has grown to 16 s: the clock followed a source before, or those of the other nodes do."""
    cluster = Cluster().put("node.clock_error_seconds", 16.0, since, None, [1])
    assert faulty(cluster.put("node.clock_synced", 0.0, since, None, [1]), "clock_skew") == ["node:n001/"]
