"""A job that got slower and stays so, against its own past in the present run.

At least 3 % and four standard errors slower than before, on the whole span since the change and now, and slower than the
past ever was for as long. Steps that take longer because the batch grew are no drop: where tokens a second are told they
must have fallen too. Where the trainer tells what a step consists of, the slowness has to be everybody's (computing on
most ranks, or the exchange that even the last rank takes part in): a job that waits for a few of its ranks has a
straggler, or uneven work, and that is other detectors' to say. Where it does not tell, the GPUs do: sequences of uneven length
keep another rank's GPU busy longest in each step, so since the change the GPUs differ more from each other, each time others,
while a slowdown of everybody leaves them as alike as they were. A slowdown that all jobs of the site share at one moment
is no job's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, JobState, Verdict
from core.window import Window
from detectors import job_pace, log_rules, stats
from detectors.job_pace import Change, Pace
from detectors.stats import Ints

FAULT = "throughput_drop"
# What shows how long a GPU was busy, best first; of a large job so many GPUs tell.
ACTIVITY = ("gpu.sm_active_ratio", "gpu.power_watts")
WAITS = "nic.wait_ticks_per_second"  # a port has data to send and no credit or turn to send it
WORK = ("gpu.sm_active_ratio", "gpu.tensor_active_ratio")  # what ends while a GPU waits in a collective
MOST_GPUS = 128
LEAD_ROWS = 8  # two minutes: an expert's load stays longer, the noise of a reading does not
MINUTE_ROWS = 4  # readings so far apart are new ones: exporters read the GPUs every 10 to 60 s
RULE_SEVERITY = 0.3  # of slowness by a rule of the user's over the job's log


@dataclass(frozen=True)
class Params:
    """Sources: issue of job health (3 %, four robust standard deviations, 5 minutes and 5 steps); healthy Megatron and
    nanogpt runs for what a level may wander; where no source is named, our judgement.

    drop: least growth of the step time. sigmas: and so many standard errors. hold_seconds, hold_steps: the present is so
    long (the rest of the 5 minutes is the hold's). wander: growth against what the past went up by itself, and above_past more.
    lockstep: ranks whose steps differ by more have no common pace. past_seconds: the past that is needed; full_past_seconds: with less than this the drop must be greater, up to
    young_drop. common: share of the growth that all ranks have alike. uneven_seconds: a slowdown of the same few ranks
    that lasts longer is told even so. apart: growth of the GPUs' differences from which their work is uneven, at two standard
    errors at least; of_growth: and what was added, as a share of the growth of the step. of_lead:
    share of the slowdown by which one GPU goes on working beyond the others; above_lead: times the greatest lead of before. few_ports:
    share of the job's ports that wait to send, port_waits: so many times as much as before and as the others.
    draws, clocks: more power and less clock of GPUs that a limit holds. together_seconds: jobs that slow down within it slow down together. still: growth
    against the last hours from which an older finding goes on.
    """

    drop: float = 0.03
    sigmas: float = 4.0
    hold_seconds: float = 180.0
    hold_steps: int = 5
    wander: float = 1.25
    above_past: float = 0.015
    lockstep: float = 0.03
    past_seconds: float = 100.0
    full_past_seconds: float = 600.0
    young_drop: float = 0.15
    common: float = 0.8
    uneven_seconds: float = 900.0
    apart: float = 0.3
    of_growth: float = 0.1
    of_lead: float = 0.5
    above_lead: float = 1.7
    few_ports: float = 0.25
    port_waits: float = 20.0
    draws: float = 0.01
    clocks: float = 0.01
    together_seconds: float = 180.0
    still: float = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _Slow:
    job: JobState
    pace: Pace
    change: Change
    onset: int
    row: int


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job whose pace is known: slower than it was, or clear."""
    slow: list[_Slow] = []
    out: list[Verdict] = []
    told = 0
    for job in window.jobs:
        pace = job_pace.read(window, job)
        if pace is None:
            continue
        word = _judge_job(window, job, pace, params)
        told += word is not None
        if isinstance(word, _Slow):
            slow.append(word)
        elif word is not None:
            out.append(word)
    alike = told >= 2 and len(slow) == told and _together(slow, params)
    if not alike:
        out += [_verdict(window, one) for one in slow]
    return log_rules.added(out, window, FAULT, log_rules.SLOW, RULE_SEVERITY)


def _together(slow: list[_Slow], p: Params) -> bool:
    onsets = [one.onset for one in slow]
    return max(onsets) - min(onsets) <= p.together_seconds * 1000


def _judge_job(window: Window, job: JobState, pace: Pace, p: Params) -> Verdict | _Slow | None:
    """Clear, slow, or None where it cannot be told."""
    if pace.apart > p.lockstep:
        return None
    values, rows = _values(pace)
    last = _present(window, pace, rows, p)
    if last is None:
        return None
    found = job_pace.change(values, last)
    if found is None:
        # A run that has just begun is slow or fast by itself: what was found in the run before it is over.
        fresh = pace.started > 0 and len(values) >= 6
        return Verdict(job_pace.part(job), FAULT, "clear", reason="new_run") if fresh else None
    row = int(rows[found.at])
    if found.growth >= _needed(window, rows, found, p):
        if _batch_grew(pace, row, p) or not _everybody(window, job, pace, row, found.growth, p):
            return None
        return _Slow(job, pace, found, int(window.times[row]), row)
    if pace.started == 0 and _found_before(window, pace):
        return _older(window, job, pace, values[-last:], found.growth, p)
    if found.growth >= 0.5 * p.drop:
        return None  # neither slow nor as fast as before: an open finding stands still
    return Verdict(job_pace.part(job), FAULT, "clear", reason="clear")


def _values(pace: Pace) -> tuple[Floats, Ints]:
    """Seconds a step (else a token) took, where told, and their rows."""
    best = pace.step if (~np.isnan(pace.step)).sum() >= (~np.isnan(pace.token)).sum() else pace.token
    known = ~np.isnan(best)
    return best[known], pace.rows[known]


def _present(window: Window, pace: Pace, rows: Ints, p: Params) -> int | None:
    """How many of the newest values are the present: the longer of `hold_seconds` and `hold_steps`; None for too few."""
    if len(rows) < 3:
        return None
    usual = 0.0 if np.isnan(pace.usual) else pace.usual
    gaps = np.diff(window.times[rows]) / 1000.0
    each = max(float(np.median(gaps)), window.step_seconds)
    return max(3, int(np.ceil(max(p.hold_seconds, p.hold_steps * usual) / each)))


def _needed(window: Window, rows: Ints, found: Change, p: Params) -> float:
    past = (int(window.times[rows[found.at]]) - int(window.times[rows[0]])) / 1000.0
    if past < p.past_seconds:
        return float("inf")
    young = p.young_drop * max(0.0, 1.0 - past / p.full_past_seconds)
    return max(p.drop, young, p.sigmas * found.error / found.before, p.wander * found.wander + p.above_past)


def _batch_grew(pace: Pace, row: int, p: Params) -> bool:
    """Tokens a second did not fall with the steps: there is more in a step."""
    before, after = pace.token[pace.rows < row], pace.token[pace.rows >= row]
    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    if len(before) < 3 or len(after) < 3:
        return False
    return bool(job_pace.level_of(after) < (1.0 + p.drop * 2 / 3) * job_pace.level_of(before))


def _everybody(window: Window, job: JobState, pace: Pace, row: int, growth: float, p: Params) -> bool:
    """Most of the growth is everybody's, as far as the trainer tells what a step consists of.

    Everybody's are the usual rank's computing and waiting for data, and what the rank that waits least spends in
    collectives: the exchange itself.
    """
    before, after = pace.rows[pace.rows < row], pace.rows[pace.rows >= row]
    if _few_ports_wait(window, job, before, after, p) or _at_the_limit(window, job, before, after, p):
        return False

    def grown(signal: str, q: float) -> float:
        old, new = (job_pace.level(window, signal, pace.some, rows, q) for rows in (before, after))
        return new - old

    computing, waiting, exchange = (grown("rank.compute_seconds", 0.5), grown("rank.data_wait_seconds", 0.5),
                                    grown("rank.comm_wait_seconds", 0.0))
    total = grown("rank.step_seconds", 0.5)
    if np.isnan(computing) or np.isnan(total):
        return not _each_time_others(window, job, before, after, growth, p)
    # In steps of uneven length some ranks have more to do, each time others.
    apart = grown("rank.compute_seconds", 0.9) - computing
    if apart >= (1.0 - p.common) * total:
        return _lasts(window, pace, row, p)
    common = sum(part for part in (computing, waiting, exchange) if not np.isnan(part))
    return common >= p.common * total or _lasts(window, pace, row, p)


def _few_ports_wait(window: Window, job: JobState, before: Ints, after: Ints, p: Params) -> bool:
    """Since the change a few of the job's ports have data that they cannot send, and the others do not: flows share a path, or a port
    is slow. That is the network's to say, and nobody changed the job."""
    columns = np.array([e for e, nic in enumerate(window.of_kind("nic")) if nic.node in job.nodes], np.int64)
    if WAITS not in window.blocks or not len(columns):
        return False
    waits = window.values(WAITS)[:, columns]
    old, new = stats.median(waits[before]), stats.median(waits[after])
    known = ~np.isnan(old) & ~np.isnan(new)
    usual = float(np.median(new[known])) if known.any() else float("nan")
    up = known & stats.above(new, p.port_waits * np.maximum(old, 1.0)) & stats.above(new, p.port_waits * max(usual, 1.0))
    return bool(0 < up.sum() <= p.few_ports * known.sum())


def _at_the_limit(window: Window, job: JobState, before: Ints, after: Ints, p: Params) -> bool:
    """Since the change the job's GPUs draw more at a lower clock: its kernels ask more of the boards than their limit of power gives,
    which is what the limit is for. What slows a job otherwise makes its GPUs draw less, or leaves their clocks where they were."""
    columns = np.array([e for e, gpu in enumerate(window.of_kind("gpu")) if gpu.node in job.nodes], np.int64)
    columns = columns[:: max(1, -(-len(columns) // MOST_GPUS))]
    if not len(columns):
        return False
    power, clock = (stats.ratio(stats.median(values[after]), stats.median(values[before]))
                    for values in (window.values(f"gpu.{n}")[:, columns] for n in ("power_watts", "sm_clock_hertz")))
    known = ~np.isnan(power + clock)
    held = stats.above(power, 1.0 + p.draws) & stats.below(clock, 1.0 - p.clocks)
    return bool(known.any() and held.sum() >= p.common * known.sum())


def _each_time_others(window: Window, job: JobState, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """growth: of the step. Since the change the GPUs of the job differ more from each other than before, beyond what each differs on its own."""
    columns = np.array([e for e, gpu in enumerate(window.of_kind("gpu")) if gpu.node in job.nodes], np.int64)
    columns = columns[:: max(1, -(-len(columns) // MOST_GPUS))]
    if len(columns) < 3:
        return False
    if _one_leads(window, columns, before, after, growth, p):
        return True
    signal = next((s for s in ACTIVITY if s in window.blocks and not np.isnan(window.last(s)[columns]).all()), None)
    if signal is None:
        return False
    values = window.values(signal)[:, columns]
    (old, n), (new, m) = _differences(values[before]), _differences(values[after])
    if not min(n, m) or not old > 0:
        return False
    # A median absolute deviation of normal noise is known to 1.17 / sqrt(n) of itself; exporters repeat every second reading.
    error = 1.17 * float(np.sqrt(2 / n + 2 / m))
    if new < (1.0 + max(p.apart, 2.0 * error)) * old:
        return False
    added = float(np.sqrt(new**2 - old**2)) / float(stats.median(stats.median(values[after])))
    return added >= p.of_growth * growth


def _one_leads(window: Window, columns: Ints, before: Ints, after: Ints, growth: float, p: Params) -> bool:
    """At nearly all times since the change some GPU works on while the others have begun to wait: they wait for it, whether it is
    always the same one (a straggler) or another after some minutes (experts)."""
    signal = next((s for s in WORK if s in window.blocks and not np.isnan(window.last(s)[columns]).all()), None)
    if signal is None or len(before) < LEAD_ROWS or len(after) < LEAD_ROWS:
        return False
    values = window.values(signal)[:, columns]
    own = stats.median(values[before])
    kept = stats.ratio(values, own[None, :])
    lead = stats.ratio(kept, stats.median(kept, axis=1)[:, None])

    def tops(rows: Ints) -> Floats:
        """The greatest lead in each span of `LEAD_ROWS`."""
        spans = [stats.mean(lead[rows[i:i + LEAD_ROWS]]) for i in range(len(rows) % LEAD_ROWS, len(rows), LEAD_ROWS)]
        return np.array([np.nanmax(s) - 1.0 for s in spans if not np.isnan(s).all()])

    now, past = tops(after), tops(before)
    if not len(now) or not len(past):
        return False
    return float(np.quantile(now, 0.25)) >= max(p.of_lead * growth / (1.0 + growth), p.above_lead * float(np.median(past)))


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
    return Verdict(job_pace.part(job), FAULT, "faulty", _severity(now / usual - 1.0), (seen,), "slower_than_before")


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
    # The judgement itself looks back three minutes; eight ticks more make it five. Pauses (checkpoints, evaluations) say nothing:
    # they freeze the finding.
    hold=Hold(on=8, of=9, off=8, expire=240),
    must_not=("checkpoints, evaluations and compilation", "warm-up and restarts", "a batch that grows", "single long steps",
              "a step time that is rough", "a job that was always so slow", "ranks that are uneven", "all jobs of a site at once"),
)
