"""The fleet in one process and in virtual time: the same pages as over HTTP, and the control door without HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.protocols import NodeView
from core.types import Action, Outcome
from fleet.operations import Operations
from fleet.pages import PORTS, Pages, labels_of
from fleet.state import node_views
from fleet.world import World

SLOT_MS = 15_000


class FleetFrames:
    """Pages of the world slot by slot. What parses HTTP pages parses these, so page and frame cannot differ."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._pages = Pages(world)
        self._read: dict[str, int] = {}

    def pages_at(self, at: int) -> list[tuple[dict[str, str], bytes | None]]:
        """(target labels, page) of every target at `at` ms, which must not lie in the past; None = it does not answer."""
        self.world.advance(at)
        return [(labels_of(node, exporter), self._pages.page(node, exporter))
                for node in self.world.nodes for exporter in PORTS]

    def advance(self, to: int) -> Iterator[tuple[dict[str, str], int, bytes | None]]:
        """(target labels, slot, page) for each slot (multiple of 15 s) after the present moment up to `to` ms."""
        slot = self.world.now_ms // SLOT_MS * SLOT_MS + SLOT_MS
        while slot <= to:
            for labels, page in self.pages_at(slot):
                yield labels, slot, page
            slot += SLOT_MS

    def logs(self) -> list[tuple[str, str, bytes]]:
        """(kind, node or job, bytes) of what the logs gained since the last call; kind: kernel | trainer."""
        grown = []
        sources = [("kernel", n.name, self.world.kernel.of(n.index)) for n in self.world.nodes]
        for kind, name, log in [*sources, *(("trainer", j.name, j.log) for j in self.world.jobs.values())]:
            key = f"{kind}/{name}"
            new = log.read(self._read.get(key, 0))
            if new:
                self._read[key] = self._read.get(key, 0) + len(new)
                grown.append((kind, name, new))
        return grown


class FleetDoor:
    """ControlDoor and WorldView on the world, in process."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def submit(self, action: Action) -> Outcome:
        """The outcome so far; the same id gives the same answer."""
        return self._operations.submit(action.id, action.kind, action.target, action.args, action.deadline_seconds)

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far; REFUSED `unknown_operation` for an id that the world never saw."""
        return self._operations.poll(action_id)

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name, as they are now."""
        return node_views(self._operations.world)
