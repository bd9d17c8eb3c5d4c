"""Services, settings, disks and shared storage: what is a fault, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.types import Event, Target
from detectors import config_drift, disk_slow, link_slow, service_down, storage_slow
from tests.contract import host_plants
from tests.contract.windows import START, STEP, Cluster

FM = host_plants.SERVICES[0]
N001 = "node:n001/"


def faulty(module: Any, cluster: Cluster) -> list[str]:
    return [v.target.key for v in module.judge(cluster.window(), module.Params()) if v.state == "faulty"]


def event(kind: str, tick: int, target: Target, **fields: object) -> Event:
    return Event(START + tick * STEP * 1000, target, kind, fields, f"line of {kind}")


def unit(kind: str, tick: int, name: str = "nvidia-dcgm.service") -> Event:
    return event(kind, tick, Target("service", "n001", name), unit=name)


def lines(*events: Event) -> Callable[[Cluster], object]:
    return lambda c: c.events.extend(events)


def with_lines(*events: Event) -> Callable[[Cluster], object]:
    def plant(c: Cluster) -> None:
        host_plants.stop_service(c, 1, 60)
        c.events.extend(events)
    return plant


def never_ran(c: Cluster) -> None:
    host_plants.stop_service(c, 1, 0)


SERVICES: list[tuple[str, Callable[[Cluster], object], list[str]]] = [
    ("a unit fails", lambda c: host_plants.stop_service(c, 1, 60), [N001]),
    ("a unit has failed for two readings", lambda c: host_plants.stop_service(c, 1, 98), [N001]),
    ("a unit has failed for one reading", lambda c: host_plants.stop_service(c, 1, 99), []),
    ("a unit restarts", lambda c: c.put("service.active", 0.0, 97, None, [2]), []),
    ("a unit that failed is started again", with_lines(unit("service_failed", 90, FM), unit("service_starting", 92, FM)), []),
    ("a unit that failed waits to be started again",
     lambda c: (c.put("service.active", 0.0, 97, None, [2]), c.events.append(unit("service_failed", 97, FM))), []),
    ("a unit is started and started", with_lines(unit("service_failed", 60, FM), unit("service_starting", 61, FM)), [N001]),
    ("a unit never ran", never_ran, []),
    ("its line alone", lines(unit("service_failed", 60)), [N001]),
    ("it is back", lines(unit("service_failed", 60), unit("service_started", 61)), []),
    ("it has failed a moment ago", lines(unit("service_failed", 98)), [N001]),
    ("it has just failed", lines(unit("service_failed", 99)), []),
    ("it failed and is being started", lines(unit("service_failed", 90), unit("service_starting", 91)), []),
    ("it failed again and again", lines(*(unit(f"service_{k}", t) for k, t in (("failed", 80), ("starting", 81), ("failed", 96)))), [N001]),
    ("it is stopped in order", lines(unit("service_stopped", 60)), [N001]),
    ("it is stopped to be upgraded", lines(unit("service_stopped", 90)), []),
    ("the node has booted since", lines(unit("service_failed", 60), event("boot", 70, Target("node", "n001"))), []),
    ("the unit's state is shown and well", lines(unit("service_failed", 60, FM)), []),
    ("the node is drained", with_lines(event("drain", 50, Target("node", "n001"))), []),
    ("the fabric of all GPUs ends", lambda c: c.put("gpu.fabric_manager_state", 3.0, 0).put(
        "gpu.fabric_manager_state", 4.0, 60, None, range(8, 16)), [N001]),
    ("the fabric of one GPU ends", lambda c: c.put("gpu.fabric_manager_state", 3.0, 0).put(
        "gpu.fabric_manager_state", 4.0, 60, None, [9]), []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in SERVICES], ids=[row[0] for row in SERVICES])
def test_service_down(plant: Callable[[Cluster], object], said: list[str]) -> None:
    """A service that ran and does not any more is its node's incident."""
    cluster = Cluster()
    plant(cluster)
    assert faulty(service_down, cluster) == said


def two_nodes(c: Cluster) -> None:
    for node, tick in ((1, 30), (2, 60)):
        host_plants.set_label(c, node, tick)


def other_model(c: Cluster) -> None:
    host_plants.set_label(c, 1, 0)
    c.entities["label"] = tuple(Target("label", t.node, t.device.replace("H100", "H200")) if t.node == "n001" else t
                                for t in c.entities["label"])


