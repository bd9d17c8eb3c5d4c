"""The collector process: it reads its share of the targets at their times, follows the logs and hands everything over.

Its start: an epoch (older batches of its name are refused from then on), the first list of targets, the leases. The owner
says up to which time it knows this worker to have reported, so what a crash cost is counted: due times after it are read
late where that is still possible, and are missed otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from collectors.collector import Collector
from collectors.disposable import Helpers, Resolver
from collectors.exposition_template import warm_up
from collectors.fetch import HttpFetch
from collectors.handover import Handover
from collectors.leaseholder import LeaseHolder
from collectors.rounds import Outlet, Slotted, lock_step
from collectors.schedule import SLOT_MS, slot_at_or_after
from collectors.watched_files import WatchedFiles
from core.clock import Clock
from core.config import GreylagConfig
from core.errors import Unavailable
from core.telemetry import Telemetry

log = logging.getLogger("greylag.collect")
LAST_WORDS_SECONDS = 5.0  # how long a stopping worker tries to hand over what it still holds
RETRY_SECONDS = 0.25


async def run_worker(config: GreylagConfig, clock: Clock, owner_url: str, worker: str, stop: asyncio.Event,
                     telemetry: Telemetry | None = None, secret_file: Path | None = None) -> None:
    """Collects until `stop` is set. secret_file: what the owner asks of its collectors. Raises ConfigError where the scrape configuration is wrong."""
    telemetry = telemetry or Telemetry()
    names = Resolver(Helpers())
    fetch = HttpFetch(names.addresses, WatchedFiles(names.helpers))
    collector = Collector(config, fetch, worker, telemetry)
    handover = Handover(owner_url, worker, telemetry, secret_file=secret_file)
    holder = LeaseHolder(worker, handover, collector)
    handover.newer_leases = holder.newer
    receiver = push_receiver(config, collector, clock)
    background: list[asyncio.Task[None]] = []
    try:
        if receiver is not None:
            await receiver.start()
            collector.receiver = receiver
        outlet = await _begin(collector, handover, holder, clock, stop)
        if outlet is not None:
            background += [asyncio.create_task(handover.run()), asyncio.create_task(holder.run())]
            await _until_stopped(_rounds(config, collector, outlet, clock, stop), background)
            await handover.drained(LAST_WORDS_SECONDS)
    finally:
        for task in background:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if receiver is not None:
            await receiver.stop()
        await collector.aclose()
        await handover.aclose()
        await fetch.aclose()
        names.close()


async def _begin(collector: Collector, handover: Handover, holder: LeaseHolder, clock: Clock,
                 stop: asyncio.Event) -> Outlet | None:
    """Epoch, targets, leases; None where the worker is stopped meanwhile."""
    while not stop.is_set():
        try:
            await handover.register()
            break
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
    warm_up()
    await collector.first_list()
    answer = await holder.first(stop.is_set)
    if stop.is_set():
        return None
    first = slot_at_or_after(clock.now_ms(), collector.step_ms if collector.paced else SLOT_MS)
    before = first - (collector.step_ms if collector.paced else SLOT_MS)
    resume = answer.resume_ms if answer is not None else None
    collector.start(before if resume is None else resume)
    return Outlet(collector, handover, before if resume is None else max(before, resume))


async def _rounds(config: GreylagConfig, collector: Collector, outlet: Outlet, clock: Clock, stop: asyncio.Event) -> None:
    if collector.paced:
        await lock_step(collector, outlet, clock, stop)
    else:
        await Slotted(collector, outlet, clock, config.flush_seconds).run(stop)


async def _until_stopped(rounds: Any, background: list[asyncio.Task[None]]) -> None:
    """The rounds to their end; what fails in the background ends them too, so that the worker is started anew."""
    main = asyncio.ensure_future(rounds)
    try:
        await asyncio.wait([main, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
        await main
    finally:
        if not main.done():
            main.cancel()
            with suppress(asyncio.CancelledError):
                await main


def push_receiver(config: GreylagConfig, collector: Collector, clock: Clock) -> Any:
    """The receiver of pushes where this worker has one: `collector-0`, with `push_listen` or `syslog_listen` set; else None."""
    if (config.push_listen is None and config.syslog_listen is None) or not collector.reads_logs:
        return None
    from collectors.push import PushReceiver

    return PushReceiver(config, collector.worker, collector.mapper, collector.sources, collector.telemetry, clock)
