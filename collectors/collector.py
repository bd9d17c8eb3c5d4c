"""What a worker keeps between its rounds: targets and their scrapers, logs, leases, and what it has to say of itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from collectors.discovery import Discovery, ScrapeTarget
from collectors.disposable import Helpers
from collectors.fetch import Fetch
from collectors.follow import Follower
from collectors.log_rules import read_rules
from collectors.mapping import Mapper
from collectors.page_budget import PageBudget
from collectors.restraint import Restrainer
from collectors.schedule import Calendar, run_bounded, step_of
from collectors.scrape import TargetScraper, known_series
from collectors.scrape_config import read_scrape_configs
from collectors.shards import LOGS_WORKER, LeaseAnswer, LeaseTable
from collectors.watched_files import WatchedFiles
from core.clock import TICK_MS, monotonic_seconds, process_cpu_seconds
from core.config import GreylagConfig
from core.memory import give_back, resident_bytes
from core.plugins import load_plugins
from core.telemetry import Telemetry
from core.types import Event, Layout, Scrape

log = logging.getLogger("greylag.collect")
FIRST_LIST_SECONDS = 15.0  # how long a starting worker waits for an HTTP service discovery that does not answer yet
LONGEST_REFRESH_SECONDS, SHORTEST_REFRESH_SECONDS = 5.0, 0.5
FILE_LOG_STEP_MS = 5000
GIVE_BACK_SECONDS = 30.0
BOOT_SIGNAL = "node.boot_time_seconds"

Rows = list[tuple[Layout, Scrape]]


class Receiver(Protocol):
    """Takes pushes (see `collectors.push`)."""

    def take(self, now_ms: int) -> tuple[Rows, list[Event], object]:
        """What has come since the last call, and a mark to commit it with."""
        ...

    def committed(self, mark: object) -> None:
        """The owner has committed everything up to the mark (or refused it for good)."""
        ...

    def watermark(self, at_ms: int, now_ms: int) -> int:
        """Up to when all pushes that can be expected have been taken: `at_ms` or a little less."""
        ...


class Collector:
    """See the module. paced: cluster time stands until a tick is committed, so all targets are read at each slot.

    `leases` gives the table in force; without one everything is this worker's.
    """

    def __init__(self, config: GreylagConfig, fetch: Fetch, worker: str, telemetry: Telemetry,
                 restraint: Restrainer | None = None) -> None:
        self.worker, self.fetch, self.telemetry = worker, fetch, telemetry
        self.paced = config.clock is not None
        self.restraint = restraint or Restrainer(config.budgets, worker, telemetry)
        self.sources = load_plugins("collectors.sources")
        self.mapper = Mapper(self.sources)
        self.discovery = Discovery(read_scrape_configs(config), fetch)
        self.state_file = config.resolve(config.data_dir) / f"follow-{worker}.json"
        # A worker that is alone, under whatever name, follows the logs; of several `collector-0` does.
        self.reads_logs = worker == LOGS_WORKER or not worker.startswith("collector-")
        logs = config.logs if self.reads_logs else ()
        self.log_step_ms = TICK_MS if any(one.url for one in logs) else FILE_LOG_STEP_MS
        self.helpers = Helpers()
        self.discovery.files = WatchedFiles(self.helpers)
        self.follower = Follower(logs, self.sources, self.mapper, fetch, _read_places(self.state_file), self.helpers,
                                 {one.rules: read_rules(config.resolve(one.rules)) for one in logs if one.rules})
        self.receiver: Receiver | None = None
        self.table = LeaseTable()
        self.targets: list[ScrapeTarget] = []
        self.calendar = Calendar(not self.paced, self.mine, self.restraint.factor)
        self.step_ms = TICK_MS
        self.polling = False
        self._saved = self.follower.places()
        self._by_id: dict[str, ScrapeTarget] = {}
        self._scrapers: dict[str, TargetScraper] = {}
        self._nodes: set[str] = set()
        self._after_ms: int | None = None
        self._listed = False
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_at = 0.0
        refreshes = [sd.refresh_interval_ms / 1000 for one in self.discovery.configs for sd in one.http_sd_configs]
        self._refresh_seconds = max(SHORTEST_REFRESH_SECONDS, min([LONGEST_REFRESH_SECONDS, *refreshes]))
        self._tolerated: Counter[str] = Counter()
        self._known = known_series()
        self._results: Counter[str] = Counter()
        self._missed_told = 0
        self._missed_else = 0
        self._lag_ms = 0
        self._samples = 0
        self._jobs: OrderedDict[str, None] = OrderedDict()
        self._boots: dict[str, int] = {}
        self._boot_places: dict[str, list[tuple[str, int]]] = {}
        self._news: tuple[set[str], set[str]] = (set(), set())  # jobs and nodes of boots that the owner has not heard of
        self._counted: tuple[object, int] = (None, 0)
        self._cpu = (monotonic_seconds(), process_cpu_seconds())
        self._give_back_at = 0.0

    # --- targets ------------------------------------------------------------------------------------------------------
    async def first_list(self) -> None:
        """Waits for the first list of targets, a while also for discoveries that do not answer yet."""
        deadline = monotonic_seconds() + FIRST_LIST_SECONDS
        await self.refresh()
        while self.discovery.waiting and monotonic_seconds() < deadline:
            await asyncio.sleep(0.2)
            await self.refresh()
        self._listed = True

    async def refresh(self) -> None:
        """Asks discovery anew; scrapers of targets that stay keep what they learned."""
        found = await self.discovery.refresh()
        if found == self.targets and self._by_id:
            return
        self.targets = found
        self._by_id = {target.info.id: target for target in found}
        self._nodes = {target.info.node for target in found if target.info.node}
        self._scrapers = {key: one for key, one in self._scrapers.items() if self._by_id.get(key) == one.target}
        self.restraint.forget(self._by_id)
        self.step_ms = step_of([target.interval_ms for target in found])
        if self._after_ms is not None:
            self._plan(max(self._after_ms, self.calendar.taken))

    def start(self, after_ms: int) -> None:
        """Due times after `after_ms` are this start's business: what has passed of them counts as missed."""
        self._after_ms = after_ms
        self._plan(after_ms)

    def _plan(self, after_ms: int) -> None:
        self.calendar.set_targets(((t.info.id, t.interval_ms) for t in self.targets), after_ms)

    async def keep_fresh(self) -> None:
        """Starts a refresh of the targets where one is due; a slow service discovery delays no slot."""
        now = monotonic_seconds()
        if (self._refreshing is not None and not self._refreshing.done()) or (now < self._refresh_at and not self.paced):
            return
        if self._refreshing is not None and self._refreshing.exception() is not None:
            self._dropped(1, "discovery_failed")
        self._refresh_at = now + self._refresh_seconds
        self._refreshing = asyncio.create_task(self.refresh())
        await asyncio.sleep(0)

    def hurry(self) -> None:
        """Lists the targets anew at the next slot: what this worker is about to take over may be new to it."""
        self.discovery.hurry()
        self._refresh_at = 0.0

    def mine(self, target_id: str, at_ms: int) -> bool:
        """True where this worker holds the lease of the target at that time."""
        return self.table.holds(self.worker, target_id, at_ms)

    def scraper(self, target_id: str) -> TargetScraper | None:
        """The scraper of a target, made when it is first read; None where the target is gone."""
        found = self._scrapers.get(target_id)
        if found is None and target_id in self._by_id:
            target = self._by_id[target_id]
            found = self._scrapers[target_id] = TargetScraper(
                target, self.mapper, self._tolerated, self._known, PageBudget(target, self.restraint.keeper, self.mapper))
        return found

    # --- leases -------------------------------------------------------------------------------------------------------
    def leased(self, before: LeaseTable, answer: LeaseAnswer) -> None:
        """Takes the table of an answer, and what other workers learned of jobs and boots."""
        self.table = answer.table
        for job in answer.jobs:
            self._jobs[job] = None
        self._boots.update(answer.boots or {})
        if answer.table.generation == before.generation:
            return
        self.hurry()
        since = answer.table.changed_from(before.generation)
        if before.segments and since is not None and since <= self.calendar.taken:
            self.calendar.rewind(since - 1, partial(before.holds, self.worker))
        newest = answer.table.segments[-1] if answer.table.segments else None
        log.info("leases of generation %d: %s", answer.table.generation, newest)
        # Scrapers of what now others read only cost memory; those of the last segment stay warm until it is in force.
        coming = max(newest.from_ms if newest else 0, self.calendar.taken + 1)
        self._scrapers = {key: one for key, one in self._scrapers.items()
                          if self.mine(key, coming) or self.mine(key, self.calendar.taken + 1)}

    def status(self) -> Mapping[str, Any]:
        """What a heartbeat says: cumulative CPU seconds and counts, memory, and how late slots began."""
        return {"targets": self._held(), "samples": self._samples,
                "cpu_seconds": process_cpu_seconds(), "rss_bytes": resident_bytes(), "missed": self.missed,
                "lag_seconds": self._lag_ms / 1000, "jobs": sorted(self._news[0]),
                "boots": {node: self._boots[node] for node in self._news[1]}}

    def _held(self) -> int:
        """How many targets are this worker's now; counted only when targets or leases are others than at the last look."""
        at = self.calendar.taken
        look = (id(self.targets), self.table.at(at))
        if look != self._counted[0]:
            self._counted = (look, sum(self.mine(t.info.id, at) for t in self.targets))
        return self._counted[1]

    def told(self, status: Mapping[str, Any]) -> None:
        """The owner has got this status: what was new is news no more."""
        self._news[0].difference_update(status["jobs"])
        self._news[1].difference_update(n for n, at in status["boots"].items() if self._boots.get(n) == at)
        self._lag_ms = 0

    # --- readings -----------------------------------------------------------------------------------------------------
    async def read(self, scraper: TargetScraper, at_ms: int, left_seconds: float) -> Rows:
        """One reading for its scheduled time, a row for each section of the page; it ends after `left_seconds` (wall time) even where the target may take longer."""
        if scraper.target.timeout_seconds <= left_seconds:
            rows = await scraper.scrape(self.fetch, at_ms)
        else:
            try:
                async with asyncio.timeout(left_seconds):
                    rows = await scraper.scrape(self.fetch, at_ms)
            except TimeoutError:
                rows = scraper.failure("timeout", at_ms, left_seconds)
        self._results[rows[0][1].error or "ok"] += 1
        if rows[0][1].error is None:
            self.restraint.noted(scraper.target, bool(scraper.health), scraper.cpu_seconds)
        return [self._noted(*row) for row in rows]

    def _noted(self, layout: Layout, scrape: Scrape) -> tuple[Layout, Scrape]:
        self._samples += len(scrape.values)
        if layout.job and layout.job not in self._jobs:
            self._jobs[layout.job] = None
            self._news[0].add(layout.job)
        if layout.source == "node_exporter" and not scrape.error:
            self._note_boot(layout, scrape)
        segment = self.table.at(scrape.at)
        return layout, replace(scrape, generation=segment.generation) if segment is not None else scrape

    def _note_boot(self, layout: Layout, scrape: Scrape) -> None:
        """Remembers the node's boot time: it dates the `[seconds]` of its kernel log."""
        places = self._boot_places.get(layout.id)
        if places is None:
            if len(self._boot_places) > 4 * len(self._by_id) + 64:
                self._boot_places.clear()
            places = self._boot_places[layout.id] = [(ref.target.node, ref.index) for ref in layout.signals
                                                     if ref.signal == BOOT_SIGNAL and ref.target.node]
        for node, index in places:
            boot = float(scrape.values[index])
            if boot > 0 and self._boots.get(node) != round(boot * 1000):
                self._boots[node] = round(boot * 1000)
                self._news[1].add(node)

    def skipped(self, target: ScrapeTarget, at_ms: int) -> bool:
        """True where a budget leaves this reading out; it is counted by the budget's reason."""
        reason = self.restraint.skip(target, at_ms)
        if reason is not None:
            self._dropped(1, reason)
        return reason is not None

    async def poll_logs(self, at_ms: int) -> tuple[Rows, list[Event]]:
        """What the logs said since the last poll."""
        self.polling = True
        try:
            return await self.follower.poll(at_ms, self._nodes, list(self._jobs), self._boots)
        finally:
            self.polling = False

    async def slot(self, at_ms: int) -> tuple[Rows, list[Event]]:
        """One whole round of a paced clock: the scrapes of all that is due, then of the logs; and the logs' events."""
        due = [(self.scraper(one.target_id), one.at) for one in self.calendar.take(at_ms, at_ms)]
        readings = [partial(self.read, one, at, one.target.timeout_seconds) for one, at in due
                    if one is not None and not self.skipped(one.target, at)]
        if not self.reads_logs:
            return [row for rows in await run_bounded(readings) for row in rows], []
        read, (logged, events) = await asyncio.gather(run_bounded(readings), self.poll_logs(at_ms))
        return [*(row for rows in read for row in rows), *logged], events

    # --- what it says of itself ---------------------------------------------------------------------------------------
    @property
    def missed(self) -> int:
        """Due readings that were not begun in time, since the start."""
        return self.calendar.missed + self._missed_else

    def count_missed(self, n: int) -> None:
        """Readings that were due and could not be begun."""
        self._missed_else += n

    def count_waiting(self) -> None:
        """A first reading that found no room in time."""
        self._dropped(1, "first_reading_waits")

    def note_lag(self, late_ms: int) -> None:
        """How late a slot began; the heartbeat tells the longest."""
        self._lag_ms = max(self._lag_ms, late_ms)
        self.restraint.late(late_ms)

    def _dropped(self, n: int, reason: str) -> None:
        self.telemetry.add("greylag_collector_dropped_total", n, worker=self.worker, reason=reason)

    def tell_counts(self) -> None:
        """Puts what was counted since the last call into the telemetry that travels with the next batch."""
        for result, n in self._results.items():
            self.telemetry.add("greylag_scrapes_total", n, result=result)
        for breach, n in self._tolerated.items():
            self.telemetry.add("greylag_tolerated_total", n, breach=breach)
        self._results.clear()
        self._tolerated.clear()
        for reason, n in self.follower.failures.items():
            self._dropped(n, reason)
        self.follower.failures.clear()
        self.telemetry.set("greylag_helpers_stuck", self.helpers.stuck, worker=self.worker)
        if self.missed > self._missed_told:
            log.warning("%d due readings were missed before %d", self.missed - self._missed_told, self.calendar.taken)
            self._dropped(self.missed - self._missed_told, "missed_slot")
            self._missed_told = self.missed
        now, cpu = monotonic_seconds(), process_cpu_seconds()
        if now >= self._give_back_at:
            self._give_back_at = now + GIVE_BACK_SECONDS
            give_back()
        if now - self._cpu[0] >= 1.0:
            ratio = (cpu - self._cpu[1]) / (now - self._cpu[0])
            self._cpu = (now, cpu)
            self.telemetry.set("greylag_collector_cpu_ratio", round(ratio, 4), worker=self.worker)
            self.telemetry.set("greylag_collector_resident_bytes", resident_bytes(), worker=self.worker)
        self.restraint.look(now, self.calendar.taken, cpu, resident_bytes)

    # --- the places of logs -------------------------------------------------------------------------------------------
    def places_to_save(self) -> Callable[[], None] | None:
        """A call that writes where the logs stand now, for when the owner has committed what was read of them; None where
        nothing has changed, or a poll is under way whose lines are not in what is handed over now."""
        if self.polling:
            return None
        places = self.follower.places()
        return None if places == self._saved else partial(self._save, places)

    def _save(self, places: dict[str, list[int]]) -> None:
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
