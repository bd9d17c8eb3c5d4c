"""A job that got slower and stays so, against its own past in the present run.

At least 3 % and four standard errors slower than before, on the whole span since the change and now, and slower than the
past went up by itself. The past is told level by level (`pace_levels`), so a slow spell that was repaired is no measure for what
comes after it, and a job that goes up and down by itself is no drop. Single steps tell it where steps have a narrow bulk, the mean of all
steps between two readings where they are rough. Steps that take longer because the batch grew are no drop: where tokens a second are told they
must have fallen too. Where the trainer tells what a step consists of, the slowness has to be everybody's (computing on
most ranks, or the exchange that even the last rank takes part in): a job that waits for a few of its ranks has a
straggler, or uneven work, and that is other detectors' to say. Where it does not tell, the GPUs do, by the energy
that each drew, which tells who waited to a fraction of a percent, else by single readings: sequences of uneven length
keep another rank's GPU busy longest in each step, so since the change the GPUs differ more from each other, each time others,
while a slowdown of everybody leaves them as alike as they were. A slowdown that all jobs of the site share at one moment
is no job's (`company`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, JobState, Verdict
from core.window import Window
from detectors import company, job_pace, log_rules, mean_power, pace_levels, ports, shared, stats
from detectors.job_pace import Change, Pace
from detectors.pace_levels import Drop
from detectors.stats import Bools, Ints

FAULT = "throughput_drop"
# What shows how long a GPU was busy, best first; of a large job so many GPUs tell.
ACTIVITY = ("gpu.sm_active_ratio", "gpu.power_watts")
WORK = ("gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.power_watts")  # what falls while a GPU waits in a collective
MATH = "gpu.tensor_active_ratio"
MOST_GPUS = 128
POWER_ROWS = (1, 2)  # lengths change with each step; and exporters that read at other moments of a step agree on longer means
PAST_SPANS = 2  # of mean power, which varies little, that tell how it was
LEAD_ROWS, LEAD_SPANS = 4, 3  # a minute: an expert's load stays longer, the noise of a reading does not; and so many of them
PRESENT_GAPS = 6  # that tell how far apart values are now; a pause among them is none of theirs
MINUTE_ROWS = 4  # readings so far apart are new ones: exporters read the GPUs every 10 to 60 s
# The judgement waits for the rest of the five minutes. Pauses (checkpoints, evaluations) say nothing: they freeze the finding.
HOLD = Hold(on=6, of=7, off=8, expire=240)
RULE_SEVERITY = 0.3  # of slowness by a rule of the user's over the job's log


@dataclass(frozen=True)
class Params:
    """Sources: issue of job health (3 %, four robust standard deviations, 5 minutes and 5 steps); healthy Megatron and
    nanogpt runs for what a level may wander; where no source is named, our judgement.

    drop: least growth of the step time. sigmas: and so many standard errors. hold_seconds, hold_steps: how long it lasts until it is
    opened, whichever is longer. present_seconds: the present is so long, and hold_steps. wander: growth against what the past went up by itself, and above_past more.
    lockstep: ranks whose steps differ by more have no common pace. past_seconds: the past that is needed; full_past_seconds: with less than
    this the drop must be greater, up to young_drop. spell_seconds: a slow spell of the past that was shorter is the job's own way, and the
    present has to last twice as long; a longer one was a drop itself. common: share of the growth that all ranks have alike; of_spread: share
    of it by which ranks lie further apart within a step that is uneven work (what slows all of them alike adds to their distances no more
    than to their work). uneven_seconds: a slowdown of the same few ranks that lasts longer is told even so. apart: growth of the GPUs' differences from which their work is uneven, at two standard
    errors at least; of_growth, of_growth_nodes: and what was added, as a share of the growth of the step, of GPUs and of nodes,
    of_growth_power, apart_power: that share, and how many times as much as before, by their mean power, in which a step's unevenness is
    averaged, and the noise of readings more so, alike_power: by which two parts differ at least, read at other moments of a step. rougher: times the
    scatter of steps that shows uneven work, rough_share: and so much of the growth was added to it. of_fall: share of
    the slowdown by which the usual GPU does less; of_lead: share of that by which the first of them is further ahead than before, at
    lead_sigmas standard errors. of_math: share of the growth by which the tensor pipes are busier, at math_sigmas standard errors, from
    which there is more in a step. few_ports: share of the job's ports that wait to send, port_waits: so many times as much as before and
    as the others. draws, clocks: more power and less clock of GPUs that a limit holds. together_seconds: jobs that slow down within it slow
    down together; partner: one that is on its way to a drop, by so much of it at least, slows down with it. still: growth against the last
    hours from which an older finding goes on.
    """

    drop: float = 0.03
    sigmas: float = 4.0
    hold_seconds: float = 300.0
    present_seconds: float = 180.0
    hold_steps: int = 5
    wander: float = 1.25
    above_past: float = 0.015
    lockstep: float = 0.03
    past_seconds: float = 100.0
    full_past_seconds: float = 600.0
    young_drop: float = 0.06
    spell_seconds: float = 300.0
    common: float = 0.8
    of_spread: float = 0.2
    uneven_seconds: float = 900.0
    apart: float = 0.7
    of_growth: float = 0.1
    of_growth_nodes: float = 0.07
    of_growth_power: float = 0.015
    alike_power: float = 0.0017
    apart_power: float = 1.7
    rougher: float = 2.5
    rough_share: float = 0.06
    of_fall: float = 0.3
    of_lead: float = 0.3
    lead_sigmas: float = 3.0
    of_math: float = 0.25
    math_sigmas: float = 4.0
    few_ports: float = 0.25
    port_waits: float = 20.0
    draws: float = 0.01
    clocks: float = 0.01
    together_seconds: float = 180.0
    partner: float = 0.5
    still: float = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _Slow:
    job: JobState
    pace: Pace
    change: Change
    onset: int
    row: int


@dataclass(frozen=True, slots=True)
class _Slowing:
    """A job that is not as fast as before, and of which it cannot be told yet whether it is a drop. by: its growth now; onset: ms,
    None where no moment can be told yet."""

    by: float
    onset: int | None = None


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job whose pace is known: slower than it was, or clear."""
    slow: list[_Slow] = []
    slowing: list[_Slowing] = []
    out: list[Verdict] = []
    for job in window.jobs:
        pace = job_pace.read(window, job)
        if pace is None:
            continue
        word = _judge_job(window, job, pace, params)
        if isinstance(word, _Slow):
            slow.append(word)
        elif isinstance(word, _Slowing):
            slowing.append(word)
        elif word is not None:
            out.append(word)
    out += [_verdict(window, one) for one in slow if not _of_the_site(window, one, slow, slowing, params)]
    return log_rules.added(out, window, FAULT, log_rules.SLOW, RULE_SEVERITY)


