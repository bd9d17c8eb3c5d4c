"""The one thread that writes: appends, ticks, sealing, retention and checkpoints, in the order in which they are asked for.

Appends that wait together share a transaction. An answer is given only once its transaction is committed. Files of
sealed hours are written by a second thread while appends go on.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from core.clock import monotonic_seconds
from core.errors import GreylagError, Unavailable
from core.protocols import TickCommit
from core.types import Batch
from pipeline.store.duck import DuckStore
from pipeline.store.ingest import HOUR_MS, AppendResult
from pipeline.store.segments import Part, Segment

# One transaction takes at most so many samples and batches: it bounds its memory and how long the first one waits.
GROUP_SAMPLES = 1_000_000
GROUP_BATCHES = 64
MOST_WAITING = 256
CHECKPOINT_SECONDS, CHECKPOINT_RETRY_SECONDS = 300.0, 30.0
SEAL_RETRY_SECONDS = 60.0
TRIM_SECONDS = 20.0  # between two looks at DuckDB's cache, which costs about a millisecond
STORED, REPEAT, OLD_EPOCH = "stored", "repeat_batch", "old_epoch"


class _Job:
    """One thing to do: an append (batch) or any other call (work)."""

    __slots__ = ("batch", "future", "work")

    def __init__(self, batch: Batch | None = None, work: Callable[[], Any] | None = None) -> None:
        self.batch, self.work = batch, work
        self.future: Future[Any] = Future()

    @property
    def size(self) -> int:
        return sum(len(s.values) for s in self.batch.scrapes) if self.batch is not None else 0


class StoreWriter:
    """All writes to a store, from any thread. Each method gives a Future that is done once the write is committed.

    No append waits for others on purpose: while one is committed the next ones queue up and share a transaction, so the
    more there is to do the fewer the transactions are, and a lone batch is acknowledged at once.
    """

    def __init__(self, store: DuckStore, keep_house: bool = True) -> None:
        self.store = store
        self._keep_house = keep_house
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._closed = False
        self._sealer: threading.Thread | None = None
        self._seal_not_before = 0.0
        self._checkpoint_at = monotonic_seconds() + CHECKPOINT_SECONDS
        self._trim_at = 0.0
        self._expired_at = store.newest_ms
        self.last_failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # --- what others ask for ------------------------------------------------------------------------------------------
    def submit(self, batch: Batch) -> Future[str]:
        """Stores a batch: `stored`, `repeat_batch` or `old_epoch` once that is committed.

        The future raises Refused(`unknown_layout`, `bad_batch`) or GreylagError; then nothing of the batch is stored.
        Raises Unavailable where too many batches wait already.
        """
        with self._lock:
            if self._waiting >= MOST_WAITING:
                raise Unavailable(f"{self._waiting} batches wait for the store already")
            self._waiting += 1
        return self._ask(_Job(batch=batch))

    def commit_tick(self, commit: TickCommit) -> Future[None]:
        """Commits a tick."""
        return self.call(lambda: self.store.commit_tick(commit))

    def epoch(self, worker: str) -> Future[int]:
        """Grants the worker its next epoch."""
        return self.call(lambda: self.store.epoch(worker))

    def outbox_done(self, message_id: str, result: str) -> Future[None]:
        """Takes a message out of the outbox."""
        return self.call(lambda: self.store.outbox_done(message_id, result))

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Runs `work` in the writer's thread."""
        return self._ask(_Job(work=work))

    def close(self) -> None:
        """Does what is waiting, then ends the thread. The store stays open. Safe to call twice."""
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                self._jobs.put(None)
        self._thread.join()

    def _ask(self, job: _Job) -> Future[Any]:
        with self._lock:
            if self._closed:
                job.future.set_exception(GreylagError("the store's writer has ended"))
            else:
                self._jobs.put(job)
        return job.future

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        held: _Job | None = None
        while True:
            job = held if held is not None else self._jobs.get()
            held = None
            if job is None:
                break
            if job.work is not None:
                self._work(job)
                continue
            group, held, last = self._gather(job)
            self._append(group)
            if self._keep_house:
                self._house()
            if last:
                break
        if self._sealer is not None:
            self._sealer.join()
        # What the sealer left in the queue is the last work; nobody else can ask any more.
        with contextlib.suppress(queue.Empty):
            while True:
                late = self._jobs.get_nowait()
                if late is not None and late.work is not None:
                    self._work(late)

    def _gather(self, first: _Job) -> tuple[list[_Job], _Job | None, bool]:
        """The appends that wait now: (them, the other job that came next, whether the end was asked for)."""
        group, samples = [first], first.size
        while len(group) < GROUP_BATCHES and samples < GROUP_SAMPLES:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, None, True
            if job.work is not None:
                return group, job, False
            group.append(job)
            samples += job.size
        return group, None, False

    def _append(self, group: list[_Job]) -> None:
        try:
            result = self.store.append_counted([job.batch for job in group if job.batch is not None])
        except Exception as error:
            if len(group) == 1:
                self._answered(1)
                self.last_failure = str(error)
                group[0].future.set_exception(error)
                return
            for job in group:  # one of them is at fault: the others shall not suffer for it
                self._append([job])
            return
        self._answered(len(group))
        self._tell(group, result)

    def _answered(self, n: int) -> None:
        with self._lock:
            self._waiting -= n

    @staticmethod
    def _tell(group: list[_Job], result: AppendResult) -> None:
        repeats, refused = list(result.repeats), set(result.refused)
        # Of a batch that came twice in one group the first is stored: answer from the end, where the repeats are.
        answers: list[tuple[_Job, str]] = []
        for job in reversed(group):
            batch = job.batch
            if batch is None:
                continue
            key = (batch.worker, batch.epoch, batch.seq)
            answer = STORED
            if key in refused:
                answer = OLD_EPOCH
            elif key in repeats:
                repeats.remove(key)
                answer = REPEAT
            answers.append((job, answer))
        for job, answer in reversed(answers):
            job.future.set_result(answer)

    def _work(self, job: _Job) -> None:
        assert job.work is not None
        try:
            result = job.work()
        except Exception as error:
            self.last_failure = str(error)
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    # --- housekeeping -------------------------------------------------------------------------------------------------
    def _house(self) -> None:
        """Seals hours that are over, drops what is too old, and tries a checkpoint now and then."""
        now = monotonic_seconds()
        try:
            idle = self._sealer is None or not self._sealer.is_alive()
            parts = self.store.seal_due() if idle and now >= self._seal_not_before else []
            if parts:
                self._sealer = threading.Thread(target=self._seal, args=(parts,), name="store-sealer", daemon=True)
                self._sealer.start()
            if self.store.newest_ms - self._expired_at >= HOUR_MS:
                self._expired_at = self.store.newest_ms
                self.store.expire()
                self.store.forget()
            if now >= self._trim_at:
                self.store.fit_log_to_series()
                self.store.trim_cache()
                self._trim_at = now + TRIM_SECONDS
            if now >= self._checkpoint_at:
                pause = CHECKPOINT_SECONDS if self.store.checkpoint() else CHECKPOINT_RETRY_SECONDS
                self._checkpoint_at = now + pause
        except Exception as error:
            # Appends go on, and the next round tries again. Whatever it was: were this thread to end, all who wait for an
            # answer would wait for ever.
            self.last_failure = str(error) or type(error).__name__

    def _seal(self, parts: list[Part]) -> None:
        for part in parts:
            try:
                segments = self.store.write_part(part)
            except GreylagError as error:
                self._not_sealed(part, error)
            else:
                self._jobs.put(_Job(work=functools.partial(self._finish, part, segments)))
        for merge in self.store.compact_due():
            try:
                made = self.store.write_merge(merge)
            except GreylagError as error:  # nothing is lost: the files stay as they are
                self.last_failure = str(error)
                return
            self._jobs.put(_Job(work=functools.partial(self.store.commit_merge, merge, made)))
        for long in self.store.fold_due():
            try:
                fold = self.store.write_fold(long)
            except GreylagError as error:
                self.last_failure = str(error)
                return
            self._jobs.put(_Job(work=functools.partial(self.store.commit_fold, long, fold)))

    def _finish(self, part: Part, segments: list[Segment]) -> None:
        try:
            self.store.seal_part(part, segments)
        except GreylagError as error:
            self._not_sealed(part, error)

    def _not_sealed(self, part: Part, error: GreylagError) -> None:
        # The rows stay in their table and can be read; a full disk must not be tried at each append.
        self.last_failure = str(error)
        self._seal_not_before = monotonic_seconds() + SEAL_RETRY_SECONDS
        self.store.unfreeze(part)
