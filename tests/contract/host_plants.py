"""What a node shows beside its GPUs and NICs, for windows of detector tests: exporters, services, settings, disks and shared
storage; and their faults, planted by hand. Numbers follow signals.md §4, §5 and §10."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.types import Target

DISKS = 3
STORAGE = ("scratch-OST0000", "scratch-OST0001")
LABELS = ("gpu model=NVIDIA H100 80GB HBM3", "driver=570.86.15", "driver=999.1", "kernel=6.8.0-45-generic", "kernel=5.15.0")
EXPORTERS = ("dcgm/{}:9400", "node/{}:9100")
SERVICES = ("nvidia-fabricmanager.service", "slurmd.service")


def furnish(cluster: Any) -> None:
    """Gives the cluster the parts and their healthy signals."""
    names, t = cluster.names, cluster.ticks
    cluster.entities |= {
        "exporter": tuple(Target("exporter", n, e.format(n)) for n in names for e in EXPORTERS),
        "service": tuple(Target("service", n, s) for n in names for s in SERVICES),
        "label": tuple(Target("label", n, one) for n in names for one in LABELS),
        "disk": tuple(Target("disk", n, f"nvme{i}n1") for n in names for i in range(DISKS)),
        "storage": tuple(Target("storage", n, one) for n in names for one in STORAGE),
    }
    for signal, kind, value in (("exporter.state", "exporter", 0.0), ("exporter.series", "exporter", 400.0),
                                ("service.active", "service", 1.0), ("service.failed", "service", 0.0)):
        cluster.signals[signal] = np.full((t, cluster.width(kind)), value)
    shown = np.array([1.0 if "999" not in one and "5.15" not in one else np.nan for one in LABELS])
    cluster.signals["label.present"] = np.tile(shown, (t, len(names)))
    _disks(cluster)
    _storage(cluster)


def _disks(cluster: Any) -> None:
    n, t, rng = cluster.width("disk"), cluster.ticks, cluster.rng
    for way, took in (("read", 2.2e-4), ("write", 4e-4)):
        rate = 300 * rng(f"disk {way}").lognormal(0, 0.4, (t, n))
        cluster.signals[f"disk.{way}s_per_second"] = rate
        cluster.signals[f"disk.{way}_time_ratio"] = rate * took * rng(f"{way} time").lognormal(0, 0.15, (t, n))
    cluster.signals["disk.busy_ratio"] = np.clip(rng("busy").normal(0.2, 0.03, (t, n)), 0, 1)


def _storage(cluster: Any) -> None:
    n, t = cluster.width("storage"), cluster.ticks
    cluster.signals["storage.wait_seconds"] = 1.2e-3 * cluster.rng("wait").lognormal(0, 0.2, (t, n))
    cluster.signals["storage.calls_in_flight"] = cluster.rng("calls").poisson(3, (t, n)).astype(float)
    cluster.signals["storage.connected"] = np.ones((t, n))


# --- faults -----------------------------------------------------------------------------------------------------------
def stop_exporter(cluster: Any, node: int, start: int) -> Any:
    """The node's GPU exporter refuses connections: nothing of its GPUs comes any more."""
    for name in [n for n in cluster.signals if n.startswith("gpu.")]:
        cluster.put(name, np.nan, start, None, range(8 * node, 8 * node + 8))
    cluster.put("exporter.series", np.nan, start, None, [2 * node])
    return cluster.put("exporter.state", 2.0, start, None, [2 * node])


def drop_fields(cluster: Any, columns: list[int], start: int, fields: tuple[str, ...] = ("sm_clock_hertz", "power_watts")) -> Any:
    """Fields of some GPUs are no longer on the page, which comes as before."""
    for field in fields:
        cluster.put(f"gpu.{field}", np.nan, start, None, columns)
    for node in {c // 8 for c in columns}:
        cluster.add("exporter.series", -len(fields) * sum(c // 8 == node for c in columns), start, None, [2 * node])
    return cluster


def stop_service(cluster: Any, node: int, start: int) -> Any:
    """The node's fabric manager fails."""
    cluster.put("service.failed", 1.0, start, None, [2 * node])
    return cluster.put("service.active", 0.0, start, None, [2 * node])


def set_label(cluster: Any, node: int, start: int, old: int = 1, new: int = 2) -> Any:
    """The node shows another value of a setting."""
    cluster.put("label.present", np.nan, start, None, [len(LABELS) * node + old])
    return cluster.put("label.present", 1.0, start, None, [len(LABELS) * node + new])


def slow_disk(cluster: Any, node: int, start: int, factor: float = 8.0, disk: int = 1) -> Any:
    """Each operation of a disk takes longer; it does as many as before."""
    column = [DISKS * node + disk]
    for way in ("read", "write"):
        cluster.signals[f"disk.{way}_time_ratio"][start:, column] *= factor
    return cluster.put("disk.busy_ratio", 0.97, start, None, column)


def slow_storage(cluster: Any, start: int, factor: float = 12.0, target: int = 1, nodes: list[int] | None = None) -> Any:
    """Calls to one storage target take longer, for all clients or some."""
    chosen = range(len(cluster.names)) if nodes is None else nodes
    columns = [len(STORAGE) * n + target for n in chosen]
    cluster.signals["storage.wait_seconds"][start:, columns] *= factor
    return cluster.add("storage.calls_in_flight", 20.0, start, None, columns)
