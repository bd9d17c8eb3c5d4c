"""Lustre, as lustre_exporter of HPE and of GSI spell it: clients, servers and the Lustre network (signals.md §5).

There is no latency in it: whether storage is slow shows in fewer reads and writes on many nodes at once and in the
nodes' I/O pressure. A client names its mount `<file system>-<address>`; the file system's name makes it the same mount
for all nodes (and for node_exporter's rows of it). HPE says kilobytes where GSI says kibibytes; both are 1024 bytes. Servers' targets (`lustrefs-OST0001`) are kind storage.

Left out: per-job rows (one for each job that ever ran), histograms of RPCs, and settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

KIB = 1024.0

CLIENT: dict[str, Meaning] = {
    "lustre_read_samples_total": counter("mount.reads_per_second"),
    "lustre_write_samples_total": counter("mount.writes_per_second"),
    "lustre_available_kibibytes": gauge("mount.available_bytes", KIB),
    "lustre_available_kilobytes": gauge("mount.available_bytes", KIB),
    "lustre_capacity_kibibytes": gauge("mount.size_bytes", KIB),
    "lustre_capacity_kilobytes": gauge("mount.size_bytes", KIB),
    "lustre_inodes_free": gauge("mount.inodes_free"),
    "lustre_inodes_maximum": gauge("mount.inodes_total"),
}
# Bytes of all mounts of a node are one signal, which detectors of pauses look at.
CLIENT_BYTES = dict.fromkeys(("lustre_read_bytes_total", "lustre_write_bytes_total"),
                             counter("node.storage_bytes_per_second"))
SERVER: dict[str, Meaning] = {
    "lustre_read_bytes_total": counter("storage.read_bytes_per_second"),
    "lustre_write_bytes_total": counter("storage.written_bytes_per_second"),
    "lustre_available_kibibytes": gauge("storage.available_bytes", KIB),
    "lustre_available_kilobytes": gauge("storage.available_bytes", KIB),
    "lustre_capacity_kibibytes": gauge("storage.size_bytes", KIB),
    "lustre_capacity_kilobytes": gauge("storage.size_bytes", KIB),
    "lustre_degraded": gauge("storage.degraded"),
}
NETWORK: dict[str, Meaning] = {
    "lustre_drop_count_total": counter("node.lnet_drops_per_second"),
    "lustre_errors_total": counter("node.lnet_errors_per_second"),
}
HEALTH = gauge("node.lustre_healthy")
_MOUNT = re.compile(r"(.+)-[0-9a-f]{8,16}")


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a lustre_exporter series."""
    name, component, where = series.name, series.label("component"), series.label("target")
    node = Target("node", target.node)
    if component == "client":
        if name in CLIENT_BYTES:
            return CLIENT_BYTES[name].ref(node)
        mount, meaning = _MOUNT.fullmatch(where), CLIENT.get(name)
        return meaning.ref(Target("mount", target.node, mount[1])) if meaning and mount else None
    if component in ("ost", "mdt"):
        meaning = SERVER.get(name)
        return meaning.ref(Target("storage", target.node, where)) if meaning and where else None
    if component == "lnet":
        return NETWORK[name].ref(node) if name in NETWORK else None
    return HEALTH.ref(node) if component == "health" and name == "lustre_health_check" else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    for component, table, part in (("client", CLIENT, "mount (`target`)"), ("client", CLIENT_BYTES, "node, mounts added"),
                                   ("ost|mdt", SERVER, "storage (`target`)"), ("lnet", NETWORK, "node"),
                                   ("health", {"lustre_health_check": HEALTH}, "node")):
        yield from (Row(f'{name}{{component="{component}"}}', meaning, part) for name, meaning in table.items())


PLUGIN = SourcePlugin("lustre", map_series=map_series, prefixes=("lustre_",))
