"""A loss or a gradient that is not a number, or infinite.

A literal NaN that a trainer logs counts at once, one that it exposes in two readings; a value that is missing, a series that
ended (the stale marker) and a step that was not logged do not count. Loss scaling skips a step now and then when gradients
overflow, and searches its scale at the start: that is no such loss, and its gradient is infinite in that step beside a loss that
is none (many a trainer logs it so and says of no skip). Overflows without end at a scale that has nowhere left to go are one, and so
are gradients that stay so: weights that took one up give no finite loss in the next step. What a finite loss follows is over.
So is a run of which every step is left out: overflows at a scale that stays, or more of them than any search takes, and a count of
skipped steps that grows as fast as the steps do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Block, Window
from detectors import skipped_steps, stats

FAULT = "nonfinite_loss"
FATAL = 0.9
SAME_LINE_MS = 1000  # a loss and a gradient of one line, whose time a log rounds


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §7 and §11 (an AMP skip or two in a thousand steps is normal); cases P03, P04, P05 and P11.

    since_seconds: how far back a log line counts. nan_iterations: steps at which a trainer counts a NaN without showing
    one, or logs a gradient that is none: a single one may have been skipped. overflows: skipped steps in a row; scale: the loss scale at and below which
    they mean the end (a search at the start stays millions above it). static_overflows: so many in a row at one and the same scale (a
    scaler with hysteresis takes some before it lowers it); skips: so many in a row where no scale is told (a search from 65536 to 1 takes
    16), or where steps that are left out are counted only: skip_share of the steps, for skip_seconds at least.
    """

    since_seconds: float = 900.0
    nan_iterations: int = 2
    overflows: int = 4
    scale: float = 16.0
    static_overflows: int = 8
    skips: int = 20
    skip_seconds: float = 300.0
    skip_share: float = 0.9


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job that tells of its loss."""
    out = []
    for job in window.jobs:
        if job.silent or not len(window.times):
            continue
        verdict = _judge_job(window, job, params)
        if verdict is not None:
            out.append(verdict)
    return out


def _judge_job(window: Window, job: JobState, p: Params) -> Verdict | None:
    columns = np.array(job.ranks, np.int64)
    block = window.block("rank.loss_nonfinite")
    loss = window.block("rank.loss")
    bad = stats.above(block.values[:, columns], 1.0)
    good = ~np.isnan(loss.values[:, columns])
    fresh = block.fresh()[columns] | loss.fresh()[columns]
    now = bool((bad[-1] & fresh).any())
    events = _events(window, job, p, columns)
    if not (now and _lasts(bad)) and not events:
        if (skipped := skipped_steps.rate(window, columns, p)) is not None:
            row = stats.evidence("rank.skipped_per_second", skipped[0], 0.0, f"of {skipped[1]:.3g} steps a second: nearly all are left out")
            return Verdict(_target(job), FAULT, "faulty", FATAL, (row,), "steps_skipped", onset_at=skipped[2])
        recent = bool(fresh.any()) and not now and bool((good[-1] & fresh).any())
        return Verdict(_target(job), FAULT, "clear", reason="clear") if recent else None
    told = [e.at for e in events]
    shown = np.asarray(bad.any(axis=1))
    if shown.any():
        told.append(int(stats.run_start(shown[:, None], window.times, 2)[0]))
    first = min(told)
    return Verdict(_target(job), FAULT, "faulty", FATAL, _evidence(window, bad, events), "not_finite", True, first,
                   _suspects(window, columns, bad, events))


def _target(job: JobState) -> Target:
    return Target("job", job=job.id)


def _lasts(bad: stats.Bools) -> bool:
    """Two readings in a row: one reading may have met a step that was skipped."""
    return len(bad) >= 2 and bool((bad[-1] & bad[-2]).any())


def _finite_at(window: Window, columns: stats.Ints) -> int:
    """When the newest finite loss was read, ms; -1 = never in the window."""
    block, bad = window.block("rank.loss"), window.values("rank.loss_nonfinite")[:, columns]
    return _newest(window, block, columns, np.isfinite(block.values[:, columns]) & ~stats.above(bad, 1.0))


def _gradient_at(window: Window, columns: stats.Ints) -> int:
    """When the newest finite gradient was read, ms; -1 = never in the window."""
    block = window.block("rank.grad_norm")
    return _newest(window, block, columns, np.isfinite(block.values[:, columns]))


def _newest(window: Window, block: Block, columns: stats.Ints, finite: stats.Bools) -> int:
    """When the newest of the finite readings (bool[tick, rank]) was made, ms, at the earliest; -1 = there is none. A job that tells
    nothing for a moment (it saves, it evaluates) is no worse than when it was last heard."""
    rows = np.flatnonzero(finite.any(axis=1))
    if not len(rows):
        return -1
    if rows[-1] == len(window.times) - 1:
        return int(window.end - 1000 * block.age_seconds[columns][finite[-1]].min())
    return int(window.times[rows[-1]]) - 1000 * window.step_seconds


def _events(window: Window, job: JobState, p: Params, columns: stats.Ints) -> list[Event]:
    """The log's words on losses that are not finite, newer than the newest finite loss; empty where they do not suffice."""
    finite_at, gradient_at = _finite_at(window, columns), _gradient_at(window, columns)
    since = max(window.end - int(p.since_seconds * 1000), 0)
    mine = [e for e in window.events_of("nonfinite", since=since) if e.target.job == job.id]
    # A rank's own check of its results speaks of no step's line: it counts at once, as a loss does, and as a gradient does whose
    # step has no finite loss either.
    beside = finite_at + SAME_LINE_MS
    shown: list[Event] = []
    steps: list[Event] = []
    counted: list[Event] = []
    for event in mine:
        what = event.fields.get("what")
        if what == "nan_iterations":
            counted += [event] if event.at > finite_at else []
        elif what == "grad_norm" and event.fields.get("step") is not None and event.at <= beside:
            steps += [event] if event.at >= gradient_at else []
        elif _after(event, finite_at):
            shown.append(event)
    for some in (steps, counted):
        if len({e.fields.get("step") for e in some}) >= p.nan_iterations:
            shown += some
    return sorted(shown or skipped_steps.streak(window, job, columns, p), key=lambda e: e.at)


