"""What an append writes: pure planning from batches to rows, before any transaction is open.

A series and time that come twice: the first wins, the second is counted as `duplicate` (same value) or `conflict`. A
series that its target no longer shows gets one stale row (NULL) at the time of the scrape that lacks it. Scrapes of one
target and time are one reading, in however many pieces they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.derive import absent, stale_array
from core.errors import Refused
from core.types import Batch, Event, Floats, Layout, Scrape
from pipeline.store.catalogue import NEVER, NO_IDS, Catalogue, Ids, KnownLayout

HOUR_MS = 3_600_000
# A worker's batches arrive in order but for retries: a number this far behind its newest is a repeat.
REPEAT_SPAN = 100_000

BatchKey = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. repeats, refused: keys (worker, epoch, seq) that had been committed before, or are of an
    epoch that has ended. samples: rows with a value; stale: stale markers; counts: by `core.reasons.INGEST_REASONS`."""

    repeats: tuple[BatchKey, ...] = ()
    refused: tuple[BatchKey, ...] = ()
    samples: int = 0
    stale: int = 0
    events: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Rows:
    """Rows of (series_id, at_ms, value) that grow by pieces; the stale marker stands for NULL."""

    def __init__(self) -> None:
        self._ids: list[Ids] = []
        self._at: list[int] = []
        self._values: list[Floats] = []

    def __len__(self) -> int:
        return sum(len(ids) for ids in self._ids)

    def add(self, at: int, ids: Ids, values: Floats) -> None:
        """Rows of one time."""
        if len(ids):
            self._ids.append(ids)
            self._at.append(at)
            self._values.append(values)

    def arrays(self) -> tuple[Ids, NDArray[np.int64], Floats]:
        """(series ids, times, values) of all rows, in the order in which they were added."""
        if not self._ids:
            return NO_IDS, np.empty(0, np.int64), np.empty(0)
        at = np.repeat(np.array(self._at, np.int64), [len(ids) for ids in self._ids])
        return np.concatenate(self._ids), at, np.concatenate(self._values)


@dataclass(slots=True)
class Plan:
    """The rows of one append. rows: by hour; late: rows older than the newest of their series, to be checked against
    what is stored; accepted: (key, watermark, samples)."""

    rows: dict[int, Rows] = field(default_factory=dict)
    late: dict[int, Rows] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    layouts: list[tuple[Layout, KnownLayout]] = field(default_factory=list)
    new_series: list[int] = field(default_factory=list)
    moved: list[Ids] = field(default_factory=list)
    accepted: list[tuple[BatchKey, int, int]] = field(default_factory=list)
    repeats: list[BatchKey] = field(default_factory=list)
    refused: list[BatchKey] = field(default_factory=list)
    samples: int = 0
    stale: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def result(self) -> AppendResult:
        counts = Counter(self.counts)
        counts["repeat_batch"] += len(self.repeats)
        counts["old_epoch"] += len(self.refused)
        return AppendResult(tuple(self.repeats), tuple(self.refused), self.samples, self.stale, len(self.events),
                            {k: n for k, n in counts.items() if n})


@dataclass(slots=True)
class _TargetState:
    """at: time of the target's newest reading. present: ids in it; an array is replaced, never changed."""

    at: int
    present: Ids


class Epochs:
    """Which (worker, epoch, seq) have been committed, for the newest epoch of each worker."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}

    def start(self, worker: str, epoch: int) -> None:
        """The worker's epoch is now `epoch`; nothing of it is committed yet."""
        self.newest[worker] = epoch
        self._seen[worker] = set()
        self._highest[worker] = -1

    def judge(self, key: BatchKey) -> str:
        """`new`, `repeat_batch` or `old_epoch`."""
        worker, epoch, seq = key
        newest = self.newest.get(worker)
        if newest is not None and epoch < newest:
            return "old_epoch"
        if newest is None or epoch > newest:
            return "new"
        if seq in self._seen[worker] or seq <= self._highest[worker] - REPEAT_SPAN:
            return "repeat_batch"
        return "new"

    def add(self, key: BatchKey) -> None:
        """The batch is committed."""
        worker, epoch, seq = key
        if self.newest.get(worker) != epoch:
            self.start(worker, epoch)
        seen = self._seen[worker]
        seen.add(seq)
        self._highest[worker] = max(self._highest[worker], seq)
        if len(seen) > 2 * REPEAT_SPAN:
            floor = self._highest[worker] - REPEAT_SPAN
            self._seen[worker] = {one for one in seen if one > floor}


