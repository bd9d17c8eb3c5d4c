"""An inference endpoint answers slower than it did at like load, or not at all.

The time between tokens (else that of a request without its queueing, by the tokens made where they are told) is compared with what the
endpoint usually takes at that load. What load costs is read off its own past: a batch's step takes longer with each request under way
and with each prompt that comes in between. The past is the quickest that the endpoint held for some moments: what was slow before
and is over is none. Load that the past does not show raises what is expected: in proportion to the arrivals, with the square root of what is under way
beyond what is so for being slow (where no request waits, a slow endpoint has as many more of them) and with what each of them holds of the
cache, and moments with more arrivals than ever are left out. An endpoint that is merely busier is healthy. The queue is told as evidence; by
itself it only says that more is asked than can be done.

Replicas are one job: that of the inventory, else their model. Where the others are well a slow replica is the one to look at.
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
# Ways of measuring what an answer takes, the surest first: between tokens, of a request by the tokens that it made, of a request.
KINDS = (("between tokens", "job.token_time_ratio"), ("for each token of a request", "job.request_time_ratio"),
         ("a request", "job.request_time_ratio"))
REQUEST = len(KINDS) - 1
BEGINS = 5  # moments whose middle is slow where it begins: a single one is noise
ROUNDS = 4  # of fitting what load costs and leaving out what was slow
# A normal spread by the median step from one value to the next; and the standard error of a median of n, times the root of n.
SIGMA_OF_STEPS, ERROR = 1.4826 / math.sqrt(2.0), 1.25


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §8 for what servers tell; the thresholds are our judgement: what the load leaves of the spread of the time
    between tokens is some 3 to 8 % of a moment's, that of the median of twelve moments 1 to 3 %; whole requests spread several times as much.

    token_times, work_times, request_times: how many times the usual is slow, between tokens, of a request by the tokens that it
    made, and of a request: for the median of the moments since and of the newest, as single moments scatter more than it. sigmas:
    and so many standard errors of such a median. slow_share: of the moments with traffic since that lie above nearly all of their
    past. past, now: moments that are needed before and since. quantile: of the past's times that is nearly all. well: share of the
    excess up to which a moment belongs to the usual. arrivals: times the highest arrivals of the past beyond which a moment is left
    out. gone_seconds: requests under way and no token for so long is no answer. replica: how probable a replica is the slow one
    where others can be as slow, replica_alone: where the others are plainly well; alike: share of the excess of the slowest up
    to which they are. busy_requests: the least load.
    """

    token_times: float = 1.15
    work_times: float = 1.3
    request_times: float = 1.8
    sigmas: float = 4.0
    slow_share: float = 0.8
    past: int = 6
    now: int = 12
    quantile: float = 0.8
    well: float = 0.5
    arrivals: float = 1.2
    gone_seconds: float = 180.0
    replica: float = 0.75
    replica_alone: float = 0.9
    alike: float = 0.25
    busy_requests: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """Endpoints over time, float64[tick, endpoint]. taken: seconds between tokens, of a request by the tokens that it made, or of a request; kind:
    int[endpoint], which of KINDS. running, cache, arrivals: the load, NaN = not told; waiting: requests that are not under way yet."""

    taken: Floats
    kind: Ints
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


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """What one endpoint took at the ticks `rows` with traffic. times: how many times the usual at that load; usual: seconds;
    well: which of them are usual; sigma: the spread of a moment's times; load: its arrivals, and what else load may cost more than the past showed
    (float64[moment] each); told: which moments tell something new (a counter read once a minute stands for all its ticks)."""

    rows: Ints
    times: Floats
    usual: Floats
    well: Bools
    sigma: float
    arrivals: Floats
    depth: Floats
    told: Bools


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
    gaps, made = window.values("job.token_gaps_per_second"), window.values("job.tokens_per_second")
    made = np.where(np.isnan(made), gaps, made)
    done, whole = window.values("job.requests_per_second"), window.values("job.request_time_ratio")
    inside = np.maximum(whole - np.nan_to_num(window.values("job.queue_time_ratio"), nan=0.0), 0.0)
    # Of a server that does not tell how many requests run, time spent per second is their mean number, and the other way round.
    running = window.values("job.requests_running")
    under_way = np.where(np.isnan(running), whole, running)
    ways = (stats.ratio(window.values("job.token_time_ratio"), gaps), stats.ratio(np.where(np.isnan(inside), running, inside), made),
            stats.ratio(inside, done))
    told = np.stack([(~np.isnan(way)).any(axis=0) for way in ways])
    kind = np.where(told.any(axis=0), np.argmax(told, axis=0), REQUEST)
    taken = np.choose(kind, ways)
    first = window.values("job.first_tokens_per_second")
    return Service(taken, kind, under_way, window.values("job.kv_cache_ratio"), np.where(np.isnan(first), done, first),
                   window.values("job.requests_waiting"))