def _after(event: Event, finite_at: int) -> bool:
    """A gradient that is NaN beside a loss that is finite is told at one time."""
    return event.at >= finite_at if event.fields.get("what") == "grad_norm" else event.at > finite_at


def _evidence(window: Window, bad: stats.Bools, events: list[Event]) -> tuple[Evidence, ...]:
    out = []
    if bad.any():
        ranks = int(bad.any(axis=0).sum())
        out.append(stats.evidence("rank.loss_nonfinite", 1.0, 0.0, "a finite loss", f"on {ranks} of {bad.shape[1]} ranks"))
    if events:
        out.append(Evidence("nonfinite", "count", float(len(events)), 0.0, "a finite loss", events[0].line))
    return tuple(out)


def _suspects(window: Window, columns: stats.Ints, bad: stats.Bools,
              events: list[Event]) -> tuple[tuple[Target, float, str], ...]:
    """The ranks that were the only ones to tell of it first, where others told of finite losses: they may be where it began."""
    ranks = window.of_kind("rank")
    first = np.flatnonzero(bad.any(axis=1))
    if not len(first):
        return ()
    began = np.flatnonzero(bad[first[0]])
    if len(began) == 0 or len(began) * 4 > len(columns):
        return ()
    return tuple((ranks[int(columns[i])], 1.0, "first_to_tell") for i in began)


PLUGIN = DetectorPlugin(
    name="nonfinite_loss", fault=FAULT, judge=judge, params=Params, needs=(("rank.loss_nonfinite", "nonfinite", "overflow", "rank.skipped_per_second"),),
    hold=Hold(on=1, of=1, off=8), must_not=("a loss that is not logged", "a series that has ended", "a step skipped for overflow",
                                            "a job that resumed from a checkpoint"),
)
