"""A job that makes no progress: no step is finished, or steps go on and the loss is frozen.

No step: none of the job's ranks finishes one for much longer than its own steps take, while the job runs and its
telemetry goes on. A pause that the trainer names (checkpoint, evaluation, warm-up) is excused within bounds; where no
phase is exposed, the hardware tells a hang (GPUs 100 % busy at low power, tensor cores and network still) from a save
(bytes to storage) and from other work (tensor cores busy), and the wait is longer the less it tells. Frozen loss: the
loss is the same number over many steps, though it used to change; how often it used to repeat (rounding, log intervals)
is learned from the job's own past.

The culprit is the rank that is behind or never came, where counters or watchdogs tell, the one whose process answers no more
since the job stopped, or the node on which tasks are blocked since; else it is the whole job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, JobState, Target, Verdict
from core.window import Window
from detectors import culprits, hangs, log_rules, progress, shared, stats
from detectors.culprits import Told
from detectors.hangs import Parts, Places, Signature
from detectors.progress import Progress
from detectors.stats import Bools, Ints

FAULT = "stalled_loss"
RULE_SEVERITY = 0.9  # of a hang by a rule of the user's over the job's log
WATCHDOG_TELLS_MS = 900_000  # how long a watchdog's line speaks of the present: half a window


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §7 and §11, rules.md §3g; where no source is named, our judgement on recorded runs.

    stall_seconds: no hang is called earlier. stall_steps, stall_gaps: usual step times, and usual gaps between changes
    that telemetry shows (a log interval), that a hang exceeds (NVRX: 5 × the interval; healthy Megatron runs have
    single steps of 2.3 ×). longest_gap: the longest earlier pause, times this. unlearned_seconds: where no step time is
    known yet. Without a phase: complete_seconds where the hardware shows all of a hang, partial_seconds where it shows
    some, saving_seconds while storage takes bytes, working_seconds while tensor cores work (an evaluation),
    idle_seconds where GPUs do nothing, blind_seconds where nothing is known of them. phase_seconds, phase_longest: a
    named pause is a hang after so long and after so many times the longest seen. start_seconds: before the first step.
    signature_complete_seconds, signature_partial_seconds: for jobs without any trainer data.
    frozen_steps, frozen_values, frozen_seconds: the least length of a frozen loss, in steps, readings and seconds;
    frozen_range: relative range of numbers that are the same; frozen_chance: how improbable the run must be by the
    loss's own habit of repeating; frozen_run: and so many times longer than any earlier run.
    """

    stall_seconds: float = 120.0
    stall_steps: float = 10.0
    stall_gaps: float = 3.0
    longest_gap: float = 1.25
    unlearned_seconds: float = 600.0
    complete_seconds: float = 180.0
    partial_seconds: float = 300.0
    saving_seconds: float = 900.0
    working_seconds: float = 1800.0
    idle_seconds: float = 600.0
    blind_seconds: float = 600.0
    phase_seconds: float = 1800.0
    phase_longest: float = 10.0
    start_seconds: float = 1800.0
    signature_complete_seconds: float = 300.0
    signature_partial_seconds: float = 600.0
    frozen_steps: float = 20.0
    frozen_values: int = 8
    frozen_seconds: float = 120.0
    frozen_range: float = 1e-6
    frozen_chance: float = 1e-6
    frozen_run: float = 4.0


EDGE_MS = 120_000
MOST_FROZEN = 2  # runs in a window that can have been frozen without being the loss's habit


def judge(window: Window, params: Params) -> list[Verdict]:
    """Verdicts on jobs and ranks: the culprit or the whole job is faulty, jobs that progress are clear."""
    if not len(window.times):
        return []
    places = Places(window)
    out: list[Verdict] = []
    for job in window.jobs:
        out += _judge_job(window, job, places, params)
    return log_rules.added(out, window, FAULT, log_rules.OVERDUE, RULE_SEVERITY)


