"""The last half hour of every canonical signal, in memory: scrapes in, a `Window` out at each tick.

Pure: no clock, no store. Live and replay feed it the same batches and get the same windows. Order within a tick does not
matter: scrapes are taken by target and time, columns stand in natural order. What comes after its tick was judged is
counted as late and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.events import KINDS as EVENT_KINDS
from core.inventory import Inventory
from core.signals import SIGNALS
from core.types import Baseline, Batch, Event, Finding, Floats, Scrape, Target
from core.window import BaselineOf, Block, Topology, Window
from pipeline.baseline import MINUTE_MS, Minutes, summarise
from pipeline.jobs import Jobs
from pipeline.ring_crowd import Crowd, Reading
from pipeline.ring_events import EventLog, boot_event, placed
from pipeline.ring_exporters import FEED_NUMBER, ExporterRows
from pipeline.ring_feeds import REMEMBERED, Feed, Meanings, compile_layout, mark
from pipeline.ring_parts import Axes, Parts
from pipeline.ring_rows import GAP_INTERVALS, SIGNAL_NAMES, SIGNAL_NUMBER, Plan, Rows, make_plan
from pipeline.ring_runs import apply_run, take_runs
from pipeline.topology import Hardware
from pipeline.windows import Buffers

BOOT = SIGNAL_NUMBER["node.boot_time_seconds"]
# node_boot_time_seconds is computed from uptime and the wall clock: it moves by some seconds when the clock is set.
BOOT_JUMP_SECONDS = 30.0
EVENT_FRESH_MS = 60_000      # an event within this time shows that the input of its node goes on
SWEEP_TICKS = 20             # how often what is long gone is dropped
FORGET_FEED_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class FeedCounts:
    """What became of a batch. samples, late, duplicate, conflict and unmapped count values; events counts new events.

    unmapped: values of scrapes whose layout never arrived or does not fit; the store keeps them, nobody judges them.
    """

    samples: int = 0
    events: int = 0
    late: int = 0
    duplicate: int = 0
    conflict: int = 0
    unmapped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Rhythm:
    """First times and intervals (ms) by cell of a plan; count: of the changes that they include."""

    plan: Plan
    count: int
    oldest: Floats
    intervals: Floats


class Ring:
    """See the module. step_seconds: of a tick; span_seconds: of a window, and how long an unseen part is kept."""

    def __init__(self, inventory: Inventory, step_seconds: int = 15, span_seconds: int = 1800) -> None:
        self._step = step_seconds
        self._step_ms = step_seconds * 1000
        self._span_ms = span_seconds * 1000
        self._parts, self._axes, self._rows = Parts(), Axes(), Rows()
        self._exporters = ExporterRows(self._rows, self._parts)
        self._crowd = Crowd()
        self._buffers = Buffers(max(1, span_seconds // step_seconds))
        self._feeds: dict[str, Feed] = {}
        self._feed_numbers: list[int] = []
        self._failed = np.zeros(64, np.bool_)
        self._plan: Plan | None = None
        self._plan_of: tuple[int, int, int] = (-1, -1, -1)
        self._rhythm: _Rhythm | None = None
        self._axis_version = 0
        self._minutes: dict[int, Minutes] = {}
        self._excluded: dict[int, int] = {}
        self._by_kind: tuple[int, dict[str, dict[int, list[int]]]] | None = None
        self._boots: Floats = np.full(64, np.nan)
        self._events = EventLog()
        self._jobs = Jobs()
        self._judged: int | None = None
        self._ticks = 0
        self._window: Window | None = None
        self._inventory: Inventory | None = None
        self.set_inventory(inventory)

    def set_inventory(self, inventory: Inventory) -> None:
        """The inventory as it is now; used from the next window on."""
        if inventory is self._inventory:
            return
        self._inventory = inventory
        self._topology: Topology = inventory.topology()
        self._hardware = Hardware(inventory)
        self._jobs.set_inventory(inventory.job_states())
        self._job_nodes = frozenset(node for job in inventory.jobs for node in job.nodes)

    # --- in ---------------------------------------------------------------------------------------------------------
    def feed(self, batch: Batch) -> FeedCounts:
        """Takes a batch; layouts stay known for the batches that follow."""
        for layout in batch.layouts:
            self.know(layout.target_id, Meanings.of(layout))
        tally = {"samples": 0, "late": 0, "duplicate": 0, "conflict": 0, "unmapped": 0}
        for scrape in batch.scrapes:
            tally[self._take(scrape)] += len(scrape.values)
        events = sum(self._events.add(placed(e, self._hardware)) for e in batch.events if e.kind in EVENT_KINDS)
        return FeedCounts(events=events, **tally)

    def know(self, target_id: str, meanings: Meanings) -> None:
        """Takes what a layout means, as `feed` does of a batch's layouts, from those who have it in arrays."""
        self._feed(target_id).add_layout(meanings)

    def _feed(self, target_id: str) -> Feed:
        found = self._feeds.get(target_id)
        if found is None:
            number = self._feed_numbers.pop() if self._feed_numbers else len(self._feeds) + 1
            found = self._feeds[target_id] = Feed(target_id, number)
            if number >= len(self._failed):
                self._failed = np.concatenate([self._failed, np.zeros(len(self._failed), np.bool_)])
            self._failed[number] = False
        return found

    def _take(self, scrape: Scrape) -> str:
        feed = self._feed(scrape.target_id)
        known = feed.known(scrape.at)
        if known is not None:
            return "duplicate" if known == mark(scrape) else "conflict"
        if self._judged is not None and scrape.at <= self._judged:
            return "late"
        if scrape.error is None:
            layout = feed.layouts.get(scrape.layout_id)
            if layout is None or layout.size != len(scrape.values):
                return "unmapped"
        feed.pending[scrape.at] = scrape
        return "samples"

    # --- out --------------------------------------------------------------------------------------------------------
    def window(self, tick: int) -> Window:
        """The window at `tick` (ms, a multiple of the step, not before an earlier one: ValueError).

        Ticks that were left out since the last call are made up, so a window has no holes.
        """
        if tick % self._step_ms:
            raise ValueError(f"{tick} is no multiple of {self._step_ms} ms")
        if self._window is not None and self._judged == tick:
            return self._window
        if self._judged is not None and tick < self._judged:
            raise ValueError(f"tick {tick} is before {self._judged}, which was judged")
        if self._judged is not None and tick - self._judged > 2 * self._span_ms:
            self._buffers.clear()  # nothing of the window before is left in this one
            self._judged = tick - self._span_ms
        at = tick if self._judged is None else self._judged + self._step_ms
        while at <= tick:
            self._advance(at)
            at += self._step_ms
        self._window = self._make_window(tick)
        return self._window

    def _advance(self, tick: int) -> None:
        alike: list[Reading] = []
        for target_id in sorted(target_id for target_id, feed in self._feeds.items() if feed.pending):
            feed = self._feeds[target_id]
            reading = self._plain(feed, tick)
            if reading is None:
                self._drain(feed, tick)
            else:
                alike.append(reading)
        for one in self._crowd.apply(alike, self._rows):
            self._restarted(one.feed, one.shape.layout, one.scrape.at)
        self._exporters.flush()
        self._judged = tick
        self._ticks += 1
        n, before = len(self._rows), self._plan
        newest = self._see(n)
        self._regrid(self._axes.refresh(self._parts, tick - self._span_ms))
        plan = self._current_plan()
        if newest is None or plan is not before:
            newest = plan.newest(self._rows.at[:n])
        if self._rhythm is None or self._rhythm.plan is not plan or self._rhythm.count != self._rows.rhythms:
            self._rhythm = _Rhythm(plan, self._rows.rhythms, plan.oldest(self._rows.first_at[:n]),
                                   plan.intervals(self._rows.interval[:n]))
        values = self._rows.close_tick(tick, self._step_ms, self._failed)
        self._buffers.push(tick, plan, plan.combine(values), newest, self._rhythm.oldest, self._rhythm.intervals)
        if tick % MINUTE_MS == 0:
            self._close_minute(tick)
        self._find_boots(tick)
        if self._ticks % SWEEP_TICKS == 0:
            self._sweep(tick)

    def _plain(self, feed: Feed, tick: int) -> Reading | None:
        """The target's reading where it has one of the shape that it had before: what nearly all targets have at nearly every
        tick. It is taken, all but its values; None = nothing was done."""
        if len(feed.pending) != 1:
            return None
        (at, scrape), = feed.pending.items()
        layout_id = scrape.layout_id
        shape = feed.compiled.get(layout_id)
        if (at > tick or scrape.error is not None or shape is None or feed.current != layout_id or shape.layout.partial
                or not len(shape.rows) or layout_id not in feed.layouts):
            return None
        del feed.pending[at]
        feed.recent[at] = mark(scrape)
        if feed.failed:
            feed.failed = self._failed[feed.number] = False
        self._exporters.note(feed, scrape, shape.layout)
        feed.interval = feed.learn(layout_id, at)
        if at - feed.last_good > GAP_INTERVALS * feed.interval:  # as `_paused` of one scrape
            self._stand_again(shape.layout)
        feed.last_good = feed.last_at = float(at)
        while len(feed.recent) > REMEMBERED:
            del feed.recent[next(iter(feed.recent))]
        return Reading(feed, scrape, shape, feed.interval)

    def _drain(self, feed: Feed, tick: int) -> None:
        """Takes the target's scrapes up to the tick, in time order."""
        for run in take_runs(feed, tick):
            for scrape in run[-REMEMBERED:]:
                feed.recent[scrape.at] = mark(scrape)
            layout = feed.layouts.get(run[0].layout_id)
            feed.failed = run[0].error is not None or layout is None
            self._exporters.note(feed, run[0], layout)
            self._failed[feed.number] = feed.failed
            if run[0].error is None and layout is not None:
                self._apply(feed, run, layout)
            if len(run) > 1:
                self._exporters.note(feed, run[-1], layout)
            feed.last_at = float(run[-1].at)
        while len(feed.recent) > REMEMBERED:
            del feed.recent[next(iter(feed.recent))]

    def _apply(self, feed: Feed, run: Sequence[Scrape], layout: Meanings) -> None:
        intervals = [feed.learn(layout.id, scrape.at) for scrape in run]
        shape = feed.compiled.get(layout.id)
        if shape is None:
            shape = feed.compiled[layout.id] = compile_layout(feed, layout, self._rows, self._parts)
        elif feed.current != layout.id or _paused(run, intervals, feed.last_good):
            self._stand_again(layout)
        feed.last_good = float(run[-1].at)
        feed.interval = intervals[-1]
        if len(shape.rows):
            for at in apply_run(feed, run, intervals, shape, self._rows):
                self._restarted(feed, layout, at)

    def _stand_again(self, layout: Meanings) -> None:
        """Back after a pause: the target's parts stand here again (a rank that moved back)."""
        for target in layout.parts:
            self._parts.resolve(target)

    def _restarted(self, feed: Feed, layout: Meanings, at: int) -> None:
        self._events.add(Event(at, Target("node", layout.node), "exporter_restart", {"target_id": feed.target_id}))

    def _see(self, n: int) -> Floats | None:
        """Notes when each part was last seen. Gives float64[cell], the newest sample's time, where the plan of before still holds:
        then parts are looked at by whole columns."""
        rows, seen, plan = self._rows, self._parts.seen, self._plan
        if plan is None or self._plan_of != self._version():
            live = np.flatnonzero(rows.alive[:n])
            np.maximum.at(seen, rows.part[live], rows.at[live])
            return None
        newest = plan.newest(rows.at[:n])
        by_kind: dict[str, Floats] = {}
        for number, offset in plan.offsets.items():
            kind, here = SIGNALS[SIGNAL_NAMES[number]].kind, newest[offset:offset + plan.widths[number]]
            by_kind[kind] = np.maximum(by_kind[kind], here) if kind in by_kind else here
        for kind, at in by_kind.items():
            columns = self._axes.columns[kind]
            seen[columns] = np.maximum(seen[columns], at)
        np.maximum.at(seen, rows.part[plan.off_axis], rows.at[plan.off_axis])
        return newest

    def _regrid(self, changed: dict[str, np.ndarray]) -> None:
        if not changed:
            return
        self._axis_version += 1
        for kind, former in changed.items():
            numbers = [i for i, name in enumerate(SIGNAL_NAMES) if SIGNALS[name].kind == kind]
            self._buffers.regrid(numbers, former)
            for number in numbers:
                if number in self._minutes:
                    self._minutes[number].regrid(former)

    def _version(self) -> tuple[int, int, int]:
        return self._rows.version, self._axis_version, len(self._feeds)

    def _current_plan(self) -> Plan:
        version = self._version()
        if self._plan is None or self._plan_of != version:
            order = np.zeros(len(self._failed), np.int64)
            for i, target_id in enumerate(sorted(self._feeds, key=_preference)):
                order[self._feeds[target_id].number] = i
            widths = {kind: len(columns) for kind, columns in self._axes.columns.items()}
            self._plan = make_plan(self._rows, order, self._axes.column, widths)
            self._plan_of = version
        return self._plan

    def _find_boots(self, tick: int) -> None:
        """A boot time that grew is a boot; the first one that is seen is none."""
        buffer = self._buffers.signals.get(BOOT)
        if buffer is None:
            return
        if len(self._boots) < len(self._parts):
            self._boots = np.concatenate([self._boots, np.full(len(self._parts), np.nan)])
        columns = self._axes.columns.get("node", np.zeros(0, np.int64))
        now = self._buffers.values(BOOT)[-1]
        before = self._boots[columns]
        for column in np.flatnonzero(now > before + BOOT_JUMP_SECONDS).tolist():
            target = self._axes.entities["node"][column]
            self._events.add(boot_event(target, float(now[column]), tick, tick - self._span_ms))
        known = ~np.isnan(now)
        self._boots[columns[known]] = now[known]

    # --- the past ---------------------------------------------------------------------------------------------------
    def baseline(self, signal: str, seconds: int, end: int | None = None) -> Baseline:
        """The past `seconds` (at most 24 h) of a signal by entity, up to `end` (ms; the last tick where None).

        KeyError for a name that is no signal.
        """
        number = SIGNAL_NUMBER[signal]
        width = len(self._axes.columns.get(SIGNALS[signal].kind, ()))
        minutes = self._minutes.get(number)
        if minutes is None:
            minutes = self._minutes[number] = Minutes(width)
            self._recall(number, minutes)
        until = end if end is not None else self._judged or 0
        return minutes.summary(until - seconds * 1000, until)

    def _recall(self, number: int, minutes: Minutes) -> None:
        """Fills the minutes that the ring still holds."""
        if number not in self._buffers.signals:
            return
        times, values = self._buffers.times(), self._buffers.values(number)
        for i in np.flatnonzero(times % MINUTE_MS == 0).tolist():
            if i + 1 >= self._per_minute:  # of the first minute the ring may hold the end only
                minutes.add(int(times[i]), values[i + 1 - self._per_minute:i + 1])
        self._leave_out(number, minutes)

    def asked(self) -> dict[str, int]:
        """The signals whose minutes are kept, with the end (ms) of the oldest one."""
        return {SIGNAL_NAMES[number]: one.oldest for number, one in self._minutes.items() if one.oldest is not None}

    def width(self, signal: str) -> int:
        """How many parts stand on the axis of a signal's kind."""
        return len(self._axes.columns.get(SIGNALS[signal].kind, ()))

    def columns_of(self, targets: Sequence[Target]) -> np.ndarray:
        """int64[target]: the column of each part on the axis of its kind, -1 where it stands on none."""
        found = [self._parts.find(target) for target in targets]
        return np.array([-1 if part is None else self._axes.column[part] for part in found], np.int64)

    def remember(self, signal: str, ends: np.ndarray, means: Floats, findings: Sequence[Finding]) -> None:
        """Gives a signal a past from before a restart: float64[minute, column] and the minutes' ends, ms ascending. What
        the ring itself holds follows on it; the time of findings (ended ones too) is left out."""
        number = SIGNAL_NUMBER[signal]
        minutes = self._minutes[number] = Minutes(means.shape[1])
        for end, row in zip(ends.tolist(), means, strict=True):
            minutes.add(end, row[None])
        self._recall(number, minutes)
        for finding in findings:
            parts = [t for part in self._parts_of(finding.target) if (t := self._parts.targets[part]) is not None]
            columns = self.columns_of([t for t in parts if t.kind == SIGNALS[signal].kind])
            minutes.exclude(columns[columns >= 0], finding.onset_at, finding.ended_at)

    @property
    def _per_minute(self) -> int:
        return max(1, MINUTE_MS // self._step_ms)

    def _close_minute(self, tick: int) -> None:
        for number, minutes in self._minutes.items():
            if number in self._buffers.signals:
                minutes.add(tick, self._buffers.values(number)[-self._per_minute:])
                self._leave_out(number, minutes)

    def exclude(self, findings: Sequence[Finding]) -> None:
        """Leaves the time of open findings out of the past of their parts: call it with all open ones at each tick.

        A finding on a node leaves out all its parts, one on a job all its ranks.
        """
        self._excluded, self._by_kind = {}, None
        for finding in findings:
            for part in self._parts_of(finding.target):
                self._excluded[part] = min(finding.onset_at, self._excluded.get(part, finding.onset_at))
        for number, minutes in self._minutes.items():
            self._leave_out(number, minutes)

    def _parts_of(self, target: Target) -> Iterable[int]:
        if target.kind == "node":
            return self._parts.of_node(target.node)
        if target.kind == "job":
            return [i for i, t in enumerate(self._parts.targets)
                    if t is not None and t.kind == "rank" and t.job == target.job]
        found = self._parts.find(target)
        return () if found is None else (found,)

    def _leave_out(self, number: int, minutes: Minutes) -> None:
        if self._by_kind is None or self._by_kind[0] != self._axis_version:
            self._by_kind = self._axis_version, self._left_out()
        for since, columns in self._by_kind[1].get(SIGNALS[SIGNAL_NAMES[number]].kind, {}).items():
            minutes.exclude(columns, since)

    def _left_out(self) -> dict[str, dict[int, list[int]]]:
        """By kind and time (ms), the columns whose past is left out from then on."""
        out: dict[str, dict[int, list[int]]] = {}
        for part, since in self._excluded.items():
            target, column = self._parts.targets[part], int(self._axes.column[part])
            if target is not None and column >= 0:
                out.setdefault(target.kind, {}).setdefault(since, []).append(column)
        return out

    # --- the window -------------------------------------------------------------------------------------------------
    def _make_window(self, tick: int) -> Window:
        entities = dict(self._axes.entities)
        blocks: dict[str, Block] = {}
        for number in sorted(self._buffers.signals):
            name = SIGNAL_NAMES[number]
            known = entities.get(SIGNALS[name].kind, ())
            if known:
                blocks[name] = self._buffers.block(number, tick, known)
        window = Window(tick, self._step, self._buffers.times(), entities, blocks, self._events.until(tick), (),
                        self._topology, self._silent_nodes(tick), self._baseline_at(tick))
        recent = self._events.since(tick - EVENT_FRESH_MS, tick)
        return replace(window, jobs=self._jobs.states(window, recent))

    def _baseline_at(self, tick: int) -> BaselineOf:
        """The past as it was at a tick; nothing is known of it any more once the columns have moved."""
        version = self._axis_version

        def baseline_of(signal: str, seconds: int) -> Baseline:
            if version == self._axis_version:
                return self.baseline(signal, seconds, tick)
            return summarise(np.zeros(0, np.int64), np.zeros((0, len(entities.get(SIGNALS[signal].kind, ())))))

        entities = dict(self._axes.entities)
        return baseline_of

    def _silent_nodes(self, tick: int) -> frozenset[str]:
        """Nodes that the inventory or an input named and of which nothing comes any more."""
        known = {*self._parts.nodes, *self._topology.places, *self._job_nodes}
        speaking: set[str] = set()
        for feed in self._feeds.values():
            layout = feed.layouts.get(feed.current)
            if layout is not None and layout.node is not None:
                known.add(layout.node)
                if not feed.failed and feed.fresh(tick):
                    speaking.add(layout.node)
        for event in self._events.since(tick - EVENT_FRESH_MS, tick):
            if event.target.node is not None and event.kind not in ("boot", "exporter_restart", "action"):
                speaking.add(event.target.node)
        quiet = known - speaking
        return frozenset(quiet - self._spoken_of(quiet, tick) if quiet else quiet)

    def _spoken_of(self, nodes: set[str], tick: int) -> set[str]:
        """Those of the nodes of whose parts anything fresh is known, from whatever target."""
        rows, parts = self._rows, self._parts
        asked = np.zeros(len(parts.nodes) + 1, np.bool_)  # parts without a node mark the spare last place
        asked[:-1] = [name in nodes for name in parts.nodes]
        # That a target is asked says nothing of its node.
        of = np.flatnonzero(asked[parts.node[:len(parts)]][rows.part[:len(rows)]] & (rows.feed[:len(rows)] != FEED_NUMBER))
        places = np.unique(parts.node[rows.part[of[rows.fresh(tick, of)]]])
        return {parts.nodes[i] for i in places.tolist()}

    # --- housekeeping -----------------------------------------------------------------------------------------------
    def _sweep(self, tick: int) -> None:
        """Drops layouts, rows, targets and parts of which nothing came for longer than a window."""
        oldest = tick - self._span_ms
        for target_id in sorted(self._feeds):
            feed = self._feeds[target_id]
            dead = [i for i, shape in feed.compiled.items() if shape.last_used < oldest]
            if dead:
                for layout_id in dead:
                    feed.forget_layout(layout_id)
                used = [shape.rows for shape in feed.compiled.values()]
                self._rows.free(feed.rows.keep_only(np.concatenate([np.zeros(0, np.int64), *used])))
            if feed.last_at < oldest:
                self._exporters.forget(target_id)
            feed.heard = tick if feed.heard is None else feed.heard
            if not len(feed.rows) and not feed.pending and feed.heard < tick - FORGET_FEED_MS:
                del self._feeds[target_id]
                self._feed_numbers.append(feed.number)
        n = len(self._rows)
        used_parts = np.zeros(len(self._parts), np.bool_)
        used_parts[self._rows.part[:n][self._rows.alive[:n]]] = True
        gone = np.flatnonzero(~used_parts & (self._parts.seen[:len(self._parts)] < oldest)).tolist()
        self._boots[[i for i in gone if i < len(self._boots)]] = np.nan
        self._parts.forget(gone)


def _preference(target_id: str) -> tuple[bool, str]:
    """What a rank exposes itself counts before what its log says: a log tells a step each n steps, so beside the other
    ranks' own numbers it would make the rank that logs look as if it were behind."""
    return target_id.startswith("log/"), target_id


def _paused(run: Sequence[Scrape], intervals: Sequence[float], last_good: float) -> bool:
    """True where more than three intervals lie before one of the scrapes."""
    before = [last_good, *(float(scrape.at) for scrape in run[:-1])]
    return any(scrape.at - at > GAP_INTERVALS * interval for scrape, at, interval in zip(run, before, intervals, strict=True))
