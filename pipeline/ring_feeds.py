"""One scrape target as the ring sees it: its layouts compiled to index arrays, its rhythm, and its scrapes in waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.derive import DERIVED, derive
from core.signals import SIGNALS
from core.types import Floats, Layout, Scrape
from pipeline.ring_parts import Parts
from pipeline.ring_rows import GAP_INTERVALS, SIGNAL_NUMBER, UNKNOWN_INTERVAL_MS, Rows

Numbers = NDArray[np.int64]
RHYTHM_SAMPLES = 16   # spacings that the median interval is learned from
SHORTEST_INTERVAL_MS = 1000.0
REMEMBERED = 8        # consumed scrapes against which repeats are told from late ones
MOST_LAYOUTS = 64     # layouts of one target that are kept; a target whose shape flips has a handful
RESTART_SHARE = 0.5   # counters of a target that fall at once when its exporter restarted
RESTART_COUNTERS = 3


@dataclass(slots=True)
class Compiled:
    """A layout ready for use. index: positions in a scrape's values; scale and rows alike; ruled: (signal, positions)
    of values with a rule of their own; counters: positions of counters; full: it holds all rows of its feed."""

    layout: Layout
    index: Numbers
    scale: Floats
    rows: Numbers
    where: Numbers | slice
    ruled: tuple[tuple[str, Numbers], ...]
    counters: Numbers
    last_used: float = -np.inf
    started: bool = False


@dataclass(slots=True)
class Feed:
    """A target. heard: the tick at which anything last came of it. rows: by (series name, labels, signal, part). rhythm: spacings by layout, ms. pending: by time."""

    target_id: str
    number: int
    layouts: dict[str, Layout] = field(default_factory=dict)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    rows: dict[tuple[object, ...], int] = field(default_factory=dict)
    rhythm: dict[str, tuple[float, deque[float]]] = field(default_factory=dict)
    pending: dict[int, Scrape] = field(default_factory=dict)
    recent: dict[int, Scrape] = field(default_factory=dict)
    current: str = ""
    last_at: float = -np.inf
    last_good: float = -np.inf
    failed: bool = False
    heard: int | None = None
    interval: float = np.nan
    every: Numbers | None = None

    def all_rows(self) -> Numbers:
        """int64[row]: all rows that the target ever filled and that are still kept."""
        if self.every is None or len(self.every) != len(self.rows):
            self.every = np.fromiter(self.rows.values(), np.int64, len(self.rows))
        return self.every

    def drop_rows(self, keys: Iterable[tuple[object, ...]]) -> Numbers:
        """Takes rows off the target; gives their numbers."""
        numbers = np.array([self.rows.pop(key) for key in keys], np.int64)
        self.every = None
        return numbers

    def add_layout(self, layout: Layout) -> None:
        """Remembers a layout; the oldest go when there are too many."""
        self.layouts.pop(layout.id, None)
        self.layouts[layout.id] = layout
        while len(self.layouts) > MOST_LAYOUTS:
            oldest = next(iter(self.layouts))
            if oldest == self.current:
                self.layouts[oldest] = self.layouts.pop(oldest)
                continue
            del self.layouts[oldest]

    def fresh(self, tick: float) -> bool:
        """True while its newest good scrape is at most 2.5 intervals old."""
        known = UNKNOWN_INTERVAL_MS if np.isnan(self.interval) else self.interval
        return tick - self.last_good <= max(2.5 * known, 15_000.0)

    def learn(self, layout_id: str, at: float) -> float:
        """The interval in ms with the spacing that `at` adds, NaN where none is known. Each layout learns by itself,
        starting from what the target knew, so that two pages of one target in turn do not halve each other's."""
        last, spacings = self.rhythm.get(layout_id, (np.nan, None))
        if spacings is None:
            known = self.rhythm.get(self.current)
            spacings = deque(known[1] if known else (), maxlen=RHYTHM_SAMPLES)
            last = self.last_at if known and np.isfinite(self.last_at) and len(self.rhythm) == 1 else np.nan
        if not np.isnan(last) and at > last:
            spacings.append(at - last)
        self.rhythm[layout_id] = (at, spacings)
        if not spacings:
            return np.nan
        ordered = sorted(spacings)
        return max(ordered[(len(ordered) - 1) // 2], SHORTEST_INTERVAL_MS)

    def forget_layout(self, layout_id: str) -> None:
        """Drops what was compiled; the layout itself stays, should the shape come back."""
        self.compiled.pop(layout_id, None)
        self.rhythm.pop(layout_id, None)


def compile_layout(feed: Feed, layout: Layout, rows: Rows, parts: Parts) -> Compiled:
    """Resolves the parts and rows of a layout. References to what core.signals does not name are left out, and so are
    those whose part is of another kind than the signal."""
    refs = [(i, r) for i, r in enumerate(layout.signals)
            if r.signal in SIGNAL_NUMBER and SIGNALS[r.signal].kind == r.target.kind
            and 0 <= r.index < len(layout.series)]
    keys: list[tuple[object, ...]] = []
    new: dict[tuple[object, ...], tuple[int, int, bool, int]] = {}
    for position, ref in refs:
        series = layout.series[ref.index]
        part = parts.resolve(ref.target)
        key: tuple[object, ...] = (series.name, series.labels, ref.signal, part)
        keys.append(key)
        if key not in feed.rows and key not in new:
            new[key] = (part, SIGNAL_NUMBER[ref.signal], ref.counter, position)
    columns = list(zip(*new.values(), strict=True)) or [(), (), (), ()]
    numbers = rows.add(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.bool_),
                       feed.number, np.array(columns[3], np.int64))
    feed.rows.update(zip(new, numbers.tolist(), strict=True))
    # the same series twice in one page: the first counts, a later one would write over it
    kept: dict[int, int] = {}
    for i, key in enumerate(keys):
        kept.setdefault(feed.rows[key], i)
    chosen = np.fromiter(kept, np.int64, len(kept))
    taken = [refs[i][1] for i in kept.values()]
    ruled = tuple((name, np.array([i for i, r in enumerate(taken) if r.signal == name], np.int64))
                  for name in sorted({r.signal for r in taken} & DERIVED))
    whole = len(chosen) > 0 and bool((np.diff(chosen) == 1).all())
    return Compiled(
        layout,
        np.array([r.index for r in taken], np.int64),
        np.array([r.scale for r in taken], np.float64),
        chosen,
        slice(int(chosen[0]), int(chosen[-1]) + 1) if whole else chosen,
        ruled,
        np.flatnonzero(np.array([r.counter for r in taken], np.bool_)),
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
    if not everything or len(shape.rows) != len(feed.rows):
        rows.gone[feed.all_rows()] = True
    where: Numbers | slice = shape.where if everything else shape.rows[finite]
    counted = shape.counters if everything else shape.counters[finite[shape.counters]]
    restarted = _count(rows, shape.rows[counted], values[counted], at, interval) if len(counted) else False
    kept = values if everything else values[finite]
    rows.gone[where] = False
    rows.value[where] = kept
    rows.at[where] = at
    rows.interval[where] = interval
    if not shape.started or not everything:
        first = rows.first_at[where]
        rows.first_at[where] = np.where(np.isnan(first), at, first)
    shape.started = everything
    shape.last_used = at
    feed.current = shape.layout.id
    return restarted


def _count(rows: Rows, which: Numbers, values: Floats, at: float, interval: float) -> bool:
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
