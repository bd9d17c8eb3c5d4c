"""An inference endpoint answers slower than it did at like load, or not at all.

The time between tokens (else the time of a request without its queueing) is compared with the endpoint's own past at the same
or a higher load: as many arrivals, requests under way and as much of the cache in use. Load that the past does not show raises
what is expected: in proportion to the arrivals, with the square root of what is under way beyond what is so for being slow (where
no request waits, a slow endpoint has as many more of them) and with what each of them holds of the cache, and moments with more arrivals than ever are left out. An endpoint that is merely busier is healthy. The
queue is told as evidence; by itself it only says that more is asked than can be done.

Replicas are one job: that of the inventory, else their model. Which of them are slow is told where they are not the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Bools, Ints

FAULT = "inference_slow"
FREE = 0.5  # requests that wait, on the mean, from which an endpoint may be full


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §8 for what servers tell; the thresholds are our judgement: a batch's natural spread of the time
    between tokens at like load is some 5 to 10 %, so that of the median of twelve moments 2 to 4 %; that of whole requests is
    several times as much.

    token_times, request_times: how many times the past's median is slow, between tokens and of a request: for the median of
    the moments since and of the newest, as single moments scatter more than it. slow_share: of the moments with traffic since
    that lie above nearly all of their past. past, now: moments that are needed before and since. quantile: of the past's times
    at like load that is nearly all. like: a load at most so many times that of a moment is like it; like_moments: so many are looked at, at least. arrivals:
    times the highest arrivals of the past beyond which a moment is left out. gone_seconds: requests under way and no token
    for so long is no answer. replica: how much a slow replica stands out. busy_requests: the least load.
    """

    token_times: float = 1.15
    request_times: float = 1.8
    slow_share: float = 0.8
    past: int = 6
    now: int = 12
    quantile: float = 0.8
    like: float = 1.05
    like_moments: int = 4
    arrivals: float = 1.2
    gone_seconds: float = 180.0
    replica: float = 0.5
    busy_requests: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """Endpoints over time, float64[tick, endpoint]. taken: seconds between tokens, or of a request; tokens: bool[endpoint],
    which of the two. running, cache, arrivals: the load, NaN = not told; waiting: requests that are not under way yet."""

    taken: Floats
    tokens: Bools
    running: Floats
    cache: Floats
    arrivals: Floats
    waiting: Floats


@dataclass(frozen=True, slots=True)
class Slow:
    """column: of the endpoint; since: tick; taken, expected: seconds (NaN where it answers nothing); reason."""

    column: int
    since: int
    taken: float
    expected: float
    reason: str


def judge(window: Window, params: Params) -> list[Verdict]:
    """Verdicts on endpoints, or on the job whose replicas are slow together."""
    endpoints = window.of_kind("job")
    if not endpoints or not len(window.times):
        return []
    fresh = window.block("job.requests_per_second").fresh() | window.block("job.token_gaps_per_second").fresh()
    heard = np.array([t.node not in window.silent_nodes if t.node else True for t in endpoints])
    service = _service(window)
    busy = ~np.isnan(service.taken)
    judged = fresh & heard & (busy.any(axis=0) | ~np.isnan(service.running[-1]))
    silent, suspected = _silent(window, params), _suspected(service, params)
    enough = busy.sum(axis=0) >= params.past
    slow: list[Slow] = []
    clear: list[int] = np.flatnonzero(judged & enough & ~silent & ~suspected).tolist()
    for column in np.flatnonzero(judged & (silent | suspected)).tolist():
        found = _gone(window, column) if silent[column] else None
        if found is None and suspected[column]:
            found = _slow(service, column, params)
        if found is not None:
            slow.append(found)
        elif enough[column]:
            clear.append(column)
    return _verdicts(window, service, slow, clear, params)


