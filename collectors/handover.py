"""Hands batches to the owner, each (worker, epoch, seq) once, and tries again until the owner says it is committed.

The owner grants an epoch at each start. Layouts travel with the first batch of the epoch that needs them. Between the
worker and the owner stands a bounded queue: while the owner is away scraping goes on, and what does not fit any more is
dropped from the old end and counted by name; pushes are not dropped, since their senders were told that they are kept.

With each batch go the worker's own series: counters as what was added since the last batch that the owner took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from core.errors import Refused, Unavailable
from core.signing import read_secret
from core.telemetry import METRICS, Key, Telemetry
from core.types import Batch, Event, Layout, Scrape
from core.wire import encode_batch

EPOCH_PATH = "/internal/v1/epoch"
BATCH_PATH = "/internal/v1/batch"
TIMEOUT_SECONDS = 30.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 2.0
# 10 minutes at a flush every 5 s and at each tick, or this many samples (160 MB), whichever is reached first.
MOST_ITEMS, MOST_SAMPLES = 160, 20_000_000
MOST_PARCEL_SAMPLES = 1_500_000
LEARNING_BACKLOG = 12  # parcels: some 20 s of an owner's work where all of them are of targets that it never saw
MOST_NEW_SERIES = 50_000  # a series that is new to the owner costs it half a kilobyte until the batch is committed
PIECE_BYTES = 256 * 1024
REMEMBERED_MS = 600_000  # a layout unused for longer is sent again: the owner forgets it after a window (30 minutes)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is handed over at once, before it has a number: layouts of all its scrapes, scrapes, events, the watermark.

    committed: called once the owner has committed it. keep: it is never dropped for want of room; where the owner refuses
    it for good `committed` is called all the same, since it would never be taken.
    """

    watermark: int
    layouts: tuple[Layout, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    events: tuple[Event, ...] = ()
    committed: Callable[[], None] | None = None
    keep: bool = False

    @property
    def samples(self) -> int:
        return sum(len(s.values) for s in self.scrapes)


class Increments:
    """A worker's telemetry as batches carry it. What was taken counts as told only once `told` is called; until then
    `take` gives the same rows again, so that a batch that is tried again is the same batch."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._before: dict[Key, float] = {}
        self._now: dict[Key, float] | None = None

    def take(self) -> tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]:
        """(name, labels, value): counters that grew since the last batch by how much, all gauges as they are."""
        if self._now is None:
            self._now = self._telemetry.snapshot()
        rows = []
        for (name, labels), value in self._now.items():
            counter = METRICS[name][0] == "counter"
            given = value - self._before.get((name, labels), 0.0) if counter else value
            if given or not counter:
                rows.append((name, labels, given))
        return tuple(rows)

    def told(self) -> None:
        """The batch that carried them is committed."""
        if self._now is not None:
            self._before, self._now = self._now, None

    def forget(self) -> None:
        """The batch that carried them is lost: the next one carries them with what came since."""
        self._now = None


class Handover:
    """The way to one owner. `put` never waits; `run` delivers until it is cancelled; `drained` waits for the end of it.

    newer_leases: called with the generation of the owner's leases that came with an answer. secret_file: holds what the owner
    asks of its collectors where it asks for tokens; read again when the owner does not take it.
    """

    def __init__(self, owner_url: str, worker: str, telemetry: Telemetry | None = None,
                 client: httpx.AsyncClient | None = None, secret_file: Path | None = None) -> None:
        self._owner, self._worker = owner_url.rstrip("/"), worker
        self._secret_file, self._secret = secret_file, ""
        self._telemetry = telemetry or Telemetry()
        self._increments = Increments(self._telemetry)
        self.newer_leases: Callable[[int], None] | None = None
        self._client = client or httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_SECONDS)
        self._queue: deque[Parcel] = deque()
        self._samples = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._known: dict[str, int] = {}  # layout id → watermark at which it last was of use
        self.epoch: int | None = None
        self._seq = 0
        self._delivered = False
        self.committed = 0

    async def aclose(self) -> None:
        """Closes the connections. What is still queued is lost, as unacknowledged data may be."""
        await self._client.aclose()

    def knows(self, layout_id: str) -> bool:
        """True where the owner has committed a batch with this layout."""
        return layout_id in self._known

    def put(self, parcel: Parcel) -> None:
        """Queues a parcel; where the queue is full its oldest parcels are dropped and counted (`handover_full`)."""
        self._queue.append(parcel)
        self._samples += parcel.samples
        while len(self._queue) > MOST_ITEMS or (self._samples > MOST_SAMPLES and len(self._queue) > 2):
            # The head may be under way: it stays, so that its number is not used for other content.
            oldest = next((i for i in range(1, len(self._queue)) if not self._queue[i].keep), None)
            if oldest is None:
                break
            dropped = self._queue[oldest]
            del self._queue[oldest]
            self._samples -= dropped.samples
            self._count_dropped("handover_full", dropped)
        self._idle.clear()
        self._wake.set()

    @property
    def roomy(self) -> bool:
        """True while there is room for what must not be dropped."""
        return len(self._queue) < MOST_ITEMS // 4 and self._samples < MOST_SAMPLES // 4

    def _count_dropped(self, reason: str, parcel: Parcel) -> None:
        lost = max(1, parcel.samples + len(parcel.events))
        self._telemetry.add("greylag_collector_dropped_total", lost, worker=self._worker, reason=reason)

    @property
    def learns(self) -> bool:
        """True while the owner keeps up, so that targets may be read that it never saw."""
        return len(self._queue) < LEARNING_BACKLOG

    @property
    def backlog(self) -> int:
        """Parcels that the owner has not committed yet."""
        return len(self._queue)

    async def drained(self, timeout_seconds: float) -> bool:
        """True once nothing is queued, False after the time-out (wall time)."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Delivers what is queued, one batch at a time, in order. Ends only by cancellation."""
        while True:
            if not self._queue:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._deliver(self._queue[0])
            done = self._queue.popleft()
            self._samples -= done.samples
            if done.committed is not None and (self._delivered or done.keep):
                done.committed()

    async def _deliver(self, parcel: Parcel) -> None:
        """Returns once the owner has committed the parcel (or refused it for good, which is counted)."""
        wait = FIRST_RETRY_SECONDS
        body: bytes | None = None
        while True:
            try:
                if self.epoch is None:
                    await self.register()
                    body = None
                if body is None:
                    body = self._encode(parcel)
                await self._post_batch(parcel, body)
            except _Again:
                body = None
                continue
            except Unavailable:
                # What it has committed it still has, also after a restart, and what it lacks it asks for. Sending all
                # layouts again would bury an owner that is only slow: they cost it a hundred times what their values do.
                body = None
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_RETRY_SECONDS)
                continue
            except Refused as error:
                self._increments.forget()
                self._count_dropped(error.reason, parcel)
                self._delivered = False
            else:
                self._increments.told()
                self._known.update((one.id, parcel.watermark) for one in parcel.layouts)
                self.committed = self._seq + 1
                self._delivered = True
            self._seq += 1
            return

    def _encode(self, parcel: Parcel) -> bytes:
        assert self.epoch is not None
        oldest = parcel.watermark - REMEMBERED_MS
        fresh = {one.id: one for one in parcel.layouts if self._known.get(one.id, oldest - 1) < oldest}
        return encode_batch(Batch(self._worker, self.epoch, self._seq + 1, parcel.watermark, tuple(fresh.values()),
                                  parcel.scrapes, parcel.events, self._increments.take()))

    async def register(self) -> None:
        """Asks for a new epoch. Raises Unavailable where the owner gives none."""
        answer = await self.post(EPOCH_PATH, json={"worker": self._worker})
        epoch = _json(answer).get("epoch")
        if answer.status_code != 200 or not isinstance(epoch, int):
            raise Unavailable(f"the owner gave no epoch (status {answer.status_code})")
        self.epoch, self._seq = epoch, 0
        self._known.clear()

    async def _post_batch(self, parcel: Parcel, body: bytes) -> None:
        head = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        answer = await self.post(BATCH_PATH, content=_pieces(body), headers=head)
        if answer.status_code == 200:
            generation = _json(answer).get("generation")
            if isinstance(generation, int) and self.newer_leases is not None:
                self.newer_leases(generation)
            return
        if answer.status_code == 409:
            reason = _reason(answer)
            if reason == "unknown_layout":
                # The owner lost what it knew of this epoch: the same number goes again, with its layouts.
                mine = {one.id for one in parcel.layouts}
                if self._known.keys().isdisjoint(mine):
                    raise Refused(reason)
                self._known = {name: at for name, at in self._known.items() if name not in mine}
            else:
                self.epoch = None
                await asyncio.sleep(FIRST_RETRY_SECONDS)
            raise _Again
        if answer.status_code in (400, 413, 422):
            raise Refused("refused_by_owner", f"status {answer.status_code}")
        raise Unavailable(f"status {answer.status_code}")

    async def post(self, path: str, **what: Any) -> httpx.Response:
        """A POST to the owner, any status. Raises Unavailable where it does not answer."""
        if self._secret_file is not None and not self._secret:
            with suppress(Unavailable):  # an owner without tokens asks for none
                self._secret = read_secret(str(self._secret_file))
        headers = {**what.pop("headers", {}), **({"Authorization": f"Bearer {self._secret}"} if self._secret else {})}
        try:
            answer = await self._client.post(self._owner + path, headers=headers, **what)
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(f"the owner did not answer ({error})") from None
        if answer.status_code == 401:
            self._secret = ""
        return answer


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """The body in pieces. The client's answers hold their requests in a cycle: given as one, 10 MB of each batch would
    stay until cycles are looked for; and a piece is copied on its way, the whole should not be."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start:start + PIECE_BYTES]


class _Again(Exception):
    """The batch must be made anew and sent again at once."""


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answer: httpx.Response) -> str:
    found = _json(answer)
    inner = found.get("detail", found)
    reason = inner.get("reason") if isinstance(inner, dict) else inner
    return str(reason) if reason else "old_epoch"


def parcels(watermark: int, before: int, results: Sequence[tuple[Layout, Scrape]], events: Sequence[Event],
            committed: Callable[[], None] | None = None, keep: bool = False,
            known: Callable[[str], bool] | None = None) -> list[Parcel]:
    """What is to be handed over as parcels of bounded size; only the last carries the watermark, the others `before`.

    known: says of a layout's id whether the owner has it; None: it has them all.
    """
    out: list[Parcel] = []
    layouts: dict[str, Layout] = {}
    scrapes: list[Scrape] = []
    size = new = 0
    for layout, scrape in results:
        if scrapes and (size + len(scrape.values) > MOST_PARCEL_SAMPLES or new > MOST_NEW_SERIES):
            out.append(Parcel(before, tuple(layouts.values()), tuple(scrapes), keep=keep))
            layouts, scrapes, size, new = {}, [], 0, 0
        if known is not None and layout.id not in layouts and not known(layout.id):
            new += len(layout.series)
        layouts[layout.id] = layout
        scrapes.append(scrape)
        size += len(scrape.values)
    out.append(Parcel(watermark, tuple(layouts.values()), tuple(scrapes), tuple(events), committed, keep))
    return out


