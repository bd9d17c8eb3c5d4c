"""A job trains on and saves no more: its last checkpoint grows old, saves begin and do not finish, or fail.

How often a job saves is learned from its own saves since its last start: at least three of them. The last one is stale when
twice the usual time and twice the usual steps have passed since, so neither a pause nor slower steps are taken for it. A job
that never saved, that has just started or that makes no steps is not judged: no save is late there.
A save that both a log and the ranks tell of is one, though a log names it by the last step that it printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Floats, JobState, Target, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Ints

FAULT = "checkpoint_stale"
MOST_RANKS = 256
NEWEST_EVENTS = 400  # of a job: what was long before its last dozen saves tells nothing
AGAIN_STEPS = 2  # a run that starts again goes back by more; readings of ranks that are a step apart by less
STARTS = ("start", "restart", "init")


Found = tuple[str, int, tuple[Evidence, ...]]


@dataclass(frozen=True)
class Params:
    """Sources: the usual rule of twice the interval (HyperPod's recurring-line rule of rules.md §3g, with a learned
    interval in place of a fixed one); the rest is our judgement on the saves of recorded and emulated runs.

    times: how many usual intervals, in time and in steps, make a save stale; longest: and how many times the longest one.
    saves: how many are needed to learn from; newest: so many of the last ones are. slack_ticks: for scrapes. failures:
    saves in a row that were told to have failed; unfinished: saves that began after the last good one and never finished,
    while the training went on. slow_times: a save that takes so many times its usual time, slow_longest: and so many times
    the longest, slow_seconds: and so many seconds more, slow_saves: so many times in a row; where only saves_few are known from
    before, slow_times_few times. moving_seconds, moving_steps:
    a job that has made no step for so long, and for so many of its steps, is not judged. same_seconds: what the log tells of a save
    and what the ranks show lies no farther apart, or within writes_seconds of its start where the log tells no end.
    """

    times: float = 2.0
    longest: float = 1.3
    saves: int = 3
    newest: int = 12
    slack_ticks: int = 1
    failures: int = 2
    unfinished: int = 2
    slow_times: float = 4.0
    slow_longest: float = 2.0
    slow_seconds: float = 60.0
    slow_saves: int = 2
    slow_times_few: float = 8.0
    saves_few: int = 2
    moving_seconds: float = 120.0
    moving_steps: float = 5.0
    same_seconds: float = 60.0
    writes_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Save:
    """at: when it was complete, ms; seconds: how long it took, NaN = not known."""

    at: int
    step: float
    seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class Saving:
    """A job's saves since its start (`since`, ms; `first`: its step then, NaN = not known). good: complete ones, oldest
    first. begun: starts of saves after the last good one that nothing was heard of since. failed: failures told since."""

    since: int
    first: float
    good: tuple[Save, ...]
    begun: tuple[Event, ...]
    failed: tuple[Event, ...]


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job whose saves are known."""
    events: dict[str, list[Event]] = {}
    for event in window.events_of("checkpoint", "job_phase"):
        if event.target.job is not None:
            events.setdefault(event.target.job, []).append(event)
    out = []
    for job in window.jobs:
        if job.silent or not job.running or not job.ranks or not len(window.times):
            continue
        verdict = _judge_job(window, job, events.get(job.id, [])[-NEWEST_EVENTS:], params)
        if verdict is not None:
            out.append(verdict)
    return out


def _judge_job(window: Window, job: JobState, events: list[Event], p: Params) -> Verdict | None:
    columns = np.array(job.ranks, np.int64)[:MOST_RANKS]
    if "rank.step" not in window.blocks:
        return None
    fresh = bool(window.block("rank.step").fresh()[columns].any())
    if not fresh and job.phase != "checkpoint":  # a log tells no step while the job saves
        return None
    steps = _front(window, "rank.step", columns)
    target = Target("job", job=job.id)
    seen = _saves(window, columns, steps, events, p)
    if not fresh or not _moves(window, steps, p):
        # It does nothing else while it saves: how long the save takes can be told all the same.
        slow = _slow(window, seen, p) if job.phase == "checkpoint" else None
        return None if slow is None else _faulty(target, slow)
    now = float(steps[~np.isnan(steps)][-1])
    for found in (_failing(seen, now, p), _stale(window, seen, now, p), _slow(window, seen, p)):
        if found is not None:
            return _faulty(target, found)
    learned = len(seen.good) >= p.saves
    return Verdict(target, FAULT, "clear", reason="clear") if learned and not seen.failed else None


