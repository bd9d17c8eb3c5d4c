"""A GPU that computes slower than its peers without an error, while its clock is as high as theirs.

In synchronous training everybody waits for it. Two things tell. With timed ranks: the rank on it works longer and waits
less than its peers (`straggler` says so), and its SMs are busy all that time: kernels that take longer keep them, so their share
of the time grew with it. A rank whose process is late has a GPU that stands idle in between: that is the process, not the part.
Without timed ranks only the pattern is left: since a moment of the job's present run the SMs of all its GPUs are busy for a smaller share
of their time, but those of one go on as before. A run has its own past: a part that was ill in the run before, and is well, must not be measured by that.

The tensor pipe tells work done: all have as much of it in a step. A GPU that has more is not slow, it has more to do (hot experts,
longer sequences). Values that stand still are those of an exporter that does, and tell nothing. What its clock, heat or power limit explains is another
fault, and so is a second program that came onto the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, JobState, Verdict
from core.window import Window
from detectors import gpus, shared, stats, straggler
from detectors.slow_reasons import reason_of
from detectors.stats import Bools, Ints

FAULT = "gpu_slow"
# What tells how long kernels ran, and what tells work done. Utilisation and the graphics engine count waiting in a collective as work.
BUSY, DONE = "gpu.sm_active_ratio", "gpu.tensor_active_ratio"
TIMED = "rank.compute_seconds"
# So many ranks that stand out, and so many others, are compared in a large job.
MOST = 128
# A limit holds the clock of a GPU, which shows none, for more than this share of the time; healthy ones touch the power limit now and then.
HELD = 0.5
# Without timed ranks: readings of the present run that make a past; a job that does not work for so long stood.
PAST_ROWS, AWAY_SECONDS = 8, 120.0


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (silent slow GPU: compute longer on one rank, it alone does not wait, clock normal), SuperBench
    (5 %); where no source is named, our judgement on what activity of healthy jobs spreads.

    slow: least excess of a rank's work over its peers. follows: share of the excess by which its SMs' activity must have
    grown against its peers'; follows_power: its power, where activity is not shown (SMs that wait for memory draw more than a GPU that
    waits for others, and less than one at work); errors: and so many standard errors. loaded: share of the excess by which the tensor pipe's activity
    grew that is more work. clock: share of the clock that may be
    missing. memory_bytes: growth of its memory against its peers that is a second program.
    window_seconds: how far back activity is averaged where ranks are not timed. busy: utilisation at work. stands_out: how
    far the activity of one GPU must stand out against its own past and its peers then; sigmas: in robust sigmas; draws:
    its power likewise. lasts_seconds: for so long (a mixture of experts loads some rank more for minutes, then another; slow
    computing lasts ten minutes in the mean, Greyhound). worked: share of that time in which the GPU was at work. fell: share of their past to which the peers fell at most; still: and at least. peers_min: others.
    """

    slow: float = 0.03
    follows: float = 0.5
    follows_power: float = 0.12
    errors: float = 2.5
    loaded: float = 0.5
    clock: float = 0.02
    memory_bytes: float = 1e9
    window_seconds: float = 300.0
    busy: float = 0.5
    stands_out: float = 0.1
    sigmas: float = 6.0
    draws: float = 0.04
    lasts_seconds: float = 600.0
    worked: float = 0.8
    fell: float = 0.95
    still: float = 0.5
    peers_min: int = 3


def judge(window: Window, params: Params) -> list[Verdict]:
    """Verdicts on GPUs of jobs whose ranks are timed, and by activity on those of other jobs."""
    parts = window.of_kind("gpu")
    if not parts or not len(window.times):
        return []
    out, timed = _by_time(window, params)
    return out + _by_activity(window, params, timed)


