"""The loss of a job jumps: a spike that comes back down, or a divergence that does not.

Losses are read at new steps, ranks that tell one put together by their median. One high step is noise (healthy runs have
steps 80 % above their neighbours): several in succession have to be high, all of them, up to now. Where the trainer logs a
gradient norm, the norm has to be up as well, and the rise may be small; another mix of data raises the loss alone. Where no
norm is told, the rise has to be large against everything that the run showed before.

A run that starts again from an older step begins anew: its loss is compared with nothing of before. A spike after one that came back
down is compared with the calm time between them, if the gradient norm rises with it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, JobState, Target, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Ints

FAULT = "loss_spike"
MOST_RANKS = 256  # ranks of a data-parallel job tell nearly the same loss: so many are looked at
AGAIN_STEPS = 2  # a run that starts again goes back by more; readings of ranks that are a step apart by less


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §7 and §11 (a jump of more than 6 to 8 sd of recent differences that lasts, the gradient norm
    first) and real runs: of 12 healthy ones no three steps in succession were more than 15 % above the median before them
    or 4 % above the highest of 20 steps before them, while single steps were 88 % above; of the BLOOM family's faults the
    losses rose by 13 to 210 %, and gradient norms of a spike by a hundred and more.

    high_steps: so many readings in succession. rise: by how much all of them are above the median before, sigmas: and by
    how many robust sigmas of the differences before. norm_rise, norm_sigmas: the same of the gradient norm's median.
    Without a norm that rises: above_all, all of them over the highest before; clear_rise, their median over it.
    calm_norm: a norm that is not above so many times its past (nor, in a single reading, norm_rise times) did not move with the loss:
    then the rise has to be huge_rise.
    past: readings that are needed before them; past_slow: of a job whose readings lie slow_seconds apart or more (long
    steps or log intervals, which are calm), not in its first early_steps steps; past_range: and their rise so many times
    the range of these few. recovered: share of the height below which it comes back down. lasting_seconds: a loss that is
    not lower by then diverges.
    """

    high_steps: int = 3
    rise: float = 0.08
    sigmas: float = 6.0
    norm_rise: float = 2.0
    norm_sigmas: float = 4.0
    above_all: float = 0.10
    clear_rise: float = 0.25
    calm_norm: float = 1.5
    huge_rise: float = 0.6
    past: int = 8
    past_slow: int = 2
    slow_seconds: float = 60.0
    early_steps: float = 100.0
    past_range: float = 4.0
    recovered: float = 0.65
    lasting_seconds: float = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """A job's losses at new steps, oldest first. at: ms. norm: NaN where none is told."""

    at: Ints
    step: Floats
    loss: Floats
    norm: Floats

    def __len__(self) -> int:
        return len(self.loss)


