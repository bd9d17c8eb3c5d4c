"""The rhythm of a worker: when readings begin, when what they gave is handed over, and up to which time all is reported.

Two rhythms. On a paced clock (the bundled fleet's) a slot is one round: everything that is due is read and handed over as
one batch, and only then the clock goes on. On the wall clock slots of 500 ms begin one after the other, whether or not the
last one is through: a slow target holds back nothing but the watermark, and that only until its own deadline. What
was read is handed over every `flush_seconds`, as soon as the slot of a tick is complete, and when much has come together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from collectors.admission import Admission
from collectors.collector import Collector, Rows
from collectors.handover import Handover, parcels
from collectors.schedule import MOST_AT_ONCE, SLOT_MS, Due, latest_begin, next_slot, slot_at_or_after
from collectors.scrape import TargetScraper
from core.clock import Clock, monotonic_seconds, tick_at_or_before
from core.types import Event

FLUSH_SAMPLES = 1_200_000  # the store pays a fixed price a batch and column: at 300,000 samples it costs half as much again
PLACE_SECONDS = 1.0  # a reading that has not answered by then no longer counts among the MOST_AT_ONCE
BEFORE_NEXT = 0.95  # a reading ends a little before the target's next one is due
HELD_SECONDS = 1.0  # how often it is looked whether pushes still hold a complete tick back
LOG_DEADLINE_SECONDS = 10.0
LAST_READINGS_SECONDS = 2.0


class Outlet:
    """Hands over what was read: `reported` is the newest watermark that was given away."""

    def __init__(self, collector: Collector, handover: Handover, reported: int) -> None:
        self._collector, self._handover = collector, handover
        self.reported = reported

    @property
    def learns(self) -> bool:
        """Whether first readings may begin: what they bring costs the owner most, and must not end dropped."""
        return self._handover.learns

    def put(self, watermark: int, now_ms: int, rows: Rows, events: list[Event], places: Callable[[], None] | None) -> None:
        """All of it, with what was pushed; places: called once the owner has committed it."""
        before = self.reported
        receiver = self._collector.receiver
        if receiver is not None and self._handover.roomy:
            pushed, said, mark = receiver.take(now_ms)
            if pushed or said:
                for parcel in parcels(before, before, pushed, said, lambda: receiver.committed(mark), keep=True):
                    self._handover.put(parcel)
        if receiver is not None and not self._collector.paced:  # a paced clock stands until the tick is judged
            watermark = receiver.watermark(watermark, now_ms)
        self.reported = max(before, watermark)
        self._collector.tell_counts()
        events = [*events, *self._collector.restraint.events()]
        for parcel in parcels(self.reported, before, rows, events, places, known=self._handover.knows):
            self._handover.put(parcel)


async def lock_step(collector: Collector, outlet: Outlet, clock: Clock, stop: asyncio.Event) -> None:
    """Rounds on a paced clock, until `stop`."""
    at = slot_at_or_after(clock.now_ms(), collector.step_ms)
    while await reached(clock, at, stop):
        await collector.keep_fresh()
        rows, events = await collector.slot(at)
        outlet.put(at, at, rows, events, collector.places_to_save())
        at = next_slot(at, clock.now_ms(), collector.step_ms)


class Slotted:
    """Rounds on the wall clock. `run` goes on until it is stopped, and then hands over what is left."""

    def __init__(self, collector: Collector, outlet: Outlet, clock: Clock, flush_seconds: float) -> None:
        self._collector, self._outlet, self._clock, self._flush_seconds = collector, outlet, clock, flush_seconds
        self._begun = outlet.reported
        self._waiting: dict[int, int] = {}  # scheduled time → readings under way
        self._rows: Rows = []
        self._events: list[Event] = []
        self._samples = 0
        self._flushed_at = monotonic_seconds()
        self._tick = 0  # the newest tick whose slot was handed over as complete, be it that pushes hold it back
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self._admission = Admission()
        self._first: deque[Due] = deque()  # first readings that wait for their turn
        self._failure: BaseException | None = None

    @property
    def watermark(self) -> int:
        """Everything that was due until then has been read, or has failed, or was missed."""
        return min(self._waiting) - 1 if self._waiting else self._begun

    async def run(self, stop: asyncio.Event) -> None:
        """Begins slot after slot. Raises what a reading raised that is no failure of its target."""
        collector, clock = self._collector, self._clock
        at = slot_at_or_after(clock.now_ms(), SLOT_MS)
        while await reached(clock, at, stop):
            if self._failure is not None:
                raise self._failure
            if collector.restraint.level.restart:
                break  # the supervisor starts the worker anew; its leases lose nothing
            await collector.keep_fresh()
            now = clock.now_ms()
            collector.note_lag(now - at)
            self._leave_first()
            for due in collector.calendar.take(at, now):
                self._begin_reading(due)
            self._admission.slot(monotonic_seconds() + max(0, at + SLOT_MS - clock.now_ms()) / 1000)
            self._begin_first()
            if at % collector.log_step_ms == 0 and collector.reads_logs and not collector.polling:
                self._begin(at, self._poll_logs(at))
            self._begun = at
            self._flush_where_due()
            at = next_slot(at, clock.now_ms(), SLOT_MS)
        self._first.clear()  # none begins any more; their times stay unreported
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_READINGS_SECONDS)
        for task in self._tasks:
            task.cancel()
        self._flush()

    # --- readings -----------------------------------------------------------------------------------------------------
    def _begin_reading(self, due: Due) -> None:
        scraper = self._collector.scraper(due.target_id)
        if scraper is None or due.target_id in self._busy:
            self._collector.count_missed(1)
        elif self._collector.skipped(scraper.target, due.at):
            pass
        elif scraper.new:  # in its turn; meanwhile it holds back the watermark, as one under way does
            self._busy.add(due.target_id)
            self._first.append(due)
            self._waiting[due.at] = self._waiting.get(due.at, 0) + 1
        else:
            self._busy.add(due.target_id)
            self._begin(due.at, self._read(due, scraper))

    def _leave_first(self) -> None:
        """First readings whose time is over, or whose target is gone, are left out."""
        waiting, self._first = self._first, deque()
        for due in waiting:
            scraper = self._collector.scraper(due.target_id)
            if scraper is not None and self._clock.now_ms() - due.at <= latest_begin(scraper.target.interval_ms):
                self._first.append(due)
                continue
            self._collector.count_waiting()
            self._busy.discard(due.target_id)
            self._over(due.at)

    def _begin_first(self) -> None:
        """First readings, as far as there is room for them now."""
        self._leave_first()
        while self._first and self._outlet.learns and (ticket := self._admission.admits(monotonic_seconds())):
            due = self._first.popleft()
            scraper = self._collector.scraper(due.target_id)
            assert scraper is not None  # looked at just now
            self._begin(due.at, self._read(due, scraper, ticket))
            self._over(due.at)

    def _begin(self, at: int, work: Coroutine[Any, Any, None]) -> None:
        self._waiting[at] = self._waiting.get(at, 0) + 1
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    def _over(self, at: int) -> None:
        """One thing that was due at that time is through."""
        self._waiting[at] -= 1
        if not self._waiting[at]:
            del self._waiting[at]
        self._flush_where_due()

    def _left_out(self, ticket: int) -> None:
        if ticket:
            self._collector.count_waiting()
        else:
            self._collector.count_missed(1)

    async def _read(self, due: Due, scraper: TargetScraper, ticket: int = 0) -> None:
        begun = False
        try:
            await self._free.acquire()
            place = _Place(self._free)
            try:
                interval = scraper.target.interval_ms
                late = self._clock.now_ms() - due.at
                if late > latest_begin(interval):
                    self._left_out(ticket)
                    return
                begun = True
                left = (interval - late) / 1000 * BEFORE_NEXT
                rows = await self._collector.read(scraper, due.at, left)
            finally:
                place.release()
                if ticket:
                    self._admission.took(ticket, scraper.cpu_seconds if begun else None)
                    self._begin_first()
            self._rows += rows
            self._samples += sum(len(scrape.values) for _, scrape in rows)
        finally:
            self._busy.discard(due.target_id)
            self._over(due.at)

    async def _poll_logs(self, at: int) -> None:
        poll = asyncio.ensure_future(self._collector.poll_logs(at))
        await asyncio.wait({poll}, timeout=LOG_DEADLINE_SECONDS)
        hangs = not poll.done()
        if hangs:
            self._over(at)  # it holds the watermark back no longer; what the logs say comes when it comes
        try:
            rows, events = await poll
            self._rows += rows
            self._samples += sum(len(scrape.values) for _, scrape in rows)
            self._events += events
        finally:
            if not hangs:
                self._over(at)

    # --- handing over -------------------------------------------------------------------------------------------------
    def _flush_where_due(self) -> None:
        tick, waited = tick_at_or_before(self.watermark), monotonic_seconds() - self._flushed_at
        complete = tick > tick_at_or_before(self._outlet.reported) and (tick > self._tick or waited >= HELD_SECONDS)
        if complete or self._samples >= FLUSH_SAMPLES or waited >= self._flush_seconds:
            self._tick = max(self._tick, tick)
            self._flush()

    def _flush(self) -> None:
        rows, events = self._rows, self._events
        self._rows, self._events, self._samples = [], [], 0
        self._flushed_at = monotonic_seconds()
        self._outlet.put(self.watermark, self._clock.now_ms(), rows, events, self._collector.places_to_save())


class _Place:
    """One of the places for readings at once; it is given back after a second or at the end, whichever comes first."""

    __slots__ = ("_free", "_timer")

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free
        self._timer = asyncio.get_running_loop().call_later(PLACE_SECONDS, self.release)

    def release(self) -> None:
        """Gives the place back; the second time it does nothing."""
        self._timer.cancel()
        if self._free is not None:
            self._free.release()
            self._free = None


async def reached(clock: Clock, at_ms: int, stop: asyncio.Event) -> bool:
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

