"""Small worlds for the fleet's tests, and page readers that know nothing of the fleet."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from core.types import Action, Target
from fleet.build import build_world
from fleet.frames import FleetDoor, FleetFrames
from fleet.operations import Operations
from fleet.world import World

START = 1_767_225_600_000


@cache
def _built(seed: int, nodes: int, spares: int, before_seconds: int) -> tuple[World, Operations]:
    return build_world(nodes, spares, seed, START, before_seconds=before_seconds)


def small(seed: int = 1, nodes: int = 4, spares: int = 1, before_seconds: int = 600) -> tuple[World, Operations]:
    """Four nodes and a spare that have been training for some minutes; built once, copied for each test."""
    return deepcopy(_built(seed, nodes, spares, before_seconds))


@cache
def _settled(seed: int, nodes: int) -> tuple[World, Operations]:
    world, operations = small(seed, nodes)
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "checkpoint")
    run_until(world, lambda: job.phase == "train")
    world.advance(world.now_ms + 60_000)
    return world, operations


def settled(seed: int, nodes: int) -> tuple[World, Operations]:
    """A world a minute after a checkpoint: four minutes of undisturbed training lie ahead."""
    return deepcopy(_settled(seed, nodes))


def read(page: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name to {labels: value}, by prometheus-client's parser."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def pages(frames: FleetFrames, at: int) -> dict[tuple[str, str], bytes | None]:
    """(node, exporter) to page."""
    return {(labels["node"], labels["job"]): page for labels, page in frames.pages_at(at)}


def act(door: FleetDoor, op_id: str, kind: str, target: Target, deadline: float = 900.0, **args: object):
    """Submits an action of the kind."""
    action = Action(op_id, kind, target, args, deadline, "act", "inc-1", 1, 1, 0, "policy")
    return door.submit(action)


def run_until(world: World, condition, seconds: int = 1200) -> int:
    """Moves the world in slots until the condition holds; gives the seconds that it took."""
    began = world.now_ms
    while not condition():
        assert world.now_ms - began < seconds * 1000, "it did not happen in time"
        world.advance(world.now_ms + 5_000)
    return (world.now_ms - began) // 1000
