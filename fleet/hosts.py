"""The hosts around the GPUs as arrays: inlet air, CPU, memory, disk, the management Ethernet and the kernel's clock."""

from __future__ import annotations

import numpy as np

from core.types import Floats
from fleet.hardware import NodeType
from fleet.work import Work

MODES = ("idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user")
DAY_MS = 24 * 3600 * 1000
DISKS = ("nvme0n1", "nvme1n1")  # root, scratch
TOTALS = (
    "cpu_waiting", "io_waiting", "io_stalled", "memory_waiting", "memory_stalled", "eth_in", "eth_out", "eth_in_packets",
    "eth_out_packets", "tcp_out", "tcp_again", "major_faults",
)


class HostBank:
    """Gauges float64[node]; counters by name in `totals`; cpu float64[node, cpu, mode]; disks float64[node, disk]."""

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator) -> None:
        self.kind, self._rng = kind, rng
        self._nodes = nodes
        self._inlet_base = 23.0 + rng.uniform(-0.8, 0.8, nodes)
        self._drift = 0.0
        self.inlet = self._inlet_base.copy()
        self.exhaust = self.inlet + 8.0
        self.load1 = np.full(nodes, 0.4)
        self.available = np.full(nodes, 0.93 * kind.host_memory_bytes)
        self.clock_offset = rng.normal(0, 2e-5, nodes)
        self.cpu = rng.uniform(0, 1e4, (nodes, kind.cpus, len(MODES))) * np.array([40, .02, 0, .01, .1, 0, 2, 9])
        past = {"cpu_waiting": 9e3, "io_waiting": 7e3, "io_stalled": 3e3, "memory_waiting": 0.0, "memory_stalled": 0.0,
                "major_faults": 2e5, "tcp_again": 4e4}
        self.totals: dict[str, Floats] = {
            name: np.floor(rng.uniform(0.3, 1.7, nodes) * past.get(name, 3e12 if "packets" not in name else 2e9))
            for name in TOTALS}
        self.disk: dict[str, Floats] = {
            name: np.floor(rng.uniform(0.3, 1.7, (nodes, len(DISKS))) * size)
            for name, size in (("read_bytes", 4e13), ("written_bytes", 7e13), ("reads", 3e8), ("writes", 5e8),
                               ("read_time", 4e4), ("write_time", 2e5), ("io_time", 3e4))}
        self.scratch_used = rng.uniform(2e12, 4e12, nodes)

    def reset(self, row: int) -> None:
        """A reboot clears the kernel's counters."""
        self.cpu[row] = 0.0
        for values in (*self.totals.values(), *self.disk.values()):
            values[row] = 0.0

    def step(self, seconds: int, work: Work, at_ms: int) -> None:
        """Moves all hosts on by `seconds`."""
        rng, n = self._rng, self._nodes
        day = np.sin(2 * np.pi * (at_ms / DAY_MS - 0.375))
        self._drift = 0.98 * self._drift + 0.03 * float(rng.normal())
        self.inlet = self._inlet_base + 1.2 * day + self._drift + 0.08 * rng.normal(0, 1, n)
        share = work.load.mean(axis=1)
        self.exhaust += 0.1 * (self.inlet + 4.0 + 19.0 * share - self.exhaust)
        active = (work.memory_mib.max(axis=1) > 0).astype(float)
        busy = np.clip(0.02 + 0.3 * active + 0.02 * rng.normal(0, 1, n), 0.005, 0.95)
        self._count_cpu(seconds, busy, work.writing)
        target = busy * 48
        self.load1 += (1 - np.exp(-seconds / 60)) * (target + 0.5 * rng.normal(0, 1, n) - self.load1)
        self.load1 = np.maximum(0.01, self.load1)
        used = (0.07 + 0.24 * active) * self.kind.host_memory_bytes
        self.available += 0.1 * (self.kind.host_memory_bytes - used - self.available) + 2e7 * rng.normal(0, 1, n)
        self.clock_offset = 0.9 * self.clock_offset + 6e-6 * rng.normal(0, 1, n)
        self._count_io(seconds, active, work.writing)

    def _count_cpu(self, seconds: int, busy: Floats, writing: Floats) -> None:
        spread = np.clip(busy[:, None] * self._rng.uniform(0.85, 1.15, self.cpu.shape[:2]), 0, 0.99)
        waits = np.where(writing > 0, 0.03, 0.0005)[:, None]
        part = np.stack([1 - spread - waits, waits + 0 * spread, 0 * spread, 0.001 * spread, 0.02 * spread, 0 * spread,
                         0.17 * spread, 0.809 * spread], axis=2)
        self.cpu += np.round(np.maximum(part, 0) * seconds, 2)

    def _count_io(self, seconds: int, active: Floats, writing: Floats) -> None:
        rng, n, total, disk = self._rng, self._nodes, self.totals, self.disk
        total["cpu_waiting"] += np.round(seconds * (0.002 + 0.004 * active) * rng.uniform(0.5, 1.5, n), 6)
        waiting = np.where(writing > 0, 0.12, 0.002) * rng.uniform(0.5, 1.5, n)
        total["io_waiting"] += np.round(seconds * waiting, 6)
        total["io_stalled"] += np.round(0.4 * seconds * waiting, 6)
        arrived = np.round(seconds * (3e5 + 4e7 * active) * rng.uniform(0.8, 1.2, n))
        left = np.round(seconds * (2e5 + 2e6 * active) * rng.uniform(0.8, 1.2, n) + 0.5 * writing)
        total["eth_in"] += arrived
        total["eth_out"] += left
        total["eth_in_packets"] += np.round(arrived / 1400)
        total["eth_out_packets"] += np.round(left / 1400)
        total["tcp_out"] += np.round(left / 1400)
        total["tcp_again"] += rng.poisson(0.004 * seconds * (1 + active))
        total["major_faults"] += rng.poisson(0.05 * seconds, n)
        written = np.stack([np.round(seconds * 4e5 * rng.uniform(0.5, 1.5, n)), np.round(writing)], axis=1)
        read = np.stack([np.round(seconds * 5e4 * rng.uniform(0.2, 2, n)), np.round(seconds * 2.2e7 * active)], axis=1)
        disk["written_bytes"] += written
        disk["read_bytes"] += read
        disk["writes"] += np.round(written / 131072)
        disk["reads"] += np.round(read / 131072)
        disk["write_time"] += np.round(written / 131072 * 0.00031, 3)
        disk["read_time"] += np.round(read / 131072 * 0.00012, 3)
        disk["io_time"] += np.round(np.minimum(seconds, (written + read) / 5e9), 3)
        self.scratch_used += 0.02 * writing
