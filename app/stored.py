"""A store as a `FrameSource`: what was kept, imported or watched, read again in time order for `replay` and `evaluate`.

The store knows series and samples; which samples were one scrape, and what they mean, is told by the layouts that it keeps
beside them. Samples of one target at one time are one scrape, with its own time. Read in slices of time, so memory grows
with the series and not with the time. Nothing is written, and nothing is dropped: no retention applies to reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.recording.inputs import INVENTORIES, kind_of
from core.clock import TICK_MS, tick_at_or_after
from core.derive import absent, stale_array
from core.errors import BadInput, Refused
from core.protocols import FrameSource
from core.types import Batch, Event, Floats, Layout, Scrape, Series, SignalRef
from pipeline.store.duck import DuckStore

FILE_NAME = "greylag.duckdb"
FOR_EVER_MS = 2**53
READ_SECONDS = 300.0
MOST_SAMPLES, WANTED_SAMPLES = 2_000_000, 500_000
FIRST_SLICE_MS, SHORTEST_SLICE_MS, LONGEST_SLICE_MS = 600_000, 1000, 3_600_000
BATCH_SAMPLES = 50_000
MOST_EVENTS = 100_000
MOST_PLANNED = 4_000_000
LOG_TARGETS = "log/"  # targets of readings from logs: what they hold was derived, not read from an input
OWN = frozenset({"up", "scrape_duration_seconds", "scrape_samples_scraped"})

Ints = NDArray[np.int64]


def store_file(path: str | Path) -> Path | None:
    """The store that a path is or holds; None for anything else."""
    found = Path(path)
    if found.is_dir():
        found = found / FILE_NAME
    return found if found.suffix == ".duckdb" and found.is_file() else None


def open_stored(path: str | Path) -> DuckStore:
    """The store at `path`, its retention set aside: what is old stays. Raises BadInput, GreylagError."""
    found = store_file(path)
    if found is None:
        raise BadInput(str(path), "", "no store", f"a folder with a {FILE_NAME} is needed")
    return DuckStore(found, deadline_seconds=READ_SECONDS, retention_ms=FOR_EVER_MS)


def split_stores(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The stores among the paths, and what else is to be read: other paths, and the recordings that lie beside a store.

    Only files right in a store's folder count: what is below it (its segments) is the store's own.
    """
    stores: list[Path] = []
    rest: list[str] = []
    for given in paths:
        found = store_file(given)
        if found is None:
            rest.append(given)
            continue
        stores.append(found)
        if Path(given).is_dir():
            rest += [str(one) for one in sorted(Path(given).iterdir())
                     if one.is_file() and (one.name in INVENTORIES or kind_of(one) is not None)]
    return stores, rest


class _Shape(NamedTuple):
    """A layout, with the number of each of its series."""

    layout: Layout
    place: dict[int, int]

    @property
    def series(self) -> frozenset[int]:
        return frozenset(self.place)


@dataclass(slots=True)
class _Home:
    """A target: its layouts by size, and the one of its last scrape."""

    id: str
    shapes: list[_Shape] = field(default_factory=list)
    current: _Shape | None = None


class _Part(NamedTuple):
    """One scrape of a plan. take: positions in the moment's samples; put: places in the layout."""

    home: _Home
    shape: _Shape
    take: Ints
    put: Ints
    failed: bool


