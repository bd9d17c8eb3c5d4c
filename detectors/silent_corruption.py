"""A GPU that is suspected of wrong results: nothing counts an error, but its rank's numbers leave those of its peers.

Ranks of one job that always agreed (a norm or a loss that is the same everywhere after the exchange) go on to agree, or one of
them computes something else. Where each rank tells its own share, one that leaves its peers by a multiple and stays there,
after it was one of them, is suspected as well. So is the one rank whose own checks find NaN again and again while no other's
do. That is all that telemetry shows of silent corruption; software can look the same, so it is a suspicion with low
confidence, a reason to test the GPU and none to replace it. Numbers that were uneven from the start tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Floats, JobState, Verdict
from core.window import Window
from detectors import shared, stats
from detectors.stats import Bools, Ints

FAULT = "silent_corruption"
SUSPECTED = 0.3  # how sure a number that differs makes us of the rank's GPU
AGREEING = ("rank.grad_norm", "rank.loss")
PEERS = 256      # peers that a suspected rank is compared with


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (nothing in error counters; per-rank numbers are needed) and DESIGN §2 (at most suspected); the
    numbers are our judgement.

    ranks: the fewest that can be compared. agree: relative range within which ranks say the same; apart: a relative
    difference that is none of rounding. times, sigmas: for ranks that tell their own share, so many times the peers' median
    and so many robust sigmas, over the recent ticks. readings: at so many new steps, of which share are apart; before: after
    so many, of which before_share were not.
    nan_times: findings of NaN by one rank's own checks, nan_apart_seconds: so far apart; nan_seconds: how old the last may be.
    """

    ranks: int = 4
    agree: float = 1e-3
    apart: float = 0.01
    times: float = 2.0
    sigmas: float = 8.0
    recent: int = 8
    readings: int = 6
    share: float = 0.75
    before: int = 4
    before_share: float = 0.9
    nan_times: int = 2
    nan_apart_seconds: float = 600.0
    nan_seconds: float = 1800.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """Verdicts on suspected ranks; ranks that can be compared and do not stand out are clear."""
    if not len(window.times):
        return []
    nans = _checks(window, params)
    out: list[Verdict] = []
    for job in window.jobs:
        if job.silent or not job.running:
            continue
        found = _by_checks(job, nans.get(job.id, []), params)
        if found is not None:
            out.append(found)
        out += _by_peers(window, job, params)
    return out


