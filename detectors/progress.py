"""What a job's ranks show of its progress: when a step was last finished, how long steps and pauses usually take.

A rank's step that changes is progress, up or down (a job that resumes from a checkpoint counts again from an older
step). The past that is learned from is the window's own; pauses that the trainer names (a checkpoint, an evaluation)
are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Event, Floats, JobState
from core.window import Window
from detectors import stats
from detectors.stats import Bools, Ints

EXCUSED = ("init", "warmup", "eval", "checkpoint", "done")
_ALIVE = ("rank.step", "rank.last_step_timestamp_seconds", "rank.loss", "rank.collective_seq")


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """columns: the job's ranks. known: a step was ever seen. moved_at: ms of the last sign of progress (else of the
    first sample). advanced: a step changed in the window. step_seconds, gap_seconds: learned usual time of a step, and
    between two changes that telemetry shows (a log interval), NaN = not known. longest_gap: the longest unnamed pause.
    fresh: ranks that report now. explicit: the trainer exposes its phase. phase: the phase now, None = train or not
    told. excused_until: ms of the last moment of a named pause, None = none. phase_seconds: how long the present named
    pause lasts; phase_longest: the longest earlier one. moving: bool[tick], some step changed.
    """

    columns: Ints
    known: bool
    moved_at: int
    advanced: bool
    step_seconds: float
    gap_seconds: float
    longest_gap: float
    fresh: Bools
    explicit: bool
    phase: str | None
    excused_until: int | None
    phase_seconds: float
    phase_longest: float
    moving: Bools
    away: slice | None

    def stalled_seconds(self, end: int) -> float:
        """Seconds without progress and without a named pause."""
        since = self.moved_at if self.excused_until is None else max(self.moved_at, self.excused_until)
        return max(0.0, (end - since) / 1000.0)


def read(window: Window, job: JobState) -> Progress:
    """The progress of a job from the `rank.*` signals of its columns. Detectors share it."""
    return window.once(("progress", job), lambda: _read(window, job))


def _read(window: Window, job: JobState) -> Progress:
    columns = np.array(job.ranks, np.int64)
    steps = window.values("rank.step")[:, columns]
    stamps = window.values("rank.last_step_timestamp_seconds")[:, columns]
    moving = _changes(steps) | _changes(stamps)
    excused, phase, explicit = pauses(window, job, columns, moving)
    seen = np.asarray((~np.isnan(steps) | ~np.isnan(stamps)).any(axis=1), bool)
    first = _first_sample(window, columns)
    moved_rows = np.flatnonzero(moving)
    moved_at = int(window.times[moved_rows[-1]]) if len(moved_rows) else _unseen(window, first)
    moved_at = _by_stamp(stamps, moved_at, bool(len(moved_rows)), window.end)
    gaps, per_step = _gaps(steps, moving, seen, excused, window.times)
    fresh = np.zeros(len(columns), bool)
    for signal in _ALIVE:
        fresh |= window.block(signal).fresh()[columns]
    said = _median(window.values("rank.step_seconds")[:, columns])
    seconds, longest = _pause(excused, window, phase)
    rows = np.flatnonzero(excused)
    return Progress(
        columns, bool(seen.any()) or first > 0, moved_at, bool(len(moved_rows)),
        said if not np.isnan(said) else _median(per_step), _median(gaps), float(gaps.max(initial=0.0)), fresh, explicit,
        phase, int(window.times[rows[-1]]) if len(rows) else None, seconds, longest, moving,
        _away(window, columns, seen, int(moved_rows[-1]) if len(moved_rows) else 0),
    )


def _first_sample(window: Window, columns: Ints) -> int:
    first = [window.block(s).first_at[columns] for s in ("rank.step", "rank.last_step_timestamp_seconds")]
    both = np.concatenate(first)
    both = both[~np.isnan(both)]
    return int(both.max()) if len(both) else 0


def _unseen(window: Window, first: int) -> int:
    """Of a job that was not seen to move: its first sample. Where that lies before a window of moments (logs were read from their
    start when collecting began), nobody knows what came between: the window's start."""
    began = int(window.times[0]) if len(window.times) else first
    return max(first, began) if window.end - began < YOUNG_SECONDS * 1000 else first


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _changes(values: Floats) -> Bools:
    """bool[tick]: some column's value differs from its newest earlier one. A first value is no change."""
    full = stats.filled(values)
    out = np.zeros(len(values), bool)
    if len(values) > 1:
        differs = (full[1:] != full[:-1]) & ~np.isnan(full[1:]) & ~np.isnan(full[:-1])
        out[1:] = differs.any(axis=1)
    return out


def _by_stamp(stamps: Floats, moved_at: int, advanced: bool, end: int) -> int:
    """The trainer's own time of its last step, where it is plausible: it is finer than a scrape, and older than the
    window for a job that hung before it. Its clock may be off, so it never moves a change that was seen by more than
    two minutes."""
    known = stats.filled(stamps)[-1] if stamps.size else np.zeros(0)
    known = known[~np.isnan(known)]
    if not len(known):
        return moved_at
    stamp = int(known.max() * 1000.0)
    if stamp > end or stamp < end - 86_400_000:
        return moved_at
    if not advanced:
        return min(stamp, moved_at) if moved_at else stamp
    return stamp if abs(stamp - moved_at) <= 120_000 else moved_at


YOUNG_SECONDS = 300.0  # a window shorter than this has not seen a job stand
ABSENT_SECONDS = 120.0  # and three intervals: ranks of which nothing came for so long were not merely missed