def _of_the_site(window: Window, one: _Slow, slow: list[_Slow], slowing: list[_Slowing], p: Params) -> bool:
    """Most others slow down with it, or the fabric is crowded. That another job is no drop by itself is no proof: of a few percent its
    noise hides as much."""
    growth = max(each.change.growth for each in slow)
    least = p.partner * growth
    others = company.changes(window, one.job, one.onset)
    if others:
        together = float(np.median(others)) >= least
    else:
        late = [each.onset for each in slowing if each.by >= least]
        together = company.at_once([each.onset for each in slow], late, growth, p.together_seconds)
    return together or company.crowded(window, one.job, one.onset)


def _judge_job(window: Window, job: JobState, pace: Pace, p: Params) -> Verdict | _Slow | _Slowing | None:
    """Clear, slow, on its way to it, or None where it cannot be told."""
    if pace.apart > p.lockstep:
        return None
    kinds = [kind for kind in _kinds(window, pace) if len(kind.values)]
    told = [one for kind in kinds if (one := _judge_values(window, pace, kind, p)) is not None]
    if not told:
        # A run that has just begun is slow or fast by itself: what was found in the run before it is over.
        fresh = pace.started > 0 and any(len(kind.values) >= pace_levels.LEAST for kind in kinds)
        return Verdict(job_pace.part(job), FAULT, "clear", reason="new_run") if fresh else None
    # They may tell of other drops: of one that is over, and of the present one. What stands out most is asked first.
    words = []
    for found in sorted(told, key=lambda one: -_margin(window, one, p)):
        if found.drop is None or _denied(told[0], found, p):
            break
        words.append(_judge_drop(window, job, pace, found, told[0].recent, p))
        if not isinstance(words[-1], _Slowing):
            return words[-1]
    if words:
        return words[0]
    if pace.started == 0 and _found_before(window, pace):
        one = told[0]
        return _older(window, job, pace, one.kind.values[-one.last:], one.growth, p)
    if min(one.recent for one in told) >= 0.5 * p.drop:
        return _Slowing(max(one.recent for one in told))  # neither slow nor as fast as before: an open finding stands still
    return Verdict(job_pace.part(job), FAULT, "clear", reason="clear")


