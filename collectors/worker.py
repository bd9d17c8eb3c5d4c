"""The collector process: each slot it reads all targets that are due, follows the logs and hands everything over.

With the fleet's paced clock the next slot comes only after the owner has committed the tick of this one, so a slot is
always handed over at once, as one batch whose watermark says that the slot is complete: also when nothing was due.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from contextlib import suppress
from functools import partial
from pathlib import Path

from collectors.discovery import Discovery, ScrapeTarget
from collectors.fetch import Fetch, HttpFetch
from collectors.follow import Follower
from collectors.handover import Handover, parcels
from collectors.mapping import Mapper
from collectors.schedule import Slots, due, run_bounded
from collectors.scrape import TargetScraper
from collectors.scrape_config import read_scrape_configs
from core.clock import Clock, monotonic_seconds
from core.config import GreylagConfig
from core.plugins import load_plugins
from core.telemetry import Telemetry
from core.types import Event, Layout, Scrape

log = logging.getLogger("greylag.collect")
FIRST_LIST_SECONDS = 15.0  # how long a starting worker waits for an HTTP service discovery that does not answer yet
LAST_WORDS_SECONDS = 5.0  # how long a stopping worker tries to hand over what it still holds


class Collector:
    """Everything a worker keeps between slots. `slot` is one round; `run_worker` drives it by the clock."""

    def __init__(self, config: GreylagConfig, fetch: Fetch, worker: str, telemetry: Telemetry) -> None:
        sources = load_plugins("collectors.sources")
        self.worker, self.fetch, self.telemetry = worker, fetch, telemetry
        self.mapper = Mapper(sources)
        self.discovery = Discovery(read_scrape_configs(config), fetch)
        self.state_file = config.resolve(config.data_dir) / f"follow-{worker}.json"
        self.follower = Follower(config.logs, sources, self.mapper, fetch, _read_places(self.state_file))
        self._saved = self.follower.places()
        self.targets: list[ScrapeTarget] = []
        self.slots = Slots()
        self._scrapers: dict[str, TargetScraper] = {}
        self._listed = False
        self._refreshing: asyncio.Task[None] | None = None
        self._tolerated: Counter[str] = Counter()
        self._jobs: OrderedDict[str, None] = OrderedDict()
        self._boots: dict[str, int] = {}

    async def refresh(self) -> None:
        """Asks discovery anew; scrapers of targets that stay keep what they learned."""
        found = await self.discovery.refresh()
        if found == self.targets and self._scrapers:
            return
        self.targets = found
        kept = self._scrapers
        self._scrapers = {}
        for target in found:
            old = kept.get(target.info.id)
            self._scrapers[target.info.id] = (
                old if old is not None and old.target == target else TargetScraper(target, self.mapper, self._tolerated)
            )
        self.slots.set_intervals([t.interval_ms for t in found])

    async def _keep_fresh(self) -> None:
        """The first list is waited for; after that a slow service discovery delays no slot."""
        if not self._listed:
            await self._first_list()
        elif self._refreshing is None or self._refreshing.done():
            if self._refreshing is not None and self._refreshing.exception() is not None:
                self.telemetry.add("greylag_collector_dropped_total", worker=self.worker, reason="discovery_failed")
            self._refreshing = asyncio.create_task(self.refresh())
            await asyncio.sleep(0)

    async def _first_list(self) -> None:
        deadline = monotonic_seconds() + FIRST_LIST_SECONDS
        await self.refresh()
        while self.discovery.waiting and monotonic_seconds() < deadline:
            await asyncio.sleep(0.2)
            await self.refresh()
        self._listed = True

    async def slot(self, at_ms: int, step_ms: int) -> tuple[list[tuple[Layout, Scrape]], list[Event]]:
        """One round: (layout, scrape) of all targets that are due, then of the logs; and the logs' events."""
        await self._keep_fresh()
        scrapers = [self._scrapers[t.info.id] for t in due(self.targets, at_ms, step_ms)]
        scraping = run_bounded([partial(scraper.scrape, self.fetch, at_ms) for scraper in scrapers])
        nodes = {t.info.node for t in self.targets if t.info.node}
        results, (readings, events) = await asyncio.gather(
            scraping, self.follower.poll(at_ms, nodes, list(self._jobs), self._boots))
        for layout, scrape in results:
            self.telemetry.add("greylag_scrapes_total", result=scrape.error or "ok")
            if layout.job:
                self._jobs[layout.job] = None
            self._note_boot(layout, scrape)
        for breach, n in self._tolerated.items():
            self.telemetry.add("greylag_tolerated_total", n, breach=breach)
        self._tolerated.clear()
        return [*results, *readings], events

    def _note_boot(self, layout: Layout, scrape: Scrape) -> None:
        """Remembers the node's boot time: it dates the `[seconds]` of its kernel log."""
        if layout.source != "node_exporter" or scrape.error:
            return
        for ref in layout.signals:
            if ref.signal == "node.boot_time_seconds" and ref.target.node and scrape.values[ref.index] > 0:
                self._boots[ref.target.node] = round(float(scrape.values[ref.index]) * 1000)

    def save_places(self) -> None:
        """Writes where the logs stand, after the owner has committed what was read of them."""
        places = self.follower.places()
        if places == self._saved:
            return
        self._saved = places
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.state_file.with_suffix(".tmp")
        fresh.write_text(json.dumps(places), encoding="utf-8")
        fresh.replace(self.state_file)

    async def aclose(self) -> None:
        """Ends what runs in the background."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._refreshing
        self.follower.close()


def _read_places(path: Path) -> dict[str, list[int]]:
    """Saved places of logs; none where the file is missing or damaged (the logs are then read again)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): [int(n) for n in value] for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


