"""One scrape each of many targets, written into the ring's rows together.

Data shape: 1,000 nodes have 5,000 targets of some 100 signals each, and at a tick nearly each of them has one scrape of the
layout that it had before. Taken one by one they cost two dozen numpy calls each (0.2 ms: a second of every tick); side by
side, in the order of their rows, the same calls run once for all of them. What came is the same as `ring_feeds.apply` of
one after the other: no row belongs to two targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.derive import DERIVED, derive
from core.types import Floats, Scrape
from pipeline.ring_feeds import RESTART_COUNTERS, RESTART_SHARE, Compiled, Feed
from pipeline.ring_rows import GAP_INTERVALS, UNKNOWN_INTERVAL_MS, Bools, Numbers, Rows, Small

MOST_KEPT = 4  # of the last crowds: targets of two intervals come in turn
# Targets whose rows begin in one such stretch are one crowd: what they pass on stays in the processor's cache, and where one of
# them shows another shape, only its neighbours have to be put together anew.
STRETCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """A good scrape of a target whose layout is compiled, current and whole."""

    feed: Feed
    scrape: Scrape
    shape: Compiled
    interval: float


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """The shapes of a crowd as one. ids: of the shapes; index: into all scrapes' values side by side; scale, rows: by signal;
    where: the rows, as a slice if they stand side by side; starts, sizes: each target's first signal and how many it has. ruled:
    (signal, positions). counters: positions; counted: how many each target has."""

    shapes: tuple[Compiled, ...]
    ids: tuple[int, ...]
    index: Small
    scale: Floats
    rows: Small
    where: slice | Small
    starts: Numbers
    sizes: Numbers
    ruled: tuple[tuple[str, Small], ...]
    counters: Small
    counted: Numbers


class Crowd:
    """Keeps how shapes come together for the next tick."""

    def __init__(self) -> None:
        self._kept: dict[int, list[_Gathered]] = {}  # by stretch

    def apply(self, readings: Sequence[Reading], rows: Rows) -> list[Reading]:
        """Writes them. Gives those whose exporter seems to have restarted."""
        stretches: dict[int, list[Reading]] = {}
        for first, i in sorted((int(one.shape.rows[0]), i) for i, one in enumerate(readings)):
            stretches.setdefault(first // STRETCH, []).append(readings[i])
        return [one for stretch, some in stretches.items() for one in self._apply(stretch, some, rows)]

    def _apply(self, stretch: int, some: Sequence[Reading], rows: Rows) -> list[Reading]:
        how = self._gathered(stretch, tuple(one.shape for one in some))
        raw = np.concatenate([one.scrape.values for one in some])[how.index]
        with np.errstate(invalid="ignore", over="ignore"):
            values = raw * how.scale
        for signal, positions in how.ruled:
            values[positions] = derive(signal, raw[positions], how.scale[positions])
        finite = np.isfinite(values)
        at = np.array([one.scrape.at for one in some], np.float64)
        interval = np.array([one.interval for one in some], np.float64)
        restarted = _count(rows, how, values, finite, at, interval)
        everything = np.logical_and.reduceat(finite, how.starts)
        for one in some:  # rows that another layout of the target left
            if len(one.shape.rows) != len(one.feed.rows):
                rows.gone[one.feed.rows.all()] = True
        _write(rows, how, values, finite, at, interval)
        for one, all_there in zip(some, everything.tolist(), strict=True):
            one.shape.started = all_there
            one.shape.last_used = float(one.scrape.at)
        return [some[i] for i in restarted]

    def _gathered(self, stretch: int, shapes: tuple[Compiled, ...]) -> _Gathered:
        kept, ids = self._kept.setdefault(stretch, []), tuple(map(id, shapes))
        for one in kept:
            if one.ids == ids:
                return one
        made = _gather(shapes)
        kept.append(made)
        del kept[:-MOST_KEPT]
        return made


def _gather(shapes: tuple[Compiled, ...]) -> _Gathered:
    sizes = np.array([len(shape.rows) for shape in shapes], np.int64)
    starts = np.cumsum(sizes) - sizes
    ends = np.cumsum([shape.layout.size for shape in shapes])
    firsts = ends - np.array([shape.layout.size for shape in shapes])
    index = np.concatenate([shape.index + first for shape, first in zip(shapes, firsts.tolist(), strict=True)])
    rows = np.concatenate([shape.rows for shape in shapes]).astype(np.int32)
    together = bool((np.diff(rows) == 1).all())
    ruled: dict[str, list[NDArray[Any]]] = {}
    for shape, start in zip(shapes, starts.tolist(), strict=True):
        for signal, positions in shape.ruled:
            ruled.setdefault(signal, []).append(positions + start)
    counters = np.concatenate([shape.counters + start for shape, start in zip(shapes, starts.tolist(), strict=True)])
    return _Gathered(
        shapes, tuple(map(id, shapes)), index.astype(np.int32), np.concatenate([shape.scale for shape in shapes]), rows,
        slice(int(rows[0]), int(rows[-1]) + 1) if together else rows, starts, sizes,
        tuple((signal, np.concatenate(ruled[signal]).astype(np.int32)) for signal in sorted(DERIVED & ruled.keys())),
        counters.astype(np.int32), np.array([len(shape.counters) for shape in shapes], np.int64),
    )


def _write(rows: Rows, how: _Gathered, values: Floats, finite: Bools, at: Floats, interval: Floats) -> None:
    """The newest values where they are numbers; the other rows are gone."""
    where, when, each = how.where, np.repeat(at, how.sizes), np.repeat(interval, how.sizes)
    if not finite.all():
        where = how.rows[finite]
        rows.gone[how.rows[~finite]] = True
        values, when, each = values[finite], when[finite], each[finite]
    rows.gone[where] = False
    rows.value[where] = values
    rows.at[where] = when
    rows.set_interval(where, each)
    rows.set_first(where, when)


def _count(rows: Rows, how: _Gathered, values: Floats, finite: Bools, at: Floats, interval: Floats) -> list[int]:
    """As `ring_feeds._count` for all of them; the positions of targets that seem to have restarted."""
    positions, of = how.counters, np.repeat(np.arange(len(at)), how.counted)
    which = how.rows[positions]
    known = finite[positions]
    if not known.all():
        which, positions, of = which[known], positions[known], of[known]
    if not len(which):
        return []
    base, before, now = rows.base_at[which], rows.value[which], values[positions]
    started = ~np.isnan(base)
    gap = GAP_INTERVALS * np.where(np.isnan(interval), UNKNOWN_INTERVAL_MS, interval)
    with np.errstate(invalid="ignore"):
        fell = started & (now < before)
    broken = fell | (started & (at[of] - rows.at[which] > gap[of]))
    if broken.any():
        rows.broken[which[broken]] = True
    if not started.all():
        new = which[~started]
        rows.base_value[new], rows.base_at[new] = now[~started], at[of[~started]]
    if not fell.any():
        return []
    n = len(at)
    fallen = np.bincount(of[fell], minlength=n)
    counting = np.bincount(of[started & (before > 0)], minlength=n)
    return np.flatnonzero((fallen >= RESTART_COUNTERS) & (fallen >= RESTART_SHARE * counting)).tolist()
