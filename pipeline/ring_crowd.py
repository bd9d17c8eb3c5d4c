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
from pipeline.ring_rows import GAP_INTERVALS, UNKNOWN_INTERVAL_MS, Bools, Numbers, Rows

MOST_KEPT = 4  # of the last crowds: targets of two intervals come in turn


@dataclass(frozen=True, slots=True)
class Reading:
    """A good scrape of a target whose layout is compiled, current and whole."""

    feed: Feed
    scrape: Scrape
    shape: Compiled
    interval: float


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """The shapes of a crowd as one. index: into all scrapes' values side by side; scale, where: by signal, where as a slice if
    the rows stand side by side; starts: each target's first signal; of: int[signal], its target. ruled: (signal, positions).
    counters: positions; counter_rows: their rows; counter_of: their targets."""

    shapes: tuple[Compiled, ...]
    index: Numbers
    scale: Floats
    rows: Numbers
    where: slice | Numbers
    starts: Numbers
    of: Numbers
    ruled: tuple[tuple[str, Numbers], ...]
    counters: Numbers
    counter_rows: Numbers
    counter_of: Numbers


class Crowd:
    """Keeps how shapes come together for the next tick."""

    def __init__(self) -> None:
        self._kept: list[_Gathered] = []

    def apply(self, readings: Sequence[Reading], rows: Rows) -> list[Reading]:
        """Writes them. Gives those whose exporter seems to have restarted."""
        if not readings:
            return []
        some = sorted(readings, key=lambda one: int(one.shape.rows[0]))
        how = self._gathered(tuple(one.shape for one in some))
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

    def _gathered(self, shapes: tuple[Compiled, ...]) -> _Gathered:
        for one in self._kept:
            if len(one.shapes) == len(shapes) and all(a is b for a, b in zip(one.shapes, shapes, strict=True)):
                return one
        made = _gather(shapes)
        self._kept.append(made)
        del self._kept[:-MOST_KEPT]
        return made


def _gather(shapes: tuple[Compiled, ...]) -> _Gathered:
    sizes = np.array([len(shape.rows) for shape in shapes], np.int64)
    starts = np.cumsum(sizes) - sizes
    ends = np.cumsum([shape.layout.size for shape in shapes])
    firsts = ends - np.array([shape.layout.size for shape in shapes])
    index = np.concatenate([shape.index + first for shape, first in zip(shapes, firsts.tolist(), strict=True)])
    rows = np.concatenate([shape.rows for shape in shapes]).astype(np.int64)
    together = bool((np.diff(rows) == 1).all())
    ruled: dict[str, list[NDArray[Any]]] = {}
    for shape, start in zip(shapes, starts.tolist(), strict=True):
        for signal, positions in shape.ruled:
            ruled.setdefault(signal, []).append(positions + start)
    counters = np.concatenate([shape.counters + start for shape, start in zip(shapes, starts.tolist(), strict=True)]).astype(np.int64)
    of = np.repeat(np.arange(len(shapes)), sizes)
    return _Gathered(
        shapes, index.astype(np.int64), np.concatenate([shape.scale for shape in shapes]), rows,
        slice(int(rows[0]), int(rows[-1]) + 1) if together else rows, starts, of,
        tuple((signal, np.concatenate(ruled[signal])) for signal in sorted(DERIVED & ruled.keys())),
        counters, rows[counters], of[counters],
    )


def _write(rows: Rows, how: _Gathered, values: Floats, finite: Bools, at: Floats, interval: Floats) -> None:
    """The newest values where they are numbers; the other rows are gone."""
    where, when, each = how.where, at[how.of], interval[how.of]
    if not finite.all():
        where = how.rows[finite]
        rows.gone[how.rows[~finite]] = True
        values, when, each = values[finite], when[finite], each[finite]
    rows.gone[where] = False
    rows.value[where] = values
    rows.at[where] = when
    rows.interval[where] = each
    first = rows.first_at[where]
    new = np.isnan(first)
    if new.any():
        rows.first_at[where] = np.where(new, when, first)


def _count(rows: Rows, how: _Gathered, values: Floats, finite: Bools, at: Floats, interval: Floats) -> list[int]:
    """As `ring_feeds._count` for all of them; the positions of targets that seem to have restarted."""
    which, positions, of = how.counter_rows, how.counters, how.counter_of
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