# --- with timed ranks -------------------------------------------------------------------------------------------------
def _by_time(window: Window, p: Params) -> tuple[list[Verdict], Bools]:
    """Verdicts on GPUs whose rank tells its work, and which GPUs those are."""
    parts, ranks = window.of_kind("gpu"), window.of_kind("rank")
    timed = np.zeros(len(parts), bool)
    if TIMED not in window.blocks or not ranks:
        return [], timed
    where = shared.kept("places of GPUs", (parts,), lambda: {(g.node, g.device): e for e, g in enumerate(parts)})
    of_rank = shared.kept("GPUs of ranks", (parts, ranks), lambda: np.array(
        [where.get((rank.node, rank.device), -1) for rank in ranks], np.int64))
    known = gpus.loud(window) & gpus.fresh(window, BUSY, "gpu.power_watts")
    well = np.zeros(len(parts), bool)
    out: list[Verdict] = []
    jobs = []
    for job in window.jobs:
        if not job.running or job.silent or not job.ranks:
            continue
        columns = np.array(job.ranks, np.int64)
        lead = _lead(window, job, columns)
        told, calm = of_rank[columns[~np.isnan(lead)]], of_rank[columns[stats.below(lead, p.slow / 2)]]
        timed[told[told >= 0]] = True
        odd = stats.above(lead, 0.6 * p.slow)
        well[calm[calm >= 0]] = True
        if odd.any():
            jobs.append(replace(job, ranks=_enough(columns, odd, lead)))
    for said in straggler.judge(replace(window, jobs=tuple(jobs)), straggler.Params(slow=p.slow)) if jobs else ():
        e = where.get((said.target.node, said.target.device)) if said.target.kind == "rank" else None
        if e is not None and known[e] and said.state == "faulty":
            word = _examine(window, e, said, p)
            if word is not None:
                out.append(word)
    return [*out, *shared.clears(parts, shared.without(parts, well & known, (v.target.key for v in out)), FAULT)], timed


def _lead(window: Window, job: JobState, columns: Ints) -> Floats:
    """float64[rank of the job]: how far its work of the last ticks lies above that of its pipeline stage; NaN = not told."""
    rows = np.arange(max(0, len(window.times) - 6), len(window.times))
    work = straggler.computed(window, rows, columns)
    if work is None:
        return np.full(len(columns), np.nan)
    now = stats.median(np.where(stats.above(work, 1e-9), work, np.nan))
    now = np.where((window.block(TIMED).fresh() | window.block(straggler.WAIT).fresh())[columns], now, np.nan)
    ranks = window.of_kind("rank")
    numbers = shared.rank_numbers(ranks)[columns]
    numbers = np.where(numbers < 0, np.arange(len(columns)), numbers)
    stage = numbers // max(1, -(-len(columns) // max(1, job.pp)))
    return stats.ratio(now, stats.peers(now, stage).middle) - 1.0


