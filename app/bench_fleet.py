"""`greylag bench fleet`: how fast the bundled fleet is, alone and with what is made of it, and how much memory it takes.

Rows: `measure`, `nodes`, and `cluster_seconds_per_cpu_second` (how many seconds of cluster life one CPU second gives).
world: the model alone. frames: the model and all exporters' numbers. batches: the same as layouts and scrapes, as detectors
get them. pages: the model and every page as text. whole_path: with Greylag behind it. The first slot, in which every layout
is made, is told apart (`first_slot_cpu_seconds`): it comes once. Memory is that of a process of its own.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

from core.clock import TICK_MS, process_cpu_seconds
from core.memory import resident_bytes
from fleet.build import build_world
from fleet.frames import FleetFrames
from fleet.telemetry import Telemetry
from fleet.world import World

NODES, SLOTS = 64, 240
# Of what makes text, and of all of Greylag, fewer slots tell as much.
FEWER_SLOTS = {"pages": 60, "whole_path": 20}
# Slots before memory is looked at (a heap settles), and slots that are measured.
MANY, MANY_SLOTS = 1000, {"frames": (60, 80), "pages": (2, 6)}
EVERYTHING = Telemetry("D", dcgm_cycle_seconds=30)
DAY_SLOTS = 24 * 3600 * 1000 // TICK_MS
PEER = "the same model without pages, frames or Greylag"


def bench_fleet(nodes: int = NODES, slots: int = SLOTS, many: int = MANY) -> Iterator[dict[str, Any]]:
    """One row for each measure."""
    alone = 0.0
    for name, maker in MEASURES.items():
        one = _world(nodes)
        step = maker(one)
        cpu = process_cpu_seconds()
        step(one.now_ms + TICK_MS)
        first = process_cpu_seconds() - cpu
        count = min(slots, FEWER_SLOTS.get(name, slots))
        used = _spent(one, step, count)
        alone = used / count if name == "world" else alone
        yield {"measure": name, "nodes": nodes, "gpus": nodes * one.kind.gpus, "slots": count,
               "cpu_seconds_per_cluster_hour": round(used / count * 3600e3 / TICK_MS, 3),
               "cluster_seconds_per_cpu_second": round(count * TICK_MS / 1000 / used, 1),
               "first_slot_cpu_seconds": round(first, 3), "times_world": round(used / count / alone, 2), "peer": PEER}
    yield from _apart(many)


def _world(nodes: int) -> World:
    return build_world(nodes, 0, 1, before_seconds=300, telemetry=EVERYTHING)[0]


def _spent(world: World, step: Callable[[int], object], slots: int) -> float:
    cpu = process_cpu_seconds()
    for _ in range(slots):
        step(world.now_ms // TICK_MS * TICK_MS + TICK_MS)
    return max(1e-9, process_cpu_seconds() - cpu)


# --- what is measured -------------------------------------------------------------------------------------------------
def _alone(world: World) -> Callable[[int], object]:
    return world.advance


def _frames(world: World) -> Callable[[int], object]:
    return FleetFrames(world).frames_at


def _batches(world: World) -> Callable[[int], object]:
    from app.virtual import FleetSource

    source = FleetSource(world)
    return lambda to: sum(len(batch.scrapes) for batch in source.advance(to))


def _pages(world: World) -> Callable[[int], object]:
    frames = FleetFrames(world)
    return lambda to: sum(len(page or b"") for _, page in frames.pages_at(to))


def _whole(world: World) -> Callable[[int], object]:
    from app.virtual import VirtualSite
    from fleet.operations import Operations

    return VirtualSite(act=False, built=(world, Operations(world))).run_until


MEASURES: dict[str, Callable[[World], Callable[[int], object]]] = {
    "world": _alone, "frames": _frames, "batches": _batches, "pages": _pages, "whole_path": _whole,
}


# --- many nodes, in a process of their own ------------------------------------------------------------------------------
def _apart(nodes: int) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    for name, (warm, slots) in MANY_SLOTS.items():
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_many, args=(theirs, name, nodes, warm, slots), daemon=True)
        child.start()
        theirs.close()
        try:
            yield ours.recv()
        finally:
            child.terminate()
            child.join()


def _many(door: Any, name: str, nodes: int, warm: int, slots: int) -> None:
    """CPU and memory of a large fleet over some slots; what a day would take follows from how memory grows."""
    world = _world(nodes)
    step = MEASURES[name](world)
    step(world.now_ms + TICK_MS)
    _spent(world, step, warm)
    before = resident_bytes()
    used = _spent(world, step, slots)
    after = resident_bytes()
    rest = max(2, slots // 4)
    alone = _spent(world, world.advance, rest) / rest
    growth = max(0, after - before) / slots
    row = {"measure": f"many_{name}", "nodes": nodes, "gpus": nodes * world.kind.gpus, "slots": slots,
           "cpu_seconds_per_slot": round(used / slots, 3), "world_cpu_seconds_per_slot": round(alone, 3),
           "share_of_a_core_at_15_s": round(used / slots / (TICK_MS / 1000), 3),
           "cluster_seconds_per_cpu_second": round(slots * TICK_MS / 1000 / used, 1), "rss_bytes": after,
           "rss_growth_bytes_per_slot": round(growth), "peer": PEER}
    if name == "frames":
        row["rss_bytes_after_a_day"] = round(after + growth * DAY_SLOTS)
    door.send(row)
