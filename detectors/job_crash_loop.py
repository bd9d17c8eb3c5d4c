"""A job fails again and again within a few steps of the same step: its software or its data, not a part of the cluster.

A crash is what a launcher says of a process that died by itself, with the step that the run had reached; of jobs whose log
tells no exits, a step that goes back. A fault of the hardware knows no step: it strikes at another one each time. So three
crashes in a row at nearly the same step, each after steps of its own, speak for the job, and no node is touched; two do where both
end with the very same words and these are no machine's. Runs that
reach no step at all can die of a bad node as well: those count where the error is one of Python's own, or where another node
fails each time.

Crashes beside which the kernel tells of a broken part belong to that part. Crashes at other steps each time, in which one and
the same rank fails first with an error of the machine's, follow a part: its rank is named as a suspect, not the job, and with
too little confidence to touch a node. Rank 0 does what no other rank does (it keeps the store, saves and logs), and is told of
first where several die at once: where its errors are those of a GPU, it and the job are suspects alike, else nobody is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, stats, xid_repeats

FAULT = "job_crash_loop"
MOST_RANKS = 256
FOLLOWS = 0.6    # how sure crashes that follow one rank make us of the part under it
EITHER = 0.5     # of the GPU of rank 0 and of the job: nothing tells them apart
# What the kernel or the driver says of parts that take a job along.
BROKEN = ("gpu_lost", "link_down", "boot")
# What a crash itself makes the driver say, whoever calls it fatal.
ECHOES = (43, 45)
# Errors that a program makes by itself; a RuntimeError or an OSError can be the machine's.
OWN_ERRORS = re.compile(r"(?:\w+\.)*(?:ValueError|TypeError|KeyError|IndexError|AttributeError|AssertionError|ImportError|"
                        r"ModuleNotFoundError|NameError|SyntaxError|NotImplementedError|ZeroDivisionError|UnicodeDecodeError|"
                        r"JSONDecodeError|FileNotFoundError|ConfigError)\b")
OF_HARDWARE = re.compile(r"uncorrectable|hardware|fallen off|unspecified launch failure|Input/output error|No space left",
                         re.IGNORECASE)
OF_GPU = re.compile(r"CUDA error|HIP error")
OF_MACHINE = re.compile(r"CUDA|NCCL|HIP error|Connection|Broken pipe|timed? ?out|Stale file|remote process", re.IGNORECASE)


@dataclass(frozen=True)
class Params:
    """Sources: three cycles without progress end NVRX's retries (rules.md §3g), and HyperPod restarts a job three times before
    it does something else; the rest is our judgement.

    crashes: so many in a row; alike: so many where each run made steps of its own and died with the very same words, none of a
    machine's; few_steps: the most steps that lie between them; own_steps: the least that a run made before it
    died there, where neither another node nor the very same words tell. same_crash_seconds: lines of one crash. recent_seconds, recent_gaps: a loop
    is over when no crash came for so long and for so many times the usual time between them. passed_steps: a job that came
    so far beyond the step has passed it. before_seconds, after_seconds: around a crash, in which a part's failure explains it; xids:
    the codes that are one.
    """

    crashes: int = 3
    alike: int = 2
    few_steps: float = 5.0
    own_steps: float = 10.0
    same_crash_seconds: float = 120.0
    recent_seconds: float = 3600.0
    recent_gaps: float = 3.0
    passed_steps: float = 20.0
    before_seconds: float = 900.0
    after_seconds: float = 180.0
    xids: XidPolicy = OURS


@dataclass(frozen=True, slots=True)
class Crash:
    """at: ms. step: the last one that the run told, NaN = none; first: its first one, NaN = not known; loaded: the step that it
    began from, NaN = not told. node, rank: of the process that died first, None = not known."""

    at: int
    step: float
    first: float = math.nan
    loaded: float = math.nan
    node: str | None = None
    rank: int | None = None
    message: str = ""
    line: str | None = None


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each job of which crashes or steps are known."""
    exits: dict[str, list[Event]] = {}
    for event in window.events_of("job_exit"):
        if event.target.job is not None:
            exits.setdefault(event.target.job, []).append(event)
    starts: dict[str, list[Event]] = {}
    if exits:
        for event in window.events_of("job_phase"):
            if event.target.job in exits:
                starts.setdefault(event.target.job or "", []).append(event)
    out = []
    for job in window.jobs:
        if job.silent or not job.running or not len(window.times):
            continue
        mine = exits.get(job.id)
        crashes = _told(mine, starts.get(job.id, []), params) if mine else _shown(window, job)
        verdict = _judge_job(window, job, crashes, bool(mine), params)
        if verdict is not None:
            out.append(verdict)
    return out


