"""What is remembered of each job's progress: its saves, its last step, and when its loss stopped being a number.

A window holds half an hour and jobs save as seldom as once an hour, so this is kept from tick to tick and commits with
them. A save is known by the trainer's own `last_checkpoint_step`, or by a line of its log that says that it is complete.
The interval is the median gap of the last saves of one run: the gap across a restart says nothing of how often a job saves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np

from core.protocols import Checkpoint
from core.types import Event, Floats, JobState
from core.window import Window
from pipeline.codec import pack, unpack

SAVES_KEPT = 12
LEAST_SAVES = 3    # two gaps, as many as the detector of stale checkpoints learns from
AGAIN_STEPS = 2    # a run that starts again goes back by more; readings of ranks that are a step apart by less
LATE_MS = 120_000  # a line of a log may come this much after its own time
KEPT_MS = 7 * 86_400_000
COMPLETE = ("saved", "done")


@dataclass(frozen=True, slots=True)
class Save:
    """A complete checkpoint: at ms, step None where a log told none; run: which of the job's runs made it."""

    at: int
    step: float | None
    run: int


@dataclass(slots=True)
class Progress:
    """One job. seen_at: ms of the last tick that knew it. first, top: the first and the highest step of its present run.
    moved_at: when that last grew. newest: step of the checkpoint that it shows. bad_since: when a loss that goes on being
    none may have begun. finite_at: the last finite loss. finishes: its log says when a save is complete, so the line that
    one begins is none."""

    seen_at: int
    first: float | None = None
    top: float | None = None
    moved_at: int | None = None
    newest: float | None = None
    run: int = 1
    saves: list[Save] = field(default_factory=list)
    bad_since: int | None = None
    finite_at: int | None = None
    finishes: bool = False


class Checkpoints:
    """The progress of all jobs of the last seven days. Not thread-safe: the tick thread owns it."""

    def __init__(self) -> None:
        self._jobs: dict[str, Progress] = {}

    def update(self, window: Window) -> None:
        """Takes what is new since the last tick: of a job that was not known, the whole window."""
        told: dict[str, list[Event]] = {}
        since = min((p.seen_at for p in self._jobs.values()), default=0)
        for event in window.events_of("checkpoint", "nonfinite", since=since - LATE_MS):
            if event.target.job is not None:
                told.setdefault(event.target.job, []).append(event)
        for job in window.jobs:
            if job.ranks or job.id in told:
                self._take(window, job, told.get(job.id, ()))
        self._jobs = {name: p for name, p in self._jobs.items() if window.end - p.seen_at <= KEPT_MS}

    def of(self, job: str) -> Checkpoint:
        """The job's newest complete checkpoint, as far as it is known."""
        known = self._jobs.get(job)
        if known is None:
            return Checkpoint()
        # A run that went back shows an older one: those after it are gone or of no use.
        usable = [s for s in known.saves if s.step is None or known.newest is None or s.step <= known.newest]
        last = usable[-1] if usable else Save(0, known.newest, 0)
        step, mine = known.newest if last.step is None else last.step, _of_one_run(known.saves, known.run)
        seconds = _median_gap([s.at for s in mine])
        steps = _median_gap([s.step for s in mine if s.step is not None])
        since = known.top - step if known.top is not None and step is not None and known.top >= step else None
        return Checkpoint(last.at or None, step, None if seconds is None else seconds / 1000.0, known.moved_at, steps, since)

    def nonfinite_since(self, job: str) -> int | None:
        """Since when (ms) the loss may have been NaN or Inf: from its last finite reading on. None = it is not."""
        known = self._jobs.get(job)
        return None if known is None else known.bad_since

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps({name: pack(self._jobs[name]) for name in sorted(self._jobs)}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        self._jobs = {str(name): unpack(Progress, row) for name, row in json.loads(text).items()}

    def _take(self, window: Window, job: JobState, told: Sequence[Event]) -> None:
        known = self._jobs.get(job.id)
        if known is None:
            known = self._jobs[job.id] = Progress(0)
        columns = np.array(job.ranks, np.int64)
        rows = np.flatnonzero(window.times > known.seen_at)
        if len(rows) and len(columns):
            inside = slice(int(rows[0]), int(rows[-1]) + 1)
            _steps(known, window.times[inside], _front(window, "rank.step", columns, inside))
            _shown(known, window.times[inside], _front(window, "rank.last_checkpoint_step", columns, inside))
        new = [e for e in told if e.at > known.seen_at - LATE_MS]
        _lines(known, new)
        _losses(known, _loss_words(window, columns, rows, new))
        known.seen_at = window.end


def _front(window: Window, signal: str, columns: np.ndarray, inside: slice) -> Floats:
    """float64[tick]: the highest number among the ranks, NaN where none tells it."""
    if signal not in window.blocks:
        return np.full(inside.stop - inside.start, np.nan)
    values = window.values(signal)[inside, columns]
    best = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)


