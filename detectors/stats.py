"""Statistics that detectors share: robust, blind to missing values, vectorised over entities.

All arrays are float64 and NaN means missing. A statistic of nothing is NaN, never zero, and nothing here warns. Columns
are entities and rows are ticks, as in `core.window.Block`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.signals import unit_of
from core.types import Evidence, Floats
from core.window import Block, Window

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# Columns that are worked out at once: of a large fleet what is in between stays in the processor's cache.
TOGETHER = 4096
# Makes the median absolute deviation comparable with a standard deviation for normal noise.
MAD_TO_SIGMA = 1.4826
# A single late or bursty sample spans at most two thirds of three intervals, so three thirds are never one sample.
PARTS = 3
# From this scrape interval on a burst across two samples would touch all three thirds: each must hold it for more than
# half of its ticks.
SLOW_TICKS = 3
# A scrape interval longer than this is read as this: no evidence window grows beyond six minutes.
LONGEST_INTERVAL_TICKS = 8


def median(values: Floats, axis: int = 0) -> Floats:
    """Median along `axis` without the missing; NaN where all are.

    It is asked hundreds of times in a tick, mostly of small arrays: what costs numpy a dozen calls is done in four.
    """
    values = np.asarray(values, np.float64)
    rows = values.shape[axis]
    if not rows:
        return np.full(values.shape[:axis] + values.shape[axis + 1:] if axis else values.shape[1:], np.nan)
    if values.ndim == 2 and not axis and values.shape[1] > TOGETHER:
        return np.concatenate([median(values[:, some]) for some in _slices(values.shape[1])])
    if values.ndim == 1:
        ordered = np.sort(values)  # NaN sorts last
        n = int(ordered.searchsorted(np.nan))
        return np.asarray((ordered[max(0, (n - 1) // 2)] + ordered[min(n // 2, rows - 1)]) / 2.0 if n else np.nan)
    ordered = np.sort(values, axis=axis)
    if axis:
        ordered = np.moveaxis(ordered, axis, 0)
    missing = np.isnan(ordered[-1])
    if not missing.any():
        return np.asarray((ordered[(rows - 1) // 2] + ordered[rows // 2]) / 2.0)
    n = rows - np.isnan(ordered).sum(axis=0)
    low, high = np.maximum((n - 1) // 2, 0), np.minimum(n // 2, rows - 1)
    if values.ndim == 2:
        columns = np.arange(ordered.shape[1])
        return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2.0)  # of none known both are NaN
    a = np.take_along_axis(ordered, low[None], 0)[0]
    b = np.take_along_axis(ordered, high[None], 0)[0]
    return np.asarray((a + b) / 2.0)


def _slices(columns: int) -> list[slice]:
    return [slice(first, min(first + TOGETHER, columns)) for first in range(0, columns, TOGETHER)]


def mean(values: Floats, axis: int = 0) -> Floats:
    """Mean along `axis` without the missing; NaN where all are."""
    values = np.asarray(values, np.float64)
    known = ~np.isnan(values)
    n = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(n > 0, total / np.maximum(n, 1), np.nan))


def quantile(values: Floats, q: float) -> Floats:
    """Quantile (0–1) along the first axis without the missing, by the nearest lower rank; NaN where all are."""
    values = np.asarray(values, np.float64)
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    if q == 1.0:
        return np.asarray(np.fmax.reduce(values, axis=0))
    if q == 0.0:
        return np.asarray(np.fmin.reduce(values, axis=0))
    if values.ndim == 2 and values.shape[1] > TOGETHER:
        return np.concatenate([quantile(values[:, some], q) for some in _slices(values.shape[1])])
    values = np.sort(values, axis=0)
    if values.ndim > 1 and not np.isnan(values[-1]).any():
        return np.asarray(values[int(np.floor((len(values) - 1) * q))])
    n = np.asarray((~np.isnan(values)).sum(axis=0))
    at = np.floor(np.maximum(n - 1, 0) * q).astype(np.int64)
    if values.ndim == 2:
        return np.asarray(values[at, np.arange(values.shape[1])])
    return np.where(n > 0, np.take_along_axis(values, at[None], 0)[0], np.nan)


def cut(values: Floats, rows: Ints, columns: Ints) -> Floats:
    """float64[row, column]: these rows of these columns. `values[rows][:, columns]` is the same, and copies all columns first: for one job of
    hundreds after the other that is most of a tick."""
    return np.asarray(values[np.ix_(rows, columns)])


def count(values: Floats) -> Ints:
    """How many values of each column are known."""
    return np.asarray((~np.isnan(values)).sum(axis=0), np.int64)


def highest(*arrays: Floats) -> Floats:
    """Elementwise maximum of the known; NaN where none is."""
    out = arrays[0]
    for other in arrays[1:]:
        out = np.fmax(out, other)
    return out


def above(values: Floats, limit: Floats | float) -> Bools:
    """values >= limit, False where either is missing."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values >= limit)