class StoreFrames:
    """See the module. first_at, last_at: ms of what it holds, None where it is empty. samples, events: read so far."""

    def __init__(self, store: DuckStore) -> None:
        self._store = store
        self._numbers: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._homes: dict[str, _Home] = {}
        self._homes_of: dict[int, list[_Home]] = {}
        self._plans: dict[bytes, list[_Part]] = {}
        self._planned = 0
        self.samples = self.events = 0
        self._load()
        self.first_at, self.last_at = self._ends()
        self._moments: Iterator[tuple[int, Ints, Floats]] | None = None
        self._next: tuple[int, Ints, Floats] | None = None
        self._told_to = -(2**62)
        self._seq = 0

    def _load(self) -> None:
        for (layout_id,) in self._store.rows("SELECT id FROM layouts ORDER BY rowid"):
            layout = self._store.layout(str(layout_id))
            if layout is None or not layout.series:
                continue
            home = self._homes.setdefault(layout.target_id, _Home(layout.target_id))
            place: dict[int, int] = {}
            for i, one in enumerate(layout.series):
                place.setdefault(self._number(one), i)
            home.shapes.append(_Shape(layout, place))
            for number in place:
                held = self._homes_of.setdefault(number, [])
                if home not in held:
                    held.append(home)
        for home in self._homes.values():
            home.shapes.sort(key=lambda shape: len(shape.place))

    def _number(self, series: Series) -> int:
        return self._numbers.setdefault((series.name, series.labels), len(self._numbers))

    def _ends(self) -> tuple[int | None, int | None]:
        """The first and the last time of samples and events. What was judged to a later tick ends there.

        A scheduler's accounts reach further than what was recorded: they count only where there is nothing else.
        """
        accounts = "kind = 'job_phase' AND contains(body, '\"source\":\"slurm\"')"
        events = self._store.rows(f"SELECT min(at_ms), max(at_ms) FROM events WHERE NOT ({accounts})")[0]
        newest = self._store.stats()["newest_ms"]
        times = [int(at) for at in events if at is not None]
        if newest is not None:
            times += [self._oldest(int(newest)), int(newest)]
        if not times:
            times = [int(at) for at in self._store.rows("SELECT min(at_ms), max(at_ms) FROM events")[0] if at is not None]
        if not times:
            return None, None
        first, last = min(times), max(times)
        judged = self._store.last_tick()
        return first, last if judged is None or tick_at_or_after(last) >= judged else judged

    def _oldest(self, newest: int) -> int:
        """The time of the oldest sample: series are asked for by time, with halving steps."""
        low, high = 0, newest
        if self._store.series([], None, -1):
            low = -newest - 1
        while low < high:
            middle = (low + high) // 2
            if self._store.series([], None, middle):
                high = middle
            else:
                low = middle + 1
        return low

    # --- reading ------------------------------------------------------------------------------------------------------
    def advance(self, to: int) -> Iterable[Batch]:
        """Batches with all data up to and including `to` (ms), at least one; the last one's watermark is `to`."""
        if self._moments is None:
            self._moments = self._read()
            self._next = next(self._moments, None)
        events = self._events(to)
        layouts: list[Layout] = []
        scrapes: list[Scrape] = []
        size = 0
        while self._next is not None and self._next[0] <= to:
            at, ids, values = self._next
            self._moment(at, ids, values, layouts, scrapes)
            size += len(ids)
            self._next = next(self._moments, None)
            if size >= BATCH_SAMPLES:
                yield self._batch(at, layouts, scrapes, ())
                layouts, scrapes, size = [], [], 0
        yield self._batch(to, layouts, scrapes, events)

    def _batch(self, watermark: int, layouts: Sequence[Layout], scrapes: Sequence[Scrape], events: Sequence[Event]) -> Batch:
        self._seq += 1
        return Batch("stored", 1, self._seq, watermark, tuple(layouts), tuple(scrapes), tuple(events))

    def _events(self, to: int) -> list[Event]:
        start, self._told_to = self._told_to + 1, to
        found = self._store.events(start, to, limit=MOST_EVENTS)
        self.events += len(found)
        return found

    def _read(self) -> Iterator[tuple[int, Ints, Floats]]:
        """(time, series numbers, values with the stale marker where a series ended) of each moment."""
        if self.first_at is None or self.last_at is None:
            return
        at, length = self.first_at, FIRST_SLICE_MS
        while at <= self.last_at:
            stop = at + length
            try:
                found = self._store.arrays([], at, stop - 1, MOST_SAMPLES)
            except Refused:
                if length <= SHORTEST_SLICE_MS:
                    raise
                length = max(SHORTEST_SLICE_MS, length // 4)
                continue
            size = sum(len(one.at) for one in found)
            if size:
                ids = np.repeat(np.array([self._number(one.series) for one in found], np.int64), [len(one.at) for one in found])
                times, values = np.concatenate([one.at for one in found]), np.concatenate([one.values for one in found])
                order = np.lexsort((ids, times))
                times, ids, values = times[order], ids[order], values[order]
                cuts = np.flatnonzero(np.diff(times)) + 1
                edges = [0, *cuts.tolist(), len(times)]
                for first, last in pairwise(edges):
                    yield int(times[first]), ids[first:last], values[first:last]
            at = stop
            length = int(min(LONGEST_SLICE_MS, max(TICK_MS, length * min(4.0, WANTED_SAMPLES / max(1, size)))))

    # --- scrapes ------------------------------------------------------------------------------------------------------
    def _moment(self, at: int, ids: Ints, values: Floats, layouts: list[Layout], scrapes: list[Scrape]) -> None:
        gone = absent(values)
        key = ids.tobytes() + gone.tobytes()
        parts = self._plans.get(key)
        if parts is None or any(part.home.current is not part.shape for part in parts):
            parts = self._plan(ids, gone)
            if self._planned > MOST_PLANNED:
                self._plans.clear()
                self._planned = 0
            self._plans[key] = parts
            self._planned += len(ids)
        for home, shape, take, put, failed in parts:
            if home.current is not shape:
                home.current = shape
                layouts.append(shape.layout)
            if not home.id.startswith(LOG_TARGETS):
                self.samples += int((~gone[take]).sum())
            if failed and values[take[0]] == 0:
                scrapes.append(Scrape(shape.layout.id, home.id, at, np.empty(0), 0.0, "connect_failed"))
                continue
            whole = stale_array(len(shape.layout.series))
            whole[put] = values[take]
            scrapes.append(Scrape(shape.layout.id, home.id, at, whole))

    def _plan(self, ids: Ints, gone: NDArray[np.bool_]) -> list[_Part]:
        position = {number: i for i, number in enumerate(ids.tolist())}
        live = {number for number, ended in zip(ids.tolist(), gone.tolist(), strict=True) if not ended}
        by_home: dict[str, set[int]] = {}
        shared: set[int] = set()
        for number in position:
            homes = self._homes_of.get(number, ())
            if len(homes) == 1:
                by_home.setdefault(homes[0].id, set()).add(number)
            elif homes:
                shared.add(number)
        if shared:
            self._claim(by_home, shared, position.keys())
        parts = [self._part(self._homes[name], numbers, position, live) for name, numbers in sorted(by_home.items())]
        return parts + self._shared(shared, position, live)

    def _claim(self, by_home: dict[str, set[int]], shared: set[int], present: Set[int]) -> None:
        """Gives series that several targets have to those that show something of their own at this moment: what stands
        in their largest layout that is there as a whole, and what stands in the layout of their last scrape."""
        for name, numbers in sorted(by_home.items()):
            home = self._homes[name]
            whole = [shape for shape in home.shapes if numbers <= shape.place.keys() <= present]
            held = whole[-1:] or ([home.current] if home.current is not None else [])
            for shape in held:
                mine = shared & shape.place.keys()
                numbers.update(mine)
                shared -= mine

    def _shared(self, left: set[int], position: dict[int, int], live: set[int]) -> list[_Part]:
        """Series that several targets have (a rank whose log lines tell different things): the largest layout that is
        there as a whole comes first."""
        out = []
        while left:
            names = sorted({home.id for number in left for home in self._homes_of[number]})
            options = [(home, shape) for home in (self._homes[name] for name in names) for shape in home.shapes
                       if shape.series & left]
            home, shape = max(options, key=lambda pair: (pair[1].series <= left, len(pair[1].series & left)))
            numbers = set(shape.series & left)
            out.append(self._part(home, numbers, position, live))
            left = left - numbers
        return out

    def _part(self, home: _Home, numbers: set[int], position: dict[int, int], live: set[int]) -> _Part:
        shape = self._shape(home, numbers)
        order = sorted(numbers, key=lambda number: shape.place[number])
        put = np.array([shape.place[number] for number in order], np.int64)
        names = {shape.layout.series[i].name for number, i in zip(order, put.tolist(), strict=True) if number in live}
        failed = names == OWN and any({s.name for s in one.layout.series} == OWN for one in home.shapes)
        if failed:  # `up` first: it says whether the target answered
            order.sort(key=lambda number: shape.layout.series[shape.place[number]].name != "up")
            put = np.array([shape.place[number] for number in order], np.int64)
        return _Part(home, shape, np.array([position[number] for number in order], np.int64), put, failed)

    def _shape(self, home: _Home, numbers: set[int]) -> _Shape:
        """The layout of a scrape with these series: the last one where it has them all, else the smallest that has."""
        if home.current is not None and numbers <= home.current.place.keys():
            return home.current
        for shape in home.shapes:
            if numbers <= shape.place.keys():
                return shape
        made = self._union(home)
        home.shapes.append(made)
        return made

    def _union(self, home: _Home) -> _Shape:
        """One layout of all that the target ever had: its series moved between targets."""
        series: list[Series] = []
        signals: list[SignalRef] = []
        place: dict[int, int] = {}
        for shape in home.shapes:
            for number, i in shape.place.items():
                if number in place:
                    continue
                place[number] = len(series)
                series.append(shape.layout.series[i])
                signals += [SignalRef(place[number], r.signal, r.target, r.scale, r.counter)
                            for r in shape.layout.signals if r.index == i]
        rows, refs, last = tuple(series), tuple(signals), home.shapes[-1].layout
        layout = Layout(Layout.make_id(home.id, rows, refs), home.id, rows, refs, last.node, last.job, last.source)
        return _Shape(layout, place)


class Together:
    """Several sources as one: what each has up to a time, in turn."""

    def __init__(self, sources: Sequence[FrameSource]) -> None:
        self._sources = tuple(sources)

    def advance(self, to: int) -> Iterable[Batch]:
        """Batches with all data up to and including `to` (ms)."""
        for source in self._sources:
            yield from source.advance(to)
