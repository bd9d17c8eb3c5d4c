"""The bundled fleet in virtual time: the whole path in one process and in lock-step.

advance → scrape (pages, or the same numbers without the text) → feed → tick → actions applied at that instant. Used by
`make evaluate`, by tests and by the bench; the judgement is the same Brain as live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from app import wiring
from app.brain import Brain, Ticked
from app.demo import policy_path
from app.fleet_targets import SAMPLE_LIMIT, FleetTargets
from app.own_series import OwnSeries
from collectors.follow import LiveLog, log_target
from collectors.mapping import Mapper
from collectors.readings import ReadingScrapes
from core.clock import TICK_MS
from core.inventory import Inventory, inventory_from
from core.telemetry import Telemetry
from core.types import Batch, Event, Layout, Scrape
from fleet.build import build_world
from fleet.frames import FleetDoor, FleetFrames
from fleet.operations import Operations
from fleet.state import inventory as fleet_inventory
from fleet.world import World
from remediation.engine import Engine
from remediation.policy import Policy, read_policy

COLLECTOR = "virtual"


class FleetSource:
    """`FrameSource` over the in-process fleet: what its exporters show, slot by slot, and its logs.

    frames: exporters as numbers; a page is made and parsed only when its shape is new, or its exporter is ill. Else every
    page is made and parsed. Both give the same batches to the last digit.
    """

    def __init__(self, world: World, frames: bool = True) -> None:
        everything = wiring.sources()
        self._frames = FleetFrames(world)
        mapper = Mapper(everything)
        self._targets = FleetTargets(self._frames, mapper, frames)
        self._readings = ReadingScrapes(mapper)
        self._line_sources = {kind: [s for _, s in sorted(everything.items()) if s.log_kind == kind]
                              for kind in ("kernel", "trainer")}
        self._readers: dict[str, LiveLog] = {}
        self._rest: dict[str, bytes] = {}
        self._sent: set[str] = set()
        self._seq = 0
        self._told = Telemetry()
        self._own = OwnSeries(self._told, 1)

    def advance(self, to: int) -> Iterable[Batch]:
        slots = self._frames.slots(to)
        for slot in slots[:-1]:
            yield self._batch(slot, self._targets.scrapes(slot), [])
        rows = self._targets.scrapes(slots[-1]) if slots else []
        self._frames.world.advance(to)
        read, events = self._logs(to)
        yield self._batch(slots[-1] if slots else to, rows + read, events)
        yield self._collector(to)

    def _collector(self, at: int) -> Batch:
        """What a collector says of itself: in virtual time it is never late; pages that are larger than their budget are shed."""
        world = self._frames.world
        over = sum(more > SAMPLE_LIMIT for more in world.knobs.exporter.extra_series.values())
        self._told.set("greylag_collector_targets", len(world.nodes) * len(self._frames.pages.names), worker=COLLECTOR)
        self._told.set("greylag_collector_shed_targets", over, worker=COLLECTOR)
        return self._own.collectors(at, {COLLECTOR: 0.0})

    def _batch(self, slot: int, rows: list[tuple[Layout, Scrape]], events: list[Event]) -> Batch:
        self._seq += 1
        fresh = {layout.id: layout for layout, _ in rows if layout.id not in self._sent}
        self._sent.update(fresh)
        return Batch("virtual", 1, self._seq, slot, tuple(fresh.values()), tuple([s for _, s in rows]), tuple(events))

    def _logs(self, to: int) -> tuple[list[tuple[Layout, Scrape]], list[Event]]:
        events: list[Event] = []
        rows: list[tuple[Layout, Scrape]] = []
        for kind, name, data in self._frames.logs():
            key = f"{kind}/{name}"
            node, job = (name, None) if kind == "kernel" else (None, name)
            reader = self._readers.setdefault(key, LiveLog(log_target(kind, node, job, key), self._line_sources[kind]))
            text = self._rest.get(key, b"") + data
            whole, _, self._rest[key] = text.rpartition(b"\n")
            more, readings = reader.read(whole.decode(errors="replace").splitlines(), to)
            events += more
            rows += self._readings.scrapes(readings, to)
        return rows, events


@dataclass
class VirtualSite:
    """A fleet and a Greylag that watches it. `run_until` goes on tick by tick and keeps the story.

    frames: see `FleetSource`. options: of `build_world` (telemetry among them). built: a world and its operations in place of
    those that would be built (of a scenario: `fleet.build.build_scenario`). policy: in place of the demo's.
    """

    nodes: int = 16
    spares: int = 2
    seed: int = 1
    act: bool = True
    frames: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    built: tuple[World, Operations] | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        self._shown: dict[str, Any] = {}
        self._known = Inventory()
        self.world, operations = self.built or build_world(self.nodes, self.spares, self.seed, **self.options)
        self.door = FleetDoor(operations)
        plugins, params = wiring.detectors({}, "virtual")
        engine = None
        if self.act:
            from core.targets import ACTION_KINDS

            engine = Engine(self.policy or read_policy(policy_path()), frozenset(ACTION_KINDS), self.door)
        self.brain = Brain(plugins, params, self.inventory(), engine, Telemetry())
        self.brain.keeps_state = False
        self.source = FleetSource(self.world, self.frames)
        self.lines: list[str] = []

    def inventory(self) -> Inventory:
        """The fleet's inventory as its door shows it; parsed anew only when it changed."""
        shown = fleet_inventory(self.world)
        if shown != self._shown:
            self._shown, self._known = shown, inventory_from(shown, "fleet")
        return self._known

    def judge(self, tick: int, shown: Callable[[Batch], Batch] = lambda batch: batch) -> Ticked:
        """Lets the fleet go on to `tick` (ms) and judges what it showed. shown: what Greylag sees of a batch."""
        for batch in self.source.advance(tick):
            self.brain.feed(shown(batch))
        self.brain.set_inventory(self.inventory())
        return self.brain.tick(tick)

    def run_until(self, at: int, stop: Callable[[], bool] = lambda: False) -> int:
        """Ticks up to `at` (ms) or until `stop`; gives the last tick."""
        tick = self.world.now_ms // TICK_MS * TICK_MS
        while tick < at and not stop():
            tick += TICK_MS
            self.lines += [r.line for r in self.judge(tick).commit.records]
            self.brain.carry_out(tick, self.door)
        return tick
