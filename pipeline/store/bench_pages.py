"""What one dense GPU node exposes, as values: layouts and scrapes for `greylag bench store` (facts: performance.md §0).

About 2,570 series: 8 GPUs, 96 CPUs, 32 network interfaces, 32 InfiniBand ports, 8 disks, file systems, memory and network
counters, a histogram. 78 % of the values are whole numbers, and about 40 % change from one scrape to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Layout, Series

GPU_COUNTERS = ("XID_ERRORS", "PCIE_REPLAY_COUNTER", "TOTAL_ENERGY_CONSUMPTION", "NVLINK_BANDWIDTH_TOTAL",
                "CORRECTABLE_REMAPPED_ROWS", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE", "POWER_VIOLATION",
                "THERMAL_VIOLATION", "SYNC_BOOST_VIOLATION", "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL")
GPU_GAUGES = ("SM_CLOCK", "MEM_CLOCK", "GPU_TEMP", "MEMORY_TEMP", "GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL",
              "FB_FREE", "FB_USED", "FB_TOTAL", "FB_RESERVED", "PSTATE", "FAN_SPEED", "CLOCKS_EVENT_REASONS", "PCIE_LINK_GEN",
              "PCIE_LINK_WIDTH", "COMPUTE_MODE", "POWER_MGMT_LIMIT", "SLOWDOWN_TEMP")
GPU_RATIOS = ("POWER_USAGE", "GR_ENGINE_ACTIVE", "SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE",
              "PIPE_FP64_ACTIVE", "PIPE_FP32_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES")
CPU_MODES = ("idle", "user", "system", "iowait", "irq", "nice", "softirq", "steal")
# What becomes of a value from scrape to scrape.
STILL, WHOLE, GAUGE, SECONDS, RATIO = range(5)


@dataclass(frozen=True, slots=True)
class Page:
    """One node's series with the behaviour of each: kind int[n], start and rate float64[n]."""

    series: tuple[Series, ...]
    kind: NDArray[np.int64]
    start: Floats
    rate: Floats


def page(node: int, seed: int = 1) -> Page:
    """The page of a node; equal for equal arguments."""
    random = np.random.default_rng([seed, node])
    rows = list(_rows(node))
    kind = np.array([k for _, k in rows], np.int64)
    n = len(rows)
    # Of the counters some stand still for good (errors, unused ports), as on a real node.
    kind = np.where((kind == WHOLE) & (random.random(n) < 0.55), STILL, kind)
    kind = np.where((kind == GAUGE) & (random.random(n) < 0.5), STILL, kind)
    start = np.choose(kind, [random.integers(0, 50, n) * (random.random(n) < 0.3), random.integers(10**6, 10**12, n),
                             random.integers(20, 80_000, n), random.integers(10**4, 10**9, n) / 100, np.zeros(n)])
    rate = np.choose(kind, [np.zeros(n), 10 ** random.uniform(0.5, 9, n), np.zeros(n), random.uniform(0.2, 10, n), np.ones(n)])
    return Page(tuple(s for s, _ in rows), kind, start.astype(np.float64), rate)


def layout(node: int, one: Page) -> Layout:
    """The layout of a page."""
    return Layout(f"bench-{node}", f"node/n{node}:9100", one.series, (), f"n{node}")


def values(one: Page, points: int, seed: int) -> Floats:
    """float64[point, series]: what the page says in so many scrapes."""
    random = np.random.default_rng(seed)
    shape = (points, len(one.kind))
    busy = random.normal(1.0, 0.15, shape)
    grown = np.cumsum(np.floor(np.maximum(busy, 0) * one.rate), axis=0)
    wander = np.cumsum(random.integers(-1, 2, shape) * (random.random(shape) < 0.5), axis=0)
    spent = np.cumsum(np.round(np.maximum(busy, 0) * one.rate, 2), axis=0)
    ratio = np.round(np.clip(random.normal(0.6, 0.2, shape), 0, 1), 6)
    moved = np.select([one.kind == WHOLE, one.kind == GAUGE, one.kind == SECONDS, one.kind == RATIO],
                      [grown, wander, np.round(spent, 2), ratio], 0.0)
    return np.round(one.start + moved, 6)


def _rows(node: int) -> Iterator[tuple[Series, int]]:
    shared: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
    home = (("instance", f"n{node}:9100"), ("job", "node"))

    def row(name: str, kind: int, *labels: tuple[str, str]) -> tuple[Series, int]:
        type_ = "counter" if kind in (WHOLE, SECONDS) else "gauge"
        whole = tuple(sorted((*home, *labels)))
        return Series(name, shared.setdefault(whole, whole), type_), kind

    for gpu in range(8):
        labels = (("gpu", str(gpu)), ("UUID", f"GPU-{node:08x}-{gpu:04x}"), ("device", f"nvidia{gpu}"), ("Hostname", f"n{node}"),
                  ("modelName", "NVIDIA H100 80GB HBM3"), ("pci_bus_id", f"00000000:{gpu:02X}:00.0"),
                  ("DCGM_FI_DRIVER_VERSION", "550.90.07"))
        for names, kind in ((GPU_COUNTERS, WHOLE), (GPU_GAUGES, GAUGE), (GPU_RATIOS, RATIO)):
            yield from (row(f"DCGM_FI_DEV_{name}", kind, *labels) for name in names)
    for cpu in range(96):
        for mode in CPU_MODES:
            kind = SECONDS if mode in ("idle", "user", "system") or (mode == "softirq" and cpu < 16) else STILL
            yield row("node_cpu_seconds_total", kind, ("cpu", str(cpu)), ("mode", mode))
    for nic in range(32):
        yield from (row(f"node_network_{i:02d}_total", WHOLE if i < 22 else GAUGE, ("device", f"eth{nic}")) for i in range(27))
    for port in range(32):
        yield from (row(f"node_infiniband_{i}_total", WHOLE, ("device", f"mlx5_{port}"), ("port", "1")) for i in range(8))
    for disk in range(8):
        yield from (row(f"node_disk_{i}_total", SECONDS if i < 3 else WHOLE, ("device", f"nvme{disk}n1")) for i in range(11))
    for mount in range(13):
        place = (("device", f"/dev/md{mount}"), ("fstype", "ext4"), ("mountpoint", f"/data \"{mount}\""))
        yield from (row(f"node_filesystem_{i}_bytes", GAUGE, *place) for i in range(7))
    yield from (row(f"node_memory_{i}_bytes", GAUGE) for i in range(50))
    yield from (row(f"node_netstat_{i}", WHOLE) for i in range(60))
    for le in ("0.1", "0.5", "1", "5", "10", "+Inf"):
        yield row("node_scrape_bucket", WHOLE, ("le", le))
