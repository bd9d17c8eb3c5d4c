"""lustre_exporter of a client: the mount's counters, the network under it, and whether all is well.

The mount's name is the file system's and an address. There is no latency in it (see `node_extras`), and no series of the
mount while its calls do not return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.sheets.base import Family, Get, Labels, Sheet
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

KIB = 1024.0
OPERATIONS = (("close", "closes"), ("getattr", "getattrs"), ("open", "opens"), ("statfs", "statfs"))
SMALLEST, LARGEST = 4096.0, 4194304.0


class LustreSheet(Sheet):
    """All clients."""

    name = "lustre"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        self._name = world.topology.storage
        mount, network = self._labels('component="client"'), self._labels('component="lnet"', "lnet")
        health = self._labels('component="health"', "lustre")

        def one(name: str, text: str, kind: str, get: Get, labels: Labels = mount) -> Family:
            return Family(f"lustre_{name}", text, kind, labels, 1, _seen(get) if labels is mount else get)

        super().__init__(world, [
            one("available_kibibytes", "Number of kibibytes readily available in the pool", "gauge", _available),
            one("capacity_kibibytes", "Capacity of the pool in kibibytes", "gauge", _capacity),
            one("inodes_free", "The number of inodes (objects) available", "gauge", lambda w: 4.042e8),
            one("inodes_maximum", "The maximum number of inodes (objects) the filesystem can hold", "gauge", lambda w: 4.3e8),
            *(one(f"{way}_{name}", text, kind, get) for way, key in (("read", "read"), ("write", "written"))
              for name, text, kind, get in _moved(way, key)),
            Family("lustre_stats_total", "Number of operations the filesystem has performed.", "counter", self._operations,
                   len(OPERATIONS), _seen(lambda w: np.stack([w.storage.counters[key] for _, key in OPERATIONS], axis=1))),
            one("send_count_total", "Total number of messages that have been sent", "counter", _count("lnet_sent"), network),
            one("receive_count_total", "Total number of messages that have been received", "counter", _count("lnet_received"),
                network),
            one("send_bytes_total", "Total number of bytes sent", "counter", _count("lnet_sent_bytes"), network),
            one("receive_bytes_total", "Total number of bytes received", "counter", _count("lnet_received_bytes"), network),
            one("drop_count_total", "Total number of messages that have been dropped", "counter", _count("lnet_drops"), network),
            one("errors_total", "Total number of errors", "counter", _count("lnet_errors"), network),
            one("health_check", "Current health status for the indicated instance: 1 refers to 'healthy', 0 refers to "
                "'unhealthy'", "gauge", lambda w: w.storage.healthy, health),
        ])

    def _target(self, node: Node) -> str:
        return f"{self._name}-ffff88{node.index:06x}0000"

    def _labels(self, component: str, target: str | None = None) -> Labels:
        return lambda node: (f'{{{component},target="{target or self._target(node)}"}}',)

    def _operations(self, node: Node) -> list[str]:
        return [f'{{component="client",operation="{name}",target="{self._target(node)}"}}' for name, _ in OPERATIONS]


def _count(key: str) -> Get:
    return lambda w: w.storage.counters[key]


def _moved(way: str, key: str) -> tuple[tuple[str, str, str, Get], ...]:
    done = "read" if way == "read" else "written"
    return (
        ("bytes_total", f"The total number of bytes that have been {done}.", "counter", _count(f"{key}_bytes")),
        ("maximum_size_bytes", f"The maximum {way} size in bytes.", "gauge", lambda w: LARGEST),
        ("minimum_size_bytes", f"The minimum {way} size in bytes.", "gauge", lambda w: SMALLEST),
        ("samples_total", f"Total number of {way}s that have been recorded.", "counter", _count(f"{way}s")),
    )


def _available(world: World) -> Floats:
    return np.full(len(world.nodes), np.floor(world.storage.target_free.sum() / KIB))


def _capacity(world: World) -> float:
    return float(np.floor(world.storage.target_bytes * len(world.topology.targets) / KIB))


def _seen(get: Get) -> Get:
    """Absent while the mount hangs."""
    def of_all(world: World) -> Floats:
        found = get(world)
        hung = world.knobs.host.mount_hung > 0
        if isinstance(found, float):
            found = np.full(len(hung), found)
        return np.where(hung if found.ndim == 1 else hung[:, None], np.nan, found)
    return of_all
