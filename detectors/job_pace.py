"""How fast a job's ranks go, and when that changed: what the detectors of slow jobs share.

A step's time is compared with the job's own past, in the present run only: a job that starts again, with other nodes or
another batch, has no past yet. Healthy step times have a long tail (real Megatron runs on DGX H100: median 1.45 s, one
point in ten over 1.1 times that, some over twice), so a level is a low quantile and never a mean: single long steps move
it little, a slower job moves it wholly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats, JobState, Target
from core.window import Window
from detectors import progress, stats
from detectors.stats import Bools, Ints

# The quantile that stands for a level: within the bulk of healthy steps, below their tail.
LEVEL = 0.35
# Of a large job so many ranks tell the pace: all ranks of a synchronous job end their steps together.
SAMPLE = 64
# Steps after a start that are not judged (NVRX skips five), and so many seconds.
WARM_STEPS, WARM_SECONDS = 5, 60.0
# A span without a word of any rank that is a restart, as in `progress`.
AWAY_SECONDS = 120.0
# An exporter shows a reading of its parts for so long (dcgm-exporter reads every 30 s, and is read every 15): what it shows after a pause,
# or counted up to it, may be of the pause.
SETTLES_SECONDS = 45.0
# The standard error of a level per robust sigma and root of its number of values; half of it again because values that
# follow each other are not independent.
ERROR = 1.25 * 1.5
# No sigma is smaller than this share of the level: clocks and rounding (a step of 140 ms is logged in whole ms).
LEAST_SIGMA = 0.004


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """columns: the job's ranks; some: those of them that tell the pace. rows: the ticks of the present run at which the
    job trains and a step was finished, ascending. step: seconds a step took at these rows, float64[row], NaN = not told;
    token: seconds for one token of a rank (where no tokens are told: for one sample of the job), likewise. span: mean seconds
    of all steps between a row and the one before, by the counter of steps; single: step tells single
    steps (else it is span). usual: the usual
    step time. started: row at which the run began (0 where the window does not show it). settled: the ticks of the present run, steps
    finished or not, from whose readings of parts no pause and none of its first steps is `SETTLES_SECONDS` or less away, ascending."""

    columns: Ints
    some: Ints
    rows: Ints
    step: Floats
    token: Floats
    span: Floats
    single: bool
    apart: float
    usual: float
    started: int
    settled: Ints


@dataclass(frozen=True, slots=True)
class Change:
    """A level that changed once and holds. at: position of the first value of the new level; before, after: the levels;
    error: the standard error of their difference; highest: the highest level that the past held for as long as `last`
    values; now: the level of the last values."""

    at: int
    before: float
    after: float
    error: float
    highest: float
    now: float

    @property
    def growth(self) -> float:
        """By how much of the old level the new one is higher, by the smaller of the whole and the present."""
        return min(self.after, self.now) / self.before - 1.0 if self.before > 0 else float("nan")

    @property
    def wander(self) -> float:
        """By how much of its level the past went up for a while by itself."""
        return self.highest / self.before - 1.0 if self.before > 0 else float("nan")


def read(window: Window, job: JobState) -> Pace | None:
    """The pace of a job that trains; None where it tells no step, or does something else now. Detectors share it."""
    return window.once(("pace", job), lambda: _read(window, job))


def _read(window: Window, job: JobState) -> Pace | None:
    if job.silent or not job.running or not job.ranks or not len(window.times):
        return None
    columns = np.array(job.ranks, np.int64)
    some = columns[:: max(1, -(-len(columns) // SAMPLE))]
    if not any(window.block(s).fresh()[some].any() for s in ("rank.step_seconds", "rank.step", "rank.tokens_per_second")):
        return None
    steps = window.values("rank.step")[:, some]
    moved = _moved(window, some, steps)
    idle, phase, _ = progress.pauses(window, job, some, moved)
    if phase is not None:
        return None
    started = run_start(window, job, columns, steps)
    usable = moved & ~_around(idle) & (np.arange(len(moved)) >= started)
    rows = _warm(window, np.flatnonzero(usable), _front(steps), started)
    each = stats.cut(window.values("rank.step_seconds"), rows, some)
    step = level_of_ranks(each)
    spread = stats.ratio(stats.median(np.abs(each - step[:, None]), axis=1), step)
    apart = float(np.nan_to_num(stats.median(spread))) if len(spread) else 0.0
    span = _by_counter(window, some, steps, rows, idle)
    single = not np.isnan(step).all()
    if np.isnan(step).all():
        step = span
    speed = level_of_ranks(stats.cut(window.values("rank.tokens_per_second"), rows, some))
    token = np.where(speed > 0, 1.0 / np.where(speed > 0, speed, 1.0), np.nan)
    if np.isnan(token).all():
        token = stats.ratio(step, level_of_ranks(stats.cut(window.values("rank.batch_samples"), rows, some)))
    usual = float(stats.median(step)) if len(step) else float("nan")
    return Pace(columns, some, rows, step, token, span, single, apart, usual, started, _settled(window, idle, rows, started))


def level_of_ranks(values: Floats) -> Floats:
    """float64[row]: the median over ranks of what is told and positive."""
    with np.errstate(invalid="ignore"):
        return stats.median(np.where(values > 0, values, np.nan), axis=1)


def of_ranks(values: Floats, q: float = 0.5) -> Floats:
    """float64[row]: the quantile over ranks (float64[row, rank]) of what is told, NaN where nothing is."""
    return stats.median(values, axis=1) if q == 0.5 else stats.quantile(values.T, q)


def level(window: Window, signal: str, columns: Ints, rows: Ints, q: float = 0.5) -> float:
    """The level over the rows of a quantile over ranks, NaN where nothing is told."""
    if not len(rows) or not len(columns):
        return float("nan")
    return float(stats.quantile(of_ranks(stats.cut(window.values(signal), rows, columns), q), LEVEL))


def _front(steps: Floats) -> Floats:
    """float64[tick]: the furthest rank's newest step, NaN before the first."""
    full = stats.filled(steps)
    if not full.size:
        return np.full(len(steps), np.nan)
    return np.where(np.isnan(full).all(axis=1), np.nan, np.where(np.isnan(full), -np.inf, full).max(axis=1))


