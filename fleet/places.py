"""Where a fault is: from a Target to indexes of the world's arrays, and the drawing of places.

A place is what FaultPlugin.place names. `index` of a place: gpu and rank (node, gpu), nic (node, nic), disk, mount and node
(node,), switch and spine (switch,), storage (storage target,), else (). `rows`: indexes of all nodes that it covers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from core.errors import BadInput, Refused
from core.types import Target

if TYPE_CHECKING:
    from fleet.world import World

# Kinds of place that are on one node.
ON_NODE = ("gpu", "rank", "nic", "disk", "mount", "node")
GROUPS = ("rack", "pdu", "cooling")
SCRATCH_DISK = "nvme1n1"


@dataclass(frozen=True, slots=True)
class Place:
    """A resolved place. target: as Greylag should name it."""

    target: Target
    index: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


def draw(world: World, kind: str, rng: np.random.Generator, also: Collection[int] = ()) -> Place:
    """A place of that kind at which nothing is wrong yet, if there is one; on nodes that work for a job. also: rows at
    which something will be wrong."""
    taken = {row for planted in world.faults if planted.present for row in planted.place.rows} | set(also)
    working = [n for job in world.jobs.values() for n in job.nodes] or list(range(len(world.nodes)))
    free = [n for n in working if n not in taken] or working
    node = world.nodes[free[int(rng.integers(0, len(free)))]]
    if kind in ("gpu", "rank"):
        return resolve(world, kind, Target("gpu", node.name, str(rng.integers(0, world.kind.gpus))))
    if kind == "nic":
        return resolve(world, kind, Target("nic", node.name, node.nic(int(rng.integers(0, world.kind.nics)))))
    if kind == "switch":
        leaf = world.topology.leaf_of[node.index, int(rng.integers(0, world.kind.nics))]
        return resolve(world, kind, Target("switch", None, world.topology.switches[int(leaf)]))
    if kind == "spine":
        spines = [s for s in world.topology.switches if s.startswith("spine")]
        return resolve(world, kind, Target("switch", None, spines[int(rng.integers(0, len(spines)))]))
    if kind in GROUPS:
        return resolve(world, kind, Target(kind, None, getattr(node, kind)))
    if kind == "storage":
        return resolve(world, kind, Target("storage", None, world.topology.targets[int(rng.integers(0, len(world.topology.targets)))]))
    if kind == "job":
        job = world.job_on(node.index)
        return resolve(world, kind, Target("job", job=job.name if job is not None else next(iter(world.jobs))))
    return resolve(world, kind, Target(kind, node.name if kind in ON_NODE else None))


def resolve(world: World, kind: str, target: Target) -> Place:
    """The place of a target as somebody names it. Raises BadInput for a place that the fleet has not."""
    if kind in ("gpu", "rank"):
        return _gpu(world, target)
    if kind == "nic":
        node = _node(world, target)
        names = [world.nodes[node].nic(i) for i in range(world.kind.nics)]
        index = _one_of(target.device, names, "target.device")
        return Place(Target("nic", world.nodes[node].name, names[index]), (node, index), (node,))
    if kind in ("disk", "mount", "node"):
        node = _node(world, target)
        device = {"disk": SCRATCH_DISK, "mount": f"/{world.topology.storage}"}.get(kind)
        return Place(Target(kind, world.nodes[node].name, device), (node,), (node,))
    if kind in ("switch", "spine"):
        names = [s for s in world.topology.switches if kind == "switch" or s.startswith("spine")]
        index = world.topology.switches.index(names[_one_of(target.device, names, "target.device")])
        rows = np.flatnonzero((world.topology.leaf_of == index).any(axis=1))
        return Place(Target("switch", None, target.device), (index,), tuple(int(r) for r in rows) or tuple(range(len(world.nodes))))
    if kind in GROUPS:
        _one_of(target.device, sorted({getattr(n, kind) for n in world.nodes}), "target.device")
        return Place(Target(kind, None, target.device), (),
                     tuple(n.index for n in world.nodes if getattr(n, kind) == target.device))
    if kind == "storage":
        # The file system by its own name, as Greylag names it: its first target stands for it.
        known = target.device == world.topology.storage
        index = 0 if known else _one_of(target.device, world.topology.targets, "target.device")
        return Place(Target("storage", None, world.topology.storage), (index,), tuple(range(len(world.nodes))))
    if kind == "job":
        job = world.jobs.get(target.job or "")
        if job is None:
            raise BadInput("fault", "target.job", target.job, f"allowed are: {', '.join(world.jobs)}")
        return Place(Target("job", job=job.name), (), tuple(job.nodes))
    return Place(replace(target, kind=kind), (), tuple(range(len(world.nodes))))


def _gpu(world: World, target: Target) -> Place:
    if target.node is None and target.rank is not None:
        job = world.jobs.get(target.job or "", next(iter(world.jobs.values())))
        if not 0 <= target.rank < job.ranks:
            raise BadInput("fault", "target.rank", target.rank, f"a rank from 0 to {job.ranks - 1} is needed")
        node, gpu = job.place(target.rank)
    else:
        node, device = _node(world, target), target.device or ""
        if not device.isdigit() or int(device) >= world.kind.gpus:
            raise BadInput("fault", "target.device", target.device, f"a GPU index from 0 to {world.kind.gpus - 1} is needed")
        gpu = int(device)
    return Place(world.gpu_target(node, gpu), (node, gpu), (node,))


def _node(world: World, target: Target) -> int:
    found = world.find(target.node)
    if found is None:
        raise BadInput("fault", "target.node", target.node, "a node of the fleet is needed")
    return found.index


def _one_of(given: str | None, allowed: Sequence[str], key: str) -> int:
    if given is None or given not in allowed:
        raise BadInput("fault", key, given, f"allowed are: {', '.join(allowed)}")
    return allowed.index(given)


def training(world: World, place: Place) -> None:
    """Raises Refused `not_training` unless the job at the place trains now."""
    job = world.job_on(place.rows[0]) if place.rows else next(iter(world.jobs.values()), None)
    if job is None or job.phase != "train":
        raise Refused("not_training", "a rank can only hang while it trains")
