"""`greylag bench fleet`: how fast the bundled fleet is, alone and with what is made of it, and how much memory it takes.

Rows: `measure`, `nodes`, and `cluster_seconds_per_cpu_second` (how many seconds of cluster life one CPU second gives).
world: the model alone. frames: the model and all exporters' numbers. batches: the same as layouts and scrapes, as detectors
get them. pages: the model and every page as text. whole_path: with Greylag behind it. The first slot, in which every layout
is made, is told apart (`first_slot_cpu_seconds`): it comes once. Memory is that of a process of its own. many_http: the fleet's
server with every page asked for over HTTP. `--day`: instead of all that, a whole day of the many nodes.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from core.clock import TICK_MS, process_cpu_seconds
from core.memory import resident_bytes
from fleet.build import build_world
from fleet.frames import FleetFrames
from fleet.scenario import FleetSpec, JobSpec, Scenario
from fleet.server import FleetServer
from fleet.telemetry import Telemetry
from fleet.world import World

NODES, SLOTS = 64, 240
# Of what makes text, and of all of Greylag, fewer slots tell as much.
FEWER_SLOTS = {"pages": 60, "whole_path": 20}
# Slots before memory is looked at (a heap settles), and slots that are measured.
MANY, MANY_SLOTS = 1000, {"frames": (60, 80), "pages": (2, 6)}
HTTP_SLOTS = (1, 3)
EVERYTHING = Telemetry("D", dcgm_cycle_seconds=30)
HOUR_SLOTS = 3600 * 1000 // TICK_MS
DAY_SLOTS = 24 * HOUR_SLOTS
DAY_MARKS = (1, 2, 6, 12, 18, 24)
PEER = "the same model without pages, frames or Greylag"


def bench_fleet(day: bool = False, nodes: int = NODES, slots: int = SLOTS, many: int = MANY) -> Iterator[dict[str, Any]]:
    """One row for each measure; with `day` those of a day of `many` nodes alone."""
    if day:
        yield from _rows_of(_day, many)
        return
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
    for name, (warm, slots) in MANY_SLOTS.items():
        yield from _rows_of(_many, name, nodes, warm, slots)
    yield _over_http(nodes)


def _rows_of(work: Callable[..., None], *args: Any) -> Iterator[dict[str, Any]]:
    """What `work(door, *args)` sends in a process of its own, until it sends None."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs, *args), daemon=True)
    child.start()
    theirs.close()
    try:
        while (row := ours.recv()) is not None:
            yield row
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
           "share_of_a_core_at_15_s": _share(used / slots),
           "cluster_seconds_per_cpu_second": round(slots * TICK_MS / 1000 / used, 1), "rss_bytes": after,
           "rss_growth_bytes_per_slot": round(growth), "peer": PEER}
    if name == "frames":
        row["rss_bytes_after_a_day"] = round(after + growth * DAY_SLOTS)
    door.send(row)
    door.send(None)


def _day(door: Any, nodes: int) -> None:
    """A day of a large fleet, whose exporters' numbers and logs are all read: what each of some hours has taken so far."""
    world = _world(nodes)
    frames, began, written = FleetFrames(world), process_cpu_seconds(), 0
    for hour in range(1, max(DAY_MARKS) + 1):
        for _ in range(HOUR_SLOTS):
            frames.frames_at(world.now_ms // TICK_MS * TICK_MS + TICK_MS)
            written += sum(len(text) for _, _, text in frames.logs())
        if hour in DAY_MARKS:
            # The kernel adds up its peak in pieces, so that it may lie a little behind.
            now = resident_bytes()
            peak = max(now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
            door.send({"measure": "day", "nodes": nodes, "gpus": nodes * world.kind.gpus, "hours": hour,
                       "cpu_seconds": round(process_cpu_seconds() - began, 1), "log_bytes": written, "rss_bytes": now,
                       "peak_rss_bytes": peak})
    door.send(None)


def _share(cpu_seconds: float) -> float:
    """Of a core, at one slot each 15 s."""
    return round(cpu_seconds / (TICK_MS / 1000), 3)


# --- over HTTP ------------------------------------------------------------------------------------------------------------
def _over_http(nodes: int) -> dict[str, Any]:
    """CPU of the fleet's server for a slot of which every page is asked for over one kept connection, as fast as it answers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_served, args=(theirs, nodes), daemon=True)
    child.start()
    theirs.close()
    try:
        address = urlsplit(ours.recv())
        client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        paths = [row["labels"]["__metrics_path__"] for row in json.loads(_get(client, "GET", "/sd"))]
        spent, size = [], 0
        for _ in range(sum(HTTP_SLOTS)):
            ours.send("cpu")
            before = ours.recv()
            now = json.loads(_get(client, "GET", "/control/v1/clock"))["now_ms"]
            _get(client, "POST", "/control/v1/clock/committed", json.dumps({"tick_ms": now}))
            size = sum(len(_get(client, "GET", path)) for path in paths)
            ours.send("cpu")
            spent.append(ours.recv() - before)
        ours.send("rss")
        used = sum(spent[HTTP_SLOTS[0]:]) / HTTP_SLOTS[1]
        return {"measure": "many_http", "nodes": nodes, "slots": HTTP_SLOTS[1], "pages_per_slot": len(paths), "bytes_per_slot": size,
                "cpu_seconds_per_slot": round(used, 3), "share_of_a_core_at_15_s": _share(used), "rss_bytes": ours.recv(),
                "first_slot_cpu_seconds": round(spent[0], 3), "peer": PEER}
    finally:
        child.terminate()
        child.join()


def _get(client: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> bytes:
    client.request(method, path, body)
    return client.getresponse().read()


def _served(door: Any, nodes: int) -> None:
    """The server in a process of its own; it says its address, then its CPU time or memory as often as it is asked."""
    scenario = Scenario("bench", FleetSpec(nodes, 0, before="5m"), (JobSpec("train-1"),))
    server = FleetServer(scenario=scenario, ready=door.send)
    threading.Thread(target=_tells, args=(door,), daemon=True).start()
    server.run()


def _tells(door: Any) -> None:
    while True:
        door.send(process_cpu_seconds() if door.recv() == "cpu" else resident_bytes())
