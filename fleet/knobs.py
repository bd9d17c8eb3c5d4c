"""What a fault may turn: every way in which a part can be unwell, as arrays with a healthy value.

Before each sub-step the world sets all knobs to healthy and lets each present fault turn its own, so faults on one part
compose (factors multiply, rates add) and taking one away needs no undoing. Banks, network and jobs only read them;
everything that a page or a log shows follows from there. Look-alikes turn the same knobs as faults do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from core.types import Floats


class Knobs:
    """Base of the groups below: named arrays of one shape, all of them healthy after `reset`. They lie in one block, so that
    setting and asking takes one operation for all of them."""

    HEALTHY: ClassVar[Mapping[str, float]] = {}

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self._healthy = np.array([*self.HEALTHY.values()], np.float64).reshape(-1, *[1] * len(shape))
        self._lay(np.empty((len(self.HEALTHY), *shape)))
        self.reset()

    def _lay(self, block: Floats) -> None:
        self._all = block
        for name, values in zip(self.HEALTHY, block, strict=True):
            setattr(self, name, values)

    def __getstate__(self) -> tuple[tuple[int, ...], Floats, Floats]:
        return self.shape, self._healthy, self._all

    def __setstate__(self, state: tuple[tuple[int, ...], Floats, Floats]) -> None:
        # A copy's arrays are parts of its own block.
        self.shape, self._healthy, block = state
        self._lay(block)

    def reset(self) -> None:
        """Every part is healthy again."""
        self._all[:] = self._healthy

    def reset_rows(self, rows: list[int]) -> None:
        """The parts of these nodes (the first axis) are healthy again."""
        self._all[:, rows] = self._healthy

    def turned(self) -> NDArray[np.bool_]:
        """bool[first axis]: where any of them is not healthy now."""
        one = (self._all != self._healthy).any(axis=0)
        return one if one.ndim == 1 else one.any(axis=1)


class GpuKnobs(Knobs):
    """float64[node, gpu].

    cooling: factor on the thermal resistance. clock_cap: greatest clock as a share of the type's. power_limit: share of
    the type's board limit. brake: 1 = the power brake is asserted. compute: factor on kernel time without any other sign.
    correctable_per_second: single-bit ECC errors. pcie_width: lanes; pcie_gen: greatest generation under load (0 = the
    type's). pcie_replays_per_second, nvlink_errors_per_second. nvlink: share of NVLink bandwidth that is left. lost: 1 =
    off the bus. leaked_mib: memory held without a process. stuck: 1 = the GPU's firmware answers no query. demand: factor
    on the power that its kernels ask for (a denser kernel mix; beyond the board's limit the clock gives way).
    remap_failed: 1 = no spare row is left for a bad one (the flag that only another board clears).
    """

    cooling: Floats
    clock_cap: Floats
    power_limit: Floats
    brake: Floats
    compute: Floats
    correctable_per_second: Floats
    pcie_width: Floats
    pcie_gen: Floats
    pcie_replays_per_second: Floats
    nvlink_errors_per_second: Floats
    nvlink: Floats
    lost: Floats
    leaked_mib: Floats
    stuck: Floats
    demand: Floats
    remap_failed: Floats
    HEALTHY: ClassVar[Mapping[str, float]] = {
        "cooling": 1, "clock_cap": 1, "power_limit": 1, "brake": 0, "compute": 1, "correctable_per_second": 0,
        "pcie_width": 16, "pcie_gen": 0, "pcie_replays_per_second": 0, "nvlink_errors_per_second": 0, "nvlink": 1,
        "lost": 0, "leaked_mib": 0, "stuck": 0, "demand": 1, "remap_failed": 0,
    }


class NicKnobs(Knobs):
    """float64[node, nic].

    loss_per_million: packets lost per million that arrive. up: 0 = no carrier. rate: share of the link rate.
    symbol_errors_per_second: bit errors that FEC or the link layer sees. congestion: 0 none – 1 the port is marked all the
    time. pcie_width: lanes of the adapter's slot. slowness: factor on its share of a collective without any counter; where it
    is given it stands for what the port's other knobs would cost.
    """

    loss_per_million: Floats
    up: Floats
    rate: Floats
    symbol_errors_per_second: Floats
    congestion: Floats
    pcie_width: Floats
    slowness: Floats
    HEALTHY: ClassVar[Mapping[str, float]] = {"loss_per_million": 0, "up": 1, "rate": 1, "symbol_errors_per_second": 0, "congestion": 0,
               "pcie_width": 16, "slowness": 1}


class SwitchKnobs(Knobs):
    """float64[switch], in the order of `Topology.switches` (leaves, then spines).

    loss_per_million, congestion: as of a NIC, for all that passes. rate: share of its capacity. up: 0 = all its ports lose
    their carrier. paths_lost: share of its equal-cost paths that drop what is hashed onto them.
    """

    loss_per_million: Floats
    congestion: Floats
    rate: Floats
    up: Floats
    paths_lost: Floats
    HEALTHY: ClassVar[Mapping[str, float]] = {"loss_per_million": 0, "congestion": 0, "rate": 1, "up": 1, "paths_lost": 0}


class HostKnobs(Knobs):
    """float64[node].

    cpu: share of the CPU time that is left to the job's host threads. steal: share of time taken by the hypervisor.
    frequency: share of the CPU's clock. memory_pressure: share of time stalled for memory. memory_held: share of the
    host's memory held by others. inlet_celsius: added to the air. disk_slowness: factor on the scratch disk's service
    time. disk_fill: share of the scratch file system filled by others. read_only: 1 = the scratch file system is.
    clock_drift: seconds of clock error gained a second. synchronised: 0 = the time daemon has lost its source.
    mount_slowness: factor on this client's storage waits; mount_hung: 1 = calls on the mount never return. airflow: share
    of the chassis' air that its fans still move (the exhaust gets hotter by its inverse). disk_load: share of the scratch
    disk's time that others' reads take (a queue at full throughput, where disk_slowness is a slow device).
    throttles_per_second: thermal throttle events of the CPU packages.
    """

    cpu: Floats
    steal: Floats
    frequency: Floats
    memory_pressure: Floats
    memory_held: Floats
    inlet_celsius: Floats
    disk_slowness: Floats
    disk_fill: Floats
    read_only: Floats
    clock_drift: Floats
    synchronised: Floats
    mount_slowness: Floats
    mount_hung: Floats
    airflow: Floats
    disk_load: Floats
    throttles_per_second: Floats
    HEALTHY: ClassVar[Mapping[str, float]] = {
        "cpu": 1, "steal": 0, "frequency": 1, "memory_pressure": 0, "memory_held": 0, "inlet_celsius": 0,
        "disk_slowness": 1, "disk_fill": 0, "read_only": 0, "clock_drift": 0, "synchronised": 1, "mount_slowness": 1,
        "mount_hung": 0, "airflow": 1, "disk_load": 0, "throttles_per_second": 0,
    }


class StorageKnobs(Knobs):
    """float64[target]: one object storage target (OST) each. slowness: factor on its service time. up: 0 = it is gone."""

    slowness: Floats
    up: Floats
    HEALTHY: ClassVar[Mapping[str, float]] = {"slowness": 1, "up": 1}


@dataclass(slots=True)
class ExporterKnobs:
    """How an exporter of a node misbehaves. Keys: (node index, exporter name).

    answers: `down` (connection refused), `error` (500), `empty` (200 without a body), `hung` (no answer in time),
    `frozen` (the last page again and again), `half` (the body breaks off). missing: families that are absent.
    renamed: the exporter's version renames families. extra_series: series that it shows beyond its own. restarted: when
    (ms) it last started anew; from then on its counters count from 0.
    """

    answers: dict[tuple[int, str], str] = field(default_factory=dict)
    missing: dict[tuple[int, str], frozenset[str]] = field(default_factory=dict)
    renamed: set[tuple[int, str]] = field(default_factory=set)
    extra_series: dict[tuple[int, str], int] = field(default_factory=dict)
    restarted: dict[tuple[int, str], int] = field(default_factory=dict)

    def reset(self) -> None:
        """Every exporter is well again."""
        for one in fields(self):
            getattr(self, one.name).clear()


class JobKnobs:
    """What goes on inside a job's processes. float64[rank] unless said.

    compute, data, pause_seconds: factor on a rank's kernels, factor on its wait for data, seconds that its next step
    stands still. late: factor on the time that a rank computes because its process starts kernels late: its GPU stands idle
    in between. hung: 1 = it enters no collective. Numbers of the whole job: pace (factor on every step), loss_bump
    (added to the loss), loss_slope (added to it a step), nonfinite (1 = loss and gradients are NaN), overflow_share (share
    of steps skipped for overflow), save_slowness, saves_fail (1 = every save fails), tokens (factor on tokens a step),
    grad (factor on the gradient norm), loss_frozen (1 = the loss that is reported stays what it was; steps go on),
    service (factor on the time that an inference endpoint takes for a request's work).
    crash: why the processes die in this sub-step, None = they do not; crash_rank: the rank that says so. nan_rank: the rank whose
    own check finds NaN in its part of the next step, before anything is exchanged; that step is left out. ask: the phase
    (`checkpoint`, `eval`, or `compile` = warm-up steps again) that the job enters once its step under way is done, None =
    its own plan goes on.
    """

    def __init__(self, ranks: int) -> None:
        self.resize(ranks)

    def resize(self, ranks: int) -> None:
        """Other ranks: all of them healthy."""
        self.compute, self.data, self.late = np.ones(ranks), np.ones(ranks), np.ones(ranks)
        self.pause_seconds = np.zeros(ranks)
        self.hung: NDArray[np.bool_] = np.zeros(ranks, bool)
        self._numbers()

    def _numbers(self) -> None:
        self.pace = self.save_slowness = self.tokens = self.grad = self.service = 1.0
        self.loss_bump = self.loss_slope = self.overflow_share = 0.0
        self.nonfinite = self.saves_fail = self.loss_frozen = False
        self.crash: str | None = None
        self.crash_rank: int | None = None
        self.nan_rank: int | None = None
        self.ask: str | None = None

    def reset(self) -> None:
        """The job is healthy."""
        self.compute.fill(1.0)
        self.late.fill(1.0)
        self.data.fill(1.0)
        self.pause_seconds.fill(0.0)
        self.hung.fill(False)
        self._numbers()


@dataclass(slots=True)
class WorldKnobs:
    """All of them. jobs: by job name; a job brings its own. settings: a node's configuration that differs from the
    fleet's, by (node index, key) with keys driver, vbios, firmware, kernel, mtu, governor, ecc, persistence,
    power_limit_watts, locked_clock_mhz, nccl. down_services: (node index, unit name) of services that have stopped."""

    gpu: GpuKnobs
    nic: NicKnobs
    switch: SwitchKnobs
    host: HostKnobs
    storage: StorageKnobs
    exporter: ExporterKnobs = field(default_factory=ExporterKnobs)
    jobs: dict[str, JobKnobs] = field(default_factory=dict)
    settings: dict[tuple[int, str], str] = field(default_factory=dict)
    down_services: set[tuple[int, str]] = field(default_factory=set)

    def reset(self, rows: list[int] | None = None) -> None:
        """Everything is healthy. rows: the only nodes whose parts were not (None = any of them)."""
        for group in (self.gpu, self.nic, self.host):
            if rows is None:
                group.reset()
            elif rows:
                group.reset_rows(rows)
        for shared in (self.switch, self.storage):
            shared.reset()
        self.exporter.reset()
        for job in self.jobs.values():
            job.reset()
        self.settings.clear()
        self.down_services.clear()