def below(values: Floats, limit: Floats | float) -> Bools:
    """values <= limit, False where either is missing."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values <= limit)


def ratio(a: Floats, b: Floats) -> Floats:
    """a / b, NaN where b is zero or either is missing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(b != 0, np.divide(a, b), np.nan))


def filled(values: Floats) -> Floats:
    """Each missing value replaced by the newest known one before it in its column; NaN before the first."""
    values = np.asarray(values, np.float64)
    if not values.size:
        return values
    missing = np.isnan(values)
    if not missing.any():
        return values
    rows = np.arange(len(values))[:, None]
    at = np.maximum.accumulate(np.where(missing, 0, rows), axis=0)
    return np.asarray(values[at, np.arange(values.shape[1])]) if values.ndim == 2 else np.take_along_axis(values, at, 0)


def newest(values: Floats) -> Floats:
    """float64[column]: the newest known value of each, NaN where there is none: the last row of `filled`."""
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    out = np.array(values[-1])
    columns = np.flatnonzero(np.isnan(out))
    if len(columns) and len(values) > 1:
        out[columns] = filled(values[:, columns])[-1]
    return out


def slope_per_second(values: Floats, times: Ints) -> Floats:
    """Least-squares slope of each column in units per second; NaN with fewer than three known values."""
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    seconds = ((times - (times[-1] if len(times) else 0)) / 1000.0)[:, None]
    t_mean = np.where(known, seconds, 0.0).sum(axis=0) / np.maximum(n, 1)
    t = np.where(known, seconds - t_mean, 0.0)
    y = np.where(known, values - mean(values), 0.0)
    spread = (t * t).sum(axis=0)
    return np.asarray(np.where((n >= 3) & (spread > 0), (t * y).sum(axis=0) / np.maximum(spread, 1e-12), np.nan))