def _limits(p: Params) -> Floats:
    """float64[way of measuring]: how many times the usual is slow."""
    return np.array([p.token_times, p.work_times, p.request_times])


def _suspected(service: Service, p: Params) -> Bools:
    """bool[endpoint]: a quick look, whether it is slower now than in the quickest part of its past."""
    now, best = stats.median(service.taken[-p.now:]), stats.quantile(service.taken, 0.05)
    return stats.above(now, _limits(p)[service.kind] * best) & (stats.count(service.taken) >= p.past + p.now)


# --- what is usual ----------------------------------------------------------------------------------------------------
def _moments(service: Service, column: int, p: Params) -> Moments | None:
    """The endpoint's moments with traffic against its usual at the same load; None where there are too few.

    The usual is the quickest that it held for some moments at its load: time in which it was slow before is no past."""
    rows = np.flatnonzero(~np.isnan(service.taken[:, column]) & ~stats.below(service.running[:, column], p.busy_requests))
    if len(rows) < p.past + p.now:
        return None
    taken, running = service.taken[rows, column], service.running[rows, column]
    arrivals = _smooth(service.arrivals[rows, column])
    waits = ~stats.below(service.waiting[rows, column], FREE)
    told = np.concatenate([[True], np.diff(taken) != 0.0])
    room, well = float(_limits(p)[service.kind[column]]) - 1.0, np.ones(len(rows), bool)
    usual, sigma, loads, owed = taken, 0.0, [arrivals], running
    for _ in range(ROUNDS):
        usual = _fitted(taken, loads, well, p.past)
        times = taken / usual
        sigma = SIGMA_OF_STEPS * float(np.median(np.abs(np.diff(times[told])))) if told.sum() > 2 else room
        times = times / _quickest(times[told], p.past)
        well = times <= 1.0 + max(p.well * room, 2.0 * sigma)
        level = float(np.median(times[well])) if well.any() else 1.0
        usual = taken / times * level
        longer = np.where(waits, 1.0, np.maximum(_smooth(taken / usual), 1.0))
        # Being slow leaves no fewer under way than usual: what is not above that is load, whatever it takes.
        owed = np.minimum(running, np.fmax(running / longer, np.median(running[well]) if well.any() else running))
        loads = [arrivals, owed]
    depth = np.stack([owed, stats.ratio(service.cache[rows, column], running)])
    return Moments(rows, taken / usual, usual, well, sigma, arrivals, depth, told)


def _fitted(taken: Floats, loads: Sequence[Floats], well: Bools, least: int) -> Floats:
    """float64[moment]: what it takes by the load, a base and so much for each of what loads it: the share of relative least squares,
    no part of it negative, by the moments that are `well`. A load that is not told costs nothing."""
    parts = [np.ones(len(taken)), *(load for load in loads if not np.isnan(load).any())]
    rows = well if well.sum() >= least else np.ones(len(taken), bool)
    best, found = math.inf, np.full(len(taken), float(np.median(taken[rows])))
    for chosen in range(1 << (len(parts) - 1)):
        columns = np.stack([part for i, part in enumerate(parts) if i == 0 or chosen >> (i - 1) & 1], axis=1)
        scaled = columns[rows] / taken[rows][:, None]
        share = np.linalg.lstsq(scaled, np.ones(len(scaled)), rcond=None)[0]
        error = float(((scaled @ share - 1.0) ** 2).sum())
        if (share >= 0).all() and error < best and (columns @ share > 0).all():
            best, found = error, columns @ share
    return found


def _quickest(times: Floats, moments: int) -> float:
    """The lowest level that was held for so many moments."""
    if len(times) <= moments:
        return float(np.median(times))
    return float(np.median(np.lib.stride_tricks.sliding_window_view(times, moments), axis=1).min())


