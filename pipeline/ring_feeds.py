"""One scrape target as the ring sees it: its layouts compiled to index arrays, its rhythm, and its scrapes in waiting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.derive import DERIVED, derive
from core.signals import SIGNALS
from core.types import Floats, Layout, Scrape, Target
from pipeline.ring_known import Key, KnownRows
from pipeline.ring_parts import Parts
from pipeline.ring_rows import GAP_INTERVALS, SIGNAL_NUMBER, UNKNOWN_INTERVAL_MS, Rows

Numbers = NDArray[np.int64]
Small = NDArray[np.signedinteger[Any]]
RHYTHM_SAMPLES = 16   # spacings that the median interval is learned from
SHORTEST_INTERVAL_MS = 1000.0
REMEMBERED = 8        # consumed scrapes against which repeats are told from late ones
MOST_ALIKE = 2048     # arrays of layouts that are kept to be shared by targets alike
MOST_LAYOUTS = 64     # layouts of one target that are kept; a target whose shape flips has a handful
RESTART_SHARE = 0.5   # counters of a target that fall at once when its exporter restarted
RESTART_COUNTERS = 3


def mark(scrape: Scrape) -> int:
    """A number that tells a repeat of a scrape from another reading of the same time, in place of its values."""
    return hash((scrape.layout_id, scrape.values.tobytes()))


@dataclass(slots=True)
class Meanings:
    """What the ring keeps of a layout: its signals as arrays, so that a fleet's millions of series need no objects here.

    position: of each signal among the layout's references; key: a number for name and labels of its series; part: an
    index into `parts`. References to what core.signals does not name are left out, and so are those whose part is of
    another kind than the signal.
    """

    id: str
    size: int
    node: str | None
    partial: bool
    position: Small
    index: Small
    key: Numbers
    signal: Small
    scale: Floats
    counter: NDArray[np.bool_]
    part: Small
    parts: tuple[Target, ...]

    def __post_init__(self) -> None:
        # A third of what they are made with, and once for targets alike: a fleet keeps them for each of its targets, for when the
        # shape comes back.
        self.position, self.index = _alike(self.position.astype(np.int32)), _alike(self.index.astype(np.int32))
        self.signal, self.part = _alike(self.signal.astype(np.int16)), _alike(self.part.astype(np.int32))
        self.scale, self.counter = _alike(self.scale.astype(np.float64)), _alike(self.counter)

    @property
    def ranks(self) -> bool:
        """True where all that it tells is of ranks: a trainer's own page."""
        return bool(self.parts) and all(part.kind == "rank" for part in self.parts)

    @staticmethod
    def of(layout: Layout) -> Meanings:
        """The layout's meanings."""
        parts: dict[Target, int] = {}
        rows = []
        for i, ref in enumerate(layout.signals):
            number = SIGNAL_NUMBER.get(ref.signal)
            if number is not None and SIGNALS[ref.signal].kind == ref.target.kind and 0 <= ref.index < len(layout.series):
                series = layout.series[ref.index]
                rows.append((i, ref.index, hash((series.name, series.labels)), number,
                             parts.setdefault(ref.target, len(parts))))
        position, index, key, signal, part = np.array(rows, np.int64).reshape(-1, 5).T.copy()
        kept = [layout.signals[i] for i in position.tolist()]
        return Meanings(layout.id, len(layout.series), layout.node, layout.partial, position, index, key, signal,
                        np.array([ref.scale for ref in kept], np.float64),
                        np.array([ref.counter for ref in kept], np.bool_), part, tuple(parts))


_known: dict[tuple[str, bytes], NDArray[Any]] = {}


def _alike(array: NDArray[Any]) -> NDArray[Any]:
    """An equal array that is known already, else this one; read-only."""
    key = array.dtype.str, array.tobytes()
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST_ALIKE:
            _known.clear()
        found = _known[key] = array
        array.flags.writeable = False
    return found


@dataclass(slots=True)
class Compiled:
    """A layout ready for use. index: positions in a scrape's values; scale and rows alike; ruled: (signal, positions)
    of values with a rule of their own; counters: positions of counters."""

    layout: Meanings
    index: Small
    scale: Floats
    rows: Small
    where: Small | slice
    ruled: tuple[tuple[str, Numbers], ...]
    counters: Small
    last_used: float = -np.inf
    started: bool = False