def _judge_job(window: Window, job: JobState, crashes: Sequence[Crash], told: bool, p: Params) -> Verdict | None:
    now, fresh = _step_now(window, job)
    if not fresh and not told:
        return None
    target = Target("job", job=job.id)
    loop = _loop(window, job, crashes, p)
    if loop and not (fresh and now > max(c.step for c in loop) + p.passed_steps):
        at_start = math.isnan(loop[-1].step)
        return Verdict(target, FAULT, "faulty", 0.8, (*_evidence(loop), *_software(window, job, loop, p)), "dies_at_start" if at_start else "same_step",
                       onset_at=loop[0].at)
    if not loop and (rank := _followed(window, job, crashes, p)) is not None:
        last = crashes[-p.crashes:]
        chance = FOLLOWS if rank.rank else EITHER
        other = () if rank.rank else ((target, EITHER, "follows_part"),)
        return Verdict(rank, FAULT, "faulty", 0.6, _evidence(last), "follows_part", onset_at=last[0].at,
                       suspects=((rank, chance, "follows_part"), *other))
    return Verdict(target, FAULT, "clear", reason="clear") if fresh else None


def _step_now(window: Window, job: JobState) -> tuple[float, bool]:
    """(the job's step, is it fresh)."""
    if not job.ranks:
        return math.nan, False
    columns = np.array(job.ranks, np.int64)[:MOST_RANKS]
    block = window.block("rank.step")
    values = block.last[columns]
    known = values[~np.isnan(values)]
    return (float(known.max()), bool(block.fresh()[columns].any())) if len(known) else (math.nan, False)


# --- crashes ----------------------------------------------------------------------------------------------------------
def _told(exits: Sequence[Event], phases: Sequence[Event], p: Params) -> list[Crash]:
    """The crashes that the log tells, lines of one put together: who is told of first died first."""
    out: list[Crash] = []
    for event in exits:
        step = _number(event.fields.get("step"))
        if out and event.at - out[-1].at <= p.same_crash_seconds * 1000:
            if math.isnan(out[-1].step):
                out[-1] = _with_step(out[-1], step)
            continue
        rank = event.fields.get("rank")
        before = out[-1].at if out else 0
        out.append(Crash(event.at, step, _first_step(phases, before, event.at, "train"), _first_step(phases, before, event.at, "start"),
                         event.target.node, int(rank) if isinstance(rank, int) else None, str(event.fields.get("message", "")),
                         event.line))
    return out


def _with_step(crash: Crash, step: float) -> Crash:
    return replace(crash, step=step)


def _first_step(phases: Sequence[Event], after: int, until: int, phase: str) -> float:
    """The first step that the log told between two crashes as that phase began."""
    for event in phases:
        if after < event.at <= until and event.fields.get("phase") == phase:
            return _number(event.fields.get("step"))
    return math.nan


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _shown(window: Window, job: JobState) -> list[Crash]:
    """The times at which the ranks' step went back, with the step before: a run that started again from a checkpoint."""
    if not job.ranks:
        return []
    columns = np.array(job.ranks, np.int64)[:MOST_RANKS]
    values = window.values("rank.step")[:, columns]
    step = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    rows = np.flatnonzero(np.isfinite(step))
    back = np.flatnonzero(np.diff(step[rows]) < 0)
    out, first = [], math.nan
    for i in back.tolist():
        out.append(Crash(int(window.times[rows[i + 1]]), float(step[rows[i]]), first))
        first = float(step[rows[i + 1]])
    return out