def _service(window: Window) -> Service:
    gap = stats.ratio(window.values("job.token_time_ratio"), window.values("job.token_gaps_per_second"))
    done = window.values("job.requests_per_second")
    queued = np.nan_to_num(window.values("job.queue_time_ratio"), nan=0.0)
    request = stats.ratio(np.maximum(window.values("job.request_time_ratio") - queued, 0.0), done)
    tokens = np.asarray((~np.isnan(gap)).any(axis=0))
    first = window.values("job.first_tokens_per_second")
    # Of a server that does not tell how many requests run, time spent per second is their mean number.
    running = window.values("job.requests_running")
    running = np.where(np.isnan(running), window.values("job.request_time_ratio"), running)
    return Service(np.where(tokens, gap, request), tokens, running, window.values("job.kv_cache_ratio"),
                   np.where(np.isnan(first), done, first), window.values("job.requests_waiting"))


def _suspected(service: Service, p: Params) -> Bools:
    """bool[endpoint]: a quick look, whether it is slower now than in the quickest part of its past."""
    now, best = stats.median(service.taken[-p.now:]), stats.quantile(service.taken, 0.05)
    times = np.where(service.tokens, p.token_times, p.request_times)
    return stats.above(now, times * best) & (stats.count(service.taken) >= p.past + p.now)


def _times(service: Service, column: int, p: Params) -> float:
    return p.token_times if service.tokens[column] else p.request_times


# --- slower -----------------------------------------------------------------------------------------------------------
def _slow(service: Service, column: int, p: Params) -> Slow | None:
    """The longest stretch up to now that is slow against all that was before it."""
    rows = np.flatnonzero(~np.isnan(service.taken[:, column]) & stats.above(service.running[:, column], p.busy_requests))
    if len(rows) < p.past + p.now:
        return None
    taken = service.taken[rows, column]
    arrivals = _smooth(service.arrivals[rows, column])
    running, cache = service.running[rows, column], service.cache[rows, column]
    growth = np.maximum(_ratios(arrivals), np.sqrt(_ratios(running / _longer(service, rows, column)) * _ratios(stats.ratio(cache, running))))
    for first in range(p.past, len(rows) - p.now + 1):
        if taken[first] < _times(service, column, p) * float(taken[:first].min()):
            continue
        expected, high = _expected(taken[:first], growth[first:, :first], p)
        late = taken[first:] >= high
        usual = ~stats.above(arrivals[first:], p.arrivals * max(float(arrivals[:first].max()), 1e-9))
        judged, times = late[usual], (taken[first:] / expected)[usual]
        if len(judged) < p.now or not late[0] or judged.mean() < p.slow_share or judged[-p.now:].mean() < p.slow_share:
            continue
        if min(float(np.median(times)), float(np.median(times[-p.now:]))) >= _times(service, column, p):
            return Slow(column, int(rows[first]), float(np.median(taken[first:][usual])), float(np.median(expected[usual])),
                        "slower_at_like_load")
    return None


def _longer(service: Service, rows: Ints, column: int) -> Floats:
    """float64[moment]: how many times as long as usual a request is under way for the answer's slowness alone: so many more of them
    a slow endpoint has, without more to do. 1 where requests wait to be taken in, or nothing tells that none
    do: an endpoint that is full may be slow for that."""
    taken = _smooth(service.taken[rows, column])
    return np.where(stats.below(service.waiting[rows, column], FREE), taken / float(np.median(taken)), 1.0)


def _smooth(values: Floats) -> Floats:
    """The mean of each value and up to three before it; 0 for what is not told."""
    known = np.nan_to_num(values, nan=0.0)
    total = np.concatenate([[0.0], np.cumsum(known)])
    at = np.arange(1, len(known) + 1)
    begin = np.maximum(at - 4, 0)
    return np.asarray((total[at] - total[begin]) / (at - begin))