# --- evidence over time -----------------------------------------------------------------------------------------------
def interval_ticks(block: Block, step_seconds: int) -> Ints:
    """int[entity]: the scrape interval in ticks, rounded up, 1 where it is not known yet."""
    seconds = np.where(np.isnan(block.interval_seconds), step_seconds, block.interval_seconds)
    # A tenth of a tick of jitter in the learned interval must not count as another tick.
    return np.clip(np.ceil(seconds / step_seconds - 0.1), 1, LONGEST_INTERVAL_TICKS).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The last moments of a signal by entity. mean: over the span. low, high: the smallest and largest mean of its
    three thirds, so a level that holds shows in `low` and a burst of one sample does not. known: ticks with a value."""

    mean: Floats
    low: Floats
    high: Floats
    known: Ints


def span(values: Floats, intervals: Ints, ticks: int) -> Span:
    """The last max(`ticks`, three intervals) rows of `values` (float64[tick, entity]) as a `Span`.

    Of slow pages (`SLOW_TICKS`) low is the smallest median of the thirds. Thirds without a value are left out, but fewer
    than two thirds with a value give NaN for low and high.
    """
    n = values.shape[1]
    out = Span(np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))
    if len(values):
        for some in _slices(n):
            _fill_span(Span(out.mean[some], out.low[some], out.high[some], out.known[some]), values[:, some], intervals[some], ticks)
    return out


def _fill_span(out: Span, values: Floats, intervals: Ints, ticks: int) -> None:
    """Writes the span of some columns into `out`."""
    n = values.shape[1]
    lengths = np.maximum(ticks, PARTS * intervals)
    for length in np.unique(lengths).tolist():
        columns = np.flatnonzero(lengths == length)
        whole = len(columns) == n
        tail = values[-length:] if whole else values[-length:, columns]
        rows = len(tail)
        # As numpy.array_split cuts: the first parts are the longer ones.
        starts = [i * (rows // PARTS) + min(i, rows % PARTS) for i in range(PARTS)]
        known = ~np.isnan(tail)
        if rows < PARTS:
            sums, counts = np.where(known, tail, 0.0), known.astype(np.int64)
        else:
            sums, counts = _by_part(tail, known, [*starts, rows])
        there = counts > 0
        thirds = np.where(there, sums / np.maximum(counts, 1), np.nan)
        total = counts.sum(axis=0)
        enough = there.sum(axis=0) >= PARTS - 1
        lowest = np.fmin.reduce(thirds)
        slow = intervals[columns] >= SLOW_TICKS
        if slow.any():
            lowest[slow] = np.fmin.reduce(np.stack([quantile(p, 0.5) for p in np.array_split(tail[:, slow], PARTS)]))
        where = slice(None) if whole else columns
        out.mean[where] = np.where(total > 0, sums.sum(axis=0) / np.maximum(total, 1), np.nan)
        out.low[where] = np.where(enough, lowest, np.nan)
        out.high[where] = np.where(enough, np.fmax.reduce(thirds), np.nan)
        out.known[where] = total


def _by_part(tail: Floats, known: Bools, edges: Sequence[int]) -> tuple[Floats, Ints]:
    """float64[part, column]: the sum of what is known of the rows between two edges; int64: how many that are."""
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    if known.all():  # of most signals
        sums = np.stack([np.add.reduce(tail[part], axis=0) for part in parts])
        lengths = np.array([part.stop - part.start for part in parts], np.int64)
        return sums, np.repeat(lengths[:, None], tail.shape[1], axis=1)
    filled = np.where(known, tail, 0.0)
    sums = np.stack([np.add.reduce(filled[part], axis=0) for part in parts])
    return sums, np.stack([np.add.reduce(known[part], axis=0, dtype=np.int64) for part in parts])


def span_of(window: Window, signal: str, seconds: float) -> Span:
    """The signal's last `seconds` (at least three of its intervals). Read-only: detectors share it."""
    def make() -> Span:
        block = window.block(signal)
        found = span(block.values, intervals_of(window, signal), window.ticks(seconds))
        for array in (found.mean, found.low, found.high, found.known):
            array.flags.writeable = False
        return found

    return window.once(("span", signal, seconds), make)


def intervals_of(window: Window, signal: str) -> Ints:
    """`interval_ticks` of the signal's block. Read-only."""
    def make() -> Ints:
        found = interval_ticks(window.block(signal), window.step_seconds)
        found.flags.writeable = False
        return found

    return window.once(("intervals", signal), make)


def run_start(symptom: Bools, times: Ints, gap: int) -> Ints:
    """int64[entity]: when the newest run of `symptom` (bool[tick, entity]) began, ms; holes of up to `gap` ticks do not
    end a run. The last time where there is no symptom at all."""
    ticks, n = symptom.shape
    start = np.full(n, times[-1] if len(times) else 0, np.int64)
    since = np.zeros(n, np.int64)
    alive = np.ones(n, bool)
    for row in range(ticks - 1, -1, -1):
        on = symptom[row] & alive
        start[on] = times[row]
        since = np.where(on, 0, since + 1)
        alive &= since <= gap
        if not alive.any():
            break
    return start