# --- the loop ---------------------------------------------------------------------------------------------------------
def _loop(window: Window, job: JobState, crashes: Sequence[Crash], p: Params) -> list[Crash]:
    """The crashes at one step, the newest included; empty where they are no loop of the job's own."""
    return _of_one_step(window, job, crashes, p) or _twice(window, job, crashes, p)


def _twice(window: Window, job: JobState, crashes: Sequence[Crash], p: Params) -> list[Crash]:
    """As few as tell where the program says itself, in the same words, what it cannot get past."""
    last = list(crashes[-p.alike:])
    if len(last) < p.alike or not _recent(window, last, p) or any(math.isnan(crash.step) for crash in last):
        return []
    near = max(crash.step for crash in last) - min(crash.step for crash in last) <= p.few_steps
    worked = _worked(last, p) and not any(math.isnan(crash.first) for crash in last)
    return last if near and worked and _alike(last) and not _explained(window, job, last, p) else []


def _of_one_step(window: Window, job: JobState, crashes: Sequence[Crash], p: Params) -> list[Crash]:
    last = list(crashes[-p.crashes:])
    if len(last) < p.crashes or not _recent(window, last, p):
        return []
    if all(math.isnan(crash.step) for crash in last):
        return last if _own_start(last) and not _explained(window, job, last, p) else []
    # A run that died before its first line of a step died within a log interval of the step that it began from.
    last = [replace(c, step=c.loaded, first=c.loaded) if math.isnan(c.step) else c for c in last]
    steps = [crash.step for crash in last]
    if any(math.isnan(step) for step in steps) or max(steps) - min(steps) > p.few_steps:
        return []
    if not (_moved(last) or _worked(last, p) or _alike(last)) or _explained(window, job, last, p):
        return []
    whole = [c for c in crashes if abs(c.step - steps[-1]) <= p.few_steps]
    return whole if len(whole) >= p.crashes else last


def _recent(window: Window, last: Sequence[Crash], p: Params) -> bool:
    usual = float(np.median(np.diff([crash.at for crash in last]))) / 1000.0
    return (window.end - last[-1].at) / 1000.0 <= max(p.recent_seconds, p.recent_gaps * usual)


def _moved(last: Sequence[Crash]) -> bool:
    """Another node died first each time."""
    nodes = {crash.node for crash in last}
    return None not in nodes and len(nodes) == len(last)


def _worked(last: Sequence[Crash], p: Params) -> bool:
    """The runs made steps before they died: those that die after one or two steps may die of anything."""
    made = [crash.step - crash.first for crash in last if not math.isnan(crash.first)]
    return bool(made) and min(made) >= p.own_steps


def _alike(last: Sequence[Crash]) -> bool:
    """The same words each time, and none of a machine's."""
    first = last[0].message
    return bool(first) and all(crash.message == first for crash in last) and OF_MACHINE.search(first) is None


def _own_start(last: Sequence[Crash]) -> bool:
    """Runs that reach no step die by an error of the program's own, the same each time, or on another node each time."""
    kinds = {crash.message.partition(":")[0] for crash in last}
    return _moved(last) or (len(kinds) == 1 and all(OWN_ERRORS.match(crash.message) for crash in last))