def _smooth(values: Floats) -> Floats:
    """The mean of each value and up to three before it; 0 for what is not told."""
    known = np.nan_to_num(values, nan=0.0)
    total = np.concatenate([[0.0], np.cumsum(known)])
    at = np.arange(1, len(known) + 1)
    begin = np.maximum(at - 4, 0)
    return np.asarray((total[at] - total[begin]) / (at - begin))


# --- slower -----------------------------------------------------------------------------------------------------------
def _slow(service: Service, column: int, p: Params) -> Slow | None:
    """The longest stretch up to now that is slow against what is usual."""
    m = _moments(service, column, p)
    if m is None:
        return None
    limit, n = float(_limits(p)[service.kind[column]]), len(m.rows)
    least = max(limit, 1.0 + p.sigmas * ERROR * m.sigma / math.sqrt(max(1, int(m.told[-p.now:].sum()))))
    for first in range(_after_rest(m, p), n - p.now + 1):
        before = np.flatnonzero(m.well[:first])
        if len(before) < p.past or min(m.times[first], float(np.median(m.times[first:first + BEGINS]))) < limit:
            continue
        times = m.times[first:] / _beyond(m, before, first)
        late = times >= float(np.quantile(m.times[before], p.quantile))
        usual = ~stats.above(m.arrivals[first:], p.arrivals * max(float(m.arrivals[before].max()), 1e-9))
        judged, times = late[usual], times[usual]
        if len(judged) < p.now or not late[0] or judged.mean() < p.slow_share or judged[-p.now:].mean() < p.slow_share:
            continue
        if min(float(np.median(times)), float(np.median(times[-p.now:]))) >= least:
            taken = (m.times * m.usual)[first:][usual]
            return Slow(column, int(m.rows[first]), float(np.median(taken)), float(np.median(taken / times)), "slower_at_like_load")
    return None


def _after_rest(m: Moments, p: Params) -> int:
    """The first moment after the last time that it was well for some moments: what was slow before that is over."""
    last = len(m.well) - p.now
    runs = np.lib.stride_tricks.sliding_window_view(m.well[:max(last, p.past)], p.past).all(axis=1)
    return max(p.past, int(np.flatnonzero(runs)[-1]) + p.past) if runs.any() else p.past


def _beyond(m: Moments, before: Ints, first: int) -> Floats:
    """float64[moment since], at least 1: what load that the past does not show may cost: in proportion to the arrivals, with the root of
    the requests under way and of what each holds of the cache."""
    with np.errstate(invalid="ignore", divide="ignore"):
        more = [np.fmax(load[first:] / max(float(np.fmax.reduce(load[before])), 1e-9), 1.0) for load in (m.arrivals, *m.depth)]
    return np.maximum(more[0], np.sqrt(more[1] * more[2]))


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
        some = tuple((endpoints[s.column], chance, worst.reason) for s in mine) if (chance := _apart(service, mine, columns, p)) else ()
        out.append(Verdict(target, FAULT, "faulty", 0.6 if _factor(worst) >= 2.0 else 0.3,
                           _evidence(window, service, worst, len(mine)), worst.reason,
                           onset_at=int(window.times[min(s.since for s in mine)]), suspects=some))
    return out


def _apart(service: Service, mine: Sequence[Slow], columns: Sequence[int], p: Params) -> float:
    """How probable it is that the slow replicas are slow by themselves, 0 where it is the endpoint. The others tell: they have the same work."""
    others = [column for column in columns if column not in {one.column for one in mine}]
    if not others:
        return 0.0
    since, excess = min(one.since for one in mine), max(min(_factor(one), 10.0) for one in mine) - 1.0
    seen = [_level(service, column, since, p) for column in others]
    told = [level for level in seen if not math.isnan(level)]
    if told and len(told) == len(seen) and max(told) - 1.0 <= p.alike * excess:
        return p.replica_alone
    return p.replica if len(mine) * 2 <= len(columns) else 0.0


def _level(service: Service, column: int, since: int, p: Params) -> float:
    """How many times its usual an endpoint takes since the tick, NaN where that is not told."""
    m = _moments(service, column, p)
    late = np.zeros(0) if m is None else m.times[m.rows >= since]
    return float(np.median(late)) if len(late) else math.nan


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
        what, signal = KINDS[int(service.kind[one.column])]
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