# --- peers ------------------------------------------------------------------------------------------------------------
def codes(keys: Iterable[Hashable]) -> Ints:
    """Equal keys get equal whole numbers, counted from 0 in order of appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Peers:
    """The other members of each entity's group. middle: their median, the entity itself left out. spread: the group's
    MAD as a sigma. n: how many others are known."""

    middle: Floats
    spread: Floats
    n: Ints


def peers(values: Floats, groups: Ints) -> Peers:
    """Compares float64[entity] with the rest of its group (int[entity], negative = no group).

    All groups at once: values in order within their group, the known ones first, and medians by their places.
    """
    size = len(values)
    middle, spread = np.full(size, np.nan), np.full(size, np.nan)
    n = np.zeros(size, np.int64)
    mine = np.flatnonzero(groups >= 0)
    if not len(mine):
        return Peers(middle, spread, n)
    order = mine[np.lexsort((values[mine], groups[mine]))]  # NaN sorts last within its group
    of, ordered = groups[order], values[order]
    edge = np.concatenate([[True], of[1:] != of[:-1]])
    group = np.cumsum(edge) - 1
    start = np.flatnonzero(edge)
    known = ~np.isnan(ordered)
    m = np.add.reduceat(known, start, dtype=np.int64)
    centre = _of_sorted(ordered, start, m)
    apart = np.abs(ordered - centre[group])
    spreads = MAD_TO_SIGMA * _of_sorted(apart[np.lexsort((apart, group))], start, m)
    spread[order] = np.where(m > 0, spreads, np.nan)[group]
    members = m[group]
    n[order] = np.where(members > 0, members - known, 0)
    # The median without one member: ranks above the member move down by one.
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) | edge
    place = np.flatnonzero(first)[np.cumsum(first) - 1] - start[group]  # of the first of equal values
    low, high = np.maximum((members - 2) // 2, 0), np.maximum((members - 1) // 2, 0)
    last = start[group] + np.maximum(members - 1, 0)
    a = ordered[np.minimum(start[group] + low + (place <= low), last)]
    b = ordered[np.minimum(start[group] + high + (place <= high), last)]
    middle[order] = np.where(known, np.where(members >= 2, (a + b) / 2.0, np.nan), centre[group])
    return Peers(middle, spread, n)


def _of_sorted(ordered: Floats, start: Ints, m: Ints) -> Floats:
    """float64[group]: the median of each group's first m values of `ordered`, NaN where m is 0."""
    last = len(ordered) - 1
    low, high = start + np.maximum((m - 1) // 2, 0), np.minimum(start + np.maximum(m // 2, 0), last)
    return np.asarray(np.where(m > 0, (ordered[low] + ordered[high]) / 2.0, np.nan))


def robust_z(values: Floats, group: Peers, floor: float) -> Floats:
    """Deviations from the peers' median in robust sigmas; `floor` is the least sigma (the sensor's own step)."""
    return np.asarray((values - group.middle) / np.maximum(group.spread, floor))


# --- the part's own past ----------------------------------------------------------------------------------------------
def own_past(window: Window, signal: str, columns: Ints, skip_ticks: int, q: float, when: Bools | None = None) -> Floats:
    """float64[len(columns)]: the quantile `q` of each part's own past in the window, the last `skip_ticks` left out.

    when: bool[tick, entity], ticks that count (None = all). NaN with fewer than 8 known ticks.
    """
    values = window.values(signal)
    end = max(0, len(values) - skip_ticks)
    past = values[:end, columns]
    if when is not None:
        past = np.where(when[:end, columns], past, np.nan)
    return np.where(count(past) >= 8, quantile(past, q), np.nan)


def long_past(window: Window, signal: str, seconds: int, columns: Ints, enough: int = 10) -> Floats:
    """float64[len(columns)]: the baseline's median (open findings left out), NaN with fewer than `enough` minutes."""
    base = window.baseline(signal, seconds)
    return np.where(base.n[columns] >= enough, base.median[columns], np.nan)


# --- evidence ---------------------------------------------------------------------------------------------------------
def evidence(signal: str, observed: float, expected: float | None, compared_with: str,
             text: str | None = None) -> Evidence:
    """One piece of evidence; NaN becomes None."""
    return Evidence(signal, unit_of(signal), _known(observed), _known(expected), compared_with, text)


def _known(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 6)


def model_of(window: Window, node: str | None) -> str:
    """The instance type of a node, empty where the inventory does not say: what its parts can be compared with."""
    place = window.topology.place(node)
    return (place.instance_type or "") if place else ""


def node_jobs(window: Window) -> dict[str, str]:
    """The job of each node; nodes that several running jobs share are left out. Detectors share it."""
    return window.once("jobs of nodes", lambda: _node_jobs(window))


def _node_jobs(window: Window) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for job in window.jobs:
        if job.running:
            for node in job.nodes:
                found.setdefault(node, set()).add(job.id)
    return {node: next(iter(ids)) for node, ids in found.items() if len(ids) == 1}


def columns_where(flags: Sequence[bool] | Bools) -> Ints:
    """The positions of the true flags."""
    return np.flatnonzero(np.asarray(flags)).astype(np.int64)


def error_of_median(values: Floats) -> float:
    """Robust standard error of the median of float64[n], as a share of it; 0 where that is not known."""
    known = values[~np.isnan(values)]
    middle = float(np.median(known)) if len(known) else 0.0
    return 1.25 * MAD_TO_SIGMA * float(np.median(np.abs(known - middle))) / middle / float(np.sqrt(len(known))) if middle > 0 else 0.0