async def run_worker(config: GreylagConfig, clock: Clock, owner_url: str, worker: str, stop: asyncio.Event,
                     telemetry: Telemetry | None = None) -> None:
    """Collects until `stop` is set. Raises ConfigError where the scrape configuration is wrong."""
    telemetry = telemetry or Telemetry()
    fetch = HttpFetch()
    collector = Collector(config, fetch, worker, telemetry)
    handover = Handover(owner_url, worker, telemetry)
    sender = asyncio.create_task(handover.run())
    try:
        await _rounds(collector, handover, clock, stop)
        await handover.drained(LAST_WORDS_SECONDS)
        if not handover.backlog:
            collector.save_places()
    finally:
        sender.cancel()
        with suppress(asyncio.CancelledError):
            await sender
        await collector.aclose()
        await handover.aclose()
        await fetch.aclose()


async def _rounds(collector: Collector, handover: Handover, clock: Clock, stop: asyncio.Event) -> None:
    at = collector.slots.first(clock.now_ms())
    before = at - collector.slots.step_ms
    while await _reached(clock, at, stop):
        if not handover.backlog:
            collector.save_places()  # all that was read so far is committed
        results, events = await collector.slot(at, collector.slots.step_ms)
        for parcel in parcels(at, before, results, events):
            handover.put(parcel)
        before = at
        missed = collector.slots.missed
        at = collector.slots.next(at, clock.now_ms())
        if collector.slots.missed > missed:
            lost = collector.slots.missed - missed
            collector.telemetry.add("greylag_collector_dropped_total", lost, worker=collector.worker, reason="missed_slot")
            log.warning("%d slots were missed before %d", lost, at)


async def _reached(clock: Clock, at_ms: int, stop: asyncio.Event) -> bool:
    """Waits for cluster time `at_ms`; False as soon as `stop` is set."""
    sleeping = asyncio.ensure_future(clock.sleep_until(at_ms))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if sleeping.done() and not sleeping.cancelled() and not stop.is_set():
            sleeping.result()
            return True
        return False
    finally:
        for task in (sleeping, stopping):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