def with_boot(c: Cluster) -> None:
    host_plants.set_label(c, 1, 60)
    c.events.append(event("boot", 58, Target("node", "n001")))


def last_of_a_rollout(c: Cluster) -> None:
    for node, tick in ((0, 20), (2, 40), (3, 60), (4, 70), (5, 80)):
        host_plants.set_label(c, node, tick)


def label(name: str, old: str, new: str) -> Callable[[Cluster], object]:
    """All nodes show one value of a setting, n001 another one from tick 60 on."""
    def plant(c: Cluster) -> None:
        values = (old, new)
        more = tuple(Target("label", n, f"{name}={value}") for n in c.names for value in values)
        c.entities["label"] += more
        shown = np.tile([1.0, np.nan], (c.ticks, len(c.names)))
        shown[60:, 2], shown[60:, 3] = np.nan, 1.0
        c.signals["label.present"] = np.hstack([c.signals["label.present"], shown])
    return plant


def number(signal: str, usual: float, other: float) -> Callable[[Cluster], object]:
    """All GPUs have one value of a setting, those of n001 another one from tick 60 on."""
    return lambda c: c.put(signal, usual, 0).put(signal, other, 60, None, range(8, 16))


SETTINGS: list[tuple[str, Callable[[Cluster], object]]] = [
    ("driver", lambda c: host_plants.set_label(c, 1, 60)),
    ("kernel", lambda c: host_plants.set_label(c, 1, 60, 3, 4)),
    ("vbios", label("vbios", "96.00.89.00.01", "96.00.61.00.03")),
    ("firmware of MT_0000000838", label("firmware of MT_0000000838", "28.39.1002", "28.36.1010")),
    ("governor", label("governor", "performance", "powersave")),
    ("ECC mode", number("gpu.ecc_enabled", 1.0, 0.0)),
    ("MIG mode", number("gpu.mig_enabled", 0.0, 1.0)),
    ("persistence mode", number("gpu.persistence_enabled", 1.0, 0.0)),
    ("application clock", number("gpu.application_clock_hertz", 1.98e9, 1.41e9)),
    ("power limit", number("gpu.power_limit_watts", 700.0, 500.0)),
    ("port MTU", number("nic.mtu_bytes", 4200.0, 1500.0)),
]


@pytest.mark.parametrize(("setting", "plant"), SETTINGS, ids=[row[0] for row in SETTINGS])
def test_each_setting_that_differs_is_named(setting: str, plant: Callable[[Cluster], object]) -> None:
    """One node of six has another value: its verdict names the setting, both values and how many agree, and dates it by the change."""
    cluster = Cluster(nodes=6)
    plant(cluster)
    (found,) = [v for v in config_drift.judge(cluster.window(), config_drift.Params()) if v.state == "faulty"]
    assert (found.target.key, found.onset_at, len(found.evidence)) == (N001, START + 60 * STEP * 1000, 1)
    assert found.evidence[0].text.startswith(f"{setting} is ")
    assert found.evidence[0].text.endswith("on 5 of 6 nodes of its group")


DRIFT: list[tuple[str, Callable[[Cluster], object], list[str]]] = [
    ("another driver since the start", lambda c: host_plants.set_label(c, 1, 0), [N001]),
    ("another kernel from now on", lambda c: host_plants.set_label(c, 1, 60, 3, 4), [N001]),
    ("a moment ago", lambda c: host_plants.set_label(c, 1, 95), []),
    ("with a boot: perhaps the first of many", with_boot, []),
    ("two nodes one after the other", two_nodes, []),
    ("the last one of a rollout", last_of_a_rollout, []),
    ("a node with other GPUs", other_model, []),
    ("a small MTU", lambda c: c.put("nic.mtu_bytes", 4200.0, 0).put("nic.mtu_bytes", 1500.0, 50, None, [9]), [N001]),
    ("a lower limit on all GPUs", lambda c: c.put("gpu.power_limit_watts", 500.0, 50, None, range(8, 16)), [N001]),
    ("a lower limit on one GPU", lambda c: c.put("gpu.power_limit_watts", 500.0, 50, None, [9]), []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in DRIFT], ids=[row[0] for row in DRIFT])
