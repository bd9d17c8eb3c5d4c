"""The ring after a restart: the last half hour of every signal, read back from the store before the first tick.

Which series mean a signal is told by the layouts that the store keeps. All of a target's layouts that had samples lately
are read as one, since labels may have changed meanwhile: the ring puts series of one part together. All targets are read
at once, some ticks at a time, and each tick is closed by the ring as it was when it was live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from core.clock import TICK_MS
from core.derive import absent
from core.signals import SIGNALS
from core.types import Batch, Scrape, Target
from pipeline.ring import Ring
from pipeline.ring_feeds import MOST_LAYOUTS, Meanings
from pipeline.ring_rows import SIGNAL_NUMBER
from pipeline.store.duck import DuckStore
from pipeline.store.readback import Meant, TargetRows

SPAN_MS = 1_800_000
EVENTS_MS = 7 * 86_400_000
# So many cells are read at once (64 MB, and as much again while they are put in place), but no fewer ticks: each query
# goes over all of a sealed hour's file.
MOST_CELLS = 8_000_000
LEAST_TICKS = 8
Ids = NDArray[np.uint32]
Places = NDArray[np.int64]


def warm(ring: Ring, store: DuckStore, last_tick: int) -> int:
    """Fills an empty ring with what the store has of the 30 minutes up to `last_tick` (ms), and of events of 7 days; gives
    the number of samples. The ring's next window is that of the tick after it."""
    start, samples = last_tick - SPAN_MS, 0
    events = store.events(last_tick - EVENTS_MS, last_tick)
    ring.feed(Batch("warm", 1, 0, last_tick, events=tuple(events)))
    targets = list(targets_of(store, start))
    for one in targets:
        for meanings in (*(piece for piece, _ in one.pieces), one.meanings):
            ring.know(one.target_id, meanings)
    wanted = [(one.target_id, one.ids) for one in targets]
    ticks = max(LEAST_TICKS, MOST_CELLS // max(1, sum(len(ids) for _, ids in wanted)))
    ring.window(start)
    while start < last_tick:
        end = min(start + ticks * TICK_MS, last_tick)
        for one, rows in zip(targets, store.readings_of(wanted, start + 1, end), strict=True):
            samples += ring.feed(Batch("warm", 1, 0, end, scrapes=_scrapes(one, rows))).samples
        ring.window(end)
        start = end
    return samples


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What a target's series mean. ids: uint32[meanings.size], the series in order. pieces: of a target that speaks in
    parts, each of its layouts with the places of its series, the smallest first."""

    target_id: str
    meanings: Meanings
    ids: Ids
    pieces: tuple[tuple[Meanings, Places], ...] = ()


def _scrapes(target: Known, rows: TargetRows) -> tuple[Scrape, ...]:
    """Samples of one time are one scrape; a series without a sample then is absent in it."""
    if target.pieces and len(rows.at):
        return tuple(_parts(target, rows))
    return tuple([Scrape(target.meanings.id, target.target_id, at, values)
                  for at, values in zip(rows.at.tolist(), rows.values, strict=True)])


def _parts(target: Known, rows: TargetRows) -> Iterator[Scrape]:
    """Each scrape by the smallest layout that has all of its series: what others have of the target has not ended."""
    present = ~absent(rows.values)
    whole = present.sum(axis=1)
    choice = np.full(len(rows.at), -1)
    for i, (_, places) in enumerate(target.pieces):
        choice[(choice < 0) & (present[:, places].sum(axis=1) == whole)] = i
    for at, values, i in zip(rows.at.tolist(), rows.values, choice.tolist(), strict=True):
        meanings, shown = (target.meanings, values) if i < 0 else (target.pieces[i][0], values[target.pieces[i][1]])
        yield Scrape(meanings.id, target.target_id, at, shown)


def targets_of(store: DuckStore, start: int, signals: Sequence[str] = ()) -> Iterator[Known]:
    """One layout a target: all its series that mean a signal (one of `signals`, where some are named) and had a sample
    since `start` (ms), in all its layouts."""
    for _, layouts in groupby(store.recent_meanings(start, signals), key=lambda one: one.target_id):
        yield _known(list(layouts))


def _known(layouts: Sequence[Meant]) -> Known:
    whole = _union(layouts, "")
    if not whole.meanings.partial or len(layouts) == 1:
        return whole
    order = np.argsort(whole.ids)
    pieces = []
    for i, one in enumerate(layouts[: MOST_LAYOUTS - 1]):
        piece = _union([one], f"/{i}")
        pieces.append((piece.meanings, order[np.searchsorted(whole.ids[order], piece.ids)]))
    pieces.sort(key=lambda pair: len(pair[1]))
    return replace(whole, pieces=tuple(pieces))


def _union(layouts: Sequence[Meant], suffix: str) -> Known:
    """The signals of a target's layouts, each series once, the newest layout's first.

    Its id is its own: it is cut down, and the whole layout may come again under the one that it had.
    """
    newest = layouts[0]
    every = np.concatenate([one.ids for one in layouts])
    _, first, same = np.unique(every, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # in the order in which they are first named
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    keys = [key for one in layouts for key in one.keys]
    hashes = np.array([hash(keys[i]) for i in first[order].tolist()], np.int64)
    parts: dict[Target, int] = {}
    index, signal, part, fits, offset = [], [], [], [], 0
    for one in layouts:
        index.append(place[same[offset + one.index]])
        numbers = np.array([SIGNAL_NUMBER.get(name, -1) for name in one.signals], np.int64)
        here = np.array([parts.setdefault(target, len(parts)) for target in one.parts], np.int64)
        kinds = [SIGNALS[name].kind if name in SIGNALS else "" for name in one.signals]
        right = np.array([[kind == target.kind for target in one.parts] for kind in kinds], np.bool_)
        signal.append(numbers[one.signal])
        part.append(here[one.part])
        fits.append(right[one.signal, one.part])
        offset += len(one.ids)
    table = np.stack([np.concatenate(index), np.concatenate(signal), np.concatenate(part)])
    table = table[:, fitting := np.concatenate(fits)]
    _, kept = np.unique(table, axis=1, return_index=True)
    kept.sort()
    scale, counter = (np.concatenate(column)[fitting][kept] for column in
                      ([one.scale for one in layouts], [one.counter for one in layouts]))
    at, meaning, of = table[:, kept]
    return Known(newest.target_id, Meanings(f"warm/{newest.target_id}{suffix}", len(order), newest.node, newest.partial,
                   kept.astype(np.int64), at, hashes[at], meaning, scale, counter, of, tuple(parts)), every[first[order]])