def _away(window: Window, columns: Ints, seen: Bools, since: int) -> slice | None:
    """The rows of the last time, after row `since`, in which nothing of any rank came, and after which they came back."""
    intervals = window.block("rank.step").interval_seconds[columns]
    known = intervals[~np.isnan(intervals)]
    needed = window.ticks(max(ABSENT_SECONDS, 3.0 * float(known.max(initial=0.0))))
    rows = np.flatnonzero(seen[since:]) + since
    back = np.flatnonzero(np.diff(rows) > needed)
    return slice(int(rows[back[-1]]) + 1, int(rows[back[-1] + 1])) if len(back) else None


def _gaps(steps: Floats, moving: Bools, seen: Bools, excused: Bools, times: Ints) -> tuple[Floats, Floats]:
    """Seconds between changes, and the same by step; gaps that touch a named pause are left out."""
    rows = np.flatnonzero(moving)
    if not len(rows):
        return np.zeros(0), np.zeros(0)
    known = np.flatnonzero(seen)
    start = known[known < rows[0]]
    if len(start):
        rows = np.concatenate([start[-1:], rows])
    front = stats.filled(steps)
    front = np.where(np.isnan(front).all(axis=1), np.nan, np.nan_to_num(front, nan=-np.inf).max(axis=1, initial=-np.inf))
    pauses = np.concatenate([[0], np.cumsum(excused)])
    unnamed = pauses[rows[1:] + 1] == pauses[rows[:-1]]
    seconds = np.diff(times[rows]) / 1000.0
    done = np.diff(front[rows])
    with np.errstate(invalid="ignore"):
        per_step = np.where(done > 0, seconds / np.maximum(done, 1.0), np.nan)
    return seconds[unnamed], per_step[unnamed]


def pauses(window: Window, job: JobState, columns: Ints, moving: Bools) -> tuple[Bools, str | None, bool]:
    """bool[tick]: most ranks are in a pause that the trainer names; the pause now, None = none; is a phase exposed."""
    said = window.once(("phases", job, columns.tobytes()), lambda: _phases_shown(window, job, columns))
    if said is None:
        return *_phases_told(window, job, moving), False
    return said[0].copy(), said[1], True


def _phases_shown(window: Window, job: JobState, columns: Ints) -> tuple[Bools, str | None] | None:
    """As `pauses`, from the phase that ranks show; None where none does."""
    ticks = len(window.times)
    votes, voters = np.zeros(ticks), np.zeros(ticks)
    explicit = False
    for phase in (*EXCUSED, "train"):
        if f"rank.phase_{phase}" not in window.blocks:
            continue
        values = window.values(f"rank.phase_{phase}")[:, columns]
        known = ~np.isnan(values)
        explicit |= bool(known.any())
        on = (np.where(known, values, 0.0) >= 0.5).sum(axis=1)
        voters += on
        if phase != "train":
            votes += on
    if not explicit:
        return None
    excused = np.asarray((votes > 0) & (votes * 2 >= voters), bool)
    phase_now = job.phase if job.phase in EXCUSED else None
    if ticks:
        excused[-1] = phase_now is not None
    return excused, phase_now


_TOLD = {"start": "init", "restart": "init", "end": "done"}


def _phases_told(window: Window, job: JobState, moving: Bools) -> tuple[Bools, str | None]:
    """As `pauses`, from what logs said. A log names the begin of a pause and seldom its end: the next step ends it.

    Begin and end of a pause at the same instant are lines without a time of their own, dated by the line before them:
    when the pause really ended is not known then, and it may last until the next step.
    """
    said: dict[int, list[str | None]] = {}
    for event in window.once("phase events", lambda: _by_job(window)).get(job.id, ()):
        said.setdefault(event.at, []).append(_phase_of(event))
    out = np.zeros(len(window.times), bool)
    phase_now: str | None = None
    for at, phases in sorted(said.items()):
        row = int(np.searchsorted(window.times, at))
        phase = next((p for p in reversed(phases) if p is not None), None)
        later = np.flatnonzero(moving[row + 1:])
        stop = row + 1 + int(later[0]) if len(later) else len(out)
        out[row:] = False
        out[row:stop] = phase is not None
        phase_now = phase if not len(later) else None
    return out, phase_now


def _by_job(window: Window) -> dict[str | None, list[Event]]:
    out: dict[str | None, list[Event]] = {}
    for event in window.events_of("job_phase", "checkpoint"):
        out.setdefault(event.target.job, []).append(event)
    return out


def _phase_of(event: Event) -> str | None:
    """The pause that a log's event begins, None where it ends one."""
    if event.kind == "job_phase":
        said = str(event.fields.get("phase"))
        return _TOLD.get(said, said if said in EXCUSED else None)
    return None if event.fields.get("state") in ("saved", "done", "loaded", "end", "failed") else "checkpoint"


def _pause(excused: Bools, window: Window, phase: str | None) -> tuple[float, float]:
    """Seconds of the present named pause, and of the longest earlier one."""
    step = window.step_seconds
    edges = np.flatnonzero(np.diff(np.concatenate([[0], excused.astype(np.int64), [0]])))
    runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    present = 0.0
    if phase is not None and runs and runs[-1][1] == len(excused):
        begin, stop = runs.pop()
        present = float((stop - begin) * step)
    return present, float(max((b - a for a, b in runs), default=0) * step)
