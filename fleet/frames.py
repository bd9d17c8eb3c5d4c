"""The fleet in one process and in virtual time: what its exporters show, as pages or as numbers, and the control door without
HTTP.

Numbers come from the same sheets as pages do, rounded as the pages print them. A frame says for each node only which shape
its page has; who reads frames looks at a page once for each shape (`FleetFrames.page`) and at the numbers from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from core.protocols import NodeView
from core.types import Action, Floats, Outcome
from fleet.exporters import Answer
from fleet.hardware import Node
from fleet.operations import Operations
from fleet.pages import Pages, labels_of
from fleet.state import node_views
from fleet.stations import Station
from fleet.telemetry import Telemetry
from fleet.world import World


@dataclass(frozen=True, slots=True)
class Frame:
    """One exporter of all nodes at a slot. values: float64[node, column], in page order, with columns that are absent on a
    node. shapes: of each node the number of its page's shape: as long as it is equal, so is all of the page but the
    numbers. samples: how many each page has. rows: the nodes that have the exporter. odd: indexes of nodes whose answer has to be asked for (`FleetFrames.answer`):
    they are ill, or do not answer."""

    exporter: str
    slot: int
    values: Floats
    shapes: list[int]
    samples: Floats
    rows: list[int]
    odd: frozenset[int]


class FleetFrames:
    """What the world shows, slot by slot. telemetry: not given, what the world was built with."""

    def __init__(self, world: World, telemetry: Telemetry | None = None) -> None:
        self.world = world
        self.pages = Pages(world, telemetry)
        self.telemetry = self.pages.exporters.telemetry
        self.slot_ms = self.telemetry.scrape_seconds * 1000
        self._read: dict[str, int] = {}

    # --- as text -----------------------------------------------------------------------------------------------------
    def pages_at(self, at: int) -> list[tuple[dict[str, str], bytes | None]]:
        """(target labels, page) of every target at `at` ms, which must not lie in the past; None = it does not answer."""
        self.world.advance(at)
        has = {exporter: set(self.pages.exporters.sheets[exporter].rows()) for exporter in self.pages.names}
        on_nodes = [name for name in self.pages.names if self.pages.exporters.places(name) is self.world.nodes]
        found: list[tuple[Node | Station, str]] = [
            (node, exporter) for node in self.world.nodes for exporter in on_nodes if node.index in has[exporter]]
        found += [(place, name) for name in self.pages.names if name not in on_nodes for place in self.pages.exporters.places(name)]
        return [(self.labels(place, exporter), self.pages.page(place, exporter)) for place, exporter in found]

    def advance(self, to: int) -> Iterator[tuple[dict[str, str], int, bytes | None]]:
        """(target labels, slot, page) for each slot (multiple of the scrape interval) after the present moment up to `to` ms."""
        for slot in self.slots(to):
            for labels, page in self.pages_at(slot):
                yield labels, slot, page

    # --- as numbers --------------------------------------------------------------------------------------------------
    def slots(self, to: int) -> range:
        """The slots after the present moment up to `to` ms."""
        first = self.world.now_ms // self.slot_ms * self.slot_ms + self.slot_ms
        return range(first, to + 1, self.slot_ms)

    def frames_at(self, at: int) -> list[Frame]:
        """What each exporter shows at `at` ms, which must not lie in the past."""
        self.world.advance(at)
        found = [(name, self.pages.exporters.read(name)) for name in self.pages.names]
        return [Frame(name, at, one.values, one.shapes, one.samples, one.rows, one.odd) for name, one in found]

    def answer(self, node: Node | Station, exporter: str) -> Answer:
        """What who asks the exporter gets now: a page, or how there is none."""
        return self.pages.answer(node, exporter)

    def labels(self, node: Node | Station, exporter: str) -> dict[str, str]:
        """The target labels of an exporter of a node."""
        return labels_of(node, exporter, self.telemetry.scrape_seconds)

    # --- logs --------------------------------------------------------------------------------------------------------
    def logs(self) -> list[tuple[str, str, bytes]]:
        """(kind, node or job, bytes) of what the logs gained since the last call; kind: kernel | trainer. None at tier A."""
        if not self.telemetry.logs:
            return []
        grown = []
        sources = [("kernel", n.name, self.world.kernel.of(n.index)) for n in self.world.nodes]
        for kind, name, log in [*sources, *(("trainer", j.name, j.log) for j in self.world.jobs.values())]:
            key = f"{kind}/{name}"
            read = self._read.get(key, 0)
            if len(log) > read:
                new = log.read(read)
                self._read[key] = read + len(new)
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
