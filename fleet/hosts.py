"""The hosts around the GPUs as arrays: air, fans, CPU, memory, pressure, disks, the management Ethernet, the kernel's clock.

Everything follows from the work of the jobs and from the knobs of the host (`HostKnobs`); what is not a quantity (services,
settings) stands in `WorldKnobs` and is read from there.
"""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from core.types import Floats
from fleet.hardware import NodeType
from fleet.knobs import HostKnobs
from fleet.work import Work

MODES = ("idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user")
DAY_MS = 24 * 3600 * 1000
DISKS = ("nvme0n1", "nvme1n1")  # root, scratch
SCRATCH = 1
TOTALS = (
    "cpu_waiting", "io_waiting", "io_stalled", "memory_waiting", "memory_stalled", "eth_in", "eth_out", "eth_in_packets",
    "eth_out_packets", "tcp_out", "tcp_again", "major_faults", "oom_kills", "package_throttles", "edac_corrected",
    "edac_uncorrected", "hung_tasks",
)
# Seconds of one I/O of 128 KiB on a healthy drive, and what the drive moves at most (facts/signals.md §4: 0.05-1 ms).
IO_BYTES, WRITE_SECONDS, READ_SECONDS, DISK_BYTES_PER_SECOND = 131072.0, 0.00031, 0.00012, 5e9
# Checkpoints older than the newest ones are deleted when so much of the scratch disk is used.
CLEANED_AT, CLEANED_TO = 0.42, 0.15
# What host threads keep for themselves at the least, so that factors stay finite.
LEAST_SHARE = 0.02
# Launching kernels needs this share of the host's capacity; below it the GPU waits for its kernels.
LAUNCH_SHARE = 0.2
# A call that never returns, as a factor: a step that needs it takes minutes and ends once the cause is gone.
HUNG_FACTOR = 150.0
# The kernel assumes that an unguided clock is off by at most this much a second (facts: 500 ppm; 16 s is its greatest).
DRIFT_ASSUMED, GREATEST_ERROR = 5e-4, 16.0
HUNG_TASK_SECONDS = 122.0
# Load average of a host whose every CPU is busy with the job's host threads.
LOAD_AT_FULL = 48.0
# Memory in use and the air behind the chassis follow what is asked with this lag.
SETTLES_SECONDS = 47.5
EDAC_PER_SECOND = 2e-7


