"""Faults of GPUs' pace, memory and cooling, planted into a `Cluster` by hand. Sizes follow recorded pages and physics."""

from __future__ import annotations

import numpy as np

from tests.contract.windows import Cluster

COMPUTE = 0.62  # share of a step that a rank computes
REST = {"utilization_ratio": 0.0, "tensor_active_ratio": 0.0, "sm_active_ratio": 0.0, "graphics_active_ratio": 0.0, "power_watts": 72.0,
        "sm_clock_hertz": 345e6, "temperature_celsius": 31.0, "memory_temperature_celsius": 33.0, "throttle_reasons_bits": 1.0,
        "memory_used_bytes": 6e8, "thermal_margin_celsius": 54.0}


def lose_clock(cluster: Cluster, column: int, start: int, loss: float = 0.2) -> Cluster:
    """A clock that stays low: less power and heat, no reason bit."""
    cluster.put("gpu.sm_clock_hertz", 1980e6 * (1 - loss), start, None, [column])
    cluster.put("gpu.power_watts", 630 * (1 - loss), start, None, [column])
    cluster.put("gpu.temperature_celsius", round(62 - 30 * loss), start, None, [column])
    return cluster.put("gpu.throttle_reasons_bits", 0.0, start, None, [column])


def time_ranks(cluster: Cluster) -> Cluster:
    """The trainer also tells what its ranks compute."""
    shape = (cluster.ticks, cluster.width("rank"))
    usual = COMPUTE * cluster.step_seconds
    cluster.signals["rank.compute_seconds"] = usual * cluster.rng("compute").normal(1, 0.006, shape)
    return cluster


def slow_rank(cluster: Cluster, column: int, start: int, excess: float = 0.25, busy: bool = True) -> Cluster:
    """A rank computes longer and all others wait for it. busy: its kernels take the time (the GPU); else it is late. The tensor pipe
    has as much to do in a step as that of all others."""
    if "rank.compute_seconds" not in cluster.signals:
        time_ranks(cluster)
    more = excess * COMPUTE * cluster.step_seconds
    longer = 1 + more / cluster.step_seconds
    others = [c for c in range(cluster.width("gpu")) if c != column]
    cluster.signals["rank.compute_seconds"][start:, column] *= 1 + excess
    cluster.add("rank.step_seconds", more, start)
    cluster.add("rank.comm_wait_seconds", more, start, None, others)
    for name in ("gpu.sm_active_ratio", "gpu.tensor_active_ratio"):
        cluster.signals[name][start:] /= longer
    cluster.add("gpu.power_watts", -420 * (1 - 1 / longer), start)
    if busy:  # SMs that wait in a kernel draw less than at work, and more than in a collective
        cluster.signals["gpu.sm_active_ratio"][start:, column] *= 1 + excess
        cluster.add("gpu.power_watts", 210 * (1 - 1 / longer), start, None, [column])
    return cluster


def rest(cluster: Cluster, nodes: list[int], start: int) -> Cluster:
    """The nodes' GPUs are at rest and empty, their ranks report no more."""
    columns = [8 * n + i for n in nodes for i in range(8)]
    for name, value in REST.items():
        if f"gpu.{name}" in cluster.signals:
            cluster.put(f"gpu.{name}", value, start, None, columns)
    for name in cluster.signals:
        if name.startswith("rank.") and cluster.width("rank"):
            cluster.put(name, np.nan, start, None, columns)
    return cluster


def leak(cluster: Cluster, column: int, start: int, used: float = 3e10) -> Cluster:
    """The job on a GPU's node dies, and the memory of that GPU stays held."""
    return rest(cluster, [column // 8], start).put("gpu.memory_used_bytes", used, start, None, [column])


def heat_loop(cluster: Cluster, start: int, degrees: float = 15.0, loop: int = 1, minutes: float = 0.0) -> Cluster:
    """All GPUs of the nodes on a cooling loop (every second node) get hotter, at once or over minutes."""
    columns = [8 * n + i for n in range(loop, cluster.nodes, 2) for i in range(8)]
    ticks = np.arange(cluster.ticks - start)
    grown = np.minimum(1.0, (ticks + 1) / max(1.0, 4 * minutes))[:, None]
    for name, sign in (("temperature_celsius", 1), ("memory_temperature_celsius", 1), ("thermal_margin_celsius", -1)):
        cluster.add(f"gpu.{name}", np.round(sign * degrees * grown), start, None, columns)
    return cluster
