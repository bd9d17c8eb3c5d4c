"""Training steps that a loss scaler leaves out one after the other: nothing is learnt any more.

A scaler that searches its scale lowers it at each overflow, and has found one after a few; one that has nowhere left to go, a
scale that nobody lowers, or skipping that lasts longer than any search is none. Whether overflows come at each step is told by
the time that a step takes; where nobody tells that, by the overflows that lowered the scale one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from core.types import Event, Floats, JobState
from core.window import Window
from detectors import stats

MOST_RANKS = 256
SLACK = 1.5            # times between overflows of neighbouring steps, of the time of a step,
ROUNDED_SECONDS = 2.0  # and what a log's times are rounded by
RECENT_SECONDS, RECENT_STEPS = 120.0, 20


class Limits(Protocol):
    """What `nonfinite_loss.Params` says of skipped steps."""

    @property
    def since_seconds(self) -> float: ...
    @property
    def overflows(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def static_overflows(self) -> int: ...
    @property
    def skips(self) -> int: ...
    @property
    def skip_seconds(self) -> float: ...
    @property
    def skip_share(self) -> float: ...


def streak(window: Window, job: JobState, columns: stats.Ints, p: Limits) -> list[Event]:
    """The last overflows of a rank, where they are no search; empty where no rank has such."""
    mine: dict[str, list[Event]] = {}
    for event in window.events_of("overflow"):
        if event.target.job == job.id:
            mine.setdefault(event.target.key, []).append(event)
    if not mine:
        return []
    step = _step_seconds(window, columns)
    span = p.since_seconds if step is None else max(p.since_seconds, 2.0 * p.skips * step)
    for key in sorted(mine):
        events = [e for e in mine[key] if e.at >= window.end - span * 1000]
        found = _lost(events, step, window.end, p)
        if found:
            return found
    return []


def _lost(events: Sequence[Event], step: float | None, end: int, p: Limits) -> list[Event]:
    last = list(events[-p.overflows:])
    scales = _scales(last)
    at_end = len(last) == p.overflows and None not in scales and (scales[-1] or 0.0) <= p.scale
    if at_end and all(b < a for a, b in pairwise(_known(scales))) and (end - last[-1].at) / 1000.0 <= p.since_seconds:
        return last
    if at_end and all(b <= a for a, b in pairwise(_known(scales))) and _each_step(last, step or _fall_seconds(events), end):
        return last
    same = list(events[-p.static_overflows:])
    if len(same) == p.static_overflows and None not in _scales(same) and len(set(_scales(same))) == 1 and _each_step(same, step, end):
        return same
    bare = list(events[-p.skips:])
    if len(bare) == p.skips and set(_scales(bare)) == {None} and _each_step(bare, step, end):
        return bare
    return []


def _scales(events: Sequence[Event]) -> list[float | None]:
    told = [e.fields.get("loss_scale") for e in events]
    return [float(s) if isinstance(s, (int, float)) else None for s in told]


def _known(scales: Sequence[float | None]) -> list[float]:
    return [s for s in scales if s is not None]


def _each_step(events: Sequence[Event], step: float | None, end: int) -> bool:
    """They came at neighbouring steps, and go on."""
    if step is None:
        return False
    took = (events[-1].at - events[0].at) / 1000.0
    recent = (end - events[-1].at) / 1000.0 <= max(RECENT_SECONDS, RECENT_STEPS * step)
    return recent and took <= SLACK * step * (len(events) - 1) + ROUNDED_SECONDS


def _fall_seconds(events: Sequence[Event]) -> float | None:
    """The median time between overflows of which the later one found the scale lower; None = there were none."""
    gaps = [(b.at - a.at) / 1000.0 for a, b in pairwise(events)
            if (now := _scales([a, b]))[0] is not None and now[1] is not None and now[1] < now[0]]
    return float(np.median(gaps)) if gaps else None


def _step_seconds(window: Window, columns: stats.Ints) -> float | None:
    """How long a step takes, as the ranks tell, or as their steps go on; None where neither is known."""
    told = window.values("rank.step_seconds")[:, columns[:MOST_RANKS]]
    if np.isfinite(told).any():
        return float(np.nanmedian(told))
    rows, steps = _new_steps(window, columns)
    made = steps[-1] - steps[0] if len(steps) else 0.0
    return float(window.times[rows[-1]] - window.times[rows[0]]) / 1000.0 / made if made > 0 else None


def _new_steps(window: Window, columns: stats.Ints) -> tuple[stats.Ints, Floats]:
    """(ticks at which the job was first seen at a new step, these steps), of the newest run."""
    values = window.values("rank.step")[:, columns[:MOST_RANKS]]
    top = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    rows = np.flatnonzero(np.isfinite(top))
    steps = top[rows]
    back = np.flatnonzero(np.diff(steps) < 0)
    begun = int(back[-1]) + 1 if len(back) else 0
    rows, steps = rows[begun:], steps[begun:]
    new = np.concatenate([[True], np.diff(steps) > 0])[: len(rows)]
    return rows[new].astype(np.int64), steps[new]


def rate(window: Window, columns: stats.Ints, p: Limits) -> tuple[float, float, int] | None:
    """(steps left out a second, steps a second, since when in ms) where nearly all are left out for long enough; None = they are not,
    or nobody tells."""
    block = window.block("rank.skipped_per_second")
    told = columns[block.fresh()[columns]][:MOST_RANKS]
    if not len(told) or not np.nan_to_num(block.values[:, told]).any():
        return None
    rows, steps = _new_steps(window, columns)
    if not len(rows) or window.end - int(window.times[rows[-1]]) > p.skip_seconds * 1000:
        return None
    seconds = (window.times[rows[-1]] - window.times[rows]) / 1000.0
    enough = np.flatnonzero((steps[-1] - steps >= p.skips) & (seconds >= p.skip_seconds))
    if not len(enough):
        return None
    first = int(enough[-1])
    skipped = stats.median(block.values[rows[first] + 1:rows[-1] + 1, told], axis=1)
    made = float(steps[-1] - steps[first]) / float(seconds[first])
    if np.isfinite(skipped).mean() < 0.8 or float(np.nanmean(skipped)) < p.skip_share * made:
        return None
    return float(np.nanmean(skipped)), made, int(window.times[rows[first]])