@dataclass(slots=True)
class Feed:
    """A target. heard: the tick at which anything last came of it. rows: by (series, signal, part). rhythm: by layout the last time, the spacings and their middle, ms. pending: by time. recent: marks of judged scrapes by time."""

    target_id: str
    number: int
    layouts: dict[str, Meanings] = field(default_factory=dict)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    rows: KnownRows = field(default_factory=KnownRows)
    rhythm: dict[str, tuple[float, deque[float], float]] = field(default_factory=dict)
    pending: dict[int, Scrape] = field(default_factory=dict)
    recent: dict[int, int] = field(default_factory=dict)
    current: str = ""
    last_at: float = -np.inf
    last_good: float = -np.inf
    failed: bool = False
    heard: int | None = None
    interval: float = np.nan

    def known(self, at: int) -> int | None:
        """The mark of the scrape of this time, None where there was none lately."""
        waiting = self.pending.get(at)
        return self.recent.get(at) if waiting is None else mark(waiting)

    def add_layout(self, meanings: Meanings) -> None:
        """Remembers a layout; the oldest go when there are too many."""
        self.layouts.pop(meanings.id, None)
        self.layouts[meanings.id] = meanings
        while len(self.layouts) > MOST_LAYOUTS:
            oldest = next(iter(self.layouts))
            if oldest == self.current:
                self.layouts[oldest] = self.layouts.pop(oldest)
                continue
            del self.layouts[oldest]

    def fresh(self, tick: float) -> bool:
        """True while its newest good scrape is at most 2.5 intervals old."""
        known = UNKNOWN_INTERVAL_MS if isnan(self.interval) else self.interval
        return tick - self.last_good <= max(2.5 * known, 15_000.0)

    def learn(self, layout_id: str, at: float) -> float:
        """The interval in ms with the spacing that `at` adds, NaN where none is known. Each layout learns by itself,
        starting from what the target knew, so that two pages of one target in turn do not halve each other's."""
        last, spacings, middle = self.rhythm.get(layout_id, (np.nan, None, np.nan))
        if spacings is not None and len(spacings) == RHYTHM_SAMPLES and at - last == spacings[0]:
            spacings.append(at - last)  # what goes is what comes: the middle stays
            self.rhythm[layout_id] = (at, spacings, middle)
            return middle
        if spacings is None:
            known = self.rhythm.get(self.current)
            spacings = deque(known[1] if known else (), maxlen=RHYTHM_SAMPLES)
            last = self.last_at if known and np.isfinite(self.last_at) and len(self.rhythm) == 1 else np.nan
        if not isnan(last) and at > last:
            spacings.append(at - last)
        ordered = sorted(spacings)
        middle = max(ordered[(len(ordered) - 1) // 2], SHORTEST_INTERVAL_MS) if ordered else np.nan
        self.rhythm[layout_id] = (at, spacings, middle)
        return middle

    def forget_layout(self, layout_id: str) -> None:
        """Drops what was compiled; the layout itself stays, should the shape come back."""
        self.compiled.pop(layout_id, None)
        self.rhythm.pop(layout_id, None)


def compile_layout(feed: Feed, layout: Meanings, rows: Rows, parts: Parts) -> Compiled:
    """Resolves the parts and rows of a layout."""
    numbers_of = np.array([parts.resolve(target) for target in layout.parts], np.int64)
    part = numbers_of[layout.part] if len(numbers_of) else layout.part
    keys = list(zip(layout.key.tolist(), layout.signal.tolist(), part.tolist(), strict=True))
    known = feed.rows.by_key()
    new: dict[Key, int] = {}
    for i, key in enumerate(keys):
        if key not in known:
            new.setdefault(key, i)
    at = np.fromiter(new.values(), np.int64, len(new))
    added = rows.add(part[at], layout.signal[at], layout.counter[at], feed.number, layout.position[at])
    feed.rows.add(layout.key[at], layout.signal[at], part[at], added)
    known.update(zip(new, added.tolist(), strict=True))
    # the same series twice in one page: the first counts, a later one would write over it
    kept: dict[int, int] = {}
    for i, key in enumerate(keys):
        kept.setdefault(known[key], i)
    chosen = np.fromiter(kept, np.int32, len(kept))
    taken = np.fromiter(kept.values(), np.int64, len(kept))
    signals = layout.signal[taken]
    ruled = tuple((name, np.flatnonzero(signals == SIGNAL_NUMBER[name]))
                  for name in sorted(DERIVED) if (signals == SIGNAL_NUMBER[name]).any())
    whole = len(chosen) > 0 and bool((np.diff(chosen) == 1).all())
    return Compiled(
        layout, _alike(layout.index[taken]), _alike(layout.scale[taken]), chosen,
        slice(int(chosen[0]), int(chosen[-1]) + 1) if whole else chosen,
        ruled, _alike(np.flatnonzero(layout.counter[taken]).astype(np.int32)),
    )


def apply(feed: Feed, scrape: Scrape, shape: Compiled, rows: Rows) -> bool:
    """Writes a good scrape into the rows. Gives True where its exporter seems to have restarted."""
    at = float(scrape.at)
    interval = feed.interval
    raw = scrape.values[shape.index]
    with np.errstate(invalid="ignore", over="ignore"):
        values = raw * shape.scale
    for signal, positions in shape.ruled:
        values[positions] = derive(signal, raw[positions], shape.scale[positions])
    finite = np.isfinite(values)
    everything = bool(finite.all())
    if shape.layout.partial:  # what it does not tell may be told at another time
        rows.gone[shape.rows] = True
    elif not everything or len(shape.rows) != len(feed.rows):
        rows.gone[feed.rows.all()] = True
    where: Small | slice = shape.where if everything else shape.rows[finite]
    counted = shape.counters if everything else shape.counters[finite[shape.counters]]
    restarted = _count(rows, shape.rows[counted], values[counted], at, interval) if len(counted) else False
    kept = values if everything else values[finite]
    rows.gone[where] = False
    rows.value[where] = kept
    rows.at[where] = at
    rows.set_interval(where, interval)
    if not shape.started or not everything:
        rows.set_first(where, at)
    shape.started = everything
    shape.last_used = at
    feed.current = shape.layout.id
    return restarted


def _count(rows: Rows, which: Small, values: Floats, at: float, interval: float) -> bool:
    """Marks counters that fell or paused for too long, and gives new ones their base."""
    base = rows.base_at[which]
    started = ~np.isnan(base)
    before = rows.value[which]
    gap = GAP_INTERVALS * (UNKNOWN_INTERVAL_MS if np.isnan(interval) else interval)
    fell = started & (values < before)
    late = started & (at - rows.at[which] > gap)
    broken = fell | late
    if broken.any():
        rows.broken[which] |= broken
    if not started.all():
        new = which[~started]
        rows.base_value[new], rows.base_at[new] = values[~started], at
    counting = int((started & (before > 0)).sum())
    return int(fell.sum()) >= RESTART_COUNTERS and int(fell.sum()) >= RESTART_SHARE * counting