def _followed(window: Window, job: JobState, crashes: Sequence[Crash], p: Params) -> Target | None:
    """The rank that failed first in each of the last crashes, which came at different steps by the machine's own errors."""
    last = crashes[-p.crashes:]
    if len(last) < p.crashes or not _recent(window, last, p):
        return None
    ranks, steps = {c.rank for c in last}, [c.step for c in last if not math.isnan(c.step)]
    rank = last[-1].rank
    apart = len(steps) >= 2 and max(steps) - min(steps) > p.few_steps
    told = OF_MACHINE if rank else OF_GPU
    if len(ranks) != 1 or rank is None or not apart or not all(told.search(c.message) for c in last):
        return None
    if len({c.node for c in last}) > 1 or _explained(window, job, last, p):
        return None  # the rank stood on other nodes: it is its software; or the part is known
    known = next((t for t in (window.of_kind("rank")[c] for c in job.ranks) if t.rank == rank), Target("rank", job=job.id, rank=rank))
    if known.node is None and job.ranks_per_node and rank // job.ranks_per_node < len(job.nodes):
        # Of a rank that only the job's log tells of, the log knows no place.
        known = replace(known, node=job.nodes[rank // job.ranks_per_node], device=str(rank % job.ranks_per_node))
    return known


def _explained(window: Window, job: JobState, crashes: Sequence[Crash], p: Params) -> bool:
    """A part of the job broke at the time of one of the crashes."""
    if any(OF_HARDWARE.search(crash.message) for crash in crashes):
        return True
    before, after = int(p.before_seconds * 1000), int(p.after_seconds * 1000)
    broken = [e.at for e in window.events_of(*BROKEN, "xid", since=crashes[0].at - before)
              if (not job.nodes or e.target.node in job.nodes) and (e.kind != "xid" or _fatal(e, p.xids))]
    return any(-before <= at - crash.at <= after for at in broken for crash in crashes)


def _fatal(event: Event, xids: XidPolicy) -> bool:
    """A fatal XID, and no echo of the crash."""
    code = event.fields.get("xid")
    return isinstance(code, int) and code not in ECHOES and xids.counts(code, fatal_events.said(event))


def _evidence(loop: Sequence[Crash]) -> tuple[Evidence, ...]:
    newest = loop[-1]
    nodes = sorted({crash.node for crash in loop if crash.node is not None})
    text = newest.message or newest.line or (f"first on {', '.join(nodes[:4])}" if nodes else None)
    out = [Evidence("job_exit", "count", float(len(loop)), 0.0, "crashes in a row", text)]
    steps = [crash.step for crash in loop if not math.isnan(crash.step)]
    if not math.isnan(newest.step):
        out.append(stats.evidence("rank.step", newest.step, float(np.median(steps)), "the step at which it died before",
                                  f"from {min(steps):.0f} to {max(steps):.0f}"))
    return tuple(out)


def _software(window: Window, job: JobState, loop: Sequence[Crash], p: Params) -> tuple[Evidence, ...]:
    """What XIDs of programs on several of the job's GPUs say beside the crashes."""
    first, last = loop[0].at - p.before_seconds * 1000, loop[-1].at + p.after_seconds * 1000
    lines = [e for e in xid_repeats.of_programs(window) if e.target.node in job.nodes and first <= e.at <= last]
    gpus = {e.target.key for e in lines}
    if len(gpus) < 2:
        return ()
    codes = ", ".join(str(code) for code in sorted({int(str(e.fields["xid"])) for e in lines}))
    text = f"XID {codes} on {len(gpus)} GPUs of the job: software: {lines[-1].line or ''}"
    return (Evidence("xid", "count", float(len(gpus)), 0.0, "GPUs of the job with XIDs that programs cause", text),)


PLUGIN = DetectorPlugin(
    name="job_crash_loop", fault=FAULT, judge=judge, params=Params, needs=(("job_exit", "rank.step"),),
    # Each crash is minutes of work: the one that makes it a loop is enough.
    hold=Hold(on=1, of=1, off=8, expire=120),
    must_not=("crashes at other steps each time, of several ranks", "crashes beside a broken part", "one restart or two, unless of the same words at the same step",
              "a job that was stopped or preempted", "a job that has passed the step"),
)
