"""`inventory.yaml`: what stands where. All but names and ids is optional; what is missing makes localisation coarser.

Unknown keys are refused, except inside `labels`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.clock import parse_rfc3339
from core.errors import ConfigError
from core.types import JobState, Target
from core.window import NicPlace, Place, Topology
from core.yamlfile import build, read_yaml

NODE_STATES = ("in_service", "spare", "drained")


@dataclass(frozen=True, slots=True)
class GpuEntry:
    index: int
    uuid: str | None = None
    pci: str | None = None
    serial: str | None = None


@dataclass(frozen=True, slots=True)
class NicEntry:
    name: str
    rail: int | None = None
    leaf: str | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class NodeEntry:
    name: str
    instance_type: str | None = None
    rack: str | None = None
    leaf: str | None = None
    spine: str | None = None
    pdu: str | None = None
    cooling: str | None = None
    nvlink_domain: str | None = None
    state: str = "in_service"
    boot_time: str | None = None
    gpus: tuple[GpuEntry, ...] = ()
    nics: tuple[NicEntry, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobEntry:
    id: str
    nodes: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None
    ranks_per_node: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int | None = None


@dataclass(frozen=True, slots=True)
class StorageEntry:
    name: str
    mounts: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """The file as read, with views that the pipeline uses."""

    nodes: tuple[NodeEntry, ...] = ()
    jobs: tuple[JobEntry, ...] = ()
    storage: tuple[StorageEntry, ...] = ()

    def topology(self) -> Topology:
        """Places, NICs and mounts."""
        places = {
            n.name: Place(n.name, n.instance_type, n.rack, n.leaf, n.spine, n.pdu, n.cooling, n.nvlink_domain, n.state,
                          _time(n.boot_time), tuple(sorted(n.labels.items())))
            for n in self.nodes
        }
        nics = {(n.name, nic.name): NicPlace(n.name, nic.name, nic.rail, nic.leaf or n.leaf, nic.port)
                for n in self.nodes for nic in n.nics}
        mounts = {s.name: tuple(m if isinstance(m, str) else str(m["node"]) for m in s.mounts) for s in self.storage}
        return Topology(places, nics, mounts)

    def job_states(self) -> tuple[JobState, ...]:
        """The jobs that the inventory names; phases come from the trainers."""
        return tuple(
            JobState(j.id, "unknown", j.nodes, (), j.ranks_per_node, j.tp, j.pp, j.dp, _time(j.start), _time(j.end))
            for j in self.jobs
        )

    def gpus(self) -> tuple[tuple[Target, str | None], ...]:
        """Each GPU as a Target with its PCI address."""
        return tuple((Target("gpu", n.name, str(g.index), g.uuid, serial=g.serial), g.pci)
                     for n in self.nodes for g in n.gpus)


def _time(text: str | None) -> int | None:
    return None if text is None else parse_rfc3339(text)


def inventory_from(data: Any, file: str) -> Inventory:
    """An Inventory from YAML or JSON data. Raises ConfigError naming file, key, what was given and what is allowed."""
    found = build(Inventory, data, file)
    for name, times in Counter(n.name for n in found.nodes).items():
        if times > 1:
            raise ConfigError(file, "nodes.name", name, "each node is allowed once")
    for node in found.nodes:
        if node.state not in NODE_STATES:
            raise ConfigError(file, f"nodes.{node.name}.state", node.state, f"allowed are: {', '.join(NODE_STATES)}")
        _check_time(file, f"nodes.{node.name}.boot_time", node.boot_time)
    for job in found.jobs:
        _check_time(file, f"jobs.{job.id}.start", job.start)
        _check_time(file, f"jobs.{job.id}.end", job.end)
        for value, key in ((job.tp, "tp"), (job.pp, "pp"), (job.dp or 1, "dp"), (job.ranks_per_node or 1, "ranks_per_node")):
            if value < 1:
                raise ConfigError(file, f"jobs.{job.id}.{key}", value, "a whole number of at least 1 is needed")
    for store in found.storage:
        for mount in store.mounts:
            if not isinstance(mount, str) and not (isinstance(mount, Mapping) and "node" in mount
                                                   and set(mount) <= {"node", "path"}):
                raise ConfigError(file, f"storage.{store.name}.mounts", mount, "a node name or {node, path} is needed")
    return found


def _check_time(file: str, key: str, text: str | None) -> None:
    try:
        _time(text)
    except ValueError:
        raise ConfigError(file, key, text, "an ISO 8601 time is needed") from None


def read_inventory(path: str | Path) -> Inventory:
    """The inventory file (YAML or JSON, which is YAML).

    A `.json` that is whole JSON is read as such: 10,000 runs of a scheduler's jobs take YAML's reader half a minute.
    """
    if str(path).endswith(".json"):
        try:
            return inventory_from(json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_once), str(path))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError):
            pass  # the other reader says what is wrong, and where
    return inventory_from(read_yaml(path), str(path))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key twice")
    return out
