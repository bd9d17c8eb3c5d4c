"""Ranks that wait for input data: more of the step than before goes into waiting for the next batch, and steps are longer.

Told by what the trainers say of their steps (`data_wait_seconds`). Most nodes of a job waiting means the dataset or the
storage behind it, a single node waiting its own loaders, disk or mount: the others wait for it in their collectives. One
rank of a node is a hiccup or a straggler's, and what a job always waited is how it is built. Where a node waits whose client of
the shared file system is slow alone, that client is named; it tells by itself where the trainers do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, JobState, Target, Verdict
from core.window import Window
from detectors import client_waits, job_pace, stats
from detectors import shared as common
from detectors.client_waits import Client
from detectors.job_pace import Pace
from detectors.progress import EXCUSED
from detectors.stats import Bools, Ints

FAULT = "data_stall"
DATA, STEP, WAIT = "rank.data_wait_seconds", "rank.step_seconds", "rank.comm_wait_seconds"
LEAST_BEFORE, LEAST_AFTER = 4, 3  # readings that tell what a step took, and takes


@dataclass(frozen=True)
class Params:
    """Sources: torchtitan logs the share of data loading; a loader that keeps up hides behind the computing, so healthy
    shares are near zero (signals.md §11: "data-wait s↑ ... comm normal"); else our judgement.

    share: by how much of the step the waiting grew. times: and so many times what it was. sigmas: and so many standard
    errors. span_seconds: the present. cost: share of the growth by which the job's steps are longer, or by which the others wait longer
    for the node than for whoever comes next. past_rows: readings that the past needs. most_nodes:
    share of a job's nodes that make it the job. node_ranks: share of a node's ranks that wait. found_minutes: so much of the
    window that is no past, for a finding was open, means that its waiting was found already, and calm_seconds: how long all was
    well since, for what waits now to be new.
    """

    share: float = 0.02
    times: float = 2.0
    sigmas: float = 6.0
    span_seconds: float = 120.0
    cost: float = 0.35
    past_rows: int = 6
    most_nodes: float = 0.5
    node_ranks: float = 0.5
    found_minutes: float = 3.0
    calm_seconds: float = 180.0


@dataclass(frozen=True, slots=True)
class _Stall:
    """before, now: waiting as a share of the job's usual step; onset in ms, None where the window does not show it."""

    before: float
    now: float
    onset: int | None


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict on each job that tells how long its ranks wait for data, or on those of its nodes that do."""
    out: list[Verdict] = []
    clients, quick = client_waits.slow_alone(window)
    for job in window.jobs:
        pace = job_pace.read(window, job) if DATA in window.blocks else None
        if pace is not None and window.block(DATA).fresh()[pace.columns].mean() >= 0.5:
            out += [word for v in _judge_job(window, job, pace, params) for word in _at_client(v, clients)]
    said = {v.target.node for v in out if v.state == "faulty" and v.target.kind == "mount"}
    paused = {job.id for job in window.jobs if job.phase in EXCUSED}  # a save loads the storage: an open finding stands still
    jobs = {node: job for node, job in stats.node_jobs(window).items() if job not in paused}
    for node, client in sorted(clients.items()):
        if node in jobs and node not in said:
            part = replace(client.mount, job=jobs[node])
            out.append(Verdict(part, FAULT, "faulty", 0.5, client.evidence, "client_slow", onset_at=client.onset))
    shared = {name.strip("/") for name in window.topology.mounts}
    mounts = [t for t in window.of_kind("mount") if t.node in quick and t.node in jobs and (t.device or "").strip("/") in shared]
    return out + [_clear(replace(t, job=jobs[t.node or ""])) for t in mounts]


def _at_client(verdict: Verdict, clients: Mapping[str, Client]) -> list[Verdict]:
    """A node that waits for data because its client is slow: the client. Other words stay as they are."""
    client = clients.get(verdict.target.node or "")
    if client is None or verdict.state != "faulty" or verdict.target.kind != "node":
        return [verdict]
    part = replace(client.mount, job=verdict.target.job)
    return [replace(verdict, target=part, evidence=(*verdict.evidence, *client.evidence)), _clear(verdict.target)]


def _judge_job(window: Window, job: JobState, pace: Pace, p: Params) -> list[Verdict]:
    rows = pace.rows
    if len(rows) < p.past_rows + 4 or not pace.usual > 0:
        return []
    names, waits = _by_node(window, pace, p)
    gap = max(float(np.median(np.diff(window.times[rows]))) / 1000.0, window.step_seconds)
    last = max(3, int(np.ceil(p.span_seconds / gap)))
    if np.isnan(waits[-last:]).all():
        return []
    whole = Target("job", job=job.id)
    verdicts = _fresh(window, pace, names, waits, last, p, whole)
    if pace.started or any(v.state == "faulty" for v in verdicts):
        return verdicts
    older = {v.target.key: v for v in _older(window, pace, names, waits[-last:], whole, p)}
    return [older.get(v.target.key, v) for v in verdicts]


def _fresh(window: Window, pace: Pace, names: tuple[str, ...], waits: Floats, last: int, p: Params, whole: Target) -> list[Verdict]:
    """Words on what began to wait within the window."""
    known: Bools = np.asarray(~np.isnan(waits[-last:]).all(axis=0), bool)
    parts = [Target("node", name, job=whole.job) if name else None for name in names]
    up = _stand_out(waits, last, p) & known
    clear = [_clear(part) for part, seen in zip(parts, known.tolist(), strict=True) if part is not None and seen]
    if up.sum() > p.most_nodes * known.sum() or not all(parts[int(i)] for i in np.flatnonzero(up)):
        found = _stall(window, pace, job_pace.of_ranks(waits), last, p)
        if found is not None:
            return [_word(pace, whole, found, int(up.sum())), *clear]
        return [_clear(whole), *clear]
    out: list[Verdict] = [_clear(whole)]
    least = _least_waits(window, pace) if up.any() else None
    for i in np.flatnonzero(known):
        part = parts[int(i)]
        found = _stall(window, pace, waits[:, i], last, p, _ahead(least, int(i), up)) if up[i] else None
        if part is not None:
            out.append(_clear(part) if found is None else _word(pace, part, found, 1))
    return out


def _older(window: Window, pace: Pace, names: tuple[str, ...], now: Floats, whole: Target, p: Params) -> list[Verdict]:
    """Words on findings that are older than the window shows: they go on while the ranks wait more than in the hours before.
    now: float64[row, node], the present."""
    held = job_pace.left_out(window, DATA, pace.columns)
    if not held.any():
        return []
    ranks = window.of_kind("rank")
    usual = job_pace.expected(window, DATA, pace.columns) / pace.usual
    node_of = [ranks[c].node or "" for c in pace.columns.tolist()]
    level = stats.quantile(now, job_pace.LEVEL)
    nodes: list[Verdict] = []
    for i, name in enumerate(names):
        mine = np.array([node == name for node in node_of])
        if held[mine].mean() > 0.5:
            nodes += _goes_on(Target("node", name, job=whole.job), float(level[i]), float(stats.median(usual[mine])), pace, p)
    if held.mean() > 0.5:
        return _goes_on(whole, float(stats.median(level)), float(stats.median(usual)), pace, p)
    return nodes


def _goes_on(part: Target, now: float, usual: float, pace: Pace, p: Params) -> list[Verdict]:
    if np.isnan(now) or np.isnan(usual):
        return []
    if now < usual + 0.75 * p.share:
        return [_clear(part)]
    return [_word(pace, part, _Stall(usual, now, None), 1)]


def _stand_out(waits: Floats, last: int, p: Params) -> Bools:
    """bool[node]: nodes worth a closer look: they wait more now than they ever did for a while."""
    now, least = stats.quantile(waits[-last:], job_pace.LEVEL), stats.quantile(waits, 0.05)
    return stats.above(now - least, p.share) & stats.above(now, p.times * least)


def _stall(window: Window, pace: Pace, waits: Floats, last: int, p: Params, ahead: Floats | None = None) -> _Stall | None:
    """When the waiting (float64[row], share of a step) grew and stayed so, None where it did not. ahead: see `_ahead`."""
    known = ~np.isnan(waits)
    values, rows = waits[known], pace.rows[known]
    since = _calm_since(window, values, rows, last, p) if _found_before(window, pace, p) else 0
    values, rows = values[since:], rows[since:]
    found = job_pace.change(values, last, p.past_rows)
    if found is None:
        return None
    growth = min(found.after, found.now) - found.before
    needed = max(p.share, (p.times - 1.0) * found.before, p.sigmas * found.error)
    if growth < needed or min(found.after, found.now) < found.highest + 0.5 * p.share:
        return None
    onset = int(window.times[rows[found.at]])
    calm = np.zeros(len(pace.rows), bool)  # what waited before, and was well again, is no measure of the steps without
    calm[np.flatnonzero(known)[since:][:found.at]] = values[:found.at] < found.before + 0.5 * growth
    after = window.times[pace.rows] >= onset
    least = p.cost * growth * pace.usual
    costs = None if ahead is None else _rose(ahead, calm, after, least, True)
    costs = _rose(pace.step, calm, after, least, False) if costs is None else costs
    return _Stall(found.before, found.now, onset) if costs is not False else None


def _found_before(window: Window, pace: Pace, p: Params) -> bool:
    """Findings were open on the job's ranks in a part of the window: those minutes are left out of the past."""
    if window.baseline_of is None:
        return False
    kept = window.baseline(DATA, int(window.times[-1] - window.times[0]) // 1000).n[pace.columns]
    told = stats.count(window.values(DATA)[:, pace.columns]) * window.step_seconds / 60.0
    return bool(np.median(told - kept) >= p.found_minutes)


def _calm_since(window: Window, values: Floats, rows: Ints, last: int, p: Params) -> int:
    """The position from which the past is calm: waiting that was found, and ended, is not what waits now. 0 where it was calm
    for too short a time since."""
    least, now = float(np.quantile(values, 0.05)), job_pace.level_of(values[-last:])
    waiting = values >= least + 0.5 * (now - least)
    calm = np.flatnonzero(~waiting)
    if not len(calm) or now - least < p.share:
        return 0
    twice = np.flatnonzero(waiting[1:calm[-1]] & waiting[:max(0, calm[-1] - 1)])  # a single long step is none
    since = int(twice[-1]) + 2 if len(twice) else 0
    return since if (window.times[rows[calm[-1]]] - window.times[rows[since]]) / 1000.0 >= p.calm_seconds else 0


def _clear(target: Target) -> Verdict:
    return Verdict(target, FAULT, "clear", 0.0, (), "clear")


def _by_node(window: Window, pace: Pace, p: Params) -> tuple[tuple[str, ...], Floats]:
    """The job's nodes, and float64[row, node]: how long most of a node's ranks wait for data (the quantile that at least
    `node_ranks` of them reach), as a share of the job's usual step."""
    ranks = window.of_kind("rank")
    values = stats.cut(window.values(DATA), pace.rows, pace.columns) / pace.usual
    by_node = _nodes_of(ranks, pace.columns)
    sizes = {len(columns) for columns in by_node.values()}
    if len(sizes) == 1:  # all nodes have as many ranks: one sort does for all
        order = np.array(list(by_node.values()), np.int64)
        cube = np.sort(values[:, order], axis=2)
        n = (~np.isnan(cube)).sum(axis=2)
        at = np.maximum(np.floor(n * (1.0 - p.node_ranks)).astype(np.int64) - (n % 2 == 0), 0)
        waits = np.where(n > 0, np.take_along_axis(cube, at[:, :, None], 2)[:, :, 0], np.nan)
    else:
        waits = np.stack([stats.quantile(values[:, columns].T, 1.0 - p.node_ranks) for columns in by_node.values()], axis=1)
    return tuple(by_node), waits


def _nodes_of(ranks: tuple[Target, ...], columns: Ints) -> dict[str, list[int]]:
    """By node, in order of appearance, the places of its ranks in `columns`."""
    known: dict[bytes, dict[str, list[int]]] = common.kept("ranks of nodes", (ranks,), dict)
    found = known.get(columns.tobytes())
    if found is None:
        found = known[columns.tobytes()] = {}
        for at, column in enumerate(columns.tolist()):
            found.setdefault(ranks[column].node or "", []).append(at)
    return found


def _rose(values: Floats, calm: Bools, after: Bools, least: float, above: bool) -> bool | None:
    """Whether values (float64[row], seconds: the job's steps, or `_ahead`) are higher since the waiting, by `least` seconds: what hides
    behind the computing is no stall. None where chance alone may hide it or make it, or too little is told. above: they have to
    lie so far above zero as well, for another that was late before and is not now makes a rise too."""
    before, now = values[calm], values[after]
    before, now = before[~np.isnan(before)], now[~np.isnan(now)]
    if len(before) < LEAST_BEFORE or len(now) < LEAST_AFTER:
        return None
    rose, error = job_pace.rise(before, now)
    rose = min(rose, job_pace.level_of(now)) if above else rose
    return True if rose - error >= least else False if rose + error < least else None


def _least_waits(window: Window, pace: Pace) -> Floats | None:
    """float64[row, node]: how long the rank of each node that waits least waits in collectives, seconds; None where it is not told."""
    if WAIT not in window.blocks:
        return None
    waits = stats.cut(window.values(WAIT), pace.rows, pace.columns)
    by_node = _nodes_of(window.of_kind("rank"), pace.columns)
    return np.stack([np.fmin.reduce(waits[:, columns], axis=1) for columns in by_node.values()], axis=1)


def _ahead(least: Floats | None, node: int, up: Bools) -> Floats | None:
    """float64[row]: by how much the others wait longer in collectives, for the node, than the node itself, seconds: the next of
    them that comes late waits so much less than all for whom it waits. All ranks of a step share what makes it rough, so it
    drops out of the difference. least: see `_least_waits`. None where it is not told, or there are no others."""
    if least is None or up.all():
        return None
    return np.asarray(np.fmin.reduce(least[:, ~up], axis=1) - least[:, node])


def _word(pace: Pace, target: Target, found: _Stall, nodes: int) -> Verdict:
    who = "its own past in this run" if target.kind == "node" else f"its own past in this run, median of {nodes} nodes"
    rows = (stats.evidence(DATA, found.now * pace.usual, found.before * pace.usual, who),
            stats.evidence(STEP, pace.usual, None, "the job's usual step"))
    severity = float(np.clip(0.5 + found.now - found.before, 0.5, 0.8))
    return Verdict(target, FAULT, "faulty", severity, rows, "waits_for_data", onset_at=found.onset, keeps=found.onset is None)


PLUGIN = DetectorPlugin(
    name="data_stall", fault=FAULT, judge=judge, params=Params, needs=((DATA, client_waits.WAIT),),
    hold=Hold(on=8, of=10, off=8, expire=120),
    must_not=("a loader that hides behind the computing", "waiting that was always there", "one rank's hiccup", "the first steps of a run",
              "checkpoints and evaluations"),
)
