"""Exporters that answer in part or not at all: what is a fault, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.types import Event, Target
from core.window import Window
from detectors import exporter_partial, gpu_lost, target_down
from tests.contract import host_plants
from tests.contract.windows import START, STEP, Cluster, vanish

PROFILED = ("graphics_active_ratio", "tensor_active_ratio", "sm_active_ratio")


def partial(window: Window) -> list[tuple[str, str]]:
    return [(v.target.key, v.reason) for v in exporter_partial.judge(window, exporter_partial.Params()) if v.state == "faulty"]


def down(window: Window) -> list[tuple[str, str]]:
    return [(v.target.key, v.reason) for v in target_down.judge(window, target_down.Params()) if v.state == "faulty"]


def event(kind: str, tick: int, target: Target, **fields: object) -> Event:
    return Event(START + tick * STEP * 1000, target, kind, fields)


def node_families(c: Cluster) -> None:
    c.put("node.cpu_waiting_ratio", np.nan, 60, None, [1]).put("node.memory_stalled_ratio", np.nan, 60, None, [1])


def nic_families(c: Cluster) -> None:
    c.put("nic.packets_lost_per_second", np.nan, 60, None, range(8, 16)).add("exporter.series", -8, 60, None, [3])


def renamed(c: Cluster) -> None:
    host_plants.drop_fields(c, list(range(8, 16)), 60)
    c.put("exporter.series", 400.0, 60, None, [2])


def restarted(c: Cluster) -> None:
    host_plants.drop_fields(c, [11], 93)
    c.events.append(event("exporter_restart", 93, Target("node", "n001")))


def divided(c: Cluster) -> None:
    """The board's activity is its instances' own from now on; only they show it."""
    host_plants.drop_fields(c, [11], 60, PROFILED)
    gpus = list(c.entities["gpu"])
    gpus[12] = replace(gpus[12], device="3/1", id=f"{gpus[11].id}/1")
    c.entities["gpu"] = tuple(gpus)


def booted(c: Cluster) -> None:
    node_families(c)
    c.events.append(event("boot", 61, Target("node", "n001")))


PARTIAL: list[tuple[str, Callable[[Cluster], object], list[tuple[str, str]]]] = [
    ("fields of one GPU", lambda c: host_plants.drop_fields(c, [11], 60), [("gpu:GPU-n001-3", "fields_missing")]),
    ("one profiling field of one GPU", lambda c: host_plants.drop_fields(c, [11], 60, PROFILED[:1]), [("gpu:GPU-n001-3", "fields_missing")]),
    ("fields of all GPUs of a node", lambda c: host_plants.drop_fields(c, list(range(8, 16)), 60), [("node:n001/", "families_missing")]),
    ("families of the host", node_families, [("node:n001/", "families_missing")]),
    ("a family of all NICs", nic_families, [("node:n001/", "families_missing")]),
    ("an empty page", lambda c: c.put("exporter.state", 1.0, 60, None, [2]), [("node:n001/", "broken_page")]),
    ("one broken page", lambda c: c.put("exporter.state", 1.0, 98, None, [2]), []),
    ("a GPU that is gone", lambda c: vanish(c, 11, 60), []),
    ("an exporter that is down", lambda c: host_plants.stop_exporter(c, 1, 60), []),
    ("new names for the same fields", renamed, []),
    ("a restart a moment ago", restarted, []),
    ("instances", divided, []),
    ("a boot into other software", booted, []),
    ("a profiler on a node", lambda c: host_plants.drop_fields(c, list(range(8, 16)), 60, PROFILED), []),
    ("one NIC's family", lambda c: c.put("nic.packets_lost_per_second", np.nan, 60, None, [9]), []),
    ("a field that never was", lambda c: host_plants.drop_fields(c, [11], 0), []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in PARTIAL], ids=[row[0] for row in PARTIAL])
def test_partial_exporter(plant: Callable[[Cluster], object], said: list[tuple[str, str]]) -> None:
    """A part of a page that is gone is named; what another detector or nobody has to name is not."""
    cluster = Cluster(nodes=3)
    plant(cluster)
    assert partial(cluster.window()) == said


@pytest.mark.parametrize(("xid_of", "faulty"), [(11, True), (3, False)])
def test_an_xid_makes_a_missing_field_certain_sooner(xid_of: int, faulty: bool) -> None:
    """Two readings are enough after an XID of that GPU, not after one of another."""
    cluster = host_plants.drop_fields(Cluster(nodes=2), [11], 97, PROFILED)
    cluster.events.append(event("xid", 97, cluster.entities["gpu"][xid_of], xid=31))
    assert bool(partial(cluster.window())) == faulty


@pytest.mark.parametrize("ticks", range(2, 10))
def test_a_gpu_that_went_after_its_xid_is_gone_and_not_partial(ticks: int) -> None:
    """Read every 30 s, its last values stand for a while: none of its fields went before the others."""
    cluster = Cluster(nodes=2, interval=2 * STEP)
    cluster.events.append(event("xid", 100 - ticks, cluster.entities["gpu"][11], xid=79))
    vanish(cluster, 11, 100 - ticks).add("exporter.series", -30, 100 - ticks, None, [2])
    assert partial(cluster.window()) == []


def silent_exporter(c: Cluster, at: int) -> None:
    """A recording without collectors of ours, in which one exporter's samples end."""
    for name in [n for n in c.signals if n.startswith("collector.")]:
        del c.signals[name]
    host_plants.stop_exporter(c, 1, at)
    c.put("exporter.state", np.nan, at, None, [2])


def removed(c: Cluster) -> None:
    host_plants.stop_exporter(c, 1, 60)
    c.put("exporter.state", np.nan, 60, None, [2])