class HostBank:
    """Gauges float64[node]; counters by name in `totals`; cpu float64[node, cpu, mode]; disks float64[node, disk]; fan_rpm
    float64[node, fan].

    For the jobs, float64[node], 1 = healthy: `data_factor` on loading data, `launch_factor` on compute where the host is too
    slow to launch kernels, `save_factor` on writing a checkpoint.
    """

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator, knobs: HostKnobs,
                 down_services: Set[tuple[int, str]] = frozenset()) -> None:
        self.kind, self._rng, self.knobs, self._down = kind, rng, knobs, down_services
        self._nodes = nodes
        self._inlet_base = kind.air_celsius + rng.uniform(-0.8, 0.8, nodes)
        self._drift = 0.0
        self.inlet = self._inlet_base.copy()
        self.exhaust = self.inlet + 8.0
        self.load1 = np.full(nodes, 0.4)
        self.available = np.full(nodes, 0.93 * kind.host_memory_bytes)
        self._jitter = rng.normal(0, 2e-5, nodes)
        self._skew = np.zeros(nodes)
        self.clock_offset = self._jitter.copy()
        self.clock_error = np.full(nodes, 0.004)
        self.cpu = rng.uniform(0, 1e4, (nodes, kind.cpus, len(MODES))) * np.array([40, .02, 0, .01, .1, 0, 2, 9])
        self._init_counters(nodes, rng)
        self.cpu_hertz = np.full(nodes, kind.cpu_hertz)
        self._fan_spread = 1 + 0.03 * rng.uniform(-1, 1, (nodes, kind.fans))
        self.fan_rpm = 5200.0 * self._fan_spread
        self.data_factor, self.launch_factor, self.save_factor = np.ones(nodes), np.ones(nodes), np.ones(nodes)
        self._queue = np.ones(nodes)

    def _init_counters(self, nodes: int, rng: np.random.Generator) -> None:
        past = {"cpu_waiting": 9e3, "io_waiting": 7e3, "io_stalled": 3e3, "memory_waiting": 0.0, "memory_stalled": 0.0,
                "major_faults": 2e5, "tcp_again": 4e4, "oom_kills": 0.0, "package_throttles": 0.0, "edac_corrected": 0.4,
                "edac_uncorrected": 0.0, "hung_tasks": 0.0}
        self.totals: dict[str, Floats] = {
            name: np.floor(rng.uniform(0.3, 1.7, nodes) * past.get(name, 3e12 if "packets" not in name else 2e9))
            for name in TOTALS}
        self.disk: dict[str, Floats] = {
            name: np.floor(rng.uniform(0.3, 1.7, (nodes, len(DISKS))) * size)
            for name, size in (("read_bytes", 4e13), ("written_bytes", 7e13), ("reads", 3e8), ("writes", 5e8),
                               ("read_time", 4e4), ("write_time", 2e5), ("io_time", 3e4))}
        self.disk["io_weighted"] = self.disk["read_time"] + self.disk["write_time"]
        self.scratch_used = self.kind.scratch_bytes * rng.uniform(0.13, 0.26, nodes)

    # --- events and what pages ask for -------------------------------------------------------------------------------
    def oom_kill(self, node: int) -> None:
        """The kernel kills a process for memory (its line is the log's)."""
        self.totals["oom_kills"][node] += 1

    def memory_error(self, node: int, corrected: bool = True) -> None:
        """EDAC counts an error of the host's memory."""
        self.totals["edac_corrected" if corrected else "edac_uncorrected"][node] += 1

    @property
    def scratch_free(self) -> Floats:
        """Bytes free on the scratch file system, float64[node]."""
        size = self.kind.scratch_bytes
        return np.maximum(0.0, size * (1 - self.knobs.disk_fill) - self.scratch_used)

    @property
    def read_only(self) -> Floats:
        """1 where the scratch file system has fallen back to read-only, float64[node]."""
        return self.knobs.read_only.copy()

    @property
    def synchronised(self) -> Floats:
        """1 where the kernel's clock follows a source, float64[node]."""
        return (self.knobs.synchronised > 0).astype(np.float64)

    @property
    def service_active(self) -> Floats:
        """1 where a unit of `kind.services` runs, float64[node, unit]."""
        active = np.ones((self._nodes, len(self.kind.services)))
        for node, unit in self._down:
            if unit in self.kind.services:
                active[node, self.kind.services.index(unit)] = 0.0
        return active

    def reset(self, row: int) -> None:
        """A reboot clears the kernel's counters and sets the clock."""
        self.cpu[row] = 0.0
        for values in (*self.totals.values(), *self.disk.values()):
            values[row] = 0.0
        self._skew[row] = 0.0
        self.clock_offset[row] = self._jitter[row]
        self.load1[row] = 0.4

    # --- time --------------------------------------------------------------------------------------------------------
    def step(self, seconds: int, work: Work, at_ms: int, shared_wait: Floats | None = None) -> None:
        """Moves all hosts on by `seconds`. shared_wait: share of time with a task waiting for shared storage, float64[node]
        (`StorageBank.stalled`)."""
        n, knobs = self._nodes, self.knobs
        normal, uniform = self._rng.standard_normal((8, n)), self._rng.random((10, n))
        gain = 1 - math.exp(-seconds / SETTLES_SECONDS)
        active = (work.memory_mib.max(axis=1) > 0).astype(np.float64)
        wait = np.zeros(n) if shared_wait is None else shared_wait
        self._air(gain, at_ms, work, normal[0], normal[1])
        self._factors()
        own = (0.02 + 0.3 * active) / np.maximum(LEAST_SHARE, knobs.frequency) + 0.02 * normal[2]
        others = (1 - knobs.cpu) * 0.97
        busy = np.minimum(np.maximum(own, 0.005) * (1 - others) + others, 0.97)
        self._count_cpu(seconds, busy, work.writing, wait)
        # Who waits for a CPU is on the run queue as well.
        target = busy * LOAD_AT_FULL * (1 + 2 * others) + 40 * np.minimum(1.0, wait + knobs.memory_pressure)
        self.load1 += (1 - math.exp(-seconds / 60)) * (target + 0.5 * normal[3] - self.load1)
        self.load1 = np.maximum(0.01, self.load1)
        self.cpu_hertz = self.kind.cpu_hertz * knobs.frequency * (0.985 - 0.03 * busy + 0.004 * normal[4])
        total = self.kind.host_memory_bytes
        used = (0.07 + 0.24 * active + knobs.memory_held) * total
        self.available += gain * (total - used - self.available) + 2e7 * normal[5]
        self.available = np.maximum(0.004 * total, self.available)
        self._clock(seconds, normal[6], normal[7])
        self._pressure(seconds, active, work.writing, wait, others, uniform)
        self._count_net(seconds, active, work.writing, 0.8 + 0.4 * uniform[5:8])
        self._count_disks(seconds, active, work, uniform[8:])

    def _air(self, gain: float, at_ms: int, work: Work, noise: Floats, flutter: Floats) -> None:
        day = math.sin(2 * math.pi * (at_ms / DAY_MS - 0.375))
        self._drift = 0.98 * self._drift + 0.03 * float(self._rng.normal())
        self.inlet = self._inlet_base + (1.2 * day + self._drift) + 0.08 * noise + self.knobs.inlet_celsius
        share, air = work.load.sum(axis=1) / work.load.shape[1], np.maximum(0.05, self.knobs.airflow)
        self.exhaust += gain * (self.inlet + (4.0 + 19.0 * share) / air - self.exhaust)
        # Fans follow the heat that leaves the chassis.
        hotter = np.minimum(np.maximum(self.exhaust - self.inlet - 5.0, 0.0), 20.0)
        self.fan_rpm = ((5200.0 + 260.0 * hotter + 15.0 * flutter) * air)[:, None] * self._fan_spread

    def _factors(self) -> None:
        """What the jobs feel of the host: each share that is left counts in full, factors multiply."""
        knobs = self.knobs
        capacity = np.maximum(LEAST_SHARE, knobs.cpu * knobs.frequency * (1 - knobs.steal) * (1 - knobs.memory_pressure))
        self._queue = knobs.disk_slowness / np.maximum(LEAST_SHARE, 1 - knobs.disk_load)
        own, hung = self._queue * knobs.mount_slowness, knobs.mount_hung > 0
        self.data_factor = np.where(hung, HUNG_FACTOR, own / capacity)
        self.launch_factor = np.maximum(1.0, LAUNCH_SHARE / capacity)
        self.save_factor = np.where(hung, HUNG_FACTOR, own / np.sqrt(capacity))

    def _clock(self, seconds: int, noise: Floats, estimate: Floats) -> None:
        knobs = self.knobs
        guided = knobs.synchronised > 0
        drifting = ~guided | (knobs.clock_drift != 0)
        # A daemon that has its source again steps the clock back.
        self._skew = np.where(drifting, self._skew + knobs.clock_drift * seconds, 0.0)
        self._jitter = 0.9 * self._jitter + 6e-6 * noise
        self.clock_offset = self._jitter + self._skew
        unguided = np.minimum(GREATEST_ERROR, self.clock_error + DRIFT_ASSUMED * seconds)
        self.clock_error = np.where(guided, 0.004 + 0.0005 * np.abs(estimate), unguided)

    def _count_cpu(self, seconds: int, busy: Floats, writing: Floats, wait: Floats) -> None:
        steal = self.knobs.steal[:, None]
        spread = np.minimum(busy[:, None] * (0.85 + 0.3 * self._rng.random(self.cpu.shape[:2])), 0.99) * (1 - steal)
        waits = np.minimum(0.4, np.where(writing > 0, 0.03, 0.0005) + 0.3 * np.maximum(0.0, wait - 0.05))[:, None]
        # Reclaiming memory is the kernel's work.
        system = (0.17 + 0.4 * np.minimum(1.0, self.knobs.memory_pressure))[:, None]
        idle = 1 - spread - steal
        waits = np.minimum(waits, np.maximum(idle, 0.0))
        part = np.zeros(self.cpu.shape)
        part[:, :, 0] = idle - waits
        part[:, :, 1] = waits
        part[:, :, 3] = 0.001 * spread
        part[:, :, 4] = 0.02 * spread
        part[:, :, 5] = steal
        part[:, :, 6] = system * spread
        part[:, :, 7] = (0.979 - system) * spread
        self.cpu += part * seconds

    def _pressure(self, seconds: int, active: Floats, writing: Floats, wait: Floats, others: Floats, uniform: Floats) -> None:
        total, knobs = self.totals, self.knobs
        starved = np.minimum(0.98, 0.9 * others + 0.5 * knobs.steal + 0.35 * active * (1 - knobs.frequency))
        total["cpu_waiting"] += seconds * np.minimum(1.0, (0.002 + 0.004 * active) * (0.5 + uniform[0]) + starved)
        waiting = np.where(writing > 0, 0.12, 0.002) * (0.5 + uniform[1]) + 0.8 * active * (1 - 1 / self._queue) + wait
        waiting = seconds * np.minimum(0.99, waiting)
        total["io_waiting"] += waiting
        total["io_stalled"] += 0.4 * waiting
        stalled = seconds * knobs.memory_pressure
        total["memory_waiting"] += stalled
        total["memory_stalled"] += 0.75 * stalled
        total["major_faults"] += np.floor(0.05 * seconds + uniform[2] + 3e3 * stalled)
        total["package_throttles"] += np.floor(knobs.throttles_per_second * seconds + uniform[3])
        total["edac_corrected"] += uniform[4] < seconds * EDAC_PER_SECOND
        total["hung_tasks"] += (knobs.mount_hung > 0) & (uniform[4] < seconds / HUNG_TASK_SECONDS)

    def _count_net(self, seconds: int, active: Floats, writing: Floats, uniform: Floats) -> None:
        total = self.totals
        arrived = np.rint(seconds * (3e5 + 4e7 * active) * uniform[0])
        left = np.rint(seconds * (2e5 + 2e6 * active) * uniform[1] + 0.5 * writing)
        segments = np.rint(left / 1400)
        total["eth_in"] += arrived
        total["eth_out"] += left
        total["eth_in_packets"] += np.rint(arrived / 1400)
        total["eth_out_packets"] += segments
        total["tcp_out"] += segments
        total["tcp_again"] += np.floor(0.004 * seconds * (1 + active) + 2.5 * (uniform[2] - 0.8))

    def _count_disks(self, seconds: int, active: Floats, work: Work, uniform: Floats) -> None:
        disk, knobs, size = self.disk, self.knobs, self.kind.scratch_bytes
        # Read, then written; float64[2, node, disk].
        moved = np.zeros((2, self._nodes, len(DISKS)))
        moved[0, :, 0] = seconds * 5e4 * (0.2 + 1.8 * uniform[0])
        # The cache of the input data is on the scratch disk: it is read as fast as the job computes.
        pace = np.minimum(1.0, work.busy.sum(axis=1) / work.busy.shape[1] / 0.8)
        moved[0, :, SCRATCH] = seconds * (2.2e7 * active * pace + knobs.disk_load * DISK_BYTES_PER_SECOND)
        moved[1, :, 0] = seconds * 4e5 * (0.5 + uniform[1])
        moved[1, :, SCRATCH] = np.where(knobs.read_only > 0, 0.0, work.writing)
        moved = np.rint(moved)
        calls = np.rint(moved / IO_BYTES)
        took = calls * np.array([READ_SECONDS, WRITE_SECONDS])[:, None, None]
        took[:, :, SCRATCH] *= self._queue
        both = moved.sum(axis=0) / DISK_BYTES_PER_SECOND
        both[:, SCRATCH] *= knobs.disk_slowness**2
        disk["read_bytes"] += moved[0]
        disk["written_bytes"] += moved[1]
        disk["reads"] += calls[0]
        disk["writes"] += calls[1]
        disk["read_time"] += took[0]
        disk["write_time"] += took[1]
        disk["io_weighted"] += took.sum(axis=0)
        disk["io_time"] += np.minimum(seconds, both)
        self.scratch_used += 0.02 * moved[1, :, SCRATCH]
        self.scratch_used = np.where(self.scratch_used > CLEANED_AT * size, CLEANED_TO * size, self.scratch_used)
