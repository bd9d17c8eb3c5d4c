"""node_exporter's families of disks and file systems: the root and the scratch disk, and the shared file system's mount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.hosts import DISKS
from fleet.sheets.base import Family, Get, family
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

ROOT_FREE = 0.71
LOCAL = ('{device="/dev/nvme0n1p2",fstype="ext4",mountpoint="/"}', '{device="/dev/nvme1n1",fstype="xfs",mountpoint="/scratch"}')
# Inodes: all of them, and the share that is free.
INODES, INODES_FREE = (5.9e7, 1.49e9, 4.3e8), (0.97, 0.99, 0.94)


def disk_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The diskstats and filesystem collectors."""
    devices = tuple(f'{{device="{name}"}}' for name in DISKS)

    def of(key: str) -> Get:
        return lambda w: np.round(w.hosts.disk[key], 3)

    rows = [
        ("io_time_seconds_total", "Total seconds spent doing I/Os.", "io_time"),
        ("read_bytes_total", "The total number of bytes read successfully.", "read_bytes"),
        ("read_time_seconds_total", "The total number of seconds spent by all reads.", "read_time"),
        ("reads_completed_total", "The total number of reads completed successfully.", "reads"),
        ("write_time_seconds_total", "This is the total number of seconds spent by all writes.", "write_time"),
        ("writes_completed_total", "The total number of writes completed successfully.", "writes"),
        ("written_bytes_total", "The total number of bytes written successfully.", "written_bytes"),
    ]
    if not telemetry.lean:
        rows.append(("io_time_weighted_seconds_total", "The weighted # of seconds spent doing I/Os.", "io_weighted"))
    made = [family(f"node_disk_{name}", text, "counter", of(key), devices) for name, text, key in rows]
    return made + (_filesystems(world, telemetry) if telemetry.lean else [*_filesystems(world, telemetry), *_names()])


def _names() -> list[Family]:
    def disks(node: Node) -> Sequence[str]:
        return [f'{{device="{name}",major="259",minor="{i}",model="SAMSUNG MZWLO3T8HCLS-00A07",path="",revision="OPPA4B5Q",'
                f'rotational="0",serial="{node.disk_serials[i]}",wwn=""}}' for i, name in enumerate(DISKS)]

    def drives(node: Node) -> Sequence[str]:
        return [f'{{cntlid="6",device="nvme{i}",firmware_revision="OPPA4B5Q",model="SAMSUNG MZWLO3T8HCLS-00A07",'
                f'serial="{node.disk_serials[i]}",state="live"}}' for i in range(len(DISKS))]

    return [
        Family("node_disk_info", "Info of /sys/block/<block_device>.", "gauge", disks, len(DISKS), lambda w: 1.0),
        Family("node_nvme_info", "Non-numeric data from /sys/class/nvme/<device>, value is always 1.", "gauge", drives,
               len(DISKS), lambda w: 1.0),
    ]


def _filesystems(world: World, telemetry: Telemetry) -> list[Family]:
    shared = not telemetry.lean and "lustre" in world.has
    mounts = list(LOCAL)
    if shared:
        mounts.append(f'{{device="10.0.0.2@tcp:/{world.topology.storage}",fstype="lustre",'
                      f'mountpoint="/{world.topology.storage}"}}')
    width = len(mounts)

    def one(name: str, text: str, get: Get) -> Family:
        return family(f"node_filesystem_{name}", text, "gauge", get, mounts)

    def fixed(values: Sequence[float]) -> Get:
        return lambda w: _seen(w, _columns(w, *values[:width]))

    made = [
        one("avail_bytes", "Filesystem space available to non-root users in bytes.", lambda w: _seen(w, _free(w, width))),
        one("readonly", "Filesystem read-only status.", lambda w: _seen(w, _read_only(w, width))),
        one("size_bytes", "Filesystem size in bytes.", lambda w: _seen(w, _sizes(w, width))),
    ]
    if not telemetry.lean:
        made += [
            one("device_error", "Whether an error occurred while getting statistics for the given device.",
                lambda w: _errors(w, width)),
            one("files", "Filesystem total file nodes.", fixed(INODES)),
            one("files_free", "Filesystem total free file nodes.",
                fixed([round(all_ * free) for all_, free in zip(INODES, INODES_FREE, strict=True)])),
        ]
    return made


def _columns(world: World, *columns: Floats | float) -> Floats:
    out = np.empty((len(world.nodes), len(columns)))
    for place, one in enumerate(columns):
        out[:, place] = one
    return out


def _seen(world: World, values: Floats) -> Floats:
    """Nothing is known of a mount whose calls never return."""
    if values.shape[1] > len(LOCAL):
        hung = world.knobs.host.mount_hung > 0
        if hung.any():
            values[hung, len(LOCAL):] = np.nan
    return values


def _sizes(world: World, width: int) -> Floats:
    shared = world.storage.target_bytes * len(world.topology.targets)
    return _columns(world, *(world.kind.root_bytes, world.kind.scratch_bytes, shared)[:width])


def _free(world: World, width: int) -> Floats:
    shared = np.rint(world.storage.target_free.sum())
    return _columns(world, *(ROOT_FREE * world.kind.root_bytes, np.rint(world.hosts.scratch_free), shared)[:width])


def _read_only(world: World, width: int) -> Floats:
    return _columns(world, *(0.0, world.hosts.read_only, 0.0)[:width])


def _errors(world: World, width: int) -> Floats:
    return _columns(world, *(0.0, 0.0, (world.knobs.host.mount_hung > 0).astype(float))[:width])
