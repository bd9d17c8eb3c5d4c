"""A large fleet for the bench: one emulated fleet that is ill and one that is well, and the well one many times over.

Making the pages of 5,000 targets and reading each once takes minutes, and the emulator needs longer for 1,000 nodes than the
judgement that is to be measured. So a block of `BLOCK_NODES` nodes is emulated twice, well and ill, and every further block
shows what the well one shows, under names of its own: nodes, jobs, parts, places and ids. To the judgement these are as many
targets, parts and jobs as of a fleet of that size; what several blocks show is equal to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from app.brain import Brain
from app.virtual import FleetSource
from core.inventory import Inventory, inventory_from
from core.types import Batch, Event, Layout, Scrape, Target
from fleet.build import build_world
from fleet.state import inventory as fleet_inventory
from fleet.telemetry import Telemetry
from fleet.world import World
from pipeline.ring_feeds import Meanings

BLOCK_NODES = 50
EVERYTHING = Telemetry("D")


class BlockFleet:
    """A fleet of `nodes` nodes, a multiple of the block's, or fewer: then it is one block of that many."""

    def __init__(self, nodes: int, seed: int, telemetry: Telemetry = EVERYTHING) -> None:
        size = min(nodes, BLOCK_NODES)
        if nodes % size:
            raise ValueError(f"{nodes} nodes are no multiple of a block of {size}")
        self.nodes, self._copies = nodes, nodes // size - 1
        self._ill = build_world(size, 0, seed, before_seconds=300, telemetry=telemetry)[0]
        self._well = build_world(size, 0, seed, before_seconds=300, telemetry=telemetry)[0] if self._copies else None
        self._sources = [FleetSource(world) for world in (self._ill, self._well) if world is not None]
        self.gpus = nodes * self._ill.kind.gpus

    @property
    def ill(self) -> World:
        """The block that faults are planted in."""
        return self._ill

    def inventory(self) -> Inventory:
        """Of all blocks."""
        shown = [fleet_inventory(self._ill)]
        if self._well is not None:
            well = fleet_inventory(self._well)
            shown += [_renamed(well, copy) for copy in range(1, self._copies + 1)]
        return inventory_from({key: [row for one in shown for row in one[key]] for key in shown[0]}, "the fleet")

    def feed(self, brain: Brain, at: int) -> None:
        """All readings and events up to `at` (ms)."""
        for batch in self._sources[0].advance(at):
            brain.feed(batch)
        for batch in (batch for source in self._sources[1:] for batch in source.advance(at)):
            meanings = [(one, Meanings.of(one)) for one in batch.layouts]
            for copy in range(1, self._copies + 1):
                for layout, means in meanings:
                    self._know(brain, layout, means, copy)
                brain.feed(Batch(f"block-{copy}", batch.epoch, batch.seq, batch.watermark, (), tuple(_scrapes(batch.scrapes, copy)),
                                 tuple(_events(batch.events, copy))))

    def _know(self, brain: Brain, layout: Layout, means: Meanings, copy: int) -> None:
        brain.ring.know(_named(layout.target_id, copy), replace(
            means, id=_named(means.id, copy), node=_of(means.node, copy), parts=tuple(_part(part, copy) for part in means.parts)))


def _named(name: str, copy: int) -> str:
    return f"{name}-b{copy}"


def _of(name: str | None, copy: int) -> str | None:
    return None if name is None else _named(name, copy)


def _part(part: Target, copy: int) -> Target:
    """The part's counterpart in a block. A device is named within its node, so it keeps its name where there is one."""
    device = part.device if part.node is not None and part.kind != "exporter" else _of(part.device, copy)
    return replace(part, node=_of(part.node, copy), device=device, id=_of(part.id, copy), job=_of(part.job, copy),
                   serial=_of(part.serial, copy))


def _scrapes(scrapes: Sequence[Scrape], copy: int) -> Iterable[Scrape]:
    for one in scrapes:
        yield replace(one, layout_id=_named(one.layout_id, copy), target_id=_named(one.target_id, copy))


def _events(events: Sequence[Event], copy: int) -> Iterable[Event]:
    for one in events:
        yield replace(one, target=_part(one.target, copy))


def _renamed(shown: dict[str, Any], copy: int) -> dict[str, Any]:
    """A block's inventory under the names of its copy."""
    def place(node: dict[str, Any]) -> dict[str, Any]:
        named = {key: _of(node[key], copy) for key in ("name", "rack", "leaf", "pdu", "cooling", "nvlink_domain")}
        gpus = [{**gpu, "uuid": _of(gpu["uuid"], copy), "serial": _of(gpu["serial"], copy)} for gpu in node["gpus"]]
        return {**node, **named, "gpus": gpus, "nics": [{**nic, "leaf": _of(nic["leaf"], copy)} for nic in node["nics"]]}

    jobs = [{**job, "id": _named(job["id"], copy), "nodes": [_named(name, copy) for name in job["nodes"]]} for job in shown["jobs"]]
    storage = [{**one, "name": _named(one["name"], copy), "mounts": [_named(name, copy) for name in one["mounts"]]}
               for one in shown["storage"]]
    return {"nodes": [place(node) for node in shown["nodes"]], "jobs": jobs, "storage": storage}
