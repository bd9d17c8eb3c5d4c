"""What remediation may know of the work, from the same window that the detectors saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.types import Finding, Floats, JobState
from core.window import Window

PAUSES = ("init", "warmup", "eval", "checkpoint", "done")


class WindowFacts:
    """Implements `core.protocols.Facts` over one window."""

    def __init__(self, window: Window, findings: Sequence[Finding]) -> None:
        self._window = window
        self._findings = tuple(findings)
        self._jobs = {job.id: job for job in window.jobs}

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        """Median seconds a step took between the two times (ms), over ranks and ticks, pauses left out; None: unknown."""
        known = self._jobs.get(job)
        if known is None or not known.ranks:
            return None
        return step_seconds(self._window, known, start, end)

    def open_findings(self) -> Sequence[Finding]:
        """The findings that are open now."""
        return self._findings

    def job(self, job: str) -> JobState | None:
        """The job as the window knows it."""
        return self._jobs.get(job)


def step_seconds(window: Window, job: JobState, start: int, end: int) -> float | None:
    """As `WindowFacts.step_seconds`. A rank's own step time counts only at ticks where its step grew: a gauge that holds
    the last step's duration says nothing during a hang. Without it, time over steps of the fastest rank."""
    columns = np.array(job.ranks, np.int64)
    ticks = np.flatnonzero((window.times >= start) & (window.times <= end))
    if not len(ticks) or not len(columns):
        return None
    inside = slice(int(ticks[0]), int(ticks[-1]) + 1)
    paused = _paused(window, columns, inside)
    if "rank.step_seconds" in window.blocks:
        took = np.where(paused | ~_grew(window, columns, inside), np.nan, window.values("rank.step_seconds")[inside, columns])
        known = took[~np.isnan(took) & (took > 0)]
        if len(known):
            return float(np.median(known))
    return _from_steps(window, columns, inside, paused)


def _paused(window: Window, columns: np.ndarray, inside: slice) -> np.ndarray:
    """bool[tick, rank]: the rank says that it does something other than training."""
    out = np.zeros((inside.stop - inside.start, len(columns)), np.bool_)
    for phase in PAUSES:
        block = window.blocks.get(f"rank.phase_{phase}")
        if block is not None:
            out |= block.values[inside, columns] >= 0.5
    return out


def _grew(window: Window, columns: np.ndarray, inside: slice) -> np.ndarray:
    """bool[tick, rank]: the step is not the one of the tick before; True where steps are not known."""
    block = window.blocks.get("rank.step")
    if block is None:
        return np.ones((inside.stop - inside.start, len(columns)), np.bool_)
    now = block.values[inside, columns]
    if inside.start:
        before = block.values[inside.start - 1:inside.stop - 1, columns]
    else:
        before = np.vstack([np.full((1, len(columns)), np.nan), now[:-1]])
    return np.asarray(~(now == before))


def _from_steps(window: Window, columns: np.ndarray, inside: slice, paused: np.ndarray) -> float | None:
    block = window.blocks.get("rank.step")
    if block is None:
        return None
    steps: Floats = np.where(paused, np.nan, block.values[inside, columns])
    if len(steps) < 2:
        return None
    grew = np.diff(steps, axis=0)
    seconds = np.diff(window.times[inside])[:, None] / 1000.0
    good = grew > 0
    if not good.any():
        return None
    # A step may last longer than a tick: time over steps of the whole span, by rank, over ticks that are known.
    known = ~np.isnan(grew) & (grew >= 0)
    total = np.where(known, grew, 0.0).sum(axis=0)
    spent = np.where(known, np.broadcast_to(seconds, grew.shape), 0.0).sum(axis=0)
    each = spent[total > 0] / total[total > 0]
    return float(np.median(each)) if len(each) else None
