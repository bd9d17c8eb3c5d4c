"""The health check of a node that does no work: which test finds which defect, and the result of each.

A test loads its part and compares it with what the part should do, so it finds what is there at that moment and shows
under its load: an intermittent fault that is away is not found, nor is a slowness within the tests' tolerance, nor a
silent corruption. A fault of the switch above the node fails the tests that go through the switch, whose node it is
not. Tolerances: 5 % below the learnt baseline counts as defective (SuperBench); correctable errors above one a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fleet.world import World

TOLERANCE = 1.05
# What a bandwidth test between two nodes forgives: other traffic shares its path.
NETWORK_TOLERANCE = 1.25
CORRECTABLE_PER_SECOND = 1.0
REPLAYS_PER_SECOND = 1.0
NVLINK_ERRORS_PER_SECOND = 0.5
LOSS_PER_MILLION = 5.0
CLOCK_OFFSET_SECONDS = 0.05
# Faults that leave a mark in the part that no knob shows; a test reads the mark.
MARKS = {"ecc_uncorrectable": "memory", "row_remap_failure": "memory", "xid_fatal": "gpu_pressure", "gpu_lost": "parts",
         "service_down": "parts", "config_drift": "parts", "gpu_memory_leaked": "memory"}


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test. found: what it found, in words; empty where it passed."""

    test: str
    found: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.found


def _worst(name: str, bad: np.ndarray, part: str) -> list[str]:
    return [f"{name} on {part} {int(i)}" for i in np.flatnonzero(bad)]


def _parts(world: World, node: int) -> list[str]:
    gpu, knobs = world.knobs.gpu, world.knobs
    out = _worst("no answer", (gpu.lost[node] > 0) | (gpu.stuck[node] > 0), "GPU")
    out += [f"{key} is {value}" for (row, key), value in knobs.settings.items() if row == node]
    out += [f"{unit} is not active" for row, unit in sorted(knobs.down_services) if row == node]
    if knobs.host.synchronised[node] < 1 or abs(float(world.hosts.clock_offset[node])) > CLOCK_OFFSET_SECONDS:
        out.append("the clock is off")
    return out


def _memory(world: World, node: int) -> list[str]:
    gpu = world.knobs.gpu
    return [*_worst("correctable errors", gpu.correctable_per_second[node] > CORRECTABLE_PER_SECOND, "GPU"),
            *_worst("no spare row left", gpu.remap_failed[node] > 0, "GPU"),
            *_worst("memory in use without a process", gpu.leaked_mib[node] > 0, "GPU")]


def _pcie(world: World, node: int) -> list[str]:
    gpu, kind = world.knobs.gpu, world.kind
    slow = (gpu.pcie_width[node] < gpu.HEALTHY["pcie_width"]) | (gpu.pcie_gen[node] > 0)
    replays = gpu.pcie_replays_per_second[node] > REPLAYS_PER_SECOND
    return [*_worst("a slow PCIe link", slow, "GPU"), *_worst("PCIe replays", replays, "GPU")] if kind.gpus else []


def _pressure(world: World, node: int) -> list[str]:
    """Full load on all GPUs at once: heat, clocks, power, speed."""
    gpu, kind, bank = world.knobs.gpu, world.kind, world.gpus
    watts = kind.idle_watts + kind.load_watts * bank.silicon[node]
    core = world.hosts.inlet[node] + bank.offset[node] + kind.resistance * gpu.cooling[node] * watts
    hot = (core > kind.core_limit) | (core + bank.hbm_offset[node] > kind.hbm_limit)
    low = (gpu.clock_cap[node] < 1 / TOLERANCE) | (gpu.power_limit[node] < 1 / TOLERANCE) | (gpu.brake[node] > 0)
    slow = gpu.compute[node] > TOLERANCE
    return [*_worst("throttled by heat", hot, "GPU"), *_worst("held below its clock or power", low, "GPU"),
            *_worst("slower than its peers", slow, "GPU")]


def _bandwidth(world: World, node: int) -> list[str]:
    """A collective inside the node and with a neighbour: NVLink, adapters, cables and the switch above."""
    gpu, nic, switch = world.knobs.gpu, world.knobs.nic, world.knobs.switch
    inside = (gpu.nvlink[node] < 1 / TOLERANCE) | (gpu.nvlink_errors_per_second[node] > NVLINK_ERRORS_PER_SECOND)
    port = ((nic.slowness[node] > NETWORK_TOLERANCE) | (nic.loss_per_million[node] > LOSS_PER_MILLION)
            | (nic.rate[node] < 1 / NETWORK_TOLERANCE) | (nic.up[node] < 1))
    above = world.topology.leaf_of[node]
    path = ((switch.loss_per_million[above] > LOSS_PER_MILLION) | (switch.up[above] < 1)
            | (switch.rate[above] < 1 / NETWORK_TOLERANCE) | (switch.paths_lost[above] > 0))
    return [*_worst("a slow NVLink", inside, "GPU"), *_worst("a slow or lossy port", port, "NIC"),
            *_worst("a slow path", path & ~port, "NIC")]