def test_config_drift(plant: Callable[[Cluster], object], said: list[str]) -> None:
    """One node that differs from its group is drift; several that change are a rollout."""
    cluster = Cluster(nodes=6)
    plant(cluster)
    assert faulty(config_drift, cluster) == said


@pytest.mark.parametrize("plant", [two_nodes, lambda c: c.put("gpu.mig_enabled", 0.0, 0).put("gpu.mig_enabled", 1.0, 60, None, range(8, 24))],
                         ids=["a driver", "a mode of the GPUs"])
def test_a_rollout_in_progress_is_named(plant: Callable[[Cluster], object]) -> None:
    """Nodes that share another value are clear, and the reason says why they differ."""
    cluster = Cluster(nodes=6)
    plant(cluster)
    words = {v.target.node: v.reason for v in config_drift.judge(cluster.window(), config_drift.Params())}
    assert [node for node, reason in words.items() if reason == "rollout"] == ["n001", "n002"]


def more_work(c: Cluster) -> None:
    host_plants.slow_disk(c, 1, 60)
    for way in ("read", "write"):
        c.signals[f"disk.{way}s_per_second"][60:, [4]] *= 8
        c.signals[f"disk.{way}_time_ratio"][60:, [4]] *= 8


def all_disks(c: Cluster) -> None:
    for node in range(4):
        for disk in range(host_plants.DISKS):
            host_plants.slow_disk(c, node, 60, disk=disk)


def just_begun(c: Cluster) -> None:
    for signal in [s for s in c.signals if s.startswith("disk.")]:
        c.signals[signal][:88] = np.nan


def save_of_some(c: Cluster) -> None:
    """A look at two nodes that write a checkpoint: each call waits in the queue; the other disks hardly write. No past is known."""
    saving, others = [1, 4], [7, 10]
    for signal, times in (("disk.writes_per_second", 20.0), ("disk.write_time_ratio", 160.0), ("disk.read_time_ratio", 8.0)):
        c.signals[signal][88:, saving] *= times
    c.put("disk.writes_per_second", 3.0, 88, None, others).put("disk.write_time_ratio", 0.0006, 88, None, others)
    just_begun(c)


def loaded_by_another(c: Cluster) -> None:
    """A process of somebody else reads a lot: the job's own writes, as many as ever, wait behind it."""
    c.signals["disk.reads_per_second"][60:, [4]] *= 30
    c.signals["disk.read_time_ratio"][60:, [4]] *= 120
    c.signals["disk.write_time_ratio"][60:, [4]] *= 8


def large_calls(c: Cluster) -> None:
    """As many calls, each of far more bytes."""
    for way, size in (("read", "read_bytes"), ("write", "written_bytes")):
        c.signals[f"disk.{size}_per_second"] = c.signals[f"disk.{way}s_per_second"] * 16_384
        c.signals[f"disk.{size}_per_second"][60:, [4]] *= 32
        c.signals[f"disk.{way}_time_ratio"][60:, [4]] *= 8


def bursts_elsewhere(c: Cluster) -> None:
    """Its peers write in one tick of six, each call as fast as its own."""
    rest = np.arange(c.ticks) % 6 != 0
    just_begun(c)
    for signal in ("disk.writes_per_second", "disk.write_time_ratio"):
        for column in set(range(c.width("disk"))) - {4}:
            c.signals[signal][rest, column] = 0.0


def slow_among_savers(c: Cluster) -> None:
    """All nodes save; one disk is slow and writes less for it."""
    for node in range(4):
        column = [host_plants.DISKS * node + 1]
        c.signals["disk.writes_per_second"][60:, column] *= 20
        c.signals["disk.write_time_ratio"][60:, column] *= 60
    c.signals["disk.writes_per_second"][88:, [4]] *= 0.85
    c.signals["disk.write_time_ratio"][88:, [4]] *= 8


DISKS: list[tuple[str, Callable[[Cluster], object], list[str]]] = [
    ("slow at like load", lambda c: host_plants.slow_disk(c, 1, 60), ["disk:n001/nvme1n1"]),
    ("a little slower", lambda c: host_plants.slow_disk(c, 1, 60, 1.4), []),
    ("for a moment", lambda c: host_plants.slow_disk(c, 1, 97), []),
    ("with far more to do", more_work, []),
    ("all of them", all_disks, []),
    ("one job's nodes save", save_of_some, []),
    ("another process loads it", loaded_by_another, []),
    ("larger calls", large_calls, []),
    ("peers that write now and then", bursts_elsewhere, []),
    ("slow while all save", slow_among_savers, ["disk:n001/nvme1n1"]),
    ("idle", lambda c: [host_plants.slow_disk(c, 1, 60), c.put("disk.reads_per_second", 0.1, 60, None, [4]),
                        c.put("disk.writes_per_second", 0.1, 60, None, [4])], []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in DISKS], ids=[row[0] for row in DISKS])