# --- numbers that leave the peers' ------------------------------------------------------------------------------------
def _by_peers(window: Window, job: JobState, p: Params) -> list[Verdict]:
    columns = np.array(job.ranks, np.int64)
    if len(columns) < p.ranks:
        return []
    judged, odd = np.zeros(len(columns), bool), np.zeros(len(columns), bool)
    faulty: dict[int, Verdict] = {}
    for signal in AGREEING:
        fresh = window.block(signal).fresh()[columns] & window.block("rank.step").fresh()[columns]
        tail, steps = window.values(signal)[-p.recent:, columns], window.last("rank.step")[columns]
        tail = np.where(fresh, tail, np.nan)
        # Ranks are read a moment apart: only those at the same step can be compared.
        now = _at_one_step(tail[-1], steps)
        if (~np.isnan(now)).sum() < p.ranks:
            continue
        apart = _apart(now, p.apart, p) if _same(now, p) else _far(stats.median(tail), p.times, p.sigmas)
        judged |= ~np.isnan(now)
        odd |= apart
        # Many that are apart are another group of ranks, or the peers are.
        if 0 < apart.sum() <= max(1, len(columns) // 16) and (signal == "rank.grad_norm" or _same(now, p)):
            for i in np.flatnonzero(apart).tolist():
                verdict = _left(window, signal, columns, i, p)
                if verdict is not None:
                    faulty.setdefault(i, verdict)
    ranks = window.of_kind("rank")
    clear = shared.clears(ranks, columns[judged & ~odd], FAULT)
    return clear + ([faulty[i] for i in sorted(faulty)] if len(faulty) == 1 else [])


def _at_one_step(values: Floats, steps: Floats) -> Floats:
    """The values of the ranks that are at the most common step, NaN for the others."""
    known = ~np.isnan(values) & ~np.isnan(steps)
    if not known.any():
        return np.full(len(values), np.nan)
    levels, counts = np.unique(steps[known], return_counts=True)
    return np.where(known & (steps == levels[np.argmax(counts)]), values, np.nan)


def _same(now: Floats, p: Params) -> bool:
    """Nearly all say the same number."""
    known = now[~np.isnan(now)]
    middle = float(np.median(known))
    return float(np.quantile(np.abs(known - middle), 0.75)) <= p.agree * abs(middle)


def _apart(now: Floats, share: float, p: Params) -> Bools:
    """bool[rank]: it does not say what all others say."""
    middle = float(stats.median(now))
    return stats.above(np.abs(now - middle), max(share, p.agree) * abs(middle)) & (middle != 0)


def _far(values: Floats, times: float, sigmas: float) -> Bools:
    """bool[rank]: it is a multiple of the others, and far outside their spread."""
    middle = float(stats.median(values))
    spread = stats.MAD_TO_SIGMA * float(stats.median(np.abs(values - middle)))
    return stats.above(values, max(times * middle, middle + sigmas * spread)) & (middle > 0)


def _left(window: Window, signal: str, columns: Ints, i: int, p: Params) -> Verdict | None:
    """The rank was one of its peers and has left them for so many readings; None where it was not, or has not."""
    others = np.delete(columns, i)
    both = np.concatenate([columns[i:i + 1], others[:: max(1, len(others) // PEERS)]])
    values, steps = window.values(signal)[:, both], window.values("rank.step")[:, both]
    rows: list[int] = []
    apart: list[bool] = []
    own = middle = last = np.nan
    for row in np.flatnonzero(~np.isnan(steps[:, 0])).tolist():
        now = _at_one_step(values[row], steps[row])
        if steps[row, 0] == last or np.isnan(now[0]) or (~np.isnan(now)).sum() < p.ranks:
            continue
        last, own, middle = steps[row, 0], float(now[0]), float(stats.median(now[1:]))
        rows.append(row)
        # One reading of a share of its own is noisy: half of what is asked of them together is asked of each.
        apart.append(bool((_apart(now, p.apart, p) if _same(now, p) else _far(now, p.times ** 0.5, p.sigmas / 2))[0]))
    flags = np.array(apart, bool)
    for first in range(p.before, len(flags) - p.readings + 1):
        if flags[first] and flags[first:].mean() >= p.share and flags[:first].mean() <= 1.0 - p.before_share:
            rank = window.of_kind("rank")[int(columns[i])]
            text = f"median of {len(both) - 1} peers at the same step; {len(flags) - first} readings"
            return Verdict(rank, FAULT, "faulty", 0.3, (stats.evidence(signal, own, middle, text),), "left_its_peers",
                           onset_at=int(window.times[rows[first]]), suspects=((rank, SUSPECTED, "left_its_peers"),))
    return None


# --- a rank's own checks ----------------------------------------------------------------------------------------------
def _checks(window: Window, p: Params) -> dict[str, list[Event]]:
    """By job, what ranks' checks of their own results found: the trainer names the rank, and not only the one that logs."""
    out: dict[str, list[Event]] = {}
    for event in window.events_of("nonfinite"):
        if event.target.kind == "rank" and event.target.job is not None and " local " in (event.line or ""):
            out.setdefault(event.target.job, []).append(event)
    newest = window.end - int(p.nan_seconds * 1000)
    return {job: events for job, events in out.items() if events[-1].at >= newest}


def _by_checks(job: JobState, events: list[Event], p: Params) -> Verdict | None:
    """One rank, at one place, found NaN in its own results at several times, and no other rank ever did."""
    if not events or len({(e.target.rank, e.target.node) for e in events}) != 1:
        return None
    times = [events[0].at]
    for event in events:
        if event.at - times[-1] >= p.nan_apart_seconds * 1000:
            times.append(event.at)
    if len(times) < p.nan_times:
        return None
    rank = events[-1].target
    seen = Evidence("nonfinite", "count", float(len(times)), 0.0, f"times that no other rank of job {job.id} found any",
                    events[-1].line)
    return Verdict(rank, FAULT, "faulty", 0.3, (seen,), "finds_nan_alone", onset_at=times[0],
                   suspects=((rank, SUSPECTED, "finds_nan_alone"),))


PLUGIN = DetectorPlugin(
    name="silent_corruption", fault=FAULT, judge=judge, params=Params,
    needs=(("rank.grad_norm", "rank.loss", "nonfinite"),),
    hold=Hold(on=2, of=2, off=8),
    must_not=("ranks that were uneven from the start", "ranks that are read at different steps", "noise of a rank's own share",
              "all ranks that change together", "a NaN that the rank which logs tells for all"),
)