def _faulty(target: Target, found: Found) -> Verdict:
    reason, onset, evidence = found
    return Verdict(target, FAULT, "faulty", 0.3, evidence, reason, onset_at=onset)


def _front(window: Window, signal: str, columns: Ints) -> Floats:
    """float64[tick]: the highest number among the ranks, NaN where none tells it."""
    values = window.values(signal)[:, columns]
    best = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)


def _moves(window: Window, steps: Floats, p: Params) -> bool:
    """Steps are finished: a job that hangs or pauses is not judged."""
    rows = np.flatnonzero(~np.isnan(steps))
    if len(rows) < 2:
        return False
    change = rows[1:][np.diff(steps[rows]) > 0]
    if not len(change):
        return False
    usual = float(np.median(np.diff(window.times[change]))) / 1000.0 if len(change) > 1 else 0.0
    return (window.end - int(window.times[change[-1]])) / 1000.0 <= max(p.moving_seconds, p.moving_steps * usual)


# --- what was saved ---------------------------------------------------------------------------------------------------
def _saves(window: Window, columns: Ints, steps: Floats, events: list[Event], p: Params) -> Saving:
    """The saves of the present run, from events (a log's) and from the newest checkpoint's step that the ranks show."""
    since, first = _start(window, steps, events)
    told = [e for e in events if e.kind == "checkpoint" and e.at >= since]
    finishes = any(e.fields.get("state") in ("saved", "done") for e in events if e.kind == "checkpoint")
    good: dict[float, Save] = {}
    begun: dict[float, Event] = {}
    failed: list[Event] = []
    for event in told:
        step, state = _step_of(event), event.fields.get("state")
        if state in ("saved", "done") or (state == "saving" and not finishes):
            begin = begun.pop(step, None)
            took = math.nan if begin is None else (event.at - begin.at) / 1000.0
            good.setdefault(step, Save(event.at, step, took))
            begun, failed = {s: e for s, e in begun.items() if s > step}, []
        elif state == "saving":
            begun[step] = event
        elif state == "failed":
            failed.append(event)
            begun.pop(step, None)
    by_log = sorted(good.values(), key=lambda s: (s.at, s.step))
    ordered = tuple(sorted([*by_log, *_others(_shown(window, columns, since), by_log, finishes, p)], key=lambda s: (s.at, s.step)))
    return Saving(since, first, ordered, tuple(e for _, e in sorted(begun.items())), tuple(failed))


def _others(shown: list[Save], by_log: list[Save], finishes: bool, p: Params) -> list[Save]:
    """Those of the ranks' saves that the log does not tell of: of each of its own they show one, by its step or about when it was made."""
    named = {save.step for save in by_log}
    left = [save for save in shown if save.step not in named]
    steps = {save.step for save in shown}
    for save in by_log:
        if save.step in steps:
            continue
        begin = save.at - 1000.0 * (p.same_seconds + (0.0 if math.isnan(save.seconds) else save.seconds))
        end = save.at + 1000.0 * (p.same_seconds if finishes else p.writes_seconds)
        same = next((one for one in left if begin <= one.at <= end), None)
        if same is not None:
            left.remove(same)
    return left


def _step_of(event: Event) -> float:
    step = event.fields.get("step")
    return float(step) if isinstance(step, (int, float)) else float(event.at)


def _start(window: Window, steps: Floats, events: list[Event]) -> tuple[int, float]:
    """(ms, step) of the present run's beginning: its last start, or a step that goes back; else as far as is known."""
    since, first = 0, math.nan
    for event in events:
        if event.kind == "job_phase" and event.fields.get("phase") in STARTS:
            since = event.at
    rows = np.flatnonzero(~np.isnan(steps))
    back = rows[1:][np.diff(steps[rows]) < -AGAIN_STEPS]
    if len(back):
        since, first = max(since, int(window.times[back[-1]])), float(steps[back[-1]])
    return since, first


def _shown(window: Window, columns: Ints, since: int) -> list[Save]:
    """The saves that the ranks' newest checkpoint shows in the window; what it first shows was saved at an unknown time."""
    newest = _front(window, "rank.last_checkpoint_step", columns)
    rows = np.flatnonzero(~np.isnan(newest) & (window.times >= since))
    changed = rows[1:][np.diff(newest[rows]) > 0]
    return [Save(int(window.times[r]), float(newest[r])) for r in changed.tolist()]


