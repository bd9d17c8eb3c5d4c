"""The levels that a job's pace went through, and whether it is slower now than the level before.

A fault that was repaired leaves a slow spell in the window, so one change point is not enough: what became slow again is
compared with the level that it had in between, and not with the spell. Levels are found by splitting where the ranks of both
sides differ most, again and again; neighbours that differ by no more than chance are put together again.

Two kinds of values are told apart. A *step* is the time of a single step, read once a scrape or once a log line: its level is a
low quantile, for healthy steps have a narrow bulk and a long tail, and its error comes from the order statistics around
that quantile, whatever the shape. A *span* is the mean of all steps between two readings (by the counter of steps): each step
is in it, also the tail's, so its level is a mean without what lies far out. Jobs with a narrow bulk are told best by steps,
jobs whose steps are rough all over by spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.types import Floats
from detectors import job_pace, stats
from detectors.job_pace import LEAST_SIGMA, Change, at_quantile, level_of

LEAST = 6  # values that make a level of the past
# The quantiles that stand for the level of steps. The bulk of steps holds half of them or a little more: at its edge, where the tail begins,
# a quantile of few steps is known far worse than in its middle, and that of a slope's steps in its middle worse than at the edge.
EDGE, MIDDLE = job_pace.LEVEL, 0.2
# A bulk is narrower than the tail above it by this share; without one both are about as wide.
BULK = 0.5
# Values far from the usual say nothing of a level's place: so many robust sigmas, or so many times the bulk's width.
CALM_SIGMAS, CALM_WIDTHS = 4.0, 1.5
SPAN_SIGMAS = 3.0
# Sides are looked at where their ranks differ by so many sigmas; of noise alone the greatest of a hundred places does.
SCAN_SIGMAS = 2.5
# A split is kept where the sides differ by this share and so many standard errors.
SPLIT_SHARE, SPLIT_ERRORS = 0.015, 3.0
# Neighbouring values are not independent: the error is at least so much larger, or as their correlation says, up to
# `HIGHEST_RHO`; fewer values than `KNOWN_RHO` do not tell it.
UNKNOWN_RHO, HIGHEST_RHO, KNOWN_RHO, LEAST_FACTOR = 0.38, 0.8, 20, 1.25
# So many levels in a past without a fault are a job whose pace goes up and down by itself.
RESTLESS = 3
# A slope is at most so many times as long as the present.
MOST_SLOPE = 1.5
# So many values tell that a change is over, where they hold less than this share of its growth: single values scatter.
NEWEST, AS_BEFORE = 2, 0.3
ROUGH_STEPS = 10  # steps that tell how they scatter
# Levels that differ by less are one, when it is asked for how long the past was so.
ALIKE = 0.015


@dataclass(frozen=True, slots=True)
class Level:
    """values[start:stop] had this level; below, above: its standard error to either side."""

    start: int
    stop: int
    value: float
    below: float
    above: float


def level(values: Floats, q: float | None) -> float:
    """The level of float64[n] (n > 0, no NaN): of single steps their quantile q, of spans (q None) their mean."""
    return float(_inner(values).mean()) if q is None else at_quantile(np.sort(values), q)


def has_bulk(values: Floats) -> bool:
    """Most of these steps (float64[n]) lie closer together than the rest: a quantile in their middle says how fast the job is."""
    ordered = np.sort(values)
    tenth, edge, half, tail = (at_quantile(ordered, q) for q in (0.1, EDGE, 0.5, 0.8))
    return edge - tenth <= BULK * (tail - half)


def goes_on(values: Floats, one: Change) -> bool:
    """False where both of the newest values (float64[n]) are about as they were before the change: it is over."""
    return bool((values[-NEWEST:] >= one.before * (1.0 + AS_BEFORE * one.growth)).any())


def begun(values: Floats, one: Change) -> int:
    """The position of the first value of the new level that is nearer to it than to the old: a long step just before looks like one."""
    return one.at + int(np.argmax(values[one.at:one.at + 1 + NEWEST] >= one.before * (1.0 + 0.5 * one.growth)))


def scatter(values: Floats, q: float) -> float:
    """Robust sigma below the level, as a share of the whole's level: the quantile of spans of which the slope is taken away."""
    low = []
    for part in np.array_split(values, max(1, len(values) // ROUGH_STEPS)):
        half = len(part) // 2
        slope = (float(np.median(part[-half:])) - float(np.median(part[:half]))) / (len(part) - half)
        flat = np.sort(part - slope * np.arange(len(part)))
        low.append((at_quantile(flat, EDGE) - at_quantile(flat, 0.1)) / 0.9)  # these lie 0.9 sigma apart
    return max(float(np.quantile(low, q)) / level_of(values), LEAST_SIGMA)


def levels(values: Floats, last: int, q: float | None) -> list[Level]:
    """The levels of float64[n] (no NaN) in order. last: the newest has at least so many values. Empty where n is too small."""
    n = len(values)
    if n < LEAST + last:
        return []
    cuts = sorted(_cuts(values, 0, n, last))
    known = [_told(values, a, b, q) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    while len(known) > 1:
        told = [_apart(one, other) for one, other in pairwise(known)]
        at = int(np.argmin(told))
        if told[at] >= 1.0:
            break
        known[at:at + 2] = [_told(values, known[at].start, known[at + 1].stop, q)]
    return known


def _apart(one: Level, other: Level) -> float:
    """How far two neighbours differ, 1 = as much as makes them two."""
    low, high = (one, other) if one.value < other.value else (other, one)
    return (high.value - low.value) / max(SPLIT_SHARE * low.value, SPLIT_ERRORS * float(np.hypot(low.above, high.below)))


def _cuts(values: Floats, a: int, b: int, last: int) -> list[int]:
    """Where values[a:b] may fall apart: where the ranks of both sides differ most (a scan with Mann and Whitney's test), which
    long steps do not blur. last: the least length of the right-hand end."""
    n = b - a
    if n < LEAST + last:
        return []
    rank = np.empty(n)
    rank[np.argsort(values[a:b], kind="stable")] = np.arange(n)
    total = np.cumsum(rank)
    k = np.arange(LEAST, n - last + 1)
    sigma = np.sqrt(n * (n + 1) / 12.0 * n / (k * (n - k)))
    apart = np.abs((total[-1] - total[k - 1]) / (n - k) - total[k - 1] / k) / sigma
    best = int(np.argmax(apart))
    if apart[best] < SCAN_SIGMAS:
        return []
    at = a + int(k[best])
    return [at, *_cuts(values, a, at, LEAST), *_cuts(values, at, b, last)]


def _calm(values: Floats) -> Floats:
    ordered = np.sort(values)
    middle = at_quantile(ordered, 0.5)
    spread = stats.MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    room = max(CALM_SIGMAS * spread, CALM_WIDTHS * (at_quantile(ordered, 0.9) - at_quantile(ordered, 0.1)), 1e-12)
    return np.minimum(np.maximum(values, middle - room), middle + room)


def _inner(values: Floats) -> Floats:
    """Spans without what lies far out (a pause that nobody named)."""
    middle = float(np.median(values))
    spread = stats.MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    if not spread > 0:  # a counter's steps: most are the same whole number
        ordered = np.sort(values)
        spread = max(at_quantile(ordered, 0.9) - at_quantile(ordered, 0.1), LEAST_SIGMA * middle)
    return np.clip(values, middle - SPAN_SIGMAS * spread, middle + SPAN_SIGMAS * spread)


def _told(values: Floats, a: int, b: int, q: float | None) -> Level:
    part = values[a:b]
    n = len(part)
    if q is None:
        inner = _inner(part)
        value = float(inner.mean())
        least = LEAST_SIGMA * value / np.sqrt(n)
        error = max(float(inner.std()) / np.sqrt(max(1, n - 1)) * _factor(inner), least)
        return Level(a, b, value, error, error)
    ordered, off = np.sort(part), float(np.sqrt(q * (1.0 - q) / n))
    value, factor = at_quantile(ordered, q), _factor(_calm(part))
    least = LEAST_SIGMA * value / np.sqrt(n)
    below = value - at_quantile(ordered, max(0.0, q - off))
    above = at_quantile(ordered, min(1.0, q + off)) - value
    return Level(a, b, value, max(below * factor, least), max(above * factor, least))


def _factor(values: Floats) -> float:
    """By how much the error of a level of n values is larger than were they independent."""
    rho = UNKNOWN_RHO
    if len(values) >= KNOWN_RHO:
        off = values - values.mean()
        total = float((off * off).sum())
        rho = float((off[1:] * off[:-1]).sum()) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), HIGHEST_RHO)
    return max(LEAST_FACTOR, float(np.sqrt((1.0 + rho) / (1.0 - rho))))


# --- is it slower now? ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Drop:
    """A change with what it is compared with. since: position from which on all was slow (change.at, where no slope led to it). past: position from which on the past had about that level; spells: earlier
    times that were about as slow as now, as (first, beyond last) positions; restless: robust sigma of the past's levels without
    these, as a share of the one before (0 for fewer than `RESTLESS` of them)."""

    change: Change
    since: int
    past: int
    spells: tuple[tuple[int, int], ...]
    restless: float


def drops(values: Floats, known: Sequence[Level], last: int, q: float | None, half: float) -> list[Drop]:
    """What the present can be compared with, the newest level first. half: share by which all since then has to be higher.

    A job that gets slower bit by bit has a level before it that ends in a slope: the level is told without its end as well.
    """
    out = []
    for j in range(len(known) - 2, -1, -1):
        if any(one.value < (1.0 + half) * known[j].value for one in known[j + 1:]):
            continue
        since, first = known[j + 1].start, j
        after, now = _told(values, since, len(values), q), level(values[-last:], q)
        while first and abs(known[first - 1].value / known[j].value - 1.0) <= ALIKE:
            first -= 1
        past = known[first].start
        for end in range(known[j].stop, known[j].start + LEAST - 1, -max(1, last // 2)):
            before = known[j] if end == known[j].stop else _told(values, known[j].start, end, q)
            error = float(np.hypot(before.above, max(after.below, known[-1].below)))
            change = Change(end, before.value, after.value, error, _highest(values[past:end], last, q), now)
            limit = before.value * (1.0 + 0.6 * change.growth)
            out.append(Drop(change, since, past, _spells(known[:j], limit), _restless(known[:j + 1], limit)))
            if known[j].stop - end >= MOST_SLOPE * last:
                break
    return out


def _spells(known: Sequence[Level], limit: float) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for one in known:
        if one.value < limit:
            continue
        if out and out[-1][1] == one.start:
            out[-1] = (out[-1][0], one.stop)
        else:
            out.append((one.start, one.stop))
    return tuple(out)


def _restless(known: Sequence[Level], limit: float) -> float:
    values = np.array([one.value for one in known if one.value < limit])
    if len(values) < RESTLESS:
        return 0.0
    middle = float(np.median(values))
    return stats.MAD_TO_SIGMA * float(np.median(np.abs(values - middle))) / middle


def _highest(past: Floats, last: int, q: float | None) -> float:
    """The highest level that the past held over `last` values, the highest tenth of such spans left out."""
    if len(past) < last + 2:
        return level(past, q)
    rows = np.sort(np.lib.stride_tricks.sliding_window_view(past, last), axis=1)
    each = np.sort(rows.mean(axis=1) if q is None else rows[:, int(q * (last - 1))])
    return at_quantile(each, 0.9)