def _loopback(world: World, node: int) -> list[str]:
    nic = world.knobs.nic
    bad = (nic.pcie_width[node] < nic.HEALTHY["pcie_width"]) | (nic.up[node] < 1) | (nic.symbol_errors_per_second[node] > 1.0)
    return _worst("a bad loopback", bad, "NIC")


def _cpu(world: World, node: int) -> list[str]:
    host = world.knobs.host
    checks = (
        (host.cpu[node] < 1 / TOLERANCE or host.steal[node] > TOLERANCE - 1, "others use the CPU"),
        (host.frequency[node] < 1 / TOLERANCE, "the CPU's clock is low"),
        (host.memory_pressure[node] > TOLERANCE - 1 or host.memory_held[node] > 0.5, "memory is short"),
        (host.airflow[node] < 1 / TOLERANCE, "a fan is slow"),
        (host.disk_slowness[node] > 2.0 or host.disk_load[node] > 0.5, "the scratch disk is slow"),
        (host.disk_fill[node] > 0.5 or host.read_only[node] > 0, "the scratch file system takes no data"),
        (host.mount_hung[node] > 0 or host.mount_slowness[node] > 2.0, "the shared file system is slow here"),
    )
    return [words for bad, words in checks if bad]


# Test, the level from which it is part of a check (as DCGM's: seconds, minutes, a quarter of an hour, hours), the test.
TESTS: tuple[tuple[str, int, Callable[[World, int], list[str]]], ...] = (
    ("parts", 1, _parts), ("memory", 2, _memory), ("pcie", 2, _pcie), ("gpu_pressure", 3, _pressure),
    ("bandwidth", 3, _bandwidth), ("cpu", 3, _cpu), ("nic_loopback", 4, _loopback),
)
DEEP = 4
USUAL = 3


def check(world: World, node: int, level: int = DEEP) -> tuple[TestResult, ...]:
    """The tests of a check of that level (1-4) on the node, as they come out now."""
    marks: dict[str, list[str]] = {}
    for planted in world.defects(node):
        test = MARKS.get(planted.plugin.fault or "")
        if test is not None and planted.level > 0:
            marks.setdefault(test, []).append(f"{planted.plugin.fault} on {planted.culprit.device or planted.culprit.node}")
    return tuple(TestResult(name, tuple(test(world, node) or marks.get(name, ())))
                 for name, least, test in TESTS if least <= level)


def failed(results: tuple[TestResult, ...]) -> bool:
    """Whether any test failed."""
    return any(not r.passed for r in results)


# Which test would show which fault, were it there. What only shows in a job (a hang, a wrong result) is in none of them.
SHOWS: dict[str, frozenset[str]] = {
    "parts": frozenset({"gpu_lost", "service_down", "config_drift", "clock_skew", "stalled_loss"}),
    "memory": frozenset({"ecc_correctable_storm", "ecc_uncorrectable", "row_remap_failure", "gpu_memory_leaked"}),
    "pcie": frozenset({"pcie_degraded"}),
    "gpu_pressure": frozenset({"thermal_throttle", "power_brake", "power_cap", "clock_loss", "gpu_slow", "xid_fatal", "straggler",
                               "cooling_fault"}),
    "bandwidth": frozenset({"nvlink_errors", "packet_loss", "link_slow", "link_down", "link_flap"}),
    "cpu": frozenset({"cpu_starved", "memory_pressure", "disk_slow", "disk_full", "data_stall", "storage_slow"}),
    "nic_loopback": frozenset({"link_down", "pcie_degraded"}),
}
# What comes and goes: a test that does not find it says nothing against it.
COMES_AND_GOES = frozenset({"link_flap", "ecc_correctable_storm", "stalled_loss", "memory_pressure"})


def answer(results: tuple[TestResult, ...], fault: str | None, device: str | None) -> tuple[str, str, str]:
    """(state, reason, detail) for who accused a part of the node of a fault; None = nobody said of what.

    device: the accused GPU's index, None = the node or a part that the tests do not tell apart.
    """
    found = [f"{one.test}: {words}" for one in results for words in one.found]
    if fault is None:
        return ("FAILED", "diagnose_failed", _listed(found)) if found else ("DONE", "done", f"{len(results)} tests passed")
    shows = [one for one in results if fault in SHOWS.get(one.test, ())]
    mine = [f"{one.test}: {words}" for one in shows for words in one.found if _about(words, device)]
    if mine:
        return "FAILED", "diagnose_confirmed", _listed(mine)
    if found:
        return "FAILED", "diagnose_failed", _listed(found)
    if shows and fault not in COMES_AND_GOES:
        return "DONE", "diagnose_refuted", f"{', '.join(one.test for one in shows)} passed"
    return "DONE", "no_fault_found", f"{len(results)} tests passed"


def _about(words: str, device: str | None) -> bool:
    """Whether what a test found is about the accused GPU; what names no GPU is about the node."""
    if device is None or not device.isdigit() or " on GPU " not in words:
        return True
    return words.endswith(f" on GPU {device}")


def _listed(found: list[str]) -> str:
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