def _judge_job(window: Window, job: JobState, places: Places, p: Params) -> list[Verdict]:
    seen = progress.read(window, job)
    since = max(seen.moved_at, window.end - WATCHDOG_TELLS_MS)
    # A job that its watchdog killed has ended: what the watchdog said counts all the same.
    told = culprits.by_watchdog(window, job, since)
    if told is not None:
        if told.culprit is None and seen.known:
            told = _with_other(told, _placed(window, job, seen))
        return [_hang(window, job, told, 0.9, seen, (), discrete=True)]
    if job.silent or not job.running or job.phase == "done":
        return []
    if not seen.known:
        return _by_signature(window, job, places.of(job), p)
    full = len(window.times) * window.step_seconds >= p.phase_seconds
    if full and not seen.fresh.any() and seen.moved_at <= int(window.times[0]) + EDGE_MS:
        # All that is left of it is about to leave the window, and what excused it (its end, a named pause) may have left before.
        return []
    frozen = _frozen(window, job, seen, p)
    if frozen is not None:
        return frozen
    stalled = seen.stalled_seconds(window.end)
    usual = max(60.0, 1.5 * _number(seen.gap_seconds), 3.0 * _number(seen.step_seconds))
    if seen.advanced and (window.end - seen.moved_at) / 1000.0 <= usual and seen.fresh.any():
        return _clear(window, job, seen)
    if stalled < p.stall_seconds and seen.phase is None:
        return []
    parts = places.of(job)
    if seen.away is not None and hangs.idle_during(window, parts, seen.away):
        # It was stopped and started again: what passed before is no stall, though the step stands where it stood.
        stalled = min(stalled, (window.end - int(window.times[seen.away.stop])) / 1000.0)
    signature = hangs.read(window, parts, _row_of(window, seen.moved_at))
    bound = _bound(seen, signature, p)
    waited = seen.phase_seconds if seen.phase is not None else stalled
    if bound is None or waited < bound:
        return []
    # A rank that is silent comes first: of the others some may still wait in the collective before, and are its victims.
    told = (culprits.by_silence(window, seen) or _placed(window, job, seen)
            or Told(None, culprits.suspects(window, seen, parts, signature), "no_step"))
    return [_hang(window, job, told, 0.9, seen, _hang_evidence(window, seen, signature, bound))]


def _row_of(window: Window, at: int) -> int:
    """The first tick at or after `at`, -1 where that is before the window."""
    if at < int(window.times[0]) - window.step_seconds * 1000:
        return -1
    return int(np.searchsorted(window.times, at))


def _placed(window: Window, job: JobState, seen: Progress) -> Told | None:
    """The rank, else the node, that the trainer's counters, a mount or a kernel tell to be behind."""
    return (culprits.by_counter(window, seen) or culprits.blocked_node(window, job, seen.moved_at)
            or culprits.node_by_counter(window, seen))


def _with_other(told: Told, other: Told | None) -> Told:
    """Watchdogs that name nobody, with the part that the trainer's counters or a kernel name."""
    if other is None:
        return told
    return Told(other.culprit, other.suspects, other.reason, other.evidence + told.evidence, told.at)