def _moved(window: Window, some: Ints, steps: Floats) -> Bools:
    """bool[tick]: a step was finished since the tick before. Where no rank tells its step: its time is told anew."""
    for values in (steps, window.values("rank.step_seconds")[:, some], window.values("rank.tokens_per_second")[:, some]):
        if not np.isnan(values).all():
            out = np.zeros(len(values), bool)
            full = stats.filled(values)
            with np.errstate(invalid="ignore"):
                out[1:] = ((full[1:] != full[:-1]) & ~np.isnan(values[1:])).any(axis=1)
            out[0] = bool((~np.isnan(values[0])).any())
            return out
    return np.zeros(len(window.times), bool)


def _around(idle: Bools) -> Bools:
    """A pause and the tick after it: the step that was under way may count the pause as its own."""
    out = idle.copy()
    out[1:] |= idle[:-1]
    return out


def _settled(window: Window, idle: Bools, rows: Ints, started: int) -> Ints:
    reach = window.ticks(SETTLES_SECONDS)
    if started and len(rows):  # the first steps of a run are no measure, nor is what is still shown of them
        started = int(rows[0]) + reach
    paused = np.concatenate([[0], np.cumsum(idle)])
    ticks = np.arange(started, len(idle))
    near = paused[np.minimum(ticks + reach + 1, len(idle))] - paused[np.maximum(ticks - reach, 0)]
    return ticks[near == 0]


