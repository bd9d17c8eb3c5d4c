"""One rank, or all ranks of one node, slower than its peers and than it was before: in synchronous training everybody waits.

What a rank works is what it computes, else its step without its waiting; where neither is told, the step's own time counts
only in jobs whose ranks do not go in lock-step (in lock-step all have the same). Peers are the ranks of the same pipeline
stage and tensor index, or of the stage; without a layout, all ranks, whose work has to go up and down together for them to
be peers at all. The culprit works longer than its peers do now and than it did, waits less than they do, and since it
began the whole job's steps are longer. How long that has to last is a matter of what it costs: the seconds lost add up.

Silent on a rank whose GPU does more work in each step, on unevenness that was always there, on slowness that wanders from rank to
rank (experts, sequence lengths, garbage collection), on many ranks at once, and while somebody profiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, JobState, Target, Verdict
from core.window import Window
from detectors import gpus, job_pace, shared, stats
from detectors.job_pace import Change, Pace
from detectors.stats import Bools, Ints

FAULT = "straggler"
WORK, WAIT, DATA, STEP = "rank.compute_seconds", "rank.comm_wait_seconds", "rank.data_wait_seconds", "rank.step_seconds"
RECENT = 20  # rows before it became slow that tell the job's steps: what slowed the job earlier is no past of them
BLOCK = 6  # rows that make a level when it is asked who was slow before
PROFILED_SHARE = 0.3  # of the time since the rank became slow
TENSOR = "gpu.tensor_active_ratio"
PROFILE = (TENSOR, "gpu.graphics_active_ratio", "gpu.sm_active_ratio")


@dataclass(frozen=True)
class Params:
    """Sources: NVRX (slow = below 0.75 of the best or of its own past; here finer, because peers and past are both asked),
    Minder (distance to peers and continuity over minutes), the labelled worker of the Alibaba PAI trace (10 workers whose
    usual spread is 5 %), C4 and Greyhound (most slow spells last minutes); else our judgement.

    slow: least excess of a rank's work over its peers, against its own past; slow_alone: the same of its step where ranks do
    not wait for each other; alone_rows: readings that it takes there, and alone_lost over the excess (of the PAI trace's
    healthy workers some are a fifth slower for five readings). sigmas: and so many standard errors. wander: and so many
    times what its past went up by itself. over_peers: share of the least excess by which it lies above its peers as well.
    lost_seconds: seconds of waiting that it must have cost so far; shortest_seconds, longest_seconds: bounds of the time that
    this takes. waits_less: share of its excess by which its own waiting lies below its peers'. step_grew: share of its
    excess by which the job's steps grew. loaded: share of its excess by which its GPU's tensor pipe does more. lockstep: where the steps of the ranks differ by less than this share they are
    one. alike: where the work of healthy ranks differs from the usual by more than this from tick to tick they are no peers.
    peers_min: other ranks needed. many: more ranks than this on several nodes are no straggler; together_seconds:
    ranks of several nodes that begin within it are uneven work, unless they last apart_seconds. node_share: of a node's
    ranks that make it the node. well_seconds: how long another node that was slow was well before these became slow, so that
    nothing went from one to the other (uneven work is with the next ranks in the next steps).
    """

    slow: float = 0.03
    slow_alone: float = 0.1
    alone_rows: int = 5
    alone_lost: float = 1.3
    sigmas: float = 5.0
    wander: float = 1.5
    over_peers: float = 0.6
    lost_seconds: float = 20.0
    shortest_seconds: float = 75.0
    longest_seconds: float = 400.0
    waits_less: float = 0.4
    step_grew: float = 0.4
    loaded: float = 0.5
    lockstep: float = 0.005
    alike: float = 0.25
    peers_min: int = 3
    many: int = 16
    together_seconds: float = 120.0
    apart_seconds: float = 900.0
    node_share: float = 0.6
    well_seconds: float = 180.0


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What ranks do in a step. work: float64[row, rank] at the pace's rows; own: only this rank decides it (else it is the
    step of a job without lock-step). groups: int[rank], who is compared with whom. middles: by group, float64[row], the
    median work of those in it that do not stand out."""

    pace: Pace
    work: Floats
    own: bool
    signal: str
    groups: Ints
    middles: dict[int, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class _Slow:
    """A rank (position among the job's) that is slow. excess: its work over its peers', against its own past; wait, others:
    its waiting and its peers'. weak: it stands out, but not for long enough; loaded: its GPU does more work in a step than it
    did, by its tensor pipe."""

    at: int
    change: Change
    excess: float
    onset: int
    wait: float
    others: float
    weak: bool
    loaded: bool


def judge(window: Window, params: Params) -> list[Verdict]:
    """Verdicts on the ranks of each job, and on nodes all of whose ranks are slow."""
    out: list[Verdict] = []
    for job in window.jobs:
        pace = job_pace.read(window, job)
        work = None if pace is None else _work(window, job, pace, params)
        if work is not None:
            out += _judge_job(window, job, work, params)
    return out


# --- what is compared -------------------------------------------------------------------------------------------------
def _work(window: Window, job: JobState, pace: Pace, p: Params) -> _Work | None:
    """What the ranks work, None where the trainer does not tell or nobody can be compared."""
    if len(pace.rows) < 6 or len(pace.columns) < p.peers_min + 1:
        return None
    rows, columns = pace.rows, pace.columns
    computing = computed(window, rows, columns)
    groups = _groups(window, job, columns, p)
    if computing is not None:
        return _Work(pace, computing, True, WORK, groups, {})
    step, wait = _of(window, STEP, rows, columns), _of(window, WAIT, rows, columns)
    if step is None:
        return None
    if wait is not None:
        data = _of(window, DATA, rows, columns)
        rest = step - wait
        return _Work(pace, rest if data is None else rest - np.nan_to_num(data), True, STEP, groups, {})
    if not pace.apart > p.lockstep:
        return None  # in lock-step all ranks have the step of the slowest
    return _Work(pace, step, False, STEP, groups, {})


def computed(window: Window, rows: Ints, columns: Ints) -> Floats | None:
    """float64[row, rank]: what ranks compute in a step, None where less than half of them tell it. Of one that does not: what its waiting
    leaves of the step, which is that of all where it tells none itself (it is another number, and compared with its own past as well)."""
    found = _of(window, WORK, rows, columns)
    if found is None or not (blank := np.isnan(found).all(axis=0)).any():
        return found
    step, wait, data = (_of(window, signal, rows, columns) for signal in (STEP, WAIT, DATA))
    if step is None or wait is None:
        return found
    usual = job_pace.of_ranks(step)[:, None]
    step = np.where(np.isnan(step[:, blank]), usual, step[:, blank])
    out = found.copy()
    out[:, blank] = step - wait[:, blank] - (0.0 if data is None else np.nan_to_num(data[:, blank]))
    return out


def _of(window: Window, signal: str, rows: Ints, columns: Ints) -> Floats | None:
    """float64[row, rank], None where less than half of the ranks tell it now."""
    if signal not in window.blocks or window.block(signal).fresh()[columns].mean() < 0.5:
        return None
    values = window.values(signal)
    taken = values[rows] if len(columns) == values.shape[1] and bool((columns == np.arange(len(columns))).all()) \
        else values[np.ix_(rows, columns)]
    return taken if not np.isnan(taken[-1]).all() else None


def _groups(window: Window, job: JobState, columns: Ints, p: Params) -> Ints:
    """int[rank]: peers have the same number. By stage and tensor index where the layout is known and leaves enough of them,
    else by stage, else all. Ranks are numbered tensor index first, then data, then stage (Megatron-LM)."""
    if job.pp <= 1 and job.tp <= 1:
        return np.zeros(len(columns), np.int64)
    numbers = shared.rank_numbers(window.of_kind("rank"))[columns]
    numbers = np.where(numbers < 0, np.arange(len(columns)), numbers)
    replicas = job.dp or max(1, len(columns) // max(1, job.tp * job.pp))
    stage = numbers // max(1, job.tp * replicas)
    return stage * job.tp + numbers % job.tp if replicas > p.peers_min + 1 else stage


# --- who is slow ------------------------------------------------------------------------------------------------------
def _judge_job(window: Window, job: JobState, w: _Work, p: Params) -> list[Verdict]:
    ranks = window.of_kind("rank")
    known = np.asarray(~np.isnan(w.work[-3:]).all(axis=0), bool)
    held = _held(window, w, known, p)
    found = [one for at in _candidates(w, known, p) if (one := _examine(window, w, int(at), p)) is not None]
    slow = [one for one in found if not one.weak and not one.loaded]
    verdicts: list[Verdict] = []
    if slow and _others_fault(window, w, found, slow, p):
        spoken = {one.at for one in found}
    else:
        verdicts, spoken = _named(window, w, found, slow, p)
        verdicts += _goes_on(window, w, held & known, spoken, p)
    quiet = known & ~held
    quiet[list(spoken)] = False
    places = w.pace.columns[quiet]
    busy = {ranks[int(w.pace.columns[at])].node for at in spoken}
    names, of = shared.node_names(ranks)
    nodes = sorted({name for i in np.unique(of[places]).tolist() if (name := names[i]) is not None} - busy)
    return [*verdicts, *shared.clears(ranks, places, FAULT),
            *(Verdict(Target("node", node), FAULT, "clear", 0.0, (), "clear") for node in nodes)]


def _candidates(w: _Work, known: Bools, p: Params) -> Ints:
    """Ranks whose work of the last ticks lies above their peers'; the highest come first, at most twice `many`."""
    now = stats.median(w.work[-6:])
    middle = stats.peers(np.where(known, now, np.nan), w.groups)
    excess = np.where(known & (middle.n >= p.peers_min), stats.ratio(now, middle.middle) - 1.0, np.nan)
    at = stats.columns_where(stats.above(excess, 0.6 * p.slow))
    at = at[np.argsort(-excess[at], kind="stable")][:2 * p.many]
    for group in np.unique(w.groups[at]).tolist():
        members = np.flatnonzero(w.groups == group)
        plain = np.setdiff1d(members, at)
        members = plain if len(plain) >= p.peers_min else members
        w.middles[group] = job_pace.of_ranks(w.work[:, members[:: max(1, -(-len(members) // 128))]])
    return at


def _peer_rows(w: _Work, at: int) -> Floats:
    """float64[row]: the median work of the rank's peers."""
    group = int(w.groups[at])
    if group not in w.middles:
        members = np.flatnonzero(w.groups == group)
        w.middles[group] = job_pace.of_ranks(w.work[:, members[:: max(1, -(-len(members) // 128))]])
    return w.middles[group]


def _examine(window: Window, w: _Work, at: int, p: Params) -> _Slow | None:
    """A rank against its peers and its own past; None where it does not stand out."""
    peers = _peer_rows(w, at)
    values = stats.ratio(w.work[:, at], peers)
    known = ~np.isnan(values)
    rows = w.pace.rows[known]
    if len(rows) < 8:
        return None
    gap = max(float(np.median(np.diff(window.times[rows]))) / 1000.0, window.step_seconds)
    last = max(3 if w.own else p.alone_rows, int(np.ceil(p.shortest_seconds / gap)))
    least = p.slow if w.own else p.slow_alone
    if job_pace.level_of(values[known][-last:]) - 1.0 < (p.over_peers if w.own else 1.0) * least:
        return None
    found = job_pace.change(values[known], last)
    if found is None:
        return None
    if not found.growth >= max(least, p.sigmas * found.error / found.before, p.wander * found.wander + p.slow / 2):
        return None
    row = int(rows[found.at])
    excess = min(found.after, found.now) - found.before
    seconds = excess * float(stats.median(peers))
    wait, others = _waiting(window, w, at, row)
    if not np.isnan(wait) and not np.isnan(others) and wait > others - p.waits_less * seconds:
        return None
    if w.own and not _cost_steps(w.pace, row, seconds, p):
        return None
    share = seconds / w.pace.usual if w.pace.usual > 0 else excess
    needed = float(np.clip(p.lost_seconds / max(share, 1e-6), p.shortest_seconds, p.longest_seconds))
    if not w.own:
        needed = max(needed, gap * max(p.alone_rows, p.alone_lost / excess))
    onset = int(window.times[row])
    weak = (window.end - onset) / 1000.0 < needed
    return _Slow(at, found, excess, onset, wait, others, weak, not weak and _loaded(window, w, at, row, excess, p))


def _loaded(window: Window, w: _Work, at: int, row: int, excess: float, p: Params) -> bool:
    """The tensor pipe of its GPU does more in a step, against its peers and its past: it is not slower, it has more to do."""
    parts, ranks = window.of_kind("gpu"), window.of_kind("rank")
    rank = ranks[int(w.pace.columns[at])]
    where = shared.kept("places of GPUs", (parts,), lambda: {(g.node, g.device): e for e, g in enumerate(parts)})
    e = where.get((rank.node, rank.device))
    if e is None or rank.device is None:
        return False
    groups = gpus.groups(window)
    peers = np.flatnonzero(groups == groups[e])
    work = gpus.grown(window, TENSOR, e, peers[peers != e], row)
    return work is not None and work.share >= p.loaded * excess


def _waiting(window: Window, w: _Work, at: int, row: int) -> tuple[float, float]:
    """Seconds that the rank and its peers wait in collectives since the row; NaN where the trainer does not tell."""
    rows = w.pace.rows[w.pace.rows >= row]
    columns = w.pace.columns
    others = columns[np.flatnonzero((w.groups == w.groups[at]) & (np.arange(len(columns)) != at))]
    return (job_pace.level(window, WAIT, columns[at:at + 1], rows),
            job_pace.level(window, WAIT, others[:: max(1, -(-len(others) // 128))], rows))


def _cost_steps(pace: Pace, row: int, seconds: float, p: Params) -> bool:
    """The job's steps are longer since the rank is slow. Where another rank was as slow before, they are not."""
    before, after = pace.step[pace.rows < row], pace.step[pace.rows >= row]
    before, after = before[~np.isnan(before)][-RECENT:], after[~np.isnan(after)]
    if len(before) < 4 or len(after) < 3:
        return np.isnan(pace.step).all().item()
    grown = job_pace.level_of(after) - job_pace.level_of(before)
    return grown >= p.step_grew * seconds


# --- whose doing it is ------------------------------------------------------------------------------------------------
def _others_fault(window: Window, w: _Work, found: list[_Slow], slow: list[_Slow], p: Params) -> bool:
    """Uneven work, a profiler, or ranks that are no peers: nobody is named."""
    ranks = window.of_kind("rank")
    nodes = {ranks[int(w.pace.columns[one.at])].node for one in found}
    if len(nodes) > 1:
        if len(found) > p.many:
            return True
        # When experts or sequences shift, several ranks get more to do at once: of some of them it is seen.
        if any(one.loaded and abs(one.onset - other.onset) <= p.together_seconds * 1000 for one in found for other in slow):
            return True
        onsets = sorted(one.onset for one in slow)
        several = {ranks[int(w.pace.columns[one.at])].node for one in slow}
        together = len(several) > 1 and onsets[-1] - onsets[0] <= p.together_seconds * 1000
        if together and (window.end - onsets[0]) / 1000.0 < p.apart_seconds:
            return True
    if w.own and _wanders(window, w, slow, p):
        return True
    if not w.own and not _alike(w, {one.at for one in found}, p):
        return True
    return any(_profiled(window, ranks[int(w.pace.columns[one.at])].node, one.onset) for one in slow)


def _wanders(window: Window, w: _Work, slow: list[_Slow], p: Params) -> bool:
    """Ranks of other nodes were as slow in the window and are no longer: it is the work that is uneven, not a part.

    Uneven work goes from rank to rank. One node that was slow, and was well again for a while before these ranks became slow,
    had a fault of its own.
    """
    ranks = window.of_kind("rank")
    blocks = len(w.work) // BLOCK
    if blocks < 3:
        return False
    work = w.work[-blocks * BLOCK:]
    ratio = work / _middle(w, work)
    levels = np.stack([stats.median(part) for part in np.split(ratio, blocks)])
    excess = min(one.excess for one in slow)
    with np.errstate(invalid="ignore"):
        risen = levels - np.fmin.reduce(levels[:-1]) >= 0.5 * excess
    nodes = {ranks[int(w.pace.columns[one.at])].node for one in slow}
    earlier = {int(at): ranks[int(w.pace.columns[at])].node for at in np.flatnonzero(risen[:-1].any(axis=0) & ~risen[-1])}
    others = {at: node for at, node in earlier.items() if node not in nodes or None in nodes}
    if not others or None in nodes or len(set(others.values())) > 1:
        return bool(others)
    ends = window.times[w.pace.rows[-blocks * BLOCK:]][BLOCK - 1::BLOCK]
    last = int(ends[risen[:, list(others)].any(axis=1)][-1])
    return min(one.onset for one in slow) - last < p.well_seconds * 1000


def _middle(w: _Work, work: Floats) -> Floats:
    """float64[row, rank]: the median work of each rank's group, of at most 128 of it."""
    out = np.empty_like(work)
    for group in np.unique(w.groups).tolist():
        members = np.flatnonzero(w.groups == group)
        out[:, members] = job_pace.of_ranks(work[:, members[:: max(1, -(-len(members) // 128))]])[:, None]
    return out


def _alike(w: _Work, without: set[int], p: Params) -> bool:
    """The other ranks' work lies so close together, tick by tick, that they do the same."""
    rest = np.array([i for i in range(w.work.shape[1]) if i not in without], np.int64)
    if len(rest) < p.peers_min:
        return False
    work = w.work[:, rest]
    ratio = work / stats.median(work, axis=1)[:, None]
    own = stats.median(ratio)
    return bool(float(stats.median(stats.median(np.abs(ratio - own)))) <= p.alike / 4)


def _profiled(window: Window, node: str | None, onset: int) -> bool:
    """The node's profiling fields went away when the rank became slow, its others did not: a profiler holds the counters. When it
    ends the fields are back at once, and the rank is seen to be fast again only some readings later."""
    mine = [i for i, t in enumerate(window.of_kind("gpu")) if t.node == node]
    alive = np.asarray((~np.isnan(window.values("gpu.utilization_ratio")[:, mine])).any(axis=1), bool)
    since = alive & (window.times >= onset - 60_000)
    for signal in PROFILE:
        told = np.asarray((~np.isnan(window.values(signal)[:, mine])).any(axis=1), bool)
        before = told[window.times < onset - 60_000]
        if before.any() and before[-40:].any() and (since & ~told).sum() >= max(3, PROFILED_SHARE * since.sum()):
            return True
    return False


# --- words ------------------------------------------------------------------------------------------------------------
def _named(window: Window, w: _Work, found: list[_Slow], slow: list[_Slow],
           p: Params) -> tuple[list[Verdict], set[int]]:
    """The verdicts on what is slow, and the positions that nothing more is said of."""
    ranks = window.of_kind("rank")
    node_of = [ranks[int(c)].node for c in w.pace.columns]
    out: list[Verdict] = []
    spoken = {one.at for one in found}
    for node in sorted({n for one in slow if (n := node_of[one.at]) is not None}):
        mine = [one for one in found if node_of[one.at] == node and not one.loaded]
        held = [one for one in slow if node_of[one.at] == node]
        size = sum(n == node for n in node_of)
        if len(mine) >= 3 and len(mine) >= p.node_share * size:
            if len(held) >= p.node_share * size / 2:
                worst = max(held, key=lambda one: one.excess)
                out.append(_word(window, w, worst, Target("node", node), min(one.onset for one in held), len(mine)))
        elif len(mine) <= max(2, size // 4):
            out += [_word(window, w, one, ranks[int(w.pace.columns[one.at])], one.onset, 1) for one in held]
    for one in slow:
        if node_of[one.at] is None:
            out.append(_word(window, w, one, ranks[int(w.pace.columns[one.at])], one.onset, 1))
    return out, spoken


def _word(window: Window, w: _Work, one: _Slow, target: Target, onset: int, count: int) -> Verdict:
    rank = window.of_kind("rank")[int(w.pace.columns[one.at])]
    peers = int((w.groups == w.groups[one.at]).sum()) - 1
    usual = float(stats.median(_peer_rows(w, one.at)[-6:]))
    now = min(one.change.after, one.change.now)
    who = f"its {peers} peers, of which it had {one.change.before:.3f} times the work before"
    if count > 1:
        who = f"its peers; {count} ranks of the node are slow, rank {rank.rank} most"
    rows: list[Evidence] = [stats.evidence(w.signal, now * usual, usual, who)]
    if not np.isnan(one.wait):
        rows.append(stats.evidence(WAIT, one.wait, one.others, "its peers, who wait for it"))
    if not np.isnan(w.pace.usual):
        rows.append(stats.evidence(STEP, w.pace.usual, None, "the job's usual step"))
    severity = float(np.clip(0.5 + one.excess, 0.5, 0.8))
    reason = "works_longest_waits_least" if not np.isnan(one.wait) else "works_longer_than_peers"
    suspects = ((rank, 0.9 if not np.isnan(one.wait) else 0.8, reason),) if target.kind == "rank" else ()
    return Verdict(target, FAULT, "faulty", severity, tuple(rows), reason, onset_at=onset, suspects=suspects)


def _held(window: Window, w: _Work, known: Bools, p: Params) -> Bools:
    """bool[rank]: a finding on it is open for longer than the window shows, and it is still slower than its peers."""
    held = job_pace.left_out(window, w.signal, w.pace.columns)
    if not held.any():
        return np.zeros(len(known), bool)
    # A finding on the whole job leaves all its ranks out: then all of them are the peers.
    rest = held if held.mean() <= 0.5 else np.zeros(len(held), bool)
    # Row by row: where the whole job changes its pace, ranks are not all seen to do so in the same row.
    past = job_pace.expected(window, w.signal, w.pace.columns)
    usual = stats.ratio(past, stats.peers(np.where(rest, np.nan, past), w.groups).middle)
    usual = np.where(np.isnan(usual), 1.0, usual)
    excess, middle = _excess(w, w.work[-8:], rest, usual)
    waiting = stats.median(stats.cut(window.values(WAIT), w.pace.rows[-8:], w.pace.columns))
    others = stats.peers(waiting, w.groups).middle
    with np.errstate(invalid="ignore"):
        waits = waiting > others - p.waits_less * excess * middle
    least = 0.8 * p.slow
    if held.mean() > 0.5:  # whatever is found on the whole job: only what is plain goes on as a straggler
        held, least = held & ~np.isnan(waiting - others), 2.0 * p.slow
        # Nothing says then that it was the rank that was found: it is, where the window shows no time without it. Hot experts move on.
        for rows in np.array_split(w.work[:-8], 3) if len(w.work) >= 8 + 3 * 4 else ():
            excess = np.fmin(excess, _excess(w, rows, rest, usual)[0])
    still = np.asarray(held & known & ~waits & stats.above(excess, least), bool)
    return still if still.sum() <= p.many else np.zeros(len(known), bool)


def _excess(w: _Work, rows: Floats, rest: Bools, usual: Floats) -> tuple[Floats, Floats]:
    """By rank over rows of its work (float64[row, rank]): its share above its peers (`rest` left out) and above what it usually has more,
    and the peers' middle in seconds."""
    by_row = np.stack([stats.peers(np.where(rest, np.nan, row), w.groups).middle for row in rows])
    return stats.median(stats.ratio(rows, by_row)) - usual, stats.median(by_row)


def _goes_on(window: Window, w: _Work, held: Bools, spoken: set[int], p: Params) -> list[Verdict]:
    """Words on what is slow for longer than the window shows: the node where most of its ranks are, and the ranks, whichever was found."""
    ranks = window.of_kind("rank")
    node_of = [ranks[int(c)].node for c in w.pace.columns]
    out: list[Verdict] = []
    for node in sorted({node_of[at] or "" for at in np.flatnonzero(held) if at not in spoken}):
        mine = [int(at) for at in np.flatnonzero(held) if (node_of[at] or "") == node]
        size = sum((n or "") == node for n in node_of)
        if node and len(mine) >= 3 and len(mine) >= p.node_share * size:
            out.append(_still(w, mine[0], Target("node", node)))
        out += [_still(w, at, ranks[int(w.pace.columns[at])]) for at in mine if at not in spoken]
        spoken.update(mine)
    return out


def _still(w: _Work, at: int, target: Target) -> Verdict:
    usual, now = float(stats.median(_peer_rows(w, at)[-8:])), float(stats.median(w.work[-8:, at]))
    seen = stats.evidence(w.signal, now, usual, "its peers, as when it was found")
    reason = "works_longer_than_peers"
    suspects = ((target, 0.8, reason),) if target.kind == "rank" else ()
    return Verdict(target, FAULT, "faulty", 0.5, (seen,), reason, suspects=suspects, keeps=True)


PLUGIN = DetectorPlugin(
    name="straggler", fault=FAULT, judge=judge, params=Params, needs=((WORK, WAIT, STEP),),
    hold=Hold(on=2, of=3, off=8, expire=120),
    must_not=("unevenness since the start", "a last stage that has more to do", "experts that get more tokens for some minutes",
              "sequences of uneven length", "garbage collection and single long steps", "a profiler on a rank",
              "ranks that wait for another", "a job of which all ranks are slow"),
)