def _number(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _bound(seen: Progress, signature: Signature, p: Params) -> float | None:
    """Seconds without a step from which it is a hang; None where nothing can be said."""
    if seen.phase is not None:
        return max(p.phase_seconds, p.phase_longest * seen.phase_longest)
    learned = not (math.isnan(seen.step_seconds) and math.isnan(seen.gap_seconds))
    usual = max(p.stall_seconds, p.stall_steps * _number(seen.step_seconds), p.stall_gaps * _number(seen.gap_seconds),
                p.longest_gap * seen.longest_gap)
    if signature.kind == hangs.GONE:
        return None  # its processes have ended: whether they finished or crashed, nothing waits any more
    hang = signature.kind in (hangs.COMPLETE, hangs.PARTIAL)
    # Power that fell to half of the job's own says that it worked and stopped, though no step was seen to change.
    stopped = hang and not math.isnan(signature.power_past) and signature.power_share <= 0.5
    if not learned:
        usual = max(usual, p.partial_seconds if stopped else p.unlearned_seconds)
    if not seen.fresh.any() and not hang:
        return None  # the trainer says nothing more and the GPUs do not look as if they hang: it may have ended
    if not seen.advanced and not hang and not seen.explicit:
        usual = max(usual, p.start_seconds)
    told = seen.explicit and seen.fresh.any()  # it says that it trains
    floor = {
        hangs.COMPLETE: 0.0 if told else p.complete_seconds,
        hangs.PARTIAL: 0.0 if told else p.partial_seconds,
        hangs.SAVING: p.partial_seconds if told else p.saving_seconds,
        hangs.WORKING: p.partial_seconds if told else p.working_seconds,
        hangs.IDLE: p.partial_seconds if told else p.idle_seconds,
        hangs.UNKNOWN: 0.0 if told else p.blind_seconds,
    }[signature.kind]
    return max(usual, floor)


def _hang_evidence(window: Window, seen: Progress, signature: Signature, bound: float) -> tuple[Evidence, ...]:
    """Since when no step was finished, at which step, and what the GPUs show."""
    steps = window.values("rank.step")[:, seen.columns]
    last = stats.filled(steps)[-1] if len(steps) else np.zeros(0)
    last = last[~np.isnan(last)]
    out = [stats.evidence("rank.last_step_timestamp_seconds", (window.end - seen.moved_at) / 1000.0, bound,
                          "seconds since the last step, longest that is normal here")]
    if len(last):
        out.append(stats.evidence("rank.step", float(last.max()), None, "the last finished step"))
    if not math.isnan(seen.step_seconds):
        out.append(stats.evidence("rank.step_seconds", seen.step_seconds, None, "its usual step time"))
    return tuple(out) + _signature_evidence(signature)


def _signature_evidence(signature: Signature) -> tuple[Evidence, ...]:
    out: list[Evidence] = []
    known = signature.utilization[~np.isnan(signature.utilization)]
    if len(known):
        out.append(stats.evidence("gpu.utilization_ratio", float(np.median(known)), None, "median of the job's GPUs"))
    if not math.isnan(signature.power_now):
        out.append(stats.evidence("gpu.power_watts", signature.power_now, signature.power_past, "before it stopped"))
    if not math.isnan(signature.tensor):
        out.append(stats.evidence("gpu.tensor_active_ratio", signature.tensor, None, "median of the job's GPUs"))
    if not math.isnan(signature.bytes_share):
        out.append(Evidence("nic.transmitted_bytes_per_second", "ratio", round(signature.bytes_share, 4), 1.0,
                            "its traffic before it stopped"))
    return tuple(out)


def _hang(window: Window, job: JobState, told: Told, severity: float, seen: Progress, evidence: tuple[Evidence, ...],
          discrete: bool = False) -> Verdict:
    target = told.culprit or Target("job", job=job.id)
    onset = seen.moved_at if seen.known and seen.moved_at else told.at
    if discrete and told.at is not None:
        onset = told.at if onset is None or window.end - onset > 2 * WATCHDOG_TELLS_MS else min(onset, told.at)
    return Verdict(target, FAULT, "faulty", severity, told.evidence + evidence, told.reason, discrete, onset,
                   told.suspects)


def _by_signature(window: Window, job: JobState, parts: Parts, p: Params) -> list[Verdict]:
    """A job of which only the hardware speaks."""
    found = hangs.standstill_since(window, parts)
    if found is None:
        return []
    row, kind = found
    seconds = (window.end - int(window.times[row])) / 1000.0
    needed = p.signature_complete_seconds if kind == hangs.COMPLETE else p.signature_partial_seconds
    if seconds < needed:
        return []
    signature = hangs.read(window, parts, row - 1)
    return [Verdict(Target("job", job=job.id), FAULT, "faulty", 0.8, _signature_evidence(signature), "hang_signature",
                    onset_at=int(window.times[row]))]


def _clear(window: Window, job: JobState, seen: Progress) -> list[Verdict]:
    """The job, its ranks and its nodes progress; so do ranks that only watchdogs ever named, by their word or by their silence."""
    ranks, nodes = window.of_kind("rank"), window.of_kind("node")
    parts = {job.id: Target("job", job=job.id)}
    seen_at = shared.by_key(nodes)
    wholes: list[int] = []
    for node in job.nodes:
        column = seen_at.get(f"node:{node}/")
        if column is not None:
            wholes.append(column)
        else:
            parts[f"node:{node}/"] = Target("node", node, job=job.id)
    known, by_key = set(seen.columns.tolist()), shared.by_key(ranks)
    # What was called a hang longer ago is forgotten by now.
    told = [e for e in window.events_of("nccl_watchdog", "nccl_flight_recorder", since=window.end - 2 * WATCHDOG_TELLS_MS)
            if e.target.job == job.id]
    named = [e.target for e in told if e.target.kind == "rank"]
    if told:
        named += [Target("rank", job=job.id, rank=rank) for rank in range(len(job.nodes) * (job.ranks_per_node or 0))]
    for target in named:
        if by_key.get(target.key) not in known:
            parts.setdefault(target.key, target)
    return [*shared.clears(ranks, seen.columns, FAULT), *shared.clears(nodes, np.array(wholes, np.int64), FAULT),
            *(Verdict(part, FAULT, "clear", reason="clear") for part in parts.values())]


# --- frozen loss ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Run:
    """The newest run of equal losses. values: readings at different steps in it. whole: it fills the window."""

    values: int
    steps: float
    start: int
    loss: float
    frozen: bool
    whole: bool


def _readings(window: Window, column: int) -> tuple[Floats, Floats, Ints]:
    """(loss, step, row) of each reading of a rank at a new step."""
    loss, step = window.values("rank.loss")[:, column], window.values("rank.step")[:, column]
    rows = np.flatnonzero(~np.isnan(loss) & ~np.isnan(step))
    if not len(rows):
        return np.zeros(0), np.zeros(0), rows
    new = np.concatenate([[True], np.diff(step[rows]) != 0])
    rows = rows[new]
    return loss[rows], step[rows], rows


def _newest_run(window: Window, column: int, p: Params) -> _Run | None:
    """The run at the end of a rank's readings, and whether it is frozen by the loss's own habit."""
    loss, step, rows = _readings(window, column)
    n = len(loss)
    if n < p.frozen_values + 4:
        return None
    same = np.abs(loss - loss[-1]) <= p.frozen_range * max(abs(float(loss[-1])), 1e-12)
    length = n if same.all() else int(np.argmin(same[::-1]))
    first = n - length
    past = loss[:first]
    run = _Run(length, float(step[-1] - step[first]), int(window.times[rows[first]]), float(loss[-1]), False, first == 0)
    seconds = (int(window.times[rows[-1]]) - run.start) / 1000.0
    long = length >= p.frozen_values and run.steps >= p.frozen_steps and seconds >= p.frozen_seconds
    if not long or len(np.unique(past)) < 3:
        return run
    repeats, longest = _habit(past, step[:first], window.times[rows[:first]], p)
    # The chance of one more repeat, with one success and one failure added: little past proves little.
    chance = (repeats.sum() + 1.0) / (len(repeats) + 2.0)
    frozen = chance ** (length - 1) <= p.frozen_chance and length >= p.frozen_run * longest
    return _Run(run.values, run.steps, run.start, run.loss, frozen, False)


def _habit(loss: Floats, step: Floats, times: Ints, p: Params) -> tuple[Bools, int]:
    """(which of a rank's earlier readings repeated the one before, the longest of its earlier runs), runs that were frozen
    themselves left out: a loss that froze an hour ago, was mended and freezes again has no habit of standing still."""
    repeats = np.diff(loss) == 0
    edges = np.flatnonzero(np.concatenate([[True], ~repeats, [True]]))
    lengths, begins, ends = np.diff(edges), edges[:-1], edges[1:] - 1
    stood = (lengths >= p.frozen_values) & (step[ends] - step[begins] >= p.frozen_steps) & (
        times[ends] - times[begins] >= p.frozen_seconds * 1000)
    longest_first = np.argsort(-lengths, kind="stable")
    kept = np.ones(len(lengths), bool)
    # Few, and each far longer than all others: what comes more often is a habit.
    for few in range(min(MOST_FROZEN, len(lengths) - 1), 0, -1):
        runs, others = longest_first[:few], longest_first[few:]
        if stood[runs].all() and lengths[runs].min() >= p.frozen_run * lengths[others].max():
            kept[runs] = False
            break
    reading = np.repeat(kept, lengths)
    return repeats[reading[1:] & reading[:-1]], int(lengths[kept].max(initial=1))


def _nonfinite(window: Window, column: int, since: int) -> bool:
    """NaN or infinity about: that is another fault, and it freezes what is logged of the loss."""
    row = max(0, int(np.searchsorted(window.times, since)) - 1)
    for signal in ("rank.loss_nonfinite", "rank.nonfinite_per_second"):
        if stats.above(window.values(signal)[row:, column], 1e-12).any():
            return True
    norms = window.values("rank.grad_norm")[:, column]
    had, has = ~np.isnan(norms[:row + 1]), ~np.isnan(norms[row + 1:])
    return bool(had.any() and not has.any()) or any(
        e.at >= since and e.target.job == window.of_kind("rank")[column].job for e in window.events_of("nonfinite"))


def _varied(window: Window, column: int, run: _Run, p: Params) -> bool:
    """The loss used to change before the window: it stays frozen though the run fills the window."""
    base = window.baseline("rank.loss", 6 * 3600)
    spread = p.frozen_range * max(abs(run.loss), 1e-12)
    return bool(base.n[column] >= 10 and base.mad[column] > spread)


def _frozen(window: Window, job: JobState, seen: Progress, p: Params) -> list[Verdict] | None:
    """Steps go on and the loss is frozen: on all ranks that tell it, or on one. None where it is not; an empty list
    (nobody knows) where the loss never changed in the window."""
    if not seen.advanced or not seen.fresh.any():
        return None
    known = ~np.isnan(window.values("rank.loss")[:, seen.columns]).all(axis=0)
    # Many ranks tell the same loss: a few hundred of them are looked at closely.
    some = seen.columns[known & seen.fresh][:256]
    flat = _flat(window.tail("rank.loss", p.frozen_seconds)[:, some], p.frozen_range)
    columns, candidates = some.tolist(), some[flat].tolist()
    if not candidates or (len(candidates) < len(columns) and len(candidates) > max(1, len(columns) // 8)):
        return None
    all_runs = {c: run for c in candidates if (run := _newest_run(window, c, p)) is not None}
    runs = {c: run for c, run in all_runs.items() if (run.frozen or (run.whole and _varied(window, c, run, p)))
            and not _nonfinite(window, c, run.start)}
    if not runs or len(runs) < len(candidates):
        return [] if all_runs and all(run.whole for run in all_runs.values()) and len(window.times) > 100 else None
    column, run = next(iter(runs.items()))
    one = len(columns) > 1 and len(runs) == 1
    target = window.of_kind("rank")[column] if one else Target("job", job=job.id)
    before = window.values("rank.loss")[:, column][window.times < run.start]
    evidence = (
        stats.evidence("rank.loss", run.loss, float(stats.median(before)), f"its median before; {run.values} readings"),
        stats.evidence("rank.step", run.steps, p.frozen_steps, "steps with the same loss"),
    )
    return [Verdict(target, FAULT, "faulty", 0.6, evidence, "frozen_loss", onset_at=run.start)]


def _flat(values: Floats, limit: float) -> Bools:
    """bool[column]: what is known of the column (float64[tick, column]) does not differ from its newest value."""
    newest = stats.newest(values)
    with np.errstate(invalid="ignore"):
        apart = np.where(np.isnan(values), 0.0, np.abs(values - newest)).max(axis=0, initial=0.0)
    return stats.below(apart, limit * np.maximum(np.abs(newest), 1e-12))


PLUGIN = DetectorPlugin(
    name="stalled_loss",
    fault=FAULT,
    judge=judge,
    params=Params,
    needs=(("rank.step", "rank.last_step_timestamp_seconds", "gpu.utilization_ratio", "nccl_watchdog",
            "nccl_flight_recorder", "log_rule"),),
    # The verdict itself looks back over minutes without a step: one tick of it is enough.
    hold=Hold(on=1, of=1, off=2, expire=40),
    must_not=(
        "a checkpoint", "an evaluation", "warm-up and compilation", "the end of a job", "a job of which nothing is heard",
        "a loss that is rounded or logged each n steps", "a loss that is not finite", "a flat, converged loss",
        "a recording that ends", "a long step or log interval",
    ),
)