class Planner:
    """Turns batches into rows against the catalogue. `plan` moves the catalogue on: when the transaction that writes
    the plan fails, catalogue and planner are thrown away and read anew from the database."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._targets: dict[str, _TargetState] = {}

    def check(self, batches: Sequence[Batch]) -> None:
        """Raises Refused(`unknown_layout` or `bad_batch`) for a scrape that cannot be understood; changes nothing."""
        sizes: dict[str, int] = {}
        for batch in batches:
            sizes.update((one.id, len(one.series)) for one in batch.layouts)
            for scrape in batch.scrapes:
                if not len(scrape.values):
                    continue
                known = self.catalogue.layouts.get(scrape.layout_id)
                size = sizes.get(scrape.layout_id, known.size if known is not None else None)
                if size is None:
                    raise Refused("unknown_layout", f"layout {scrape.layout_id} of {scrape.target_id} was never sent")
                if size != len(scrape.values):
                    raise Refused("bad_batch", f"{len(scrape.values)} values for the {size} series of {scrape.layout_id}")

    def plan(self, batches: Sequence[Batch], epochs: Epochs) -> Plan:
        """The rows of the batches that are new. `check` them first."""
        plan = Plan()
        taken: set[BatchKey] = set()
        newest: dict[str, int] = {}  # of the workers in this call
        readings: dict[tuple[str, int], list[Scrape]] = {}
        for batch in batches:
            key = (batch.worker, batch.epoch, batch.seq)
            verdict = "repeat_batch" if key in taken else epochs.judge(key)
            if verdict == "new" and batch.epoch < newest.get(batch.worker, batch.epoch):
                verdict = "old_epoch"
            if verdict != "new":
                (plan.refused if verdict == "old_epoch" else plan.repeats).append(key)
                continue
            taken.add(key)
            newest[batch.worker] = batch.epoch
            for layout in batch.layouts:
                self._layout(plan, layout)
            for scrape in batch.scrapes:
                readings.setdefault((scrape.target_id, scrape.at), []).append(scrape)
            plan.events.extend(batch.events)
            plan.accepted.append((key, batch.watermark, sum(len(s.values) for s in batch.scrapes)))
        for (target_id, at), scrapes in readings.items():
            self._reading(plan, target_id, at, scrapes)
        return plan

    def _layout(self, plan: Plan, layout: Layout) -> None:
        if layout.id in self.catalogue.layouts:
            return
        known, new, moved = self.catalogue.register(layout)
        plan.layouts.append((layout, known))
        plan.new_series.extend(new)
        if len(moved):
            plan.moved.append(moved)
        if known.keep is not None:
            plan.counts["duplicate"] += known.size - len(known.keep)

    def _reading(self, plan: Plan, target_id: str, at: int, scrapes: Sequence[Scrape]) -> None:
        present: list[Ids] = []
        for scrape in scrapes:
            if not len(scrape.values):
                continue
            known = self.catalogue.layouts[scrape.layout_id]
            ids, values = known.ids, np.ascontiguousarray(scrape.values, np.float64)
            if known.keep is not None:
                ids, values = ids[known.keep], values[known.keep]
            gone = absent(values)
            if gone.any():
                ids, values = ids[~gone], values[~gone]
            present.append(ids)
            self._samples(plan, at, ids, values)
        now = present[0] if len(present) == 1 else np.unique(np.concatenate(present)) if present else NO_IDS
        state = self._targets.get(target_id)
        if state is None:
            # After a restart the target's newest reading is what its series say.
            alive = self.catalogue.alive_of(self.catalogue.target(target_id))
            before = alive[self.catalogue.last_ms[alive] < at]
            state = self._targets[target_id] = _TargetState(NEVER, before)
        if at > state.at:
            if now is not state.present and not np.array_equal(now, state.present):
                self._vanished(plan, target_id, at, np.setdiff1d(state.present, now))
            state.at, state.present = at, now
        elif at == state.at:
            state.present = np.union1d(state.present, now)

    def _samples(self, plan: Plan, at: int, ids: Ids, values: Floats) -> None:
        book = self.catalogue
        newest = book.last_ms[ids]
        newer = newest < at
        if not newer.all():
            same = newest == at
            stored, now = book.last_value[ids[same]], values[same]
            equal = int(((stored == now) | (np.isnan(stored) & np.isnan(now) & ~absent(stored))).sum())
            plan.counts["duplicate"] += equal
            plan.counts["conflict"] += len(now) - equal
            older = ~newer & ~same
            book.first_ms[ids[older]] = np.minimum(book.first_ms[ids[older]], at)
            plan.late.setdefault(at // HOUR_MS, Rows()).add(at, ids[older], values[older])
            ids, values = ids[newer], values[newer]
        first = book.first_ms[ids] == NEVER
        if first.any():
            book.first_ms[ids[first]] = at
        book.last_ms[ids] = at
        book.last_value[ids] = values
        plan.samples += len(ids)
        plan.rows.setdefault(at // HOUR_MS, Rows()).add(at, ids, values)

    def _vanished(self, plan: Plan, target_id: str, at: int, ids: Ids) -> None:
        book = self.catalogue
        mine = (book.owner[ids] == book.target(target_id)) & (book.last_ms[ids] < at) & ~absent(book.last_value[ids])
        ids = ids[mine]
        if not len(ids):
            return
        marks = stale_array(len(ids))
        book.last_ms[ids] = at
        book.last_value[ids] = marks
        plan.stale += len(ids)
        plan.rows.setdefault(at // HOUR_MS, Rows()).add(at, ids, marks)
