"""`greylag run --role owner`: the process that owns the store, the tick and the API. It never scrapes, parses or receives.

Threads: asyncio (hand-over and API), the tick, one store writer, one for the outbox. A batch is acknowledged once the
store has committed it; only then does the tick thread see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from app import past, wiring
from app.access import Gate, internal_secret
from app.brain import Brain
from app.clocks import make_clock
from app.crew import LOOK_SECONDS, Crew
from app.disk_guard import LOOK_SECONDS as DISK_LOOK_SECONDS
from app.disk_guard import DiskGuard, DiskWatch, free_ratio
from app.gate import TickGate
from app.heartbeat import Heartbeat, lags
from app.house import OwnerHouse
from app.lean import lean
from app.odd import MODEL_FILE, OddParts
from app.outbox import OutboxThread
from app.own_series import WORKER, OwnSeries
from app.part_store import parts_of
from app.processes import bind
from app.silence_watch import SilenceWatch
from app.slow_jobs import LOOK_SECONDS as SLOW_LOOK_SECONDS
from app.slow_jobs import SlowDrift
from app.warm import warm
from app.workerfiles import OWNER_FILE, write_whole
from core.access import Tokens
from core.clock import Clock, monotonic_seconds, rfc3339
from core.config import GreylagConfig, check_listen
from core.errors import BadInput, GreylagError, Refused, SourceError
from core.memory import give_back
from core.targets import CLOSED_STATES
from core.telemetry import Telemetry
from core.types import Batch, Outcome
from core.window import Window
from core.wire import decode_batch
from pipeline.api import create_api
from pipeline.store.duck import DuckStore
from pipeline.store.samples import retention_ms
from pipeline.store.writer import StoreWriter
from remediation.backends.webhook import WebhookDoor

LARGEST_BATCH_BYTES = 256 * 1024 * 1024
CALLBACKS_MS, MOST_CALLBACKS = 86_400_000, 10_000
STORE_WAIT_SECONDS = 12.0  # an owner whose supervisor was killed needs a moment to let the store go


class Ticker(threading.Thread):
    """The tick thread: takes committed batches, judges each tick once, commits it, then acts."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(name="tick", daemon=True)
        self.owner = owner
        self.inbox: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self.layouts: set[str] = set()
        self.halt = threading.Event()
        self.failed: str | None = None
        self.lock = threading.Lock()

    def run(self) -> None:
        while not self.halt.is_set():
            due = self.owner.gate.wait(self.owner.clock.now_ms(), monotonic_seconds(), 0.25)
            try:
                if due is None:
                    self.take_in()
                else:
                    self.judge(due)
                    self.failed = None
            except Exception as error:
                # The tick did not commit: the brain has moved on in memory, the store has not. Start again from the store.
                self.failed = str(error)
                what = "what came was not taken in" if due is None else f"tick {rfc3339(due)} was not committed"
                print(f"greylag: {what}: {error}", file=sys.stderr, flush=True)
                if not isinstance(error, GreylagError):
                    traceback.print_exc()
                os._exit(1)

    def _complain(self, error: str | None) -> None:
        """The tick waits for space on the disk, and is not ready meanwhile; None = it waits no more."""
        self.failed = error

    def take_in(self) -> None:
        """Takes what has been committed between two ticks: the layouts of a fleet's start are objects for each of its series,
        and must not all wait for the tick."""
        with self.lock:
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.owner.brain.feed(self._whole(self.inbox.get_nowait()))

    def _whole(self, batch: Batch) -> Batch:
        """The batch with all its layouts. A collector that did not notice a restart of the owner does not send again those
        that the store has; the ring of this process has not seen them."""
        self.layouts.update(layout.id for layout in batch.layouts)
        missing = {scrape.layout_id for scrape in batch.scrapes} - self.layouts
        found = [known for one in sorted(missing) if (known := self.owner.store.layout(one)) is not None]
        self.layouts |= missing
        return replace(batch, layouts=(*batch.layouts, *found)) if found else batch

    def judge(self, at: int) -> None:
        """One tick: window → findings → incidents → decisions → commit → hands → the clock goes on."""
        owner, began = self.owner, monotonic_seconds()
        with self.lock:
            self._drain()
            owner.refresh_inventory()
            owner.brain.feed(owner.own.collectors(at, owner.crew.lags(at)))
            ticked = owner.brain.tick(at)
            owner.outbox.ended(one.id for one in ticked.commit.incidents if one.state in CLOSED_STATES)
            owner.disk.committed(lambda: owner.writer.commit_tick(ticked.commit), self.halt.is_set, self._complain)
            owner.last_window = ticked.window
            owner.brain.carry_out(at, owner.hands.door)
            if ticked.events:
                owner.writer.submit(owner.own.events(at, ticked.events))
            owner.writer.submit(owner.own.batch(at))
        owner.gate.done(at)
        owner.telemetry.set("greylag_tick_seconds", monotonic_seconds() - began)
        owner.outbox.stands(at, ticked.standing)
        owner.outbox.wake()
        give_back()
        asyncio.run_coroutine_threadsafe(owner.clock.committed(at), owner.loop)


