"""Slurm: its own metrics (25.11 and later), and the exporters `slurm_exporter` and `prometheus-slurm-exporter` (signals.md §6).

A node's state stands in the label `status` of a series that is always 1: its scale is the state's number, and a node in
several partitions has a copy for each. Marks behind a state: `*` does not answer, `$` maintenance, `~` `%` `!` switched
off or on its way there, `#` on its way up, `@` `^` to be rebooted, `-` planned, `+` more than one state. Only slurm_exporter
says which node; the others count nodes of the whole cluster. Counts by partition are left out: partitions overlap. All of
Slurm's own metrics are gauges, whatever they end in.

These signals tell a drain or a maintenance from a fault. They are no faults.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

PREFIX = "slurm_"
IDENTITY = ("exported_node", "node")
WORKS, NO_NEW_WORK, DOWN = 0, 1, 2

_NODE_STATUS = "slurm_node_status"
_NO_NEW_WORK = ("drain", "drng", "maint", "fail", "reboot", "block")
_DOWN = ("down", "unk", "no_resp", "noresp", "error", "err", "inval", "future", "perfctrs", "power")
_CLUSTER = {"drain": "fleet.nodes_drained", "maint": "fleet.nodes_in_maintenance", "maintenance": "fleet.nodes_in_maintenance",
            "down": "fleet.nodes_down"}
CLUSTER: dict[str, Meaning] = {f"slurm_nodes_{state}{end}": gauge(signal) for state, signal in _CLUSTER.items()
                               for end in ("", "_total")}


def state_of(status: str) -> int:
    """0 works, 1 gets no new work, 2 down or silent."""
    state = status.strip().lower()
    bare = state.rstrip("*$~#!%@^-+")
    marks = state[len(bare):]
    if any(mark in marks for mark in "*~%!#") or bare.startswith(_DOWN):
        return DOWN
    return NO_NEW_WORK if any(mark in marks for mark in "$@^") or bare.startswith(_NO_NEW_WORK) else WORKS


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a Slurm series."""
    labels = labels_of(series)
    if series.name == _NODE_STATUS:
        node, status = labels.get("exported_node") or labels.get("node"), labels.get("status")
        if not node or not status:
            return None
        return gauge("node.scheduler_state", state_of(status)).ref(Target("node", node))
    meaning = CLUSTER.get(series.name)
    if meaning is None or "partition" in labels:
        return None
    return meaning.ref(Target("fleet", device=labels.get("cluster") or "slurm"))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    for number, states in ((WORKS, "idle, mixed, allocated, …"), (NO_NEW_WORK, "drain, maint, fail, reboot, …$"),
                           (DOWN, "down, unknown, powered_down, …*")):
        yield Row(f'{_NODE_STATUS}{{status="{states}"}}', gauge("node.scheduler_state", number), "node (`node`)")
    yield from (Row(name, meaning, "fleet") for name, meaning in CLUSTER.items())


PLUGIN = SourcePlugin("slurm", map_series=map_series, identity=IDENTITY, prefixes=(PREFIX,))
