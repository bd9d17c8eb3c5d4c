"""What remediation may know of the work, from the same window that the detectors saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.protocols import Checkpoint
from core.types import Finding, Floats, JobState, Target
from core.window import Window
from pipeline.checkpoints import Checkpoints

IN_USE_SECONDS = 60.0
IN_USE_RATIO = 0.01
PAUSES = ("init", "warmup", "eval", "checkpoint", "done")


class WindowFacts:
    """Implements `core.protocols.Facts` and `JobFacts` over one window. checkpoints: what is remembered from the windows
    before, this one included."""

    def __init__(self, window: Window, findings: Sequence[Finding], checkpoints: Checkpoints | None = None) -> None:
        self._window = window
        self._checkpoints = checkpoints or Checkpoints()
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

    def checkpoint(self, job: str) -> Checkpoint:
        """The newest complete checkpoint as far as it is known."""
        return self._checkpoints.of(job)

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        """Median tokens a second per GPU between the two times (ms), over ranks and ticks, pauses left out; None: unknown."""
        known = self._jobs.get(job)
        if known is None or not known.ranks:
            return None
        return tokens_per_second(self._window, known, start, end)

    def ranks(self, job: str, start: int, end: int) -> int | None:
        """How many ranks said anything of themselves between the two times (ms), a rank that moved to another node once;
        None where none of the job's ranks is known."""
        known = self._jobs.get(job)
        if known is None or not known.ranks:
            return None
        return ranks_heard(self._window, known, start, end)

    def gpu_in_use(self, gpu: Target) -> bool | None:
        """Whether a kernel is resident on the GPU now; None where no reading of the last minute says so."""
        block = self._window.blocks.get("gpu.utilization_ratio")
        if block is None:
            return None
        for column, part in enumerate(block.entities):
            if part.same_part(gpu) and block.age_seconds[column] <= IN_USE_SECONDS:
                return bool(block.last[column] > IN_USE_RATIO)
        return None

    def nonfinite_since(self, job: str) -> int | None:
        """Since when the loss may have been NaN or Inf (ms); None = it is finite, or not known."""
        return self._checkpoints.nonfinite_since(job)


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


def tokens_per_second(window: Window, job: JobState, start: int, end: int) -> float | None:
    """As `WindowFacts.tokens_per_second`. A rank is a GPU, and each tells its own number; it counts only at ticks where its
    step grew, because a gauge that holds the last step's number says nothing during a hang."""
    columns = np.array(job.ranks, np.int64)
    ticks = np.flatnonzero((window.times >= start) & (window.times <= end))
    if not len(ticks) or "rank.tokens_per_second" not in window.blocks:
        return None
    inside = slice(int(ticks[0]), int(ticks[-1]) + 1)
    idle = _paused(window, columns, inside) | ~_grew(window, columns, inside)
    told = np.where(idle, np.nan, window.values("rank.tokens_per_second")[inside, columns])
    known = told[~np.isnan(told) & (told > 0)]
    return float(np.median(known)) if len(known) else None


def ranks_heard(window: Window, job: JobState, start: int, end: int) -> int:
    """As `WindowFacts.ranks`."""
    columns = np.array(job.ranks, np.int64)
    ticks = (window.times >= start) & (window.times <= end)
    heard = np.zeros(len(columns), np.bool_)
    for name, block in window.blocks.items():
        if name.startswith("rank."):
            heard |= (~np.isnan(block.values[ticks][:, columns])).any(axis=0)
    ranks = window.of_kind("rank")
    return len({ranks[c].rank if ranks[c].rank is not None else f"column {c}" for c in columns[heard].tolist()})


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
