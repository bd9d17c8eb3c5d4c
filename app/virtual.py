"""The bundled fleet in virtual time: the whole path, page parser included, in one process and in lock-step.

advance → scrape pages → feed → tick → actions applied at that instant. Used by `make evaluate`, by tests and by the bench;
the judgement is the same Brain as live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from app import wiring
from app.brain import Brain
from app.demo import policy_path
from collectors.discovery import ScrapeTarget
from collectors.fetch import Body
from collectors.follow import LiveLog, log_target
from collectors.mapping import Mapper
from collectors.readings import ReadingScrapes
from collectors.scrape import TargetScraper
from core.clock import TICK_MS, monotonic_seconds, process_cpu_seconds
from core.errors import SourceError
from core.inventory import Inventory, inventory_from
from core.protocols import TargetInfo, TickCommit
from core.telemetry import Telemetry
from core.types import Batch, Event, Layout, Scrape
from fleet.build import build_world
from fleet.frames import FleetDoor, FleetFrames
from fleet.pages import CONTENT_TYPE
from fleet.state import inventory as fleet_inventory
from fleet.world import World
from remediation.engine import Engine
from remediation.policy import read_policy


class FleetSource:
    """`FrameSource` over the in-process fleet: each slot's pages through the strict parser, and its logs."""

    def __init__(self, world: World) -> None:
        everything = wiring.sources()
        self._frames = FleetFrames(world)
        self._mapper = Mapper(everything)
        self._readings = ReadingScrapes(self._mapper)
        self._line_sources = {kind: [s for _, s in sorted(everything.items()) if s.log_kind == kind]
                              for kind in ("kernel", "trainer")}
        self._scrapers: dict[str, TargetScraper] = {}
        self._readers: dict[str, LiveLog] = {}
        self._rest: dict[str, bytes] = {}
        self._sent: set[str] = set()
        self._seq = 0

    def advance(self, to: int) -> Iterable[Batch]:
        by_slot: dict[int, list[tuple[Layout, Scrape]]] = {}
        for labels, slot, page in self._frames.advance(to):
            by_slot.setdefault(slot, []).extend(self._scrape(labels, slot, page))
        read, events = self._logs(to)
        for slot in sorted(by_slot):
            rows = by_slot[slot] + (read if slot == max(by_slot) else [])
            yield self._batch(slot, rows, events if slot == max(by_slot) else [])

    def _batch(self, slot: int, rows: list[tuple[Layout, Scrape]], events: list[Event]) -> Batch:
        self._seq += 1
        fresh = {layout.id: layout for layout, _ in rows if layout.id not in self._sent}
        self._sent.update(fresh)
        return Batch("virtual", 1, self._seq, slot, tuple(fresh.values()), tuple(s for _, s in rows), tuple(events))

    def _scrape(self, labels: dict[str, str], slot: int, page: bytes | None) -> list[tuple[Layout, Scrape]]:
        own = {k: v for k, v in labels.items() if not k.startswith("__")}
        key = f"{own['job']}/{own['instance']}"
        scraper = self._scrapers.get(key)
        if scraper is None:
            target = ScrapeTarget(TargetInfo(key, own, own["node"]), "", TICK_MS, 10.0, honor_labels=True)
            scraper = self._scrapers[key] = TargetScraper(target, self._mapper)
        if page is None:
            return scraper.failure("http_status", slot, 0.0)
        try:
            return scraper.page(Body(page, CONTENT_TYPE), slot, monotonic_seconds())
        except SourceError as error:
            return scraper.failure(error.reason, slot, 0.0)

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
    """A fleet and a Greylag that watches it. `run_until` goes on tick by tick and keeps the story."""

    nodes: int = 16
    spares: int = 2
    seed: int = 1
    act: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shown: dict[str, Any] = {}
        self._known = Inventory()
        self.world, operations = build_world(self.nodes, self.spares, self.seed, **self.options)
        self.door = FleetDoor(operations)
        plugins, params = wiring.detectors({}, "virtual")
        engine = None
        if self.act:
            from core.targets import ACTION_KINDS

            engine = Engine(read_policy(policy_path()), frozenset(ACTION_KINDS), self.door)
        self.brain = Brain(plugins, params, self.inventory(), engine, Telemetry())
        self.source = FleetSource(self.world)
        self.commits: list[TickCommit] = []
        self.lines: list[str] = []

    def inventory(self) -> Inventory:
        """The fleet's inventory as its door shows it; parsed anew only when it changed."""
        shown = fleet_inventory(self.world)
        if shown != self._shown:
            self._shown, self._known = shown, inventory_from(shown, "fleet")
        return self._known

    def run_until(self, at: int, stop: Callable[[], bool] = lambda: False) -> int:
        """Ticks up to `at` (ms) or until `stop`; gives the last tick."""
        tick = self.world.now_ms // TICK_MS * TICK_MS
        while tick < at and not stop():
            tick += TICK_MS
            for batch in self.source.advance(tick):
                self.brain.feed(batch)
            self.brain.set_inventory(self.inventory())
            commit = self.brain.tick(tick).commit
            self.lines += [r.line for r in commit.records]
            self.brain.carry_out(tick, self.door)
        return tick


def bench_fleet(nodes: int = 64, ticks: int = 40) -> dict[str, Any]:
    """Cluster seconds a CPU second of the bundled model with its pages, and with the whole of Greylag behind it."""
    site = VirtualSite(nodes=nodes, spares=0, act=False)
    frames = FleetFrames(site.world)
    cpu = process_cpu_seconds()
    pages = sum(1 for _ in frames.advance(site.world.now_ms + ticks * TICK_MS))
    model = process_cpu_seconds() - cpu
    cpu = process_cpu_seconds()
    site.run_until(site.world.now_ms + ticks * TICK_MS)
    whole = process_cpu_seconds() - cpu
    seconds = ticks * TICK_MS / 1000
    return {"nodes": nodes, "pages": pages, "model_cluster_seconds_per_cpu_second": round(seconds / model, 1),
            "whole_path_cluster_seconds_per_cpu_second": round(seconds / whole, 1),
            "peer": "the same model without Greylag", "whole_path_times_model": round(whole / model, 2)}