# --- what is wrong ----------------------------------------------------------------------------------------------------
def _failing(seen: Saving, now: float, p: Params) -> Found | None:
    """Saves were told to have failed, or began and were never finished although the training went on."""
    if len(seen.failed) >= p.failures:
        count = Evidence("checkpoint", "count", float(len(seen.failed)), 0.0, "saves that failed since the last good one",
                         seen.failed[-1].line)
        return "saves_fail", seen.failed[0].at, (count,)
    took = [s.seconds for s in seen.good if not math.isnan(s.seconds)]
    # The newest may still be written in the background; those before it were given up when it began.
    given_up = [e for e in seen.begun if now > _step_of(e)][:-1]
    if len(took) < 2 or len(given_up) + 1 < p.unfinished or not given_up:
        return None
    last = [e for e in seen.begun if now > _step_of(e)][-1]
    count = Evidence("checkpoint", "count", float(len(given_up) + 1), 0.0,
                     "saves that began after the last good one and did not finish", last.line)
    return "saves_unfinished", given_up[0].at, (count,)


def _gaps(seen: Saving, p: Params) -> tuple[list[float], list[float]]:
    """Milliseconds and steps between the newest saves."""
    saves = seen.good[-p.newest:]
    pairs = [(b.at - a.at, b.step - a.step) for a, b in pairwise(saves) if b.step > a.step]
    return [float(ms) for ms, _ in pairs], [step for _, step in pairs]


def _limit(gaps: list[float], p: Params) -> float:
    return max(p.times * float(np.median(gaps)), p.longest * max(gaps))


def _stale(window: Window, seen: Saving, now: float, p: Params) -> Found | None:
    """Too long ago, in time and in steps."""
    if len(seen.good) < p.saves:
        return None
    times, steps = _gaps(seen, p)
    if len(times) < p.saves - 1:
        return None
    last = seen.good[-1]
    age, behind = window.end - last.at, now - last.step
    slack = p.slack_ticks * window.step_seconds * 1000
    if age <= _limit(times, p) + slack or behind <= _limit(steps, p):
        return None
    usual = float(np.median(times))
    evidence = (
        stats.evidence("rank.last_checkpoint_step", last.step, now, "the step now"),
        Evidence("checkpoint", "s", age / 1000.0, usual / 1000.0, f"its usual interval, of {len(times) + 1} saves"),
        stats.evidence("rank.step", behind, float(np.median(steps)), "steps since the last save, usually between two"),
    )
    return "stale", int(last.at + usual), evidence


def _slow(window: Window, seen: Saving, p: Params) -> Found | None:
    """The last saves took many times as long as those before; the newest may still go on."""
    took = [s for s in seen.good if not math.isnan(s.seconds)]
    going = [Save(window.end, _step_of(e), (window.end - e.at) / 1000.0) for e in seen.begun[-1:]]
    for saves in ([*took, *going], took):
        newest, before = saves[-p.slow_saves:], [s.seconds for s in saves[:-p.slow_saves]][-p.newest:]
        if len(before) < p.saves_few:
            continue
        usual = float(np.median(before))
        times = p.slow_times if len(before) >= p.saves else p.slow_times_few
        # Those that are slow already are no measure of what is usual.
        calm = [s for s in before if s <= times * usual]
        limit = max(times * usual, p.slow_longest * max(calm), usual + p.slow_seconds)
        if all(s.seconds > limit for s in newest):
            slowest = Evidence("checkpoint", "s", newest[-1].seconds, usual,
                               f"how long it took before, median of {len(before)} saves")
            return "saves_slow", int(newest[0].at - 1000.0 * newest[0].seconds), (slowest,)
    return None


PLUGIN = DetectorPlugin(
    name="checkpoint_stale", fault=FAULT, judge=judge, params=Params,
    needs=(("rank.step",), ("rank.last_checkpoint_step", "checkpoint")),
    hold=Hold(on=2, of=2, off=4, expire=120),
    must_not=("a job that never saved", "a job that has just started", "a hang", "a pause or slower steps",
              "a save out of turn", "another interval after a restart", "saves that are written in the background"),
)