def _enough(columns: Ints, odd: Bools, lead: Floats) -> tuple[int, ...]:
    """The ranks that stand out, and as many others as it takes to compare them: of a large job not all."""
    first = columns[odd][np.argsort(-lead[odd], kind="stable")][:MOST]
    rest = columns[~odd]
    return tuple(sorted({*first.tolist(), *rest[:: max(1, -(-len(rest) // MOST))].tolist()}))


def _examine(window: Window, e: int, said: Verdict, p: Params) -> Verdict | None:
    """A GPU whose rank is slow: faulty where its kernels take the time and nothing explains it, else None."""
    told = said.evidence[0]
    if told.observed is None or not told.expected:
        return None
    # What it takes longer than before, as far as its severity tells that (up to 0.8).
    excess = said.severity - 0.5 if said.severity < 0.8 else max(0.3, told.observed / told.expected - 1.0)
    excess = max(p.slow, excess)
    peers = _peers_of(window, e)
    since = None if said.onset_at is None else int(np.searchsorted(window.times, said.onset_at))
    grown, share = gpus.grown(window, BUSY, e, peers, since), p.follows
    if grown is None:
        grown, share = gpus.grown(window, "gpu.power_watts", e, peers, since), p.follows_power
    if grown is None or not grown.share >= max(share * excess, p.errors * grown.error):
        return None
    work = gpus.grown(window, DONE, e, peers, since)
    if work is not None and work.share >= max(p.loaded * excess, p.errors * work.error):
        return None
    if not _unexplained(window, e, peers, excess, since, p):
        return None
    rows = [stats.evidence(one.signal, one.now, one.usual, f"median of {len(peers)} peers, which wait") for one in (grown, work)
            if one is not None]
    clock, usual, _ = _against(window, "gpu.sm_clock_hertz", e, peers, None)
    rows.append(stats.evidence("gpu.sm_clock_hertz", clock, usual, f"median of {len(peers)} peers: no lower clock"))
    part = window.of_kind("gpu")[e]
    return Verdict(part, FAULT, "faulty", said.severity, (*said.evidence[:2], *rows), "busy_longer_than_peers",
                   onset_at=said.onset_at, keeps=said.keeps)


def _peers_of(window: Window, e: int) -> Ints:
    groups = gpus.groups(window)
    return np.array([c for c in np.flatnonzero(groups == groups[e]) if c != e], np.int64)


def _against(window: Window, signal: str, e: int, peers: Ints, since: int | None) -> tuple[float, float, float]:
    """(level since the row, its peers' level, the first over the second against what it was before the row). Where there
    is no time before, the level against the peers'."""
    values = window.values(signal)
    start = len(values) - window.ticks(300) if since is None else min(since + 1, len(values) - 1)
    late, early = values[max(0, start):], values[:max(0, start - 1)]
    now, usual = float(stats.median(late[:, e])), float(stats.median(stats.median(late[:, peers]))) if len(peers) else np.nan
    factor = now / usual if usual > 0 else float("nan")
    if since is not None and since >= 4:
        before, others = float(stats.median(early[:, e])), float(stats.median(stats.median(early[:, peers])))
        factor = factor * others / before if before > 0 and others > 0 else float("nan")
    return now, usual, factor


def _unexplained(window: Window, e: int, peers: Ints, excess: float, since: int | None, p: Params) -> bool:
    """Clock as high as the peers' and as before, no heat, brake or cap of its own, and no second program on it."""
    clock, usual, against_past = _against(window, "gpu.sm_clock_hertz", e, peers, since)
    if np.isnan(clock) or np.isnan(usual):
        # A page that shows no clock may tell by the driver's reasons that nothing holds it.
        held, capped = (float(gpus.bits_span(window, bits, 300.0).mean[e]) for bits in (gpus.CHOSEN_BITS, gpus.CAP_BIT))
        if not (held <= 1.0 - HELD and capped <= HELD):
            return False
        clock = usual = 1.0
    elif min(clock / usual, against_past) < 1.0 - p.clock:
        return False
    heat, others, _ = _against(window, "gpu.temperature_celsius", e, peers, None)
    limit = float(window.last("gpu.power_limit_watts")[e])
    power = float(stats.median(window.tail("gpu.power_watts", 300)[:, e]))
    if reason_of(excess, 1.0 - clock / usual, heat, heat - others, power / limit) != "no_reason":
        return False
    held = gpus.bits_span(window, gpus.THERMAL_BITS | gpus.BRAKE_BIT, 150.0).mean[e]
    if held > 0.1:
        return False
    memory = window.values("gpu.memory_used_bytes")
    row = max(0, (len(memory) - window.ticks(600)) if since is None else since - window.ticks(60))
    growth = memory[-1] - memory[min(row, len(memory) - 1)]
    others_grew = float(stats.median(growth[peers])) if len(peers) else 0.0
    return not growth[e] - np.nan_to_num(others_grew) > p.memory_bytes


# --- without ----------------------------------------------------------------------------------------------------------
def _by_activity(window: Window, p: Params, timed: Bools) -> list[Verdict]:
    """By what the GPUs alone show, for jobs of which no rank is timed."""
    parts = window.of_kind("gpu")
    groups = gpus.groups(window)
    rows = np.unique(groups[timed])
    judged = (gpus.working(window, p.window_seconds, p.busy) & gpus.loud(window) & ~np.isin(groups, rows)
              & window.block("gpu.sm_clock_hertz").fresh() & window.block("gpu.power_watts").fresh())
    if not judged.any():
        return []
    signal = BUSY
    if signal not in window.blocks or DONE not in window.blocks:
        return []
    moves = _moves(window, signal, p) & window.block(signal).fresh() & window.block(DONE).fresh()
    now = np.where(judged & moves, gpus.span(window, signal, p.window_seconds).mean, np.nan)
    peers = stats.peers(now, groups)
    enough = ~np.isnan(now) & (peers.n >= p.peers_min)
    lead = stats.ratio(now, peers.middle)
    odd = enough & stats.above(lead, 1.0 + 0.6 * p.stands_out)
    faulty = _held_on(window, signal, odd, now, groups, p)
    clear = enough & ~odd
    out = shared.clears(parts, clear, FAULT)
    for e, onset in faulty.items():
        row = stats.evidence(signal, float(now[e]), float(peers.middle[e]), f"median of {peers.n[e]} peers, which fell")
        clock = stats.evidence("gpu.sm_clock_hertz", float(window.last("gpu.sm_clock_hertz")[e]), None, "as high as before")
        out.append(Verdict(parts[e], FAULT, "faulty", 0.5, (row, clock), "works_on_while_others_wait", onset_at=onset))
    return out


def _moves(window: Window, signal: str, p: Params) -> Bools:
    """bool[gpu]: its readings changed in the span; those of an exporter that stands still do not."""
    tail = window.tail(signal, p.window_seconds)
    if len(tail) < 2:
        return np.zeros(tail.shape[1], bool)
    return np.asarray(((np.diff(tail, axis=0) != 0.0) & ~np.isnan(tail[1:]) & ~np.isnan(tail[:-1])).sum(axis=0) >= gpus.READINGS - 1)


def _held_on(window: Window, signal: str, odd: Bools, now: Floats, groups: Ints, p: Params) -> dict[int, int]:
    """Of the odd GPUs those that went on as before when all their peers began to wait, with when that was (ms)."""
    found: dict[int, int] = {}
    for group in np.unique(groups[odd]):
        mine = stats.columns_where((groups == group) & ~np.isnan(now))
        run = _present_run(window, signal, mine, p)
        since = _since(window, signal, mine, run)
        before = run[run < since]
        if len(before) < PAST_ROWS:
            continue
        kept = stats.ratio(now[mine], stats.median(window.values(signal)[before][:, mine]))
        power = gpus.span(window, "gpu.power_watts", p.window_seconds).mean[mine]
        drew = stats.ratio(power, stats.median(window.values("gpu.power_watts")[before][:, mine]))
        one = np.zeros(len(mine), np.int64)
        peers, watts = stats.peers(kept, one), stats.peers(drew, one)
        stands = (stats.above(stats.ratio(kept, peers.middle), 1.0 + p.stands_out) & stats.above(kept, p.fell)
                  & stats.above(stats.robust_z(kept, peers, 0.01), p.sigmas)
                  & stats.below(peers.middle, p.fell) & stats.above(peers.middle, p.still)
                  & stats.above(stats.ratio(drew, watts.middle), 1.0 + p.draws))
        if int(stands.sum()) != 1:
            continue  # several that work on have more to do
        e = int(mine[np.flatnonzero(stands)[0]])
        others = mine[mine != e]
        work = gpus.grown(window, DONE, e, others, since)
        ahead = float((kept / peers.middle)[stands][0]) - 1.0
        if work is None or work.share >= p.loaded * ahead:
            continue  # it does more in each step
        # A job that stood meanwhile and came back has not shown the pattern for so long, however old its beginning is.
        worked = float(np.isin(np.arange(len(window.times))[-window.ticks(p.lasts_seconds):], run).mean()) >= p.worked
        lasts = worked and (window.end - int(window.times[since])) / 1000.0 >= p.lasts_seconds
        if lasts and _unexplained(window, e, others, p.stands_out, since, p) and _steady(window, signal, e, others, p):
            found[e] = int(window.times[since])
    return found


def _present_run(window: Window, signal: str, mine: Ints, p: Params) -> Ints:
    """The rows of the job's present run at which its GPUs work. What they did before the job stood is no past of what they do
    now: it may have come back with another share of the work on each, and what ailed one of them then is over."""
    level = stats.median(window.values(signal)[:, mine], axis=1)
    usual = float(stats.quantile(level, 0.75))
    # GPUs that spin in a collective are as utilised as GPUs at work; their activity tells them apart.
    works = stats.above(level, p.still * usual) & (gpus.at_work(window, p.busy)[:, mine].mean(axis=1) >= 0.5)
    rows = np.flatnonzero(works)
    gaps = np.flatnonzero(np.diff(rows) > window.ticks(AWAY_SECONDS))
    return rows[gaps[-1] + 1:] if len(gaps) else rows


def _since(window: Window, signal: str, mine: Ints, run: Ints) -> int:
    """Of the rows of the run that at which most GPUs' activity fell: where the levels before and after differ most."""
    rows = stats.median(window.values(signal)[run][:, mine], axis=1)
    n, k = len(rows), np.arange(1, len(rows))
    if n < 3:
        return int(run[-1]) if n else 0
    total = np.cumsum(rows)
    gap = total[:-1] / k - (total[-1] - total[:-1]) / (n - k)
    return int(run[k[np.argmax(gap * np.sqrt(k * (n - k)))]])


def _steady(window: Window, signal: str, e: int, others: Ints, p: Params) -> bool:
    """It leads in each fifth of the span: an evaluation or a save on one GPU does not last, nor does a load that moves on."""
    tail = window.tail(signal, p.lasts_seconds)
    lead = stats.ratio(tail[:, e], stats.median(tail[:, others], axis=1))
    return all(stats.above(stats.median(part), 1.0 + p.stands_out / 2) for part in np.array_split(lead, 5))


PLUGIN = DetectorPlugin(
    name="gpu_slow", fault=FAULT, judge=judge, params=Params, needs=((TIMED, BUSY),),
    hold=Hold(on=2, of=3, off=8, expire=120),
    must_not=(
        "a lower clock, heat, a power limit: other faults", "a rank whose process is late", "GPUs that wait for another",
        "a stage or experts with more to do, whose tensor pipe does more", "readings of an exporter that stands still", "an evaluation or a save on one GPU", "a second program on the GPU",
        "unevenness since the start",
    ),
)
