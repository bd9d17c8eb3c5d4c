"""Takes pushes and gives them on as scrapes and events: the face of `collectors.push` towards the worker.

    receiver = PushReceiver(config, worker, mapper, sources, telemetry, clock)
    await receiver.start()
    ...at each flush:
        results, events, mark = receiver.take(now_ms)       # hand these over in a batch
    ...when the owner has committed that batch:
        receiver.committed(mark)
    await receiver.stop()

A request is answered 2xx only after it is fsynced in `<data_dir>/spool/<worker>`. From there it is read, grouped and given
out by `take`, in order. Marks must be committed in the order in which they were taken; what was taken and not committed is
given out again after a restart, and the store's first-wins rule removes what it had already. `take` gives nothing while
`MOST_OUTSTANDING` marks are not committed, so the worker's queue does not grow with the spool: the worker must never drop
what `take` gave.

A tick must not be judged before the pushes of its last seconds are in, since what comes later is stored and never judged:
the worker's watermark is `receiver.watermark(own watermark, now)`, after `take`. It stays behind by at most `HOLD_MS`, and
only while somebody who pushes regularly has not come as far yet.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from collectors.mapping import Mapper
from collectors.push.assemble import Assembler
from collectors.push.endpoints import ENDPOINTS, Endpoint, Meta, Reader, done, meta_for, meta_of, refusal
from collectors.push.http import Answer, HttpLimits, HttpServer, Request
from collectors.push.logs import PushedLogs
from collectors.push.parts import Parsed, PushRefused
from collectors.push.series import FORGET_MS, SeriesBook
from collectors.push.spool import Spool, SpoolFailed, SpoolFull
from collectors.push.syslog_server import SyslogServer
from collectors.readings import Reading, ReadingScrapes
from core.access import Tokens
from core.clock import Clock
from core.config import GreylagConfig, check_listen
from core.protocols import SourcePlugin
from core.telemetry import Telemetry
from core.types import Event, Layout, Scrape

log = logging.getLogger("greylag.push")
WINDOW_MS = 10 * 60_000  # how far behind its series' newest sample a late one may be
FUTURE_MS = 10 * 60_000  # how far ahead of our clock a sample may be; beyond it a clock is wrong
MOST_OUTSTANDING = 4  # takes that are not committed yet
MOST_TAKEN = 500_000  # samples of one take
MOST_IN_MEMORY = 2_000_000  # samples that are kept parsed; what is beyond is read from the spool again
OWNER_AWAY_MS = 15 * 60_000
RETRY_SECONDS = 5
HOLD_MS = 10_000
MAY_PUSH = frozenset({"sender", "operator"})
SWEEP_MS = 60_000
TOO_OLD = "a sample is more than 10 minutes older than the newest one of its series: it was left out."
TOO_NEW = "a sample's time is more than 10 minutes ahead of this machine's clock: it was left out."


class Mark(NamedTuple):
    """A place in the spool, for `committed`. record: everything before it is in what was taken; take: counts the takes that gave
    anything; 0 = there is nothing to commit."""

    record: int
    take: int


class PushReceiver:
    """See the module. All methods belong to one event loop."""

    def __init__(self, config: GreylagConfig, worker: str, mapper: Mapper, sources: Mapping[str, SourcePlugin],
                 telemetry: Telemetry, clock: Clock, limits: HttpLimits | None = None) -> None:
        self._config, self._worker, self._telemetry, self._clock = config, worker, telemetry, clock
        budget = config.budgets.target
        self.limits = limits or HttpLimits()
        self._book = SeriesBook(budget)
        self._reader = Reader(self._book, sources, budget.body_bytes or self.limits.body_bytes)
        self._assembler = Assembler(self._book, mapper)
        self._logs = PushedLogs(sources)
        self._readings = ReadingScrapes(mapper)
        self._http = HttpServer(self._handle, self.limits)
        self._tokens = Tokens(config.tokens)
        self._refused: Counter[str] = Counter()
        self._syslog = SyslogServer(self._take_syslog, self._refused)
        self._folder = config.resolve(config.data_dir) / "spool" / worker
        self._spool: Spool | None = None
        self._backlog: deque[tuple[int, Parsed | None, int]] = deque()  # (record, what it holds, received)
        self._in_memory = 0
        self._again: Iterator[tuple[int, bytes]] | None = None
        self._outstanding: deque[Mark] = deque()
        self._takes = 0
        self._read_up_to = 0
        self._progress_ms = clock.now_ms()
        self._swept_ms = clock.now_ms()
        self._told: Counter[tuple[str, str]] = Counter()

    # --- life ---------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Opens the spool, with what an earlier process left in it, and listens. Raises OSError, ConfigError."""
        self._spool = Spool(self._folder, self._config.budgets.process.spool_bytes, self._written)
        self._read_up_to = self._spool.place - 1
        for first, after in self._spool.spans():
            self._backlog.extend((number, None, 0) for number in range(max(first, self._spool.place), after))
        if self._config.push_listen is not None:
            await self._http.start(*check_listen(self._config.file, self._config.push_listen, "push_listen",
                                                 self._tokens.asked))
        if self._config.syslog_listen is not None:
            await self._syslog.start(*check_listen(self._config.file, self._config.syslog_listen, "syslog_listen"))

    async def stop(self) -> None:
        """Listens no more, answers what is under way, closes the spool. What was not committed stays in it."""
        await self._http.stop() if self._config.push_listen is not None else None
        await self._syslog.stop() if self._config.syslog_listen is not None else None
        if self._spool is not None:
            await self._spool.stop()

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._http.port

    @property
    def syslog_port(self) -> int:
        """The syslog port (TCP and UDP)."""
        return self._syslog.port

    @property
    def spool(self) -> Spool:
        """The open spool."""
        assert self._spool is not None, "start() comes first"
        return self._spool

    # --- in -----------------------------------------------------------------------------------------------------------
    async def _handle(self, request: Request) -> Answer:
        endpoint = ENDPOINTS.get(request.path)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            answer = await self._answer(endpoint, request)
        except PushRefused as error:
            self._refused[error.reason] += 1
            answer = refusal(endpoint, kind, error)
        except Exception:
            log.exception("a push to %s could not be read", request.path)
            self._refused["internal_error"] += 1
            failed = PushRefused(500, "internal_error", "the receiver failed on this request.", RETRY_SECONDS)
            answer = refusal(endpoint, kind, failed)
        self._telemetry.add("greylag_push_requests_total", endpoint=endpoint.kind if endpoint else "other",
                            status=str(answer.status))
        return answer

    async def _answer(self, endpoint: Endpoint | None, request: Request) -> Answer:
        if endpoint is None:
            if request.path in ("/healthz", "/readyz"):
                return Answer(200, b"ok\n")
            return Answer(404, f"pushes are taken at {', '.join(ENDPOINTS)}.\n".encode())
        if request.method != "POST":
            return Answer(405, b"pushes are sent by POST.\n", headers={"Allow": "POST"})
        self._check_token(request)
        now = self._clock.now_ms()
        meta = meta_for(endpoint, request.headers, request.peer, now)
        self._check_owner(endpoint.full_status, now)
        parsed = self._reader.read(meta, request.body)
        self._admit(parsed, now)
        self._refused.update(parsed.refused)
        refused = sum(parsed.refused.values())
        if parsed.size:
            await self._keep(meta, request.body, parsed, endpoint.full_status)
            self._telemetry.add("greylag_push_samples_total", parsed.size, endpoint=endpoint.kind)
        if refused and not (parsed.size and endpoint.kind.startswith("otlp")):
            return refusal(endpoint, meta.content_type, PushRefused(400, "refused", _summed(parsed)))
        return done(endpoint, meta.content_type, refused, parsed.sentence)

    def _check_token(self, request: Request) -> None:
        """Where tokens are asked for, a push needs one of a sender or an operator."""
        if not self._tokens.asked:
            return
        holder = self._tokens.holder(request.headers.get("authorization"))
        if holder is None:
            raise PushRefused(401, "no_token", "a token is needed: `Authorization: Bearer TOKEN`.")
        if holder.role not in MAY_PUSH:
            raise PushRefused(403, "no_token", f"the role {holder.role} of {holder.name} does not allow pushes.")

    def _check_owner(self, status: int, now_ms: int) -> None:
        if self.spool.place < self.spool.next and now_ms - self._progress_ms > OWNER_AWAY_MS:
            minutes = OWNER_AWAY_MS // 60_000
            raise PushRefused(503, "owner_away", f"nothing was committed for {minutes} minutes: come again.", RETRY_SECONDS)

    def _admit(self, parsed: Parsed, now_ms: int) -> None:
        """Leaves out samples that are too old or too far ahead."""
        samples = parsed.samples
        if not len(samples):
            return
        new = samples.at > now_ms + FUTURE_MS
        old = (samples.at < self._book.newest[samples.ids] - WINDOW_MS) | (samples.at < 0)
        if new.any() or old.any():
            parsed.refuse("far_future", TOO_NEW, int(new.sum()))
            parsed.refuse("out_of_order", TOO_OLD, int((old & ~new).sum()))
            parsed.samples = samples = samples.only(~(new | old))
        self._book.heard[samples.ids] = now_ms

    async def _keep(self, meta: Meta, body: bytes, parsed: Parsed, full_status: int) -> None:
        """Returns once the request is on disk. Raises PushRefused where it cannot be kept now."""
        if self.spool.place == self.spool.next:
            self._progress_ms = meta.received_ms
        try:
            await self.spool.append(meta.record(body), (parsed, meta.received_ms))
        except SpoolFull:
            raise PushRefused(full_status, "spool_full", "the spool is full: come again.", RETRY_SECONDS) from None
        except SpoolFailed:
            raise PushRefused(503, "spool_failed", "the spool could not be written: come again.", RETRY_SECONDS) from None

    def _written(self, number: int, item: tuple[Parsed, int]) -> None:
        parsed, received_ms = item
        np.maximum.at(self._book.newest, parsed.samples.ids, parsed.samples.at)
        if self._in_memory + parsed.size > MOST_IN_MEMORY:
            self._backlog.append((number, None, 0))
            return
        self._in_memory += parsed.size
        self._backlog.append((number, parsed, received_ms))

    async def _take_syslog(self, messages: Sequence[str], peer: str) -> None:
        now = self._clock.now_ms()
        self._check_owner(503, now)
        meta = Meta("syslog", now, peer)
        body = json.dumps(list(messages)).encode()
        await self._keep(meta, body, self._reader.read(meta, body), 503)
        self._telemetry.add("greylag_push_samples_total", len(messages), endpoint="syslog")

    # --- out ----------------------------------------------------------------------------------------------------------
    def take(self, now_ms: int) -> tuple[list[tuple[Layout, Scrape]], list[Event], Mark]:
        """What is due to be handed over, and the mark to commit once the owner has it. Empty while the owner is behind."""
        results: list[tuple[Layout, Scrape]] = []
        events: list[Event] = []
        if len(self._outstanding) >= MOST_OUTSTANDING:
            self._measure()
            return results, events, Mark(self.spool.place, 0)
        readings: list[Reading] = []
        taken = 0
        while self._backlog and taken < MOST_TAKEN:
            number, parsed, received_ms = self._backlog.popleft()
            if parsed is None:
                parsed, received_ms = self._read_again(number)
            else:
                self._in_memory -= parsed.size
            taken += parsed.size
            self._read_up_to = number
            self._book.heard[parsed.samples.ids] = now_ms
            self._assembler.add(number, parsed.samples, received_ms)
            if parsed.lines:
                more_events, more_readings = self._logs.read(parsed.lines, received_ms)
                events += more_events
                readings += more_readings
        results = self._assembler.due(now_ms)
        results += self._readings.scrapes(readings, now_ms)
        events.sort(key=lambda event: event.at)
        self._sweep(now_ms)
        self._measure()
        waiting = self._assembler.oldest_record()
        record = self._read_up_to + 1 if waiting is None else waiting
        if results or events:
            self._takes += 1
            self._outstanding.append(Mark(record, self._takes))
            return results, events, self._outstanding[-1]
        if not self._outstanding:
            self.committed(Mark(record, 0))  # nothing came of what was read (lines of no log of ours): it is done with
        return results, events, Mark(self.spool.place, 0)

    def committed(self, mark: Mark) -> None:
        """The owner has committed everything that was taken up to and including `mark`."""
        while self._outstanding and self._outstanding[0].take <= mark.take:
            self._outstanding.popleft()
        if mark.record > self.spool.place:
            self._progress_ms = self._clock.now_ms()
            self.spool.cut(mark.record)

    def watermark(self, at_ms: int, now_ms: int) -> int:
        """The time up to which all pushes that can be expected have been given out: `at_ms`, or less where some are still
        to come, but never more than `HOLD_MS` behind now."""
        held = min(at_ms, now_ms - HOLD_MS)
        if self._backlog:
            return held
        expected = self._assembler.expected(now_ms)
        return at_ms if expected is None else max(held, min(at_ms, expected - 1))

    def _read_again(self, number: int) -> tuple[Parsed, int]:
        """A record from the spool: of an earlier process, or put aside for its size."""
        for _ in range(2):
            if self._again is None:
                self._again = self.spool.read(number)
            for found, payload in self._again:
                if found > number:
                    break
                if found == number:
                    return self._parse_again(payload)
            self._again = None
        log.error("record %d of the spool cannot be read any more", number)
        return Parsed(), 0

    def _parse_again(self, payload: bytes) -> tuple[Parsed, int]:
        try:
            meta, body = meta_of(payload)
            parsed = self._reader.read(meta, body)
        except (PushRefused, ValueError, TypeError, KeyError) as error:
            log.error("a record of the spool cannot be read: %s", error)
            return Parsed(), 0
        self._admit(parsed, meta.received_ms)
        np.maximum.at(self._book.newest, parsed.samples.ids, parsed.samples.at)
        return parsed, meta.received_ms

    def _sweep(self, now_ms: int) -> None:
        """Forgets series that nobody sends any more; only while nothing else refers to them by number."""
        if 0 <= now_ms - self._swept_ms < SWEEP_MS or self._backlog or self.spool.busy:
            return
        self._swept_ms = now_ms
        self._book.heard[self._assembler.waiting_ids()] = now_ms
        self._assembler.forget(self._book.forget(now_ms - FORGET_MS).tolist())

    def _measure(self) -> None:
        """Counters as far as they have grown, and gauges."""
        self._telemetry.set("greylag_push_spool_bytes", self.spool.size, worker=self._worker)
        now: Counter[tuple[str, str]] = Counter({("refused", reason): n for reason, n in self._refused.items()})
        now.update({("kind", kind): n for kind, n in self._assembler.counts.items()})
        now["refused", "repeated"] += self._assembler.repeated
        now["fsyncs", ""] = self.spool.fsyncs
        for (what, label), n in now.items():
            more = n - self._told[what, label]
            if not more:
                continue
            if what == "refused":
                self._telemetry.add("greylag_push_refused_total", more, reason=label)
            elif what == "kind":
                self._telemetry.add("greylag_push_scrapes_total", more, kind=label)
            else:
                self._telemetry.add("greylag_push_fsyncs_total", more, worker=self._worker)
        self._told = now


def _summed(parsed: Parsed) -> str:
    """The sentence for a request of which a part was refused."""
    refused = sum(parsed.refused.values())
    if not parsed.size and refused == 1:
        return parsed.sentence
    return f"{refused} of {refused + parsed.size} were refused, the others are kept: {parsed.sentence}"