def run_start(window: Window, job: JobState, columns: Ints, steps: Floats) -> int:
    """The row at which the present run began, 0 where the window does not show it: its step went back, nothing was heard of
    it for minutes, its trainer said so, its configuration changed, or ranks were added."""
    starts = [0]
    front = _front(steps)
    with np.errstate(invalid="ignore"):
        starts += (np.flatnonzero(front[1:] < front[:-1] - 0.5) + 1).tolist()
    heard = np.flatnonzero(~np.isnan(steps).all(axis=1))
    wide = np.flatnonzero(np.diff(heard) > window.ticks(AWAY_SECONDS))
    starts += heard[wide + 1].tolist() if len(wide) else []
    for phase in ("init", "warmup"):
        values = window.values(f"rank.phase_{phase}")[:, columns[:: max(1, -(-len(columns) // SAMPLE))]]
        starts += (np.flatnonzero(stats.above(values, 0.5).any(axis=1)) + 1).tolist()
    for event in window.events_of("job_phase", "config_change", since=int(window.times[0])):
        said = event.kind == "config_change" or event.fields.get("phase") in ("start", "restart", "init", "warmup")
        if said and event.target.job == job.id:
            starts.append(int(np.searchsorted(window.times, event.at)))
    first = window.block("rank.step").first_at[columns]
    known = first[~np.isnan(first)]
    if len(known) and known.max() - known.min() > AWAY_SECONDS * 1000:
        starts.append(int(np.searchsorted(window.times, known.max())))
    return max(starts)


def _warm(window: Window, rows: Ints, front: Floats, started: int) -> Ints:
    """The rows without the first steps of a run that the window shows."""
    if not started or not len(rows):
        return rows
    origin = front[min(started, len(front) - 1)]
    late = window.times[rows] - window.times[min(started, len(front) - 1)] >= WARM_SECONDS * 1000
    with np.errstate(invalid="ignore"):
        far = np.isnan(front[rows]) | np.isnan(origin) | (front[rows] - origin >= WARM_STEPS)
    return rows[late & far]


def _by_counter(window: Window, some: Ints, steps: Floats, rows: Ints, idle: Bools) -> Floats:
    """float64[row]: seconds a step took by the step's counter, between a row and the one before, pauses left out.

    The trainer's own time of its last step is used where it is told: it is finer than a scrape.
    """
    front = _front(steps)
    stamps = _front(window.values("rank.last_step_timestamp_seconds")[:, some])
    seconds = window.times / 1000.0 if np.isnan(stamps[rows]).any() else stamps
    out = np.full(len(rows), np.nan)
    if len(rows) < 2:
        return out
    paused = np.concatenate([[0], np.cumsum(idle)])
    done = np.diff(front[rows])
    took = np.diff(seconds[rows])
    clean = paused[rows[1:] + 1] == paused[rows[:-1]]
    with np.errstate(invalid="ignore", divide="ignore"):
        out[1:] = np.where(clean & (done > 0), took / np.where(done > 0, done, 1.0), np.nan)
    return out


# --- when a level changed ---------------------------------------------------------------------------------------------
def change(values: Floats, last: int, least: int = 6) -> Change | None:
    """The one point where the level of `values` (float64[n], no NaN) changed most, None where there is none to be told.

    last: how many of the newest values tell the present; least: how many the past needs. The point is the split of the
    winsorised values that explains most of their spread (a likelihood-ratio change point); levels are quantiles.
    """
    n = len(values)
    if n < least + last:
        return None
    middle = float(np.median(values))
    spread = stats.MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    ordered = np.sort(values)
    room = max(4.0 * spread, 1.5 * (at_quantile(ordered, 0.9) - at_quantile(ordered, 0.1)), 1e-12)
    calm = np.minimum(np.maximum(values, middle - room), middle + room)
    total = np.cumsum(calm)
    k = np.arange(least, n - last + 1)
    left, right = total[k - 1] / k, (total[-1] - total[k - 1]) / (n - k)
    at = int(k[np.argmax(k * (n - k) * (right - left) ** 2)])
    past, now = np.sort(values[:at]), np.sort(values[at:])
    before, after = at_quantile(past, LEVEL), at_quantile(now, LEVEL)
    calmest, roughest = _sigma(past), _sigma(now)
    if after > at_quantile(past, 0.975):
        roughest = min(calmest, roughest)  # it lies beyond the past: that it is rough itself takes nothing away
    error = ERROR * float(np.hypot(calmest / np.sqrt(len(past)), roughest / np.sqrt(len(now))))
    return Change(at, before, after, error, _highest(values[:at], last), at_quantile(np.sort(values[-last:]), LEVEL))


def rise(before: Floats, after: Floats) -> tuple[float, float]:
    """(by how much the level of `after` lies above that of `before`, its standard error) of float64[n], float64[m] without NaN."""
    old, new = np.sort(before), np.sort(after)
    error = ERROR * float(np.hypot(_sigma(old) / np.sqrt(len(old)), _sigma(new) / np.sqrt(len(new))))
    return at_quantile(new, LEVEL) - at_quantile(old, LEVEL), error


def at_quantile(ordered: Floats, q: float) -> float:
    """The quantile of ascending values, between the two nearest."""
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def level_of(values: Floats) -> float:
    """The level of float64[n] without NaN, NaN where n is 0."""
    return at_quantile(np.sort(values), LEVEL) if len(values) else float("nan")


def _sigma(ordered: Floats) -> float:
    """The robust spread below and about the level of ascending values: the long tail above is no noise of a low quantile."""
    low, level = at_quantile(ordered, 0.1), at_quantile(ordered, LEVEL)
    half = stats.MAD_TO_SIGMA * float(np.median(np.abs(ordered - at_quantile(ordered, 0.5))))
    # 10 % and 35 % of a normal distribution lie 0.9 sigma apart.
    return max(min(half, (level - low) / 0.9 * 1.5), LEAST_SIGMA * abs(level))


def _highest(past: Floats, last: int) -> float:
    """The highest level that the past held over `last` values, the highest tenth of such spans left out."""
    if len(past) < last + 2:
        return level_of(past)
    spans = np.sort(np.lib.stride_tricks.sliding_window_view(past, last), axis=1)
    return at_quantile(np.sort(spans[:, int(LEVEL * (last - 1))]), 0.9)


# --- findings that are older than the window --------------------------------------------------------------------------
def left_out(window: Window, signal: str, columns: Ints, seconds: int = 600) -> Bools:
    """bool[len(columns)]: the last minutes of these parts are no past, because a finding on them is open.

    A detector has no memory: this is how it knows that what it found is older than its window.
    """
    if window.baseline_of is None or not len(columns):
        return np.zeros(len(columns), bool)
    recent = window.baseline(signal, seconds)
    told = window.values(signal)[-window.ticks(seconds):][:, columns]
    known = stats.count(told) * 2 > len(told)
    return np.asarray((recent.n[columns] == 0) & known)


def expected(window: Window, signal: str, columns: Ints, seconds: int = 6 * 3600, enough: int = 5) -> Floats:
    """float64[len(columns)]: the level of the last hours without open findings, NaN where less than `enough` minutes."""
    return stats.long_past(window, signal, seconds, columns, enough)


def part(job: JobState) -> Target:
    """The job as a part."""
    return Target("job", job=job.id)