def _steps(known: Progress, times: np.ndarray, steps: Floats) -> None:
    for at, step in zip(times.tolist(), steps.tolist(), strict=True):
        if math.isnan(step):
            continue
        if known.top is not None and step < known.top - AGAIN_STEPS:
            known.run += 1
            known.first = known.top = step
        elif known.top is None or step > known.top:
            # The first reading shows where the job stands, not that it moves.
            known.moved_at = int(at) if known.top is not None else known.moved_at
            known.first = step if known.first is None else known.first
            known.top = step


def _shown(known: Progress, times: np.ndarray, newest: Floats) -> None:
    """What the trainer calls its newest checkpoint. The first one that is seen was saved at a time that nobody knows, and
    one that a run began from was not saved by it."""
    for at, step in zip(times.tolist(), newest.tolist(), strict=True):
        if math.isnan(step) or step == known.newest:
            continue
        if known.newest is not None and step > known.newest and (known.first is None or step > known.first):
            _add(known, Save(int(at), step, known.run))
        known.newest = step


def _lines(known: Progress, told: Iterable[Event]) -> None:
    """Saves that a log calls complete; where it never does, the line that one begins is all that there is."""
    mine = [e for e in told if e.kind == "checkpoint"]
    known.finishes = known.finishes or any(e.fields.get("state") in COMPLETE for e in mine)
    for event in mine:
        state = event.fields.get("state")
        if state in COMPLETE or (state == "saving" and not known.finishes):
            step = event.fields.get("step")
            number = float(step) if isinstance(step, (int, float)) and not isinstance(step, bool) else None
            _add(known, Save(event.at, number, known.run))


def _add(known: Progress, save: Save) -> None:
    """One save counts once, whoever told of it; the earlier time is the truer one."""
    for i, other in enumerate(known.saves):
        if other.at == save.at or (other.step == save.step and save.step is not None):
            if save.at < other.at:
                known.saves[i] = Save(save.at, save.step, other.run)
            return
    known.saves = sorted([*known.saves, save], key=lambda s: s.at)[-SAVES_KEPT:]


def _of_one_run(saves: Sequence[Save], run: int) -> list[Save]:
    """The saves of the newest run that made enough of them to learn from; none where none did."""
    for one in range(run, 0, -1):
        mine = [s for s in saves if s.run == one]
        if len(mine) >= LEAST_SAVES:
            return mine
    return []


def _median_gap(values: Sequence[float]) -> float | None:
    return float(median(b - a for a, b in pairwise(values))) if len(values) >= LEAST_SAVES else None


def _loss_words(window: Window, columns: np.ndarray, rows: np.ndarray, new: Sequence[Event]) -> list[tuple[int, bool]]:
    """(ms, is it finite), in time order, of what is new. A rank whose loss is none outweighs those that are finite."""
    words: list[tuple[int, bool]] = []
    if len(rows) and len(columns):
        inside = slice(int(rows[0]), int(rows[-1]) + 1)
        shape = (inside.stop - inside.start, len(columns))
        bad, good = (window.values(s)[inside, columns] if s in window.blocks else np.full(shape, np.nan)
                     for s in ("rank.loss_nonfinite", "rank.loss"))
        worst = (bad >= 1.0).any(axis=1)
        finite = (~np.isnan(good)).any(axis=1) & ~worst
        words += [(int(t), False) for t in window.times[inside][worst]]
        words += [(int(t), True) for t in window.times[inside][finite]]
    words += [(e.at, False) for e in new if e.kind == "nonfinite" and e.fields.get("what") != "nan_iterations"]
    return sorted(words)


def _losses(known: Progress, words: Iterable[tuple[int, bool]]) -> None:
    for at, finite in words:
        if finite:
            known.finite_at, known.bad_since = at, None
        elif known.bad_since is None and (known.finite_at is None or at > known.finite_at):
            # It may have begun at any time after the last finite reading: a checkpoint from between is not trusted.
            known.bad_since = known.finite_at if known.finite_at is not None else at