def _ratios(load: Floats) -> Floats:
    """float64[moment, other moment]: how many times the load of the other this one has, at least 1; 1 where not told."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.asarray(load)[:, None] / np.maximum(np.asarray(load)[None, :], 1e-9)
    return np.fmax(np.where(np.isnan(ratio), 1.0, ratio), 1.0)


def _expected(past: Floats, growth: Floats, p: Params) -> tuple[Floats, Floats]:
    """(usual, high), float64[moment since]: the median and the `quantile` of what the past lets expect at the load of each, by
    its moments of like load, else by those whose load comes nearest, raised by what more load may cost.

    growth: float64[moment since, moment of the past]."""
    nearest = np.sort(growth, axis=1)[:, min(p.like_moments, len(past)) - 1]
    chosen = np.where(growth <= np.maximum(p.like, nearest)[:, None], past[None, :] * growth, np.nan).T
    return stats.median(chosen), stats.quantile(chosen, p.quantile)


ANSWERS = ("job.tokens_per_second", "job.token_gaps_per_second", "job.requests_per_second")


def _silent(window: Window, p: Params) -> Bools:
    """bool[endpoint]: requests are under way, and nothing was answered for some time."""
    ticks = window.ticks(p.gone_seconds)
    running = window.values("job.requests_running")
    if len(running) <= ticks:
        return np.zeros(running.shape[1], bool)
    answers = stats.highest(*(window.tail(signal, p.gone_seconds) for signal in ANSWERS))
    return np.asarray(stats.above(running[-ticks:], 1.0).all(axis=0) & stats.below(answers, 0.0).all(axis=0))


def _gone(window: Window, column: int) -> Slow | None:
    """A silent endpoint that used to answer."""
    before = np.flatnonzero(stats.highest(*(window.values(signal)[:, column] for signal in ANSWERS)) > 0)
    return Slow(column, int(before[-1]) + 1, math.nan, math.nan, "no_answers") if len(before) else None


# --- words ------------------------------------------------------------------------------------------------------------
def _verdicts(window: Window, service: Service, slow: Sequence[Slow], clear: Sequence[int], p: Params) -> list[Verdict]:
    endpoints = window.of_kind("job")
    owners = {node: job.id for job in window.jobs if not job.ranks for node in job.nodes}
    by_column = {one.column: one for one in slow}
    groups: dict[str, list[int]] = {}
    for column in sorted({*by_column, *clear}):
        endpoint = endpoints[column]
        groups.setdefault(owners.get(endpoint.node or "") or _model(endpoint), []).append(column)
    out: list[Verdict] = []
    for name, columns in groups.items():
        target = Target("job", job=name)
        mine = [by_column[c] for c in columns if c in by_column]
        if not mine:
            out.append(Verdict(target, FAULT, "clear", reason="clear"))
            continue
        worst = max(mine, key=lambda s: (_factor(s), endpoints[s.column].key))
        some = tuple((endpoints[s.column], p.replica, worst.reason) for s in mine) if len(mine) * 2 <= len(columns) else ()
        out.append(Verdict(target, FAULT, "faulty", 0.6 if _factor(worst) >= 2.0 else 0.3,
                           _evidence(window, service, worst, len(mine)), worst.reason,
                           onset_at=int(window.times[min(s.since for s in mine)]), suspects=some))
    return out


def _model(endpoint: Target) -> str:
    """The model that replicas share; the endpoint itself where it names none."""
    model, at, _ = (endpoint.job or "").partition("@")
    return model if at else endpoint.job or ""


def _factor(one: Slow) -> float:
    return math.inf if math.isnan(one.taken) else one.taken / max(one.expected, 1e-9)


def _evidence(window: Window, service: Service, one: Slow, endpoints: int) -> tuple[Evidence, ...]:
    column = one.column
    where = window.of_kind("job")[column].job
    out: list[Evidence] = []
    if not math.isnan(one.taken):
        what, signal = ("between tokens", "job.token_time_ratio") if service.tokens[one.column] else ("a request", "job.request_time_ratio")
        out.append(Evidence(signal, "s", round(one.taken, 6), round(one.expected, 6), f"seconds {what}, its own past at like load",
                            f"{where}, the slowest of {endpoints}" if endpoints > 1 else None))
    for signal, load in (("job.requests_running", service.running), ("job.requests_waiting", window.values("job.requests_waiting"))):
        now, before = stats.median(load[one.since:, column]), stats.median(load[:one.since, column])
        if not np.isnan(now):
            out.append(stats.evidence(signal, float(now), float(before), "median before"))
    return tuple(out)


PLUGIN = DetectorPlugin(
    name="inference_slow", fault=FAULT, judge=judge, params=Params,
    needs=(("job.token_time_ratio", "job.request_time_ratio"), ("job.token_gaps_per_second", "job.requests_per_second")),
    hold=Hold(on=2, of=2, off=8),
    must_not=("more requests than before", "longer contexts that fill the cache", "a queue by itself", "an idle endpoint",
              "an endpoint that has just started"),
)
