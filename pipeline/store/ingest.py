"""What an append writes: planning from batches to pieces of tables, before any transaction is open.

In steady state (a target's reading is newer than its last one and has the same layouts) nothing is done for a series:
the scrape's values go to the gather of `wide` as they are. Otherwise the target's last and present series are compared.

A series and time that come twice: the first wins, the second is counted as `duplicate` (same value) or `conflict`. A
series that its target no longer shows gets a stale marker (NULL) at the time of the scrape that lacks it. Scrapes of one
target and time are one reading, in however many pieces they come. A series belongs to one target at a time, the one that
registered it last; what another target says of it is counted as `conflict` until its owner has been silent for 5 minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.derive import absent, stale_array
from core.errors import Refused
from core.types import Batch, Event, Floats, Layout, Scrape
from pipeline.store.catalogue import NEVER, NO_IDS, Catalogue
from pipeline.store.epochs import BatchKey, Epochs
from pipeline.store.layouts import Indexes, KnownLayout
from pipeline.store.postings import Ids

HOUR_MS = 3_600_000
RECLAIM_MS = 300_000  # Prometheus' look-back: a series whose target is silent for longer is gone
LAYOUT_IDLE_MS = HOUR_MS
SWEEP_MS = 600_000
NO_TARGET = -1


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. repeats, refused: keys (worker, epoch, seq) that had been committed before, or are of an
    epoch that has ended. samples: rows with a value; stale: series that ended; counts: by `core.reasons.INGEST_REASONS`."""

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
class Hour:
    """What an append writes into one hour. pieces: scrapes for the wide tables, (layout, time, values); gone: (entities,
    time) that get a row without a value; rows: for the long table; late: rows at or before the newest reading of their
    target, to be checked against what is stored."""

    pieces: list[tuple[KnownLayout, int, Floats]] = field(default_factory=list)
    gone: list[tuple[Ids, int]] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    late: Rows = field(default_factory=Rows)