def _judge_drop(window: Window, job: JobState, pace: Pace, found: _Told, recent: float, p: Params) -> Verdict | _Slow | _Slowing:
    """Whether the drop that is told is everybody's and has lasted long enough."""
    assert found.drop is not None
    change, row = found.drop.change, int(found.kind.rows[found.drop.change.at])
    onset, past = int(window.times[row]), _past(window, found.kind, found.drop)
    everybody = None if _batch_grew(pace, row, past, p) else _everybody(window, job, pace, row, past, change.growth, p)
    if not everybody:  # what is seen to be others' counts against a drop, what cannot be told does not
        return _Slowing(recent, onset) if everybody is None else Verdict(job_pace.part(job), FAULT, "clear", reason="clear")
    return _Slow(job, pace, change, onset, row) if _held(window, pace, found.kind, change, p) else _Slowing(recent, onset)


def _held(window: Window, pace: Pace, kind: _Kind, change: Change, p: Params) -> bool:
    """It goes on and was slow for as long as is asked for, but for what the hold waits. The first slow step is seen when it ends."""
    steps = (p.hold_steps - 1) * (1.0 + change.growth) * np.nan_to_num(pace.usual)
    since = int(window.times[kind.rows[pace_levels.begun(kind.values, change)]])
    long = window.end - since >= 1000 * (max(p.hold_seconds, steps) - (HOLD.on - 1) * window.step_seconds)
    return bool(long) and pace_levels.goes_on(kind.values, change)


def _denied(single: _Told, found: _Told, p: Params) -> bool:
    """What spans show and single steps deny is no drop: the job is as fast as before (a pause that nobody named is in a span), or was so for
    a while since the drop began (two slow spells run into one where each span is rough)."""
    if found.drop is None or single is found:
        return False
    row, values, q = found.kind.rows[found.drop.change.at], single.kind.values, single.kind.q
    before = values[single.kind.rows < row]
    # Levels that could not be told apart hold what came since then, too.
    since = pace_levels.level(values[-single.last:], q) / pace_levels.level(before, q) - 1.0 if len(before) >= pace_levels.LEAST else 0.0
    return max(single.growth, since) < 0.5 * p.drop or any(one >= row for one in single.fast)


