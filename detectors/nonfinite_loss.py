"""A loss or a gradient that is not a number, or infinite.

A literal NaN that a trainer exposes or logs counts; a value that is missing, a series that ended (the stale marker) and a
step that was not logged do not. Loss scaling skips a step now and then when gradients overflow: an overflow is no such
loss, and a step that was skipped and followed by a finite loss is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Window
from detectors import stats

FAULT = "nonfinite_loss"
FATAL = 0.9


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §7 and §11 (an AMP skip or two in a thousand steps is normal).

    losses: non-finite losses at different steps that the log must tell of; one may be a skipped step. since_seconds: how
    far back a log line counts.
    """

    losses: int = 2
    since_seconds: float = 900.0


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
    finite = np.flatnonzero(good.any(axis=1))
    last_finite = int(window.times[finite[-1]]) if len(finite) else -1
    events = _events(window, job, p, last_finite)
    steps = {e.fields.get("step") for e in events}
    if not (now and _lasts(bad)) and not (len(steps) >= p.losses and events[-1].at > last_finite):
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


def _events(window: Window, job: JobState, p: Params, last_finite: int) -> list[Event]:
    since = max(window.end - int(p.since_seconds * 1000), last_finite)
    return [e for e in window.events_of("nonfinite", since=since)
            if e.target.job == job.id and e.fields.get("what") in ("loss", "grad_norm", "nan_iterations")]


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
    name="nonfinite_loss", fault=FAULT, judge=judge, params=Params, needs=(("rank.loss_nonfinite", "nonfinite"),),
    hold=Hold(on=1, of=1, off=8), must_not=("a loss that is not logged", "a series that has ended", "a step skipped for overflow",
                                            "a job that resumed from a checkpoint"),
)
