"""The ring after a restart: the last half hour of every signal, read back from the store before the first tick.

Which series mean a signal is told by the layouts that the store keeps. All of a target's layouts that had samples lately
are read as one, since labels may have changed meanwhile: the ring puts series of one part together. A chunk of targets is
read at once for the whole time, because each query pays for each series once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.clock import TICK_MS
from core.derive import stale_array
from core.errors import Refused
from core.types import Batch, Layout, Scrape, Series, SignalRef, Target
from pipeline.ring import Ring
from pipeline.store.duck import DuckStore
from pipeline.store.merging import Piece

SPAN_MS = 1_800_000
EVENTS_MS = 7 * 86_400_000
CHUNK_SERIES = 40_000
MOST_SAMPLES = 8_000_000


def warm(ring: Ring, store: DuckStore, last_tick: int) -> int:
    """Fills an empty ring with what the store has of the 30 minutes up to `last_tick` (ms), and of events of 7 days; gives
    the number of samples. The ring's next window is that of the tick after it."""
    start, samples = last_tick - SPAN_MS, 0
    events = store.events(last_tick - EVENTS_MS, last_tick)
    ring.feed(Batch("warm", 1, 0, last_tick, events=tuple(events)))
    for chunk in _chunks(_targets(store, start)):
        for batch in _batches(store, chunk, start + 1, last_tick):
            samples += ring.feed(batch).samples
    ring.window(start)
    ring.window(last_tick)
    return samples


@dataclass(frozen=True, slots=True)
class _Target:
    """What a target's series mean. ids: of the layout's series, in order."""

    layout: Layout
    ids: list[int]


def _targets(store: DuckStore, start: int) -> Iterator[_Target]:
    """One layout a target: all its series that mean a signal and had a sample since `start`."""
    parts: list[tuple[Layout, list[int]]] = []
    for layout, ids in store.recent_layouts(start):
        if parts and parts[0][0].target_id != layout.target_id:
            yield _union(parts)
            parts = []
        parts.append((layout, ids.tolist()))
    if parts:
        yield _union(parts)


def _union(parts: list[tuple[Layout, list[int]]]) -> _Target:
    """The signals of several layouts of a target, each series once, the newest layout's first."""
    newest, ids = parts[0]
    if len(parts) == 1:  # an id of its own: it is cut down, and the whole layout may come again under the old one
        return _Target(replace(newest, id=f"warm/{newest.target_id}"), ids)
    places: dict[int, int] = {}
    series: list[Series] = []
    refs: dict[tuple[int, str, Target], SignalRef] = {}
    for layout, numbers in parts:
        for ref in layout.signals:
            place = places.setdefault(numbers[ref.index], len(places))
            if place == len(series):
                series.append(layout.series[ref.index])
            refs.setdefault((place, ref.signal, ref.target), SignalRef(place, ref.signal, ref.target, ref.scale, ref.counter))
    made = Layout(f"warm/{newest.target_id}", newest.target_id, tuple(series), tuple(refs.values()), newest.node, newest.job,
                  newest.source, newest.partial)
    return _Target(made, list(places))


def _chunks(targets: Iterable[_Target]) -> Iterator[list[_Target]]:
    chunk: list[_Target] = []
    size = 0
    for target in targets:
        if chunk and size + len(target.ids) > CHUNK_SERIES:
            yield chunk
            chunk, size = [], 0
        chunk.append(target)
        size += len(target.ids)
    if chunk:
        yield chunk


def _batches(store: DuckStore, targets: list[_Target], start: int, end: int) -> Iterator[Batch]:
    """The scrapes of these targets; in halves where they hold more samples than are read at once."""
    wanted = np.unique(np.array([number for one in targets for number in one.ids], np.uint32))
    try:
        found = store.samples_of(wanted, start, end, MOST_SAMPLES)
    except Refused:
        if end - start < TICK_MS:
            raise
        middle = (start + end) // 2
        yield from _batches(store, targets, start, middle)
        yield from _batches(store, targets, middle + 1, end)
        return
    for one in targets:
        scrapes = _scrapes(one, found)
        if scrapes:
            yield Batch("warm", 1, 0, end, (one.layout,), scrapes)


def _scrapes(target: _Target, found: Mapping[int, Piece]) -> tuple[Scrape, ...]:
    """Samples of one time are one scrape; a series without a sample then is absent in it."""
    pieces = [(i, *found[number]) for i, number in enumerate(target.ids) if number in found]
    if not pieces:
        return ()
    times = np.unique(np.concatenate([at for _, at, _ in pieces]))
    values = stale_array(len(times) * len(target.ids)).reshape(len(times), len(target.ids))
    for i, at, column in pieces:
        values[slice(None) if len(at) == len(times) else np.searchsorted(times, at), i] = column
    layout = target.layout
    return tuple(Scrape(layout.id, layout.target_id, int(at), row) for at, row in zip(times.tolist(), values, strict=True))