@dataclass(frozen=True, slots=True)
class Rise:
    """The readings from `first` on are high. usual, usual_norm: before it; norm: the median of the high readings."""

    first: int
    usual: float
    norm: float
    usual_norm: float


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job that tells of its loss."""
    out = []
    nonfinite = {e.target.job for e in window.events_of("nonfinite", since=window.end - 60_000)}
    for job in window.jobs:
        if job.silent or not job.running or not job.ranks or not len(window.times) or job.id in nonfinite:
            continue
        verdict = _judge_job(window, job, params)
        if verdict is not None:
            out.append(verdict)
    return out


def _judge_job(window: Window, job: JobState, p: Params) -> Verdict | None:
    columns = np.array(job.ranks, np.int64)[:MOST_RANKS]
    if not window.block("rank.loss").fresh()[columns].any():
        return None
    # A loss that is not finite now is another fault, and what is left of the loss tells nothing.
    if stats.above(window.tail("rank.loss_nonfinite", 60.0)[:, columns], 1.0).any():
        return None
    seen = _readings(window, columns)
    if not len(seen):
        return None
    target = Target("job", job=job.id)
    rise = find(seen, p)
    if rise is None:
        return Verdict(target, FAULT, "clear", reason="clear") if _calm(seen, p) else None
    diverges = _diverges(seen, rise, p)
    reason, severity = ("divergence", 0.6) if diverges else ("spike", 0.3)
    return Verdict(target, FAULT, "faulty", severity, _evidence(seen, rise, diverges), reason,
                   onset_at=int(seen.at[rise.first]))


# --- readings ---------------------------------------------------------------------------------------------------------
def _readings(window: Window, columns: Ints) -> Readings:
    """The losses of the present run: what came before a step that goes back is left out."""
    loss = window.values("rank.loss")[:, columns]
    # Stages of a pipeline that compute no loss may show 0; a loss below it is no cross-entropy, and has no ratio.
    loss = np.where(stats.above(loss, 1e-9), loss, np.nan)
    told = stats.median(loss, axis=1)
    step = stats.median(np.where(np.isnan(loss), np.nan, window.values("rank.step")[:, columns]), axis=1)
    norm = stats.median(window.values("rank.grad_norm")[:, columns], axis=1)
    rows = np.flatnonzero(~np.isnan(told) & ~np.isnan(step))
    if len(rows):
        change = np.concatenate([[1.0], np.diff(step[rows])])
        again = np.flatnonzero(change < -AGAIN_STEPS)
        first = int(again[-1]) if len(again) else 0
        keep = change > 0
        keep[first] = True
        keep[:first] = False
        rows = rows[keep]
    return Readings(window.times[rows], step[rows], told[rows], norm[rows])


# --- the rise ---------------------------------------------------------------------------------------------------------
def find(seen: Readings, p: Params) -> Rise | None:
    """The longest run of high readings that ends now, None where there is none."""
    found = _find(seen, p)
    since = _calm_since(seen, p) if found is None else 0
    if not since:
        return found
    again = _find(Readings(seen.at[since:], seen.step[since:], seen.loss[since:], seen.norm[since:]), p)
    # A loss that was as high before says nothing new by its height alone.
    return None if again is None or math.isnan(again.norm) else replace(again, first=again.first + since)


def _calm_since(seen: Readings, p: Params) -> int:
    """The reading from which on the loss was down again, after it had been about as high as now: 0 where it was not, or not for
    `past` readings."""
    last = len(seen) - p.high_steps
    if last < p.past:
        return 0
    now, least = float(seen.loss[last:].min()), float(seen.loss[:last].min())
    if now < (1.0 + p.rise) * least:
        return 0
    high = seen.loss >= 0.5 * (now + least)
    calm = int(np.flatnonzero(~high)[-1]) + 1
    twice = np.flatnonzero(high[1:calm] & high[:calm - 1])  # a single high step is noise
    since = int(twice[-1]) + 2 if len(twice) else 0
    return since if calm - since >= p.past else 0


def _find(seen: Readings, p: Params) -> Rise | None:
    n = len(seen)
    last = n - p.high_steps
    if last < p.past_slow:
        return None
    lowest = float(seen.loss[last:].min())
    if lowest < (1.0 + p.rise) * float(seen.loss[:last].min()):
        return None
    for first in range(p.past_slow, last + 1):
        if float(seen.loss[first]) < (1.0 + p.rise) * float(seen.loss[:first].min()):
            continue
        rise = _rise_from(seen, first, p)
        if rise is not None:
            return rise
    return None


def _rise_from(seen: Readings, first: int, p: Params) -> Rise | None:
    past, run = seen.loss[:first], seen.loss[first:]
    usual = _usual(past)
    up, norm, usual_norm = _norm(seen, first, p)
    few = first < p.past
    if few and not _tells_with_few(seen, first, up, p):
        return None
    sigma = 0.0 if few else stats.MAD_TO_SIGMA * float(np.median(np.abs(np.diff(past)))) / math.sqrt(2.0)
    if float(run.min()) < usual + max(p.rise * usual, p.sigmas * sigma):
        return None
    if up:
        return Rise(first, usual, norm, usual_norm)
    top, middle = float(past.max()), float(np.median(run[-p.high_steps:]))
    if float(run.min()) < (1.0 + p.above_all) * top or middle < (1.0 + p.clear_rise) * top:
        return None
    if _norm_stayed(seen.norm[first:], usual_norm, p) and middle < (1.0 + p.huge_rise) * usual:
        return None
    return Rise(first, usual, norm, usual_norm)


def _norm_stayed(norms: Floats, usual: float, p: Params) -> bool:
    """The gradient norm did not move with the loss. Of many readings one is high by chance: a single one has to be clearly so."""
    known = norms[~np.isnan(norms)]
    if not usual > 0 or not len(known):
        return usual > 0
    three = np.median(np.lib.stride_tricks.sliding_window_view(known, min(3, len(known))), axis=1)
    return bool(three.max() < p.calm_norm * usual and known.max() < p.norm_rise * usual)


def _usual(past: Floats) -> float:
    """The level before: the median, or that of the beginning where a slow climb has raised the rest."""
    early = past[:max(8, len(past) // 3)]
    return min(float(np.median(past)), float(np.median(early)))


def _tells_with_few(seen: Readings, first: int, up: bool, p: Params) -> bool:
    """Few readings before tell enough where each is an average or a long step, and the norm rises as well or the rise
    dwarfs their range."""
    gaps = np.diff(seen.at) / 1000.0
    past, run = seen.loss[:first], seen.loss[first:]
    slow = float(np.median(gaps)) >= p.slow_seconds and float(seen.step[0]) >= p.early_steps
    height = float(np.median(run[-p.high_steps:])) - float(past.max())
    return slow and (up or height >= p.past_range * float(past.max() - past.min()) or height >= p.clear_rise * float(past.max()))


def _norm(seen: Readings, first: int, p: Params) -> tuple[bool, float, float]:
    """(the gradient norm is up with the loss, its median now, before); NaN where it tells nothing: it is not logged, zero,
    or cut at one value."""
    past, run = seen.norm[:first], seen.norm[first:]
    known = past[~np.isnan(past)]
    now = float(stats.median(run))
    if len(known) < max(p.past_slow, len(past) // 2) or math.isnan(now):
        return False, math.nan, math.nan
    usual = _usual(known)
    spread = stats.MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known))))
    if usual <= 0 or (len(known) >= p.past and spread < 1e-6 * usual):
        return False, math.nan, math.nan
    return now >= max(p.norm_rise * usual, usual + p.norm_sigmas * spread), now, usual


def _calm(seen: Readings, p: Params) -> bool:
    """The last readings are near what was before them."""
    n = len(seen)
    if n < p.high_steps:
        return False
    now = float(np.median(seen.loss[n - p.high_steps:]))
    return now < (1.0 + p.rise / 2) * _usual(seen.loss[:max(1, n - p.high_steps)])


# --- what kind it is --------------------------------------------------------------------------------------------------
def _diverges(seen: Readings, rise: Rise, p: Params) -> bool:
    """It goes on rising, or has not come down for so long."""
    run = seen.loss[rise.first:] - rise.usual
    share = float(np.median(run[-2:])) / max(float(run.max()), 1e-9)
    if share < p.recovered:
        return False
    lasts = (int(seen.at[-1]) - int(seen.at[rise.first])) / 1000.0 >= p.lasting_seconds
    slow = float(np.median(np.diff(seen.at))) / 1000.0 >= p.slow_seconds
    return lasts or (slow and bool((np.diff(run[-p.high_steps:]) > 0).all()))


def _evidence(seen: Readings, rise: Rise, diverges: bool) -> tuple[Evidence, ...]:
    run = seen.loss[rise.first:]
    text = "it has not come down" if diverges else (
        "it falls again" if float(run[-1]) < float(run.max()) else "it may come down by itself")
    out = [
        stats.evidence("rank.loss", float(run.max()), rise.usual,
                       f"its median before; {len(run)} readings in succession are high, the last is {run[-1]:.4g}", text),
        stats.evidence("rank.step", float(seen.step[rise.first]), None, "the first high step that was read"),
    ]
    if not math.isnan(rise.norm):
        out.append(stats.evidence("rank.grad_norm", rise.norm, rise.usual_norm, "its median before"))
    return tuple(out)


PLUGIN = DetectorPlugin(
    name="loss_spike", fault=FAULT, judge=judge, params=Params, needs=(("rank.loss",), ("rank.step",)),
    # The verdict itself looks at several steps in succession: one tick of it is enough.
    hold=Hold(on=1, of=1, off=8),
    must_not=("a single high step", "another mix of data", "a run that resumes from an older step", "a loss that is not finite",
              "a noisy or small loss", "the beginning of a run", "a step skipped for overflow"),
)