def _past(window: Window, kind: _Kind, drop: Drop) -> Bools:
    """bool[tick]: before the drop, without the earlier times that were about as slow: what did less or waited more in them is no measure."""
    out = np.arange(len(window.times)) < kind.rows[drop.change.at]
    for first, stop in drop.spells:
        out[kind.rows[first]:kind.rows[stop - 1] + 1] = False
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Values that tell the pace (`pace_levels`: single steps by a quantile q, or spans), without the missing, and their rows."""

    values: Floats
    rows: Ints
    q: float | None


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """What values tell. drop: how the job became slower, None = it did not. last: how many are the present; growth,
    recent: of the present, and of its newer half, against the fastest level of the past. fast: rows at which a level about as fast
    as that began."""

    kind: _Kind
    drop: Drop | None
    last: int
    growth: float
    recent: float
    fast: tuple[int, ...] = ()


def _kinds(window: Window, pace: Pace) -> list[_Kind]:
    """Single steps where they are told, else tokens; spans by the counter of steps; and what the usual rank does itself in a step (computing,
    waiting for data) with as much more as its steps usually have: the exchange, in which steps are rough, tells nothing there."""
    spans = ~np.isnan(pace.span)
    counted = _Kind(pace.span[spans], pace.rows[spans], None)
    best = pace.token if not pace.single or (~np.isnan(pace.step)).sum() < (~np.isnan(pace.token)).sum() else pace.step
    known = ~np.isnan(best)
    computing, waiting = (job_pace.of_ranks(stats.cut(window.values(s), pace.rows, pace.some)) for s in ("rank.compute_seconds", "rank.data_wait_seconds"))
    own = np.asarray(computing + waiting)
    done = ~np.isnan(own)
    work = _Kind(pace.usual + own[done] - float(stats.median(own)), pace.rows[done], pace_levels.EDGE)
    return [*(_Kind(best[known], pace.rows[known], q) for q in (pace_levels.EDGE, pace_levels.MIDDLE)), counted, work]


def _judge_values(window: Window, pace: Pace, kind: _Kind, p: Params) -> _Told | None:
    """None for too few."""
    last = _present(window, pace, kind.rows, p)
    if last is None or len(kind.values) < pace_levels.LEAST + last:
        return None
    now, newest = (pace_levels.level(kind.values[-n:], kind.q) for n in (last, max(3, -(-last // 2))))
    fast = np.sort(kind.values)[pace_levels.LEAST // 2]
    if now < (1.0 + p.drop) * fast:  # as nearly always: no levels need be told
        usual = pace_levels.level(kind.values, kind.q)
        return _Told(kind, None, last, now / usual - 1.0, newest / usual - 1.0)
    known = pace_levels.levels(kind.values, last, kind.q)
    lasted = [(int(window.times[kind.rows[one.stop - 1]]) - int(window.times[kind.rows[one.start]])) / 1000.0 for one in known]
    fastest = min((one.value for one, seconds in zip(known, lasted, strict=True) if seconds >= p.past_seconds),
                  default=known[0].value)
    drop = None
    if now >= (1.0 + p.drop) * fastest:
        drop = _slower(window, kind, known, last, p)
    again = tuple(int(kind.rows[one.start]) for one, seconds in zip(known, lasted, strict=True)
                  if seconds >= p.past_seconds and one.value < (1.0 + 0.5 * p.drop) * fastest)
    return _Told(kind, drop, last, now / fastest - 1.0, newest / fastest - 1.0, again)


def _slower(window: Window, kind: _Kind, known: list[pace_levels.Level], last: int, p: Params) -> Drop | None:
    """The drop that began first, of those since which the job was slow all the time."""
    best: Drop | None = None
    for one in pace_levels.drops(kind.values, known, last, kind.q, 0.5 * p.drop):
        if best is not None and (one.past == best.past or one.change.before > best.change.before):
            continue
        if kind.q == pace_levels.MIDDLE and not pace_levels.has_bulk(kind.values[one.past:one.change.at]):
            continue
        if one.change.growth >= _needed(window, kind, one, p) and not _alternates(window, kind, one, p):
            best = one
    return best


def _seconds(window: Window, kind: _Kind, a: int, b: int) -> float:
    """From the a-th value to the b-th."""
    return (int(window.times[kind.rows[min(b, len(kind.rows) - 1)]]) - int(window.times[kind.rows[a]])) / 1000.0


def _present(window: Window, pace: Pace, rows: Ints, p: Params) -> int | None:
    """How many of the newest values are the present: the longer of `present_seconds` and `hold_steps`; None for too few."""
    if len(rows) < 3:
        return None
    usual = 0.0 if np.isnan(pace.usual) else pace.usual
    # A log that tells every so many steps tells less often now if they are longer: a slow job's present lasts no longer for it.
    gaps = np.diff(window.times[rows[-PRESENT_GAPS - 1:]]) / 1000.0
    each = max(float(np.median(gaps)), window.step_seconds)
    return max(3, int(np.ceil(max(p.present_seconds, p.hold_steps * usual) / each)))


def _needed(window: Window, kind: _Kind, one: Drop, p: Params) -> float:
    """The growth from which it is a drop."""
    past, found = _seconds(window, kind, one.past, one.change.at), one.change
    if past < p.past_seconds:
        return float("inf")
    young = p.young_drop * max(0.0, 1.0 - past / p.full_past_seconds)
    error = found.error / found.before
    return max(p.drop + error, young, p.sigmas * error, p.sigmas * one.restless, p.wander * found.wander + p.above_past)


def _margin(window: Window, one: _Told, p: Params) -> float:
    """How far the drop that is told stands out, 1 = as far as is asked for; 0 for none."""
    return 0.0 if one.drop is None else one.drop.change.growth / _needed(window, one.kind, one.drop, p)


def _alternates(window: Window, kind: _Kind, one: Drop, p: Params) -> bool:
    """The job was as slow before, for a while, and came back: twice, or for a time that the present spell does not far exceed."""
    lasts = _seconds(window, kind, one.since, len(kind.rows))
    spells = [_seconds(window, kind, a, b) for a, b in one.spells]
    return len(spells) > 1 or any(s < p.spell_seconds and lasts < 2.0 * s for s in spells)


def _batch_grew(pace: Pace, row: int, past: Bools, p: Params) -> bool:
    """Tokens a second did not fall with the steps: there is more in a step."""
    before, after = pace.token[past[pace.rows]], pace.token[pace.rows >= row]
    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    if len(before) < 3 or len(after) < 3:
        return False
    return bool(job_pace.level_of(after) < (1.0 + p.drop * 2 / 3) * job_pace.level_of(before))


def _everybody(window: Window, job: JobState, pace: Pace, row: int, past: Bools, growth: float, p: Params) -> bool | None:
    """Most of the growth is everybody's, as far as the trainer tells what a step consists of, or else the GPUs; False where they show that
    it is not, None where it may not be.

    Everybody's are the usual rank's computing and waiting for data, and what the rank that waits least spends in
    collectives: the exchange itself.
    """
    before, after = pace.rows[past[pace.rows]], pace.rows[pace.rows >= row]
    calm = pace.settled[past[pace.settled]], pace.settled[pace.settled >= row]
    if ports.few_ports_wait(window, job, before, after, p.port_waits, p.few_ports) or _at_the_limit(window, job, *calm, p):
        return None

    def grown(signal: str, q: float) -> float:
        old, new = (job_pace.level(window, signal, pace.some, rows, q) for rows in (before, after))
        return new - old

    computing, waiting, exchange = (grown("rank.compute_seconds", 0.5), grown("rank.data_wait_seconds", 0.5),
                                    grown("rank.comm_wait_seconds", 0.0))
    total = grown("rank.step_seconds", 0.5)
    if np.isnan(computing) or np.isnan(total):
        return _gpus_alike(window, job, pace, row, calm, growth, p)
    # In steps of uneven length some ranks have more to do, each time others: within one step they lie further apart than before, which
    # what slows all of them alike does not do.
    if _further_apart(window, pace, before, after) >= p.of_spread * growth:
        return _lasts(window, pace, row, p) or None
    apart = grown("rank.compute_seconds", 0.9) - computing
    if apart >= (1.0 - p.common) * total:
        return _lasts(window, pace, row, p) or None
    common = sum(part for part in (computing, waiting, exchange) if not np.isnan(part))
    return bool(common >= p.common * total) or _lasts(window, pace, row, p) or None


def _gpus_alike(window: Window, job: JobState, pace: Pace, row: int, calm: tuple[Ints, Ints], growth: float, p: Params) -> bool | None:
    """As `_everybody`, from what the job's GPUs do: by their mean power, else by readings and by how rough steps are."""
    columns = shared.on_nodes(window.of_kind("gpu"), job.nodes)
    columns = columns[:: max(1, -(-len(columns) // MOST_GPUS))]
    if len(columns) >= 3 and _more_in_a_step(window.values(MATH)[:, columns], *calm, growth, p):
        return None
    drew = mean_power.read(window, columns)
    if drew is None or len(columns) < 3 or np.isnan(drew[calm[1]]).all():
        return None if _rougher(pace, row, growth, p) or _each_time_others(window, columns, *calm, growth, p) else True
    differ = _differ_in_power(drew, [window.of_kind("gpu")[c].node or "" for c in columns], *calm, growth, p)
    return None if differ is None else not differ


def _further_apart(window: Window, pace: Pace, before: Ints, after: Ints) -> float:
    """By how much further the work of ranks in one step lies apart since the change than before, each measured by what it did before
    (the range without the outermost twentieths: a single straggler is none)."""
    work = window.values("rank.compute_seconds")[:, pace.some]
    kept = stats.ratio(work, stats.median(work[before])[None, :])
    spread = stats.quantile(kept.T, 0.95) - stats.quantile(kept.T, 0.05)
    return float(np.nan_to_num(stats.median(spread[after]) - stats.median(spread[before])))


def _at_the_limit(window: Window, job: JobState, before: Ints, after: Ints, p: Params) -> bool:
    """Since the change the job's GPUs draw more at a lower clock: its kernels ask more of the boards than their limit of power gives,
    which is what the limit is for. What slows a job otherwise makes its GPUs draw less, or leaves their clocks where they were."""
    columns = shared.on_nodes(window.of_kind("gpu"), job.nodes)
    columns = columns[:: max(1, -(-len(columns) // MOST_GPUS))]
    if not len(columns):
        return False
    power, clock = (stats.ratio(stats.median(values[after]), stats.median(values[before]))
                    for values in (window.values(f"gpu.{n}")[:, columns] for n in ("power_watts", "sm_clock_hertz")))
    known = ~np.isnan(power + clock)
    held = stats.above(power, 1.0 + p.draws) & stats.below(clock, 1.0 - p.clocks)
    return bool(known.any() and held.sum() >= p.common * known.sum())


def _each_time_others(window: Window, columns: Ints, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """growth: of the step. Since the change the GPUs of the job differ more from each other than before, beyond what each differs on its own."""
    if len(columns) < 3:
        return False
    if _one_leads(window, columns, before, after, growth, p):
        return True
    signal = next((s for s in ACTIVITY if s in window.blocks and not np.isnan(window.last(s)[columns]).all()), None)
    if signal is None:
        return False
    values = window.values(signal)[:, columns]
    # A sequence is a replica's, and a replica often a node's: of its GPUs together the noise of each reading is less.
    names = np.array([window.of_kind("gpu")[c].node for c in columns])
    nodes = np.stack([stats.median(values[:, names == name], axis=1) for name in dict.fromkeys(names.tolist())], axis=1)
    return (_differ_more(values, before, after, p.of_growth * growth, p)
            or (nodes.shape[1] >= 3 and _differ_more(nodes, before, after, p.of_growth_nodes * growth, p)))


def _differ_in_power(drew: Floats, names: list[str], before: Ints, after: Ints, growth: float, p: Params) -> bool | None:
    """drew: float64[tick, gpu], mean watts. Since the change some GPU does not wait as the others do: the same one (a straggler, a rank that
    is profiled), another after some minutes (experts), or those of another node each time (sequences of uneven length). None where the
    past or the present is too short to tell."""
    kept = stats.ratio(drew, stats.median(drew[before])[None, :])
    lead = stats.ratio(kept, stats.median(kept, axis=1)[:, None])
    now, past = _tops(lead, after), _tops(lead, before)
    if len(now) < LEAD_SPANS or len(past) < PAST_SPANS:
        return None
    error = float(np.hypot(now.std() / np.sqrt(len(now)), past.std() / np.sqrt(len(past))))
    if float(now.mean() - past.mean()) >= max(p.of_lead * growth, p.lead_sigmas * error):
        return True
    nodes = [np.array(names) == name for name in dict.fromkeys(names)]
    parts = np.stack([stats.median(drew[:, mine], axis=1) for mine in nodes], axis=1) if len(nodes) >= 3 else drew
    least = p.alike_power / np.sqrt(parts.shape[1] - 1)  # of a few parts it is by luck that they were more alike
    for rows in POWER_ROWS:
        old, new = max(mean_power.scatter(parts, before, rows), least), mean_power.scatter(parts, after, rows)
        if new >= p.apart_power * old and np.sqrt(max(0.0, new**2 - old**2)) >= p.of_growth_power * growth:
            return True
    return False


def _more_in_a_step(values: Floats, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """values: float64[tick, gpu] of `MATH`. Since the change the GPUs do more of it in a second, though steps are longer: there is
    more in each (longer sequences). Slower kernels, clocks and exchanges leave less of it, or as much."""
    did = stats.ratio(stats.median(values[after]), stats.median(values[before]))
    did = did[~np.isnan(did)] - 1.0
    if len(did) < 3:
        return False
    own = 1.25 * stats.MAD_TO_SIGMA * float(np.median(np.abs(did - np.median(did)))) / np.sqrt(len(did))
    # All of them are read in about the same moment of a step: more GPUs know no better how busy they are on average, more readings do.
    moments = [stats.error_of_median(stats.median(values[rows], axis=1)) * np.sqrt(2) for rows in (before, after)]  # every second one is repeated
    return float(np.median(did)) >= max(p.of_math * growth, p.math_sigmas * float(np.hypot(own, np.hypot(*moments))))


def _differ_more(values: Floats, before: Ints, after: Ints, least: float, p: Params) -> bool:
    """values: float64[tick, part]. The parts differ more from each other since the change, by at least the share `least`."""
    (old, n), (new, m) = _differences(values[before]), _differences(values[after])
    if not min(n, m) or not old > 0:
        return False
    # A median absolute deviation of normal noise is known to 1.17 / sqrt(n) of itself; exporters repeat every second reading, and
    # each is compared with two others.
    error = 1.17 * float(np.sqrt(4 / n + 4 / m))
    if new < (1.0 + max(p.apart, 2.5 * error)) * old:
        return False
    return float(np.sqrt(new**2 - old**2)) / float(stats.median(stats.median(values[after]))) >= least


def _rougher(pace: Pace, row: int, growth: float, p: Params) -> bool:
    """Single steps scatter more since the change, beyond what longer steps do: each holds another amount of work. The scatter is that
    below the level, for the tail above is always there; it is taken in short spans, so that a slope is none."""
    if not pace.single:
        return False
    known = ~np.isnan(pace.step)
    before, after = pace.step[known & (pace.rows < row)], pace.step[known & (pace.rows >= row)]
    if min(len(before), len(after)) < pace_levels.ROUGH_STEPS:
        return False
    # While the job gets slower bit by bit a span scatters by that; one of them does not.
    old, new = pace_levels.scatter(before, 0.5), pace_levels.scatter(after, 0.25) / (1.0 + growth)
    return new >= p.rougher * old and float(np.sqrt(max(0.0, new**2 - old**2))) >= p.rough_share * growth


def _one_leads(window: Window, columns: Ints, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """Since the change most GPUs do less and at each time some GPU does as much as before: they wait for it, whether it is always the
    same one (a straggler) or another after some minutes (experts). What slows all of them leaves nobody ahead."""
    return any(_leads(window.values(signal)[:, columns], before, after, growth, p) for signal in WORK if signal in window.blocks)


def _leads(values: Floats, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """values: float64[tick, gpu] of one activity."""
    own = stats.median(values[before])
    kept = stats.ratio(values, own[None, :])
    fall = 1.0 - float(stats.median(stats.median(kept[after])))
    if not fall >= p.of_fall * growth / (1.0 + growth):
        return False
    lead = stats.ratio(kept, stats.median(kept, axis=1)[:, None])
    now, past = _tops(lead, after), _tops(lead, before)
    if min(len(now), len(past)) < LEAD_SPANS:
        return False
    error = float(np.hypot(now.std() / np.sqrt(len(now)), past.std() / np.sqrt(len(past))))
    return float(now.mean() - past.mean()) >= max(p.of_lead * fall, p.lead_sigmas * error)


def _tops(lead: Floats, rows: Ints) -> Floats:
    """The greatest lead in each span of `LEAD_ROWS`."""
    spans = [stats.mean(lead[rows[i:i + LEAD_ROWS]]) for i in range(len(rows) % LEAD_ROWS, len(rows), LEAD_ROWS)]
    return np.array([np.nanmax(s) for s in spans if not np.isnan(s).all()])


def _differences(values: Floats) -> tuple[float, int]:
    """(robust sigma of how GPUs differ from the job's median at a moment, other than a minute before; number of values) of
    float64[tick, gpu]. What each differs on its own, and how that moves as it warms, drops out."""
    apart = values - stats.median(values, axis=1)[:, None]
    moved = (apart[MINUTE_ROWS:] - apart[:-MINUTE_ROWS]) / np.sqrt(2)
    known = moved[~np.isnan(moved)]
    return (stats.MAD_TO_SIGMA * float(np.median(np.abs(known))), len(known)) if len(known) else (float("nan"), 0)


def _lasts(window: Window, pace: Pace, row: int, p: Params) -> bool:
    """The same few ranks have been slow for long."""
    return (window.end - int(window.times[row])) / 1000.0 >= p.uneven_seconds and _same_ranks(window, pace, row)


def _same_ranks(window: Window, pace: Pace, row: int) -> bool:
    """The few ranks that are slow are the same in both halves of the time since the change."""
    work = window.values("rank.compute_seconds")[:, pace.some]
    rows = pace.rows[pace.rows >= row]
    before = stats.median(work[pace.rows[pace.rows < row]])
    halves = [stats.ratio(stats.median(work[part]), before) for part in np.array_split(rows, 2)]
    tops = [set(np.flatnonzero(stats.above(h, 1.0 + 0.5 * (float(np.nanmax(h)) - 1.0))).tolist()) for h in halves
            if not np.isnan(h).all()]
    few = len(pace.some) // 4
    return len(tops) == 2 and bool(tops[0]) and len(tops[0]) <= few and len(tops[0] & tops[1]) * 2 > len(tops[0] | tops[1])


def _found_before(window: Window, pace: Pace) -> bool:
    """A finding on the job is open for longer than the window shows."""
    return float(job_pace.left_out(window, "rank.step_seconds", pace.some).mean()) > 0.5


def _older(window: Window, job: JobState, pace: Pace, values: Floats, growth: float, p: Params) -> Verdict | None:
    """A finding that is older than the window goes on while the job is slower than in the hours before it. Where those are
    not known, it ends when the window shows that the job became faster; else None."""
    signal = "rank.step_seconds"
    usual = float(stats.median(job_pace.expected(window, signal, pace.some)))
    now = job_pace.level_of(values)
    known = usual > 0 and not np.isnan(pace.step).all()
    if not known and growth > -p.still:
        return None
    if not known or now < (1.0 + p.still) * usual:
        return Verdict(job_pace.part(job), FAULT, "clear", reason="clear")
    seen = stats.evidence(signal, now, usual, "its hours before this finding")
    return Verdict(job_pace.part(job), FAULT, "faulty", _severity(now / usual - 1.0), (seen,), "slower_than_before", keeps=True)


def _severity(growth: float) -> float:
    return float(np.clip(0.3 + growth, 0.3, 0.6))


def _verdict(window: Window, one: _Slow) -> Verdict:
    minutes = round((window.end - one.onset) / 60_000)
    signal = "rank.step_seconds" if not np.isnan(one.pace.step).all() else "rank.tokens_per_second"
    before, now = one.change.before, min(one.change.after, one.change.now)
    if signal == "rank.tokens_per_second":
        before, now = 1.0 / before, 1.0 / now
    rows: list[Evidence] = [stats.evidence(signal, now, before, f"its own past in this run; {minutes} minutes now")]
    old, new = one.pace.rows[one.pace.rows < one.row], one.pace.rows[one.pace.rows >= one.row]
    for name in ("rank.compute_seconds", "rank.data_wait_seconds", "rank.comm_wait_seconds"):
        now = job_pace.level(window, name, one.pace.some, new)
        if not np.isnan(now):
            rows.append(stats.evidence(name, now, job_pace.level(window, name, one.pace.some, old),
                                       "its own past in this run, median of ranks"))
    return Verdict(job_pace.part(one.job), FAULT, "faulty", _severity(one.change.growth), tuple(rows), "slower_than_before",
                   onset_at=one.onset)


PLUGIN = DetectorPlugin(
    name="throughput_drop", fault=FAULT, judge=judge, params=Params,
    needs=(("rank.step_seconds", "rank.step", "rank.tokens_per_second", "log_rule"),),
    hold=HOLD,
    must_not=("checkpoints, evaluations and compilation", "warm-up and restarts", "a batch that grows", "single long steps",
              "a step time that is rough", "a job that was always so slow", "ranks that are uneven", "all jobs of a site at once"),
)