def test_disk_slow(plant: Callable[[Cluster], object], said: list[str]) -> None:
    """A disk is slow by its peers and by its own past at like load."""
    cluster = Cluster()
    plant(cluster)
    assert faulty(disk_slow, cluster) == said


def save(c: Cluster) -> None:
    host_plants.slow_storage(c, 60)
    c.signals["node.storage_bytes_per_second"][60:] *= 30


def back_in_a_save(c: Cluster) -> None:
    """The page with the clients' times comes back after minutes, while a job saves; the one with their load was there."""
    c.put("storage.wait_seconds", np.nan, 60, 96).put("storage.wait_seconds", 0.006, 96)
    c.signals["node.storage_bytes_per_second"][97:] *= 30


def cut_off(c: Cluster) -> None:
    c.put("storage.connected", 0.0, 90, None, range(0, 8, 2))


def nfs(c: Cluster) -> None:
    c.entities["mount"] = tuple(Target("mount", n, "10.0.0.1:/data") for n in c.names)
    c.put("mount.reads_per_second", 200.0, 0).put("mount.read_time_ratio", 0.4, 0).put("mount.read_bytes_per_second", 2e8, 0)
    c.put("mount.read_time_ratio", 4.0, 60)


STORAGE: list[tuple[str, Callable[[Cluster], object], list[str]]] = [
    ("one target for all clients", lambda c: host_plants.slow_storage(c, 60), ["storage:/scratch"]),
    ("for one client", lambda c: host_plants.slow_storage(c, 60, nodes=[1]), []),
    ("a moment", lambda c: host_plants.slow_storage(c, 97), []),
    ("under a save", save, []),
    ("seen again in a save", back_in_a_save, []),
    ("clients are cut off", cut_off, ["storage:/scratch"]),
    ("NFS calls take longer", nfs, ["storage:/scratch"]),
    ("kernels say so", lambda c: c.events.extend(
        event("kernel_error", 90, Target("storage", n, "scratch-OST0001"), subsystem="lustre") for n in c.names), ["storage:/scratch"]),
    ("one kernel says so", lambda c: c.events.append(
        event("kernel_error", 90, Target("storage", "n001", "scratch-OST0001"), subsystem="lustre")), []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in STORAGE], ids=[row[0] for row in STORAGE])
def test_storage_slow(plant: Callable[[Cluster], object], said: list[str]) -> None:
    """Storage is slow where its clients agree that it is, at like load."""
    cluster = Cluster()
    plant(cluster)
    assert faulty(storage_slow, cluster) == said


PAIRS: list[tuple[str, dict[str, float], list[str]]] = [
    ("all fast", {"a b": 88, "b c": 87, "a c": 86}, []),
    ("one slow node", {"a b": 88, "b c": 87, "a d": 49, "d b": 48}, ["node:d/"]),
    ("two that cannot be told apart", {"a b": 88, "b c": 87, "d e": 49}, ["link:/d<->e"]),
    ("a slow path between fast nodes", {"a b": 88, "c d": 87, "a c": 49}, []),
    ("nobody is fast enough to compare with", {"a b": 88, "c d": 49}, []),
]


@pytest.mark.parametrize(("table", "said"), [row[1:] for row in PAIRS], ids=[row[0] for row in PAIRS])
def test_pairs_of_nodes(table: dict[str, float], said: list[str]) -> None:
    """A node is blamed where its partners are fast with others."""
    cluster = Cluster(nodes=1)
    cluster.entities["link"] = tuple(Target("link", None, "<->".join(sorted(pair.split()))) for pair in table)
    cluster.signals["link.pair_bytes_per_second"] = np.full((cluster.ticks, len(table)), np.nan)
    cluster.signals["link.pair_bytes_per_second"][90] = [v * 1e9 for v in table.values()]
    assert faulty(link_slow, cluster) == said