def refused(c: Cluster, nodes: range, start: int) -> None:
    c.put("exporter.state", 2.0, start, None, [e for n in nodes for e in (2 * n, 2 * n + 1)])


def one_kind(c: Cluster, nodes: range, starts: list[int]) -> None:
    for node, start in zip(nodes, starts, strict=True):
        c.put("exporter.state", 2.0, start, None, [2 * node + 1])


def drained(c: Cluster) -> None:
    host_plants.stop_exporter(c, 1, 60)
    c.events.append(event("drain", 58, Target("node", "n001"), by="operator"))


DOWN: list[tuple[str, Callable[[Cluster], object], list[tuple[str, str]]]] = [
    ("one exporter of a node", lambda c: host_plants.stop_exporter(c, 1, 60), [("node:n001/", "exporter_down")]),
    ("a restart", lambda c: host_plants.stop_exporter(c, 1, 97), []),
    ("an exporter of a recording", lambda c: silent_exporter(c, 30), [("node:n001/", "exporter_down")]),
    ("a hole in a recording", lambda c: silent_exporter(c, 60), []),
    ("a target that nobody asks any more", removed, []),
    ("a whole node", lambda c: refused(c, range(1, 2), 50), [("node:n001/", "node_unreachable")]),
    ("a node that boots", lambda c: refused(c, range(1, 2), 75), []),
    ("the whole site", lambda c: refused(c, range(4), 80), [("collector:/all targets", "whole_site")]),
    ("one kind of exporter at once", lambda c: one_kind(c, range(4), [80, 81, 80, 82]), [("collector:/all targets", "one_kind_at_once")]),
    ("one kind of exporter at times of its own", lambda c: one_kind(c, range(4), [20, 40, 60, 80]),
     [(f"node:n{n:03d}/", "exporter_down") for n in range(4)]),
    ("a few of a kind", lambda c: one_kind(c, range(2), [80, 80]), [(f"node:n{n:03d}/", "exporter_down") for n in range(2)]),
    ("a drained node", drained, []),
    ("a page that is empty", lambda c: c.put("exporter.state", 1.0, 60, None, [2]), []),
]


@pytest.mark.parametrize(("plant", "said"), [row[1:] for row in DOWN], ids=[row[0] for row in DOWN])
def test_target_down(plant: Callable[[Cluster], object], said: list[tuple[str, str]]) -> None:
    """A target that stopped answering is its node's incident; nearly all targets at once are the collector's."""
    cluster = Cluster()
    plant(cluster)
    assert down(cluster.window()) == said


@pytest.mark.parametrize("state", ["drained", "spare"])
def test_a_node_out_of_service_is_not_missed(state: str) -> None:
    """What the inventory has taken out may be silent."""
    window = host_plants.stop_exporter(Cluster(), 1, 60).window()
    places = {**window.topology.places, "n001": replace(window.topology.places["n001"], state=state)}
    assert down(replace(window, topology=replace(window.topology, places=places))) == []


# (seconds between readings, ticks of 15 s since the first one that lacked it, readings that lacked it, told)
READINGS = [(15, 3, 4, False), (15, 4, 5, True), (30, 2, 2, False), (30, 4, 3, True), (60, 4, 2, False), (60, 8, 3, True)]


@pytest.mark.parametrize(("interval", "ticks", "readings", "told"), READINGS)
def test_three_readings_and_a_minute_tell_a_target_that_is_down(interval: int, ticks: int, readings: int, told: bool) -> None:
    """However far apart its readings are, an exporter may restart: the third in a row that fails tells, a minute on at the earliest."""
    assert ticks * STEP // interval + 1 == readings
    cluster = host_plants.stop_exporter(Cluster(ticks=101, interval=interval), 1, 100 - ticks)
    assert bool(down(cluster.window())) == told


@pytest.mark.parametrize(("interval", "ticks", "told"), [(15, 3, False), (15, 4, True), (30, 2, False), (30, 4, True)])
def test_fields_that_three_pages_lack_are_gone(interval: int, ticks: int, told: bool) -> None:
    """A page that is read each 30 s need not lack them for longer than one that is read each 15 s."""
    cluster = host_plants.drop_fields(Cluster(ticks=101, interval=interval), [11], 100 - ticks)
    assert bool(partial(cluster.window())) == told


@pytest.mark.parametrize("interval", [15, 30, 60])
def test_a_gpu_that_goes_as_a_whole_is_never_a_page_in_part(interval: int) -> None:
    """At no tick after its end, however far apart the readings are."""
    for ticks in range(1, 30):
        assert partial(vanish(Cluster(nodes=2, ticks=101, interval=interval), 11, 100 - ticks).window()) == [], ticks


@pytest.mark.parametrize(("interval", "ticks", "told"), [(15, 3, False), (15, 4, True), (30, 4, False), (30, 6, True)])
def test_a_gpu_that_three_pages_lack_is_lost(interval: int, ticks: int, told: bool) -> None:
    """While its siblings are shown."""
    window = vanish(Cluster(nodes=2, ticks=101, interval=interval), 11, 100 - ticks).window()
    assert any(v.state == "faulty" for v in gpu_lost.judge(window, gpu_lost.Params())) == told


@pytest.mark.parametrize(("ticks", "told"), [(2, False), (4, True)])
def test_an_exporter_that_has_started_may_show_nothing_until_its_first_cycle(ticks: int, told: bool) -> None:
    """dcgm-exporter's first page comes after its first cycle of 30 s."""
    cluster = Cluster().put("exporter.state", 1.0, 99 - ticks, None, [2])
    assert bool(partial(cluster.window())) == told