class Owner:
    """All parts of the owner process. `serve` runs until SIGTERM or SIGINT."""

    def __init__(self, config: GreylagConfig) -> None:
        self.config = config
        self.data_dir = Path(config.resolve(config.data_dir))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.telemetry = Telemetry()
        self.clock: Clock = make_clock(config.clock)
        self.hands = wiring.hands(config, self.labels_of)
        routes, notifiers = wiring.notifiers(config)
        self.links = wiring.links(config)
        self.read_inventory = wiring.inventory_reader(config)
        self.inventory = self.read_inventory()
        self.brain: Brain = wiring.brain(config, self.inventory, self.hands.engine, self.telemetry, routes,
                                        self.labels_of)
        self.store = open_store(self.data_dir / "greylag.duckdb", config)
        self.writer = StoreWriter(self.store)
        self.brain.load(self.store.state, self.store.ledger(), parts_of(self.store), self.store.last_tick() or 0)
        self._warm()
        reported = {worker: mark for worker, mark in self.store.watermarks().items() if worker != WORKER}
        self.gate = TickGate(self.store.last_tick(), reported=max(reported.values(), default=None))
        self.crew = Crew(config.workers, self.data_dir, self.clock, self.telemetry, self.gate, config.clock is not None,
                         reported, monotonic_seconds())
        guard = DiskGuard(config.budgets.process.disk_free_ratio_min, self.store.retention_ms)
        self.disk = DiskWatch(guard, self.store, self.writer.call, self.telemetry, partial(free_ratio, self.data_dir))
        self.drift = SlowDrift(self.store, self.now_ms, lambda: self.inventory, self.telemetry)
        self.odd = OddParts(self.data_dir / MODEL_FILE, lambda: self.last_window, self.telemetry)
        self.heartbeat = Heartbeat(config.heartbeat, self.lags, self.telemetry, config.resolve)
        self.outbox = OutboxThread(self.store, self.writer, notifiers, self.telemetry, routes, os.getpid(), self.heartbeat.well,
                                   self.now_ms)
        self.outbox.stands(self.store.last_tick() or 0, self.brain.standing())
        self.silence_watch = SilenceWatch(notifiers, self.brain.silences, self.telemetry, self.now_ms)
        recall_callbacks(self.hands.door, self.store, self.store.last_tick())
        self.ticker = Ticker(self)
        self.last_window: Window | None = None
        self.own = OwnSeries(self.telemetry, self.store.epoch(WORKER))
        self.house = OwnerHouse(self)
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()

    def labels_of(self, node: str) -> Mapping[str, str]:
        """The inventory's labels of a node; none where the node is not known."""
        return next((n.labels for n in self.inventory.nodes if n.name == node), {})

    def now_ms(self) -> int:
        """Cluster time, by the clock that the owner has now."""
        return self.clock.now_ms()

    def lags(self) -> Mapping[str, float | None]:
        """How far ingest, detect and notify are behind now."""
        now = self.clock.now_ms()
        return lags(now, self.crew.lags(now), self.store.last_tick(), self.outbox.lag_seconds(monotonic_seconds()))

    def _warm(self) -> None:
        """Fills the ring with what the store has of the last half hour; an empty one fills from the next scrapes."""
        last, began = self.store.last_tick(), monotonic_seconds()
        if last is None:
            return
        try:
            samples = warm(self.brain.ring, self.store, last)
            past.recall(self.brain.ring, self.store, last, self.brain.past_asked)
        except GreylagError as error:
            print(f"greylag: the last half hour could not be read back ({error})", file=sys.stderr, flush=True)
            return
        print(f"greylag: {samples} samples of the last half hour read back in {monotonic_seconds() - began:.1f} s",
              file=sys.stderr, flush=True)

    def refresh_inventory(self) -> None:
        """The inventory as it is now; when it cannot be read the last one stays."""
        try:
            fresh = self.read_inventory()
        except Exception as error:
            self.telemetry.add("greylag_scrapes_total", result="inventory_failed")
            print(f"greylag: the inventory could not be read ({error}); the last one stays", file=sys.stderr, flush=True)
            return
        if fresh != self.inventory:
            self.inventory = fresh
            self.brain.set_inventory(fresh)

    def app(self) -> Gate:
        """The API with the hand-over doors, behind the gate that knows tokens."""
        app = create_api(self.house)
        add_handover(app, self)
        return Gate(app, Tokens(self.config.tokens), internal_secret(self.data_dir), self.telemetry)

    def take(self, batch: Batch, result: str) -> None:
        """A batch that the store has dealt with: new data goes to the tick, repeats only confirm."""
        if result == "old_epoch":
            self.telemetry.add("greylag_collector_dropped_total", worker=batch.worker, reason="old_epoch")
            return
        if result == "repeat_batch":
            self.telemetry.add("greylag_collector_dropped_total", worker=batch.worker, reason="repeat_batch")
        else:
            self.ticker.inbox.put(batch)
            samples = sum(len(s.values) for s in batch.scrapes)
            self.telemetry.add("greylag_collector_samples_total", samples, worker=batch.worker)
            self.telemetry.merge(batch.telemetry)
        self.telemetry.set("greylag_collector_lag_seconds", max(0.0, (self.clock.now_ms() - batch.watermark) / 1000),
                           worker=batch.worker)
        self.gate.report(batch.worker, batch.watermark, monotonic_seconds())
        self.crew.committed(batch.worker, batch.watermark)

    def serve(self) -> int:
        """Listens, ticks and delivers until told to stop."""
        host, port = check_listen(self.config.file, self.config.listen, tokens=bool(self.config.tokens))
        listener = bound(host, port, self.data_dir / OWNER_FILE)
        own = "127.0.0.1" if host == "0.0.0.0" else host  # where this machine reaches it
        url = f"http://{own}:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(self.app(), log_level="warning", access_log=False, lifespan="off"))
        asyncio.set_event_loop(self.loop)
        self.ticker.start()
        self.outbox.start()
        self.heartbeat.start()
        self.silence_watch.begin()
        write_whole(self.data_dir / OWNER_FILE, json.dumps({"url": url, "pid": os.getpid()}))
        print(f"greylag: listening on {url}", file=sys.stderr, flush=True)
        try:
            self.loop.run_until_complete(self._serve(server, listener))
        finally:
            self.close()
        return 0

    async def _serve(self, server: uvicorn.Server, listener: socket.socket) -> None:
        last = self.store.last_tick()
        # The last owner may have ended between a commit and its report: a paced clock would stand for ever.
        self.crew.started = monotonic_seconds()
        tasks = [asyncio.create_task(one) for one in (self._watch_lag(), self._watch_crew(), self._watch_disk(),
                                                       self._watch_slowly())]
        tasks += [] if last is None else [asyncio.create_task(self.clock.committed(last))]
        try:
            await server.serve([listener])
        finally:
            for task in tasks:
                task.cancel()

    async def _watch_lag(self) -> None:
        while True:
            began = monotonic_seconds()
            await asyncio.sleep(0.5)
            self.telemetry.set("greylag_event_loop_lag_seconds", max(0.0, monotonic_seconds() - began - 0.5))

    async def _watch_disk(self) -> None:
        while True:
            await asyncio.to_thread(self.disk.look, monotonic_seconds())
            await asyncio.sleep(DISK_LOOK_SECONDS)

    async def _watch_slowly(self) -> None:
        while True:
            await asyncio.sleep(SLOW_LOOK_SECONDS)
            try:
                if await asyncio.to_thread(self.drift.look):
                    self.brain.drift_report = self.drift.report
                if await asyncio.to_thread(self.odd.look):
                    self.brain.odd = self.odd.keys()
            except Exception:  # what only informs must not end the watching, nor end for good itself
                traceback.print_exc()

    async def _watch_crew(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.crew.look(monotonic_seconds())

    def close(self) -> None:
        """Ends the threads in the order in which they need each other, and closes the store."""
        self.ticker.halt.set()
        self.ticker.join(10)
        self.heartbeat.stop()
        self.silence_watch.stop()
        self.outbox.stop()
        self.writer.close()
        self.store.close()


def recall_callbacks(door: object, store: DuckStore, last_tick: int | None) -> None:
    """Gives a webhook backend the call-backs of the last day, which the store kept: none is taken twice, none is forgotten."""
    if not isinstance(door, WebhookDoor) or last_tick is None:
        return
    for event in store.events(last_tick - CALLBACKS_MS, last_tick + CALLBACKS_MS, ("action",), MOST_CALLBACKS, None):
        if event.fields.get("message_id"):
            outcome = Outcome(str(event.fields["action_id"]), str(event.fields["state"]), str(event.fields["reason"]),
                              float(str(event.fields.get("took_seconds") or 0.0)), event.at)
            with contextlib.suppress(Refused):
                door.recall(str(event.fields["message_id"]), outcome)


def add_handover(app: FastAPI, owner: Owner) -> None:
    """The collectors' doors: a new epoch, leases and heartbeats, and batches."""

    @app.post("/internal/v1/epoch", include_in_schema=False)
    async def epoch(request: Request) -> JSONResponse:
        worker = str((await request.json())["worker"])
        granted = await asyncio.wrap_future(owner.writer.epoch(worker))
        return JSONResponse({"epoch": granted})

    @app.post("/internal/v1/leases", include_in_schema=False)
    async def leases(request: Request) -> JSONResponse:
        try:
            return JSONResponse(owner.crew.beat(await request.json(), monotonic_seconds()))
        except (BadInput, ValueError) as error:
            return JSONResponse({"reason": "bad_heartbeat", "detail": str(error)}, 400)

    @app.post("/internal/v1/batch", include_in_schema=False)
    async def batch(request: Request) -> JSONResponse:
        body = await request.body()
        if len(body) > LARGEST_BATCH_BYTES:
            return JSONResponse({"reason": "body_too_large"}, 413)
        try:
            one = decode_batch(body)
        except SourceError as error:
            return JSONResponse({"reason": error.reason, "detail": error.detail}, 400)
        try:
            one = owner.crew.check(one)
            result = await asyncio.wrap_future(owner.writer.submit(one))
        except Refused as error:  # a layout that this store never saw: the collector registers anew and sends it again
            return JSONResponse({"reason": error.reason, "detail": error.detail}, 409)
        except GreylagError as error:  # nothing of it is stored: the collector keeps it and comes again
            owner.disk.failed(error)
            return JSONResponse({"reason": "not_committed", "detail": str(error)}, 503)
        owner.take(one, result)
        if result == "old_epoch":
            return JSONResponse({"reason": "old_epoch"}, 409)
        return JSONResponse({"committed": one.seq, "generation": owner.crew.leases.generation})


def open_store(path: Path, config: GreylagConfig) -> DuckStore:
    """The store; waits a little for a process that still holds it. Raises BadInput where it cannot be opened."""
    deadline = monotonic_seconds() + STORE_WAIT_SECONDS
    raw, minutes, hours = (retention_ms(getattr(config.retention, key), config.file, f"retention.{key}")
                           for key in ("raw", "rollup_1m", "rollup_1h"))
    while True:
        try:
            return DuckStore(path, retention_ms=raw, rollup_1m_ms=minutes, rollup_1h_ms=hours)
        except BadInput as error:
            if not str(error.given).startswith("a store that") or monotonic_seconds() > deadline:
                raise
        time.sleep(0.2)


def bound(host: str, port: int, owner_file: Path) -> socket.socket:
    """A socket that is bound. Port 0 takes the port of the owner before, where a crash left its file: living collectors and
    people know that address; any free one else. Raises Refused."""
    asked = [port]
    if port == 0:
        try:
            before = urlsplit(str(json.loads(owner_file.read_text(encoding="utf-8"))["url"])).port
            asked = [before, 0] if before else [0]
        except (OSError, ValueError, KeyError, TypeError):
            pass
    for one in asked[:-1]:
        with contextlib.suppress(OSError):
            return bind(host, one)
    try:
        return bind(host, asked[-1])
    except OSError as error:
        raise Refused("address_in_use", f"cannot listen on {host}:{asked[-1]} ({error.strerror})") from None


def run_owner(config: GreylagConfig) -> int:
    """Runs until SIGTERM or SIGINT."""
    lean()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # uvicorn ends in order on either signal and then raises it again: that is the end that was asked for.
    with contextlib.suppress(KeyboardInterrupt):
        return Owner(config).serve()
    return 0