@dataclass(slots=True)
class Plan:
    """One append. hours: by number; accepted: (key, watermark, samples); first: series whose first sample is now known;
    silent: (target, time) of readings that leave no row."""

    hours: dict[int, Hour] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    layouts: list[tuple[Layout, KnownLayout]] = field(default_factory=list)
    first: list[Ids] = field(default_factory=list)
    silent: dict[str, int] = field(default_factory=dict)
    accepted: list[tuple[BatchKey, int, int]] = field(default_factory=list)
    repeats: list[BatchKey] = field(default_factory=list)
    refused: list[BatchKey] = field(default_factory=list)
    newest_ms: int = NEVER
    samples: int = 0
    stale: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def hour(self, at: int) -> Hour:
        """The hour of a time (ms)."""
        found = self.hours.get(at // HOUR_MS)
        if found is None:
            found = self.hours[at // HOUR_MS] = Hour()
        return found

    def result(self) -> AppendResult:
        counts = Counter(self.counts)
        counts["repeat_batch"] += len(self.repeats)
        counts["old_epoch"] += len(self.refused)
        return AppendResult(tuple(self.repeats), tuple(self.refused), self.samples, self.stale, len(self.events),
                            {k: n for k, n in counts.items() if n})


@dataclass(slots=True)
class _TargetState:
    """A target's newest reading. at: its time. layouts: of its pieces, None where it is no plain reading (restored, or
    completed later). values: of each piece. wide, long: what was in it besides, by the table that its row is in.
    unseen: per piece, indexes of values that were never there yet."""

    at: int
    layouts: tuple[KnownLayout, ...] | None = None
    values: list[Floats] = field(default_factory=list)
    wide: Ids = field(default_factory=lambda: NO_IDS)
    long: Ids = field(default_factory=lambda: NO_IDS)
    unseen: list[tuple[int, Indexes]] = field(default_factory=list)


class Planner:
    """Turns batches into rows against the catalogue. `plan` moves the catalogue on: when the transaction that writes
    the plan fails, catalogue and planner are thrown away and read anew from the database.

    recall: reads a layout that is not in memory, None where there is none. paused: samples are skipped and counted.
    """

    def __init__(self, catalogue: Catalogue, recall: Callable[[str], Layout | None] = lambda _: None) -> None:
        self.catalogue = catalogue
        self.layouts: dict[str, KnownLayout] = {}
        self.paused = False
        self._recall = recall
        self._recalled: dict[str, Layout] = {}
        self._targets: dict[str, _TargetState] = {}
        self._swept = NEVER

    def restore(self, target_id: str, at: int, wide: Ids, long: Ids) -> None:
        """The target's newest reading, from the rows of that time."""
        target = self.catalogue.target(target_id)  # first: a new target may move the array
        self.catalogue.reading_ms[target] = at
        self._targets[target_id] = _TargetState(at, None, [], wide, long)

    def readings(self, before: int) -> list[tuple[str, int, Ids, Ids]]:
        """(target, time, series in wide rows, series in long rows) of targets whose newest reading is older (ms)."""
        return [(target, state.at, *self._present(state)) for target, state in self._targets.items() if state.at < before]

    def check(self, batches: Sequence[Batch]) -> None:
        """Raises Refused(`unknown_layout` or `bad_batch`) for a scrape that cannot be understood; changes nothing."""
        sizes: dict[str, int] = {}
        for batch in batches:
            sizes.update((one.id, len(one.series)) for one in batch.layouts)
            for scrape in batch.scrapes:
                if not len(scrape.values):
                    continue
                known = self.layouts.get(scrape.layout_id)
                size = known.size if known is not None else sizes.get(scrape.layout_id)
                if size is None:
                    found = self._recall(scrape.layout_id)
                    if found is None:
                        raise Refused("unknown_layout", f"layout {scrape.layout_id} of {scrape.target_id} was never sent")
                    self._recalled[found.id] = found
                    size = sizes[found.id] = len(found.series)
                if size != len(scrape.values):
                    raise Refused("bad_batch", f"{len(scrape.values)} values for the {size} series of {scrape.layout_id}")

    def plan(self, batches: Sequence[Batch], epochs: Epochs) -> Plan:
        """The rows of the batches that are new. `check` them first."""
        plan = Plan()
        taken: set[BatchKey] = set()
        newest: dict[str, int] = {}  # of the workers in this call
        readings: dict[tuple[str, int], list[Scrape]] = {}
        for layout in self._recalled.values():
            self._layout(plan, layout, stored=True)
        self._recalled.clear()
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
            count = 0
            for scrape in batch.scrapes:
                readings.setdefault((scrape.target_id, scrape.at), []).append(scrape)
                count += len(scrape.values)
            plan.events.extend(batch.events)
            plan.accepted.append((key, batch.watermark, count))
        for (target_id, at), scrapes in readings.items():
            self._reading(plan, target_id, at, scrapes)
        self._sweep(plan.newest_ms)
        return plan

    # --- layouts ------------------------------------------------------------------------------------------------------
    def _layout(self, plan: Plan, layout: Layout, stored: bool = False, claim: bool = False) -> KnownLayout:
        book = self.catalogue
        known = self.layouts.get(layout.id)
        if known is not None and not claim:
            return known
        ids = book.register(layout, claim)
        known = KnownLayout(layout.id, layout.target_id, book.target(layout.target_id), ids, layout.partial)
        known.build(book)
        self.layouts[layout.id] = known
        if not stored:
            plan.layouts.append((layout, known))
            plan.counts["duplicate"] += len(ids) - len(np.unique(ids))
        return known

    def _current(self, plan: Plan, known: KnownLayout, at: int) -> KnownLayout:
        """The layout with its indexes as the series are owned now."""
        book = self.catalogue
        if known.version != book.moved:
            known.build(book)
        known.used_ms = max(known.used_ms, at)
        foreign = known.foreign
        if foreign is not None and len(foreign) and not self.paused:
            owners = np.unique(book.owner[known.ids[foreign]])
            if (book.reading_ms[owners] < at - RECLAIM_MS).all():
                layout = self._recall(known.id)
                if layout is not None:
                    return self._layout(plan, layout, stored=True, claim=True)
        return known

    def _sweep(self, now: int) -> None:
        """Forgets layouts that no target's newest reading has and that have not been used for an hour."""
        if now < self._swept + SWEEP_MS:
            return
        self._swept = now
        current = {one.id for state in self._targets.values() for one in state.layouts or ()}
        old = [one.id for one in self.layouts.values() if one.used_ms < now - LAYOUT_IDLE_MS and one.id not in current]
        for name in old:
            del self.layouts[name]

    # --- readings -----------------------------------------------------------------------------------------------------
    def _reading(self, plan: Plan, target_id: str, at: int, scrapes: Sequence[Scrape]) -> None:
        plan.newest_ms = max(plan.newest_ms, at)
        if self.paused:
            plan.counts["disk_full"] += sum(int((~absent(s.values)).sum()) for s in scrapes)
            return
        pieces: list[tuple[KnownLayout, Floats]] = []
        for scrape in scrapes:
            if len(scrape.values):
                known = self._current(plan, self.layouts[scrape.layout_id], at)
                values = np.array(scrape.values, np.float64)  # a copy: the batch's buffer can go
                if known.foreign is not None and len(known.foreign):
                    plan.counts["conflict"] += int((~absent(values[known.foreign])).sum())
                if known.partial:
                    self._partial(plan, at, known, values)
                else:
                    pieces.append((known, values))
        if not pieces and any(len(s.values) for s in scrapes):
            return  # only partial ones: they say nothing of the target's other series
        state = self._targets.get(target_id)
        if state is None:
            state = self._targets[target_id] = _TargetState(NEVER)
        if at > state.at:
            layouts = tuple([one for one, _ in pieces])
            if layouts and layouts == state.layouts:
                self._steady(plan, state, at, pieces)
                pieces = []
            else:
                pieces = self._changed(plan, state, target_id, at, pieces)
            state.at = at
            target = self.catalogue.target(target_id)  # first: a new target may move the array
            self.catalogue.reading_ms[target] = at
        for known, values in pieces:
            ids, shown = known.shown(values)
            self._late(plan, at, ids, shown)
            if at == state.at:
                self._complete(state, ids)

    def _steady(self, plan: Plan, state: _TargetState, at: int, pieces: Sequence[tuple[KnownLayout, Floats]]) -> None:
        hour = plan.hour(at)
        for i, (known, values) in enumerate(pieces):
            if known.blocks:
                hour.pieces.append((known, at, values))
            long = known.long
            if long is not None and len(long):
                now = values[long]
                gone = absent(now)
                if gone.any():
                    ended = gone & ~absent(state.values[i][long])
                    plan.stale += int(ended.sum())
                    keep = ~gone | ended
                    hour.rows.add(at, known.ids[long[keep]], now[keep])
                    plan.samples += int((~gone).sum())
                else:
                    hour.rows.add(at, known.ids[long], now)
                    plan.samples += len(now)
            state.values[i] = values
        if not any(known.blocks for known, _ in pieces) and not len(hour.rows):
            plan.silent[pieces[0][0].target_id] = at
        if state.unseen:
            self._watch(plan, state, at)

    def _changed(self, plan: Plan, state: _TargetState, target_id: str, at: int,
                 pieces: Sequence[tuple[KnownLayout, Floats]]) -> list[tuple[KnownLayout, Floats]]:
        """A reading whose layouts are not the last one's: what is gone is ended, what is here becomes alive. Gives the
        pieces that repeat series of others: they are not written yet."""
        book, target = self.catalogue, self.catalogue.target(target_id)
        before_wide, before_long = self._present(state)
        plain, extra = _disjoint(pieces)
        shown = [known.shown(values)[0] for known, values in pieces]
        now = np.unique(np.concatenate(shown)) if shown else NO_IDS
        gone_wide, gone_long = (ids[(book.owner[ids] == target)] for ids in
                                (np.setdiff1d(before_wide, now), np.setdiff1d(before_long, now)))
        self._settle(state, target, before_wide, before_long)
        book.last_ms[gone_wide] = book.last_ms[gone_long] = at
        wrote = self._end(plan, at, gone_wide, gone_long, [known for known, _ in plain])
        state.layouts, state.values = tuple([known for known, _ in plain]), [values for _, values in plain]
        state.wide, state.long, state.unseen = NO_IDS, NO_IDS, []
        hour = plan.hour(at)
        for i, (known, values) in enumerate(plain):
            if known.blocks:
                hour.pieces.append((known, at, values))
                wrote = True
            if known.long is not None and len(known.long):
                there = known.long[~absent(values[known.long])]
                hour.rows.add(at, known.ids[there], values[there])
                plan.samples += len(there)
                wrote = wrote or bool(len(there))
            mine = known.ids if known.counted is None else known.ids[known.counted]
            book.alive[mine] = True
            new = np.flatnonzero(book.first_ms[known.ids] == NEVER)
            if len(new):
                state.unseen.append((i, new))
        if state.unseen:
            self._watch(plan, state, at)
        if not wrote and not extra:
            plan.silent[target_id] = at
        return extra

    def _end(self, plan: Plan, at: int, wide: Ids, long: Ids, now: Sequence[KnownLayout]) -> bool:
        """Stale markers. An entity that the reading still has a row of needs none of its own."""
        plan.stale += len(wide) + len(long)
        hour = plan.hour(at)
        hour.rows.add(at, long, stale_array(len(long)))
        entities = np.unique(self.catalogue.entity[wide]).astype(np.uint32)
        if len(entities):
            living = [block.entities for known in now for block in known.blocks]
            entities = np.setdiff1d(entities, np.concatenate(living)) if living else entities
            if len(entities):
                hour.gone.append((entities, at))
        return bool(len(entities) or len(long))

    def _watch(self, plan: Plan, state: _TargetState, at: int) -> None:
        """Notes the first sample of series that were never there before."""
        book, left = self.catalogue, []
        assert state.layouts is not None
        for i, indexes in state.unseen:
            there = ~absent(state.values[i][indexes])
            ids = state.layouts[i].ids[indexes[there]]
            ids = ids[book.first_ms[ids] == NEVER]
            if len(ids):
                book.first_ms[ids] = at
                plan.first.append(ids)
            if not there.all():
                left.append((i, indexes[~there]))
        state.unseen = left

    def _present(self, state: _TargetState) -> tuple[Ids, Ids]:
        """The series in a reading: (those in wide rows, those in long rows)."""
        wide, long = [state.wide], [state.long]
        for known, values in zip(state.layouts or (), state.values, strict=True):
            ids, _ = known.shown(values)
            if known.long is not None and len(known.long):
                apart = known.ids[known.long]
                long.append(np.intersect1d(ids, apart))
                ids = np.setdiff1d(ids, apart)
            wide.append(ids)
        return np.unique(np.concatenate(wide)), np.unique(np.concatenate(long))

    def _settle(self, state: _TargetState, target: int, *more: Ids) -> None:
        """What the target's newest layouts have is no longer alive by standing in them."""
        ids = np.concatenate([*(one.ids for one in state.layouts or ()), *more, NO_IDS])
        self.catalogue.settle(ids[self.catalogue.owner[ids] == target])

    def _complete(self, state: _TargetState, ids: Ids) -> None:
        """A later piece of the newest reading: its rows are long ones."""
        wide, long = self._present(state)
        # What the first pieces had is written down: from here on the reading is no plain one.
        self._settle(state, state.layouts[0].target if state.layouts else NO_TARGET)
        state.wide, state.long = np.setdiff1d(wide, ids), np.union1d(long, ids)
        state.layouts, state.values, state.unseen = None, [], []

    # --- what is no plain reading -------------------------------------------------------------------------------------
    def _late(self, plan: Plan, at: int, ids: Ids, values: Floats) -> None:
        if not len(ids):
            return
        book = self.catalogue
        known = book.first_ms[ids]
        earlier = (known == NEVER) | (known > at)
        if earlier.any():
            book.first_ms[ids[earlier]] = at
            plan.first.append(ids[earlier])
        book.last_ms[ids] = np.maximum(book.last_ms[ids], at)
        plan.hour(at).late.add(at, ids, values)

    def _partial(self, plan: Plan, at: int, known: KnownLayout, values: Floats) -> None:
        """A push: each series has its own order; a stale marker in it ends its series."""
        book = self.catalogue
        ids = known.ids if known.counted is None else known.ids[known.counted]
        values = values if known.counted is None else values[known.counted]
        gone = absent(values)
        newest = book.seen_last(ids)
        newer, ended = newest < at, gone & (newest < at) & (newest != NEVER)
        self._late(plan, at, ids[~newer & ~gone], values[~newer & ~gone])
        fresh = newer & ~gone
        never = fresh & (book.first_ms[ids] == NEVER)
        if never.any():
            book.first_ms[ids[never]] = at
            plan.first.append(ids[never])
        keep = fresh | ended
        book.last_ms[ids[keep]] = at
        plan.samples += int(fresh.sum())
        plan.stale += int(ended.sum())
        plan.hour(at).rows.add(at, ids[keep], values[keep])
        book.reading_ms[known.target] = max(int(book.reading_ms[known.target]), at)


def _disjoint(pieces: Sequence[tuple[KnownLayout, Floats]]) -> tuple[
        list[tuple[KnownLayout, Floats]], list[tuple[KnownLayout, Floats]]]:
    """(pieces that share no series, those that repeat series of an earlier one)."""
    plain: list[tuple[KnownLayout, Floats]] = []
    extra: list[tuple[KnownLayout, Floats]] = []
    seen = NO_IDS
    for one in pieces:
        ids = one[0].ids
        if len(seen) and np.isin(ids, seen).any():
            extra.append(one)
        else:
            plain.append(one)
            seen = np.concatenate([seen, ids])
    return plain, extra
