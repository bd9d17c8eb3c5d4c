"""Puts a world together with its fault plug-ins and its operations."""

from __future__ import annotations

from core.plugins import load_plugins
from core.protocols import FaultPlugin
from fleet.hardware import H100_ROCE, NodeType
from fleet.job import JobShape
from fleet.operations import Operations
from fleet.world import World

# How long a fleet has been at work before anybody looks at it.
BEFORE_SECONDS = 900


def all_plugins() -> dict[str, FaultPlugin]:
    """Faults and look-alikes by name."""
    return {**load_plugins("fleet.faults"), **load_plugins("fleet.lookalikes")}


def build_world(
    nodes: int = 16,
    spares: int = 2,
    seed: int = 0,
    start_ms: int = 1_767_225_600_000,
    job: str = "train-1",
    kind: NodeType = H100_ROCE,
    shape: JobShape | None = None,
    before_seconds: int = BEFORE_SECONDS,
) -> tuple[World, Operations]:
    """A world that stands at `start_ms` and has been at work for `before_seconds`, and the operations on it."""
    world = World(nodes, spares, seed, start_ms - before_seconds * 1000, job, kind, shape, all_plugins())
    operations = Operations(world)
    world.watchers.append(operations)
    world.advance(start_ms)
    return world, operations
