"""What the rest of the site did at the moment when a job got slower: other jobs, and the fabric outside of it.

A slowdown that jobs share is no job's. That is plain while all of them go on; one that ended or began anew since then has no
present to be judged by, but the window still holds what its steps took before that moment and after it. And where the ports of
nodes outside of the job are held back more than before (much traffic meets on the fabric), what it waits for is not its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from core.types import JobState
from core.window import Window
from detectors import job_pace, ports, shared, stats
from detectors.ports import MARKS, WAITS
from detectors.stats import Bools

# Before the moment and after it; the moment itself is known to a minute.
SPAN_MS, AROUND_MS, LEAST_ROWS = 600_000, 60_000, 4
SMALL, SMALL_TIMES = 0.06, 3  # of a slowness that hardly stands out of the noise the beginning is not known to the minute
SAMPLE = 16  # ranks of a job that tell its pace
PACES = (("rank.step_seconds", 1.0), ("rank.tokens_per_second", -1.0))
# Ports held back so many times as often as before (a mark or a tick a second is none), half of those outside, of two nodes at least.
MORE, LEAST_MARKS, MOST_PORTS, NODES = 3.0, 10.0, 0.5, 2


def at_once(onsets: Sequence[int], late: Sequence[int | None], growth: float, seconds: float) -> bool:
    """Whether two or more jobs slow down within so many seconds. onsets: ms, of those that are sure, late: of those that are on their way,
    which count unless it is known that they began at another time. growth: the greatest of them."""
    reach, first, last = round(1000 * seconds * (SMALL_TIMES if growth < SMALL else 1)), min(onsets), max(onsets)
    others = [at for at in late if at is None or last - reach <= at <= first + reach]
    return len(onsets) + len(others) >= 2 and last - first <= reach


def changes(window: Window, job: JobState, onset: int) -> list[float]:
    """By how much of their time each other job's steps took longer after `onset` (ms) than before it, whatever became of the job;
    without those of which one side is not known."""
    # To the minute: where a site slows down hundreds of jobs ask about one moment.
    at = onset // AROUND_MS * AROUND_MS
    found = window.once(("company", at), lambda: _changes(window, at))
    return [by for name, by in found.items() if name != job.id]


def _changes(window: Window, at: int) -> dict[str, float]:
    before, after = _rows(window, at)
    if before.sum() < LEAST_ROWS or after.sum() < LEAST_ROWS:
        return {}
    found = ((one.id, _longer(window, one, before, after)) for one in window.jobs if one.ranks)
    return {name: by for name, by in found if by is not None}


def _rows(window: Window, onset: int) -> tuple[Bools, Bools]:
    away = np.asarray(window.times, np.int64) - onset
    return (away >= -SPAN_MS) & (away <= -AROUND_MS), (away >= AROUND_MS) & (away <= SPAN_MS)


def _longer(window: Window, job: JobState, before: Bools, after: Bools) -> float | None:
    """By how much of its time before a step took longer after."""
    some = np.array(job.ranks, np.int64)[:: max(1, -(-len(job.ranks) // SAMPLE))]
    for signal, power in PACES:
        if signal not in window.blocks:
            continue
        pace = job_pace.level_of_ranks(window.values(signal)[:, some])
        old, new = pace[before & ~np.isnan(pace)], pace[after & ~np.isnan(pace)]
        if len(old) >= LEAST_ROWS and len(new) >= LEAST_ROWS:
            return float((np.median(new) / np.median(old)) ** power) - 1.0
    return None


def crowded(window: Window, job: JobState, onset: int) -> bool:
    """Whether most ports of the nodes outside the job are held back more after `onset` (ms) than before it."""
    nics, at = window.of_kind("nic"), onset // AROUND_MS * AROUND_MS
    for signal in (MARKS, WAITS):
        if signal not in window.blocks:
            continue
        known, more = window.once(("crowd", signal, at), partial(_held_back, window, signal, at))
        if not more.any():
            continue
        outside = ~shared.of_nodes(nics, set(job.nodes))
        many = np.flatnonzero(more & outside)
        if len(many) > MOST_PORTS * (known & outside).sum() and len({nics[e].node for e in many.tolist()}) >= NODES:
            return True
    return False


def _held_back(window: Window, signal: str, at: int) -> tuple[Bools, Bools]:
    """bool[nic] each: the RDMA ports of which both sides of the moment are known, and those held back more since."""
    before, after = _rows(window, at)
    nics = window.of_kind("nic")
    known, more = np.zeros(len(nics), bool), np.zeros(len(nics), bool)
    columns = np.flatnonzero(ports.is_rdma(window) & shared.loud(window, nics)) if len(nics) else np.zeros(0, np.int64)
    if before.sum() < LEAST_ROWS or after.sum() < LEAST_ROWS or not len(columns):
        return known, more
    values = window.values(signal)
    old, new = (stats.median(stats.cut(values, np.flatnonzero(rows), columns)) for rows in (before, after))
    known[columns] = ~np.isnan(old + new)
    more[columns] = known[columns] & stats.above(new, np.fmax(LEAST_MARKS, MORE * old))
    return known, more
