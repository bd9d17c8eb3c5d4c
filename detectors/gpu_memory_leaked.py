"""GPU memory that stays in use on a GPU that nobody uses: what a dead process left behind. The next job dies for want of it.

A program that merely rests (a notebook, a model server without requests) holds memory as well, but its open context keeps
the GPU's clock up and its power above rest: a recorded H200 stands at 345 MHz, 77 W and 615 MiB without a process and at
1980 MHz and 118 W with an idle one, an H100 with a model server at rest draws 114 W beside seven at 66 to 69 W. So the memory counts as held by nobody only where clock and power are those of a GPU at
rest, as the other resting GPUs of its node or model show them, no job is on the GPU, and its memory has not moved for
minutes. Instances of MIG are not judged: their parts are busy apart from each other.

A job that dies for want of it is often started again sooner than that. What stays then is the same memory in each of the pauses
in which its node's other GPUs are empty: two such pauses with the same bytes and a run between them tell as much as a long one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import gpus, shared, stats
from detectors.stats import Bools, Ints

FAULT = "gpu_memory_leaked"


@dataclass(frozen=True)
class Params:
    """Sources: recorded idle H200s (615 MiB, 345 MHz, 77 W; with an idle context 1980 MHz, 118 W), signals.md §2 (H100 at
    rest 65-78 W); our judgement for the rest. Display and MPS daemons hold some hundred MiB.

    rest_seconds: how long nothing may have happened. held_bytes: memory above that of other resting GPUs that is no daemon's.
    moved_bytes: change of the memory within the time that is work. idle: utilisation at rest. busy: utilisation at work.
    more_power, more_clock: factor on other resting GPUs' power and clock that a resting GPU may show. peers_min: other
    resting GPUs needed. quiet_seconds: time without any word of the ranks after which a job is not on its node any more; empty: the share of a
    node's GPUs without memory from which a job without timed ranks is not there. pause_seconds: the least pause between two runs
    (a dead process' memory is gone within seconds); pauses_seconds: within which two of them lie.
    """

    rest_seconds: float = 180.0
    held_bytes: float = 2e9
    moved_bytes: float = 256e6
    idle: float = 0.02
    busy: float = 0.3
    more_power: float = 1.25
    more_clock: float = 1.3
    peers_min: int = 3
    quiet_seconds: float = 120.0
    empty: float = 0.6
    pause_seconds: float = 60.0
    pauses_seconds: float = 1200.0


def _used_nodes(window: Window, empty: frozenset[str], p: Params) -> frozenset[str]:
    """Nodes that a running job is on. A job whose ranks are known to report, and do not report from the node any more, has
    left it: its processes are dead, whether or not anybody has noticed. Of a job without timed ranks the GPUs tell: it is not
    on a node most of whose GPUs rest without memory (`empty`)."""
    used: set[str] = set()
    ranks = window.of_kind("rank")
    age = np.full(len(ranks), np.inf)
    for name, block in window.blocks.items():
        if name.startswith("rank."):
            age = np.fmin(age, block.age_seconds)
    for job in window.jobs:
        if not job.running:
            continue
        heard: dict[str, float] = {}
        for column in job.ranks:
            node = ranks[column].node
            if node is not None:
                heard[node] = min(heard.get(node, np.inf), float(age[column]))
        used |= {n for n in job.nodes if n not in heard and n not in empty}
        used |= {n for n, seconds in heard.items() if seconds <= p.quiet_seconds}
    return frozenset(used)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """GPUs at rest, by GPU. used: bytes; floor: of other resting GPUs; power, clock likewise."""

    resting: Bools
    used: Floats
    held: Bools
    floor: Floats
    others: Ints


def _rest(window: Window, p: Params) -> _Rest:
    parts = window.of_kind("gpu")
    rows = max(window.ticks(p.rest_seconds), stats.PARTS * 2)
    used_rows = window.values("gpu.memory_used_bytes")[-rows:]
    used = stats.median(used_rows)
    known = (stats.count(used_rows) * 2 >= min(rows, len(used_rows))) & (len(used_rows) >= rows)
    still = stats.below(stats.quantile(used_rows, 1.0) - stats.quantile(used_rows, 0.0), p.moved_bytes)
    idle = stats.below(stats.quantile(window.values("gpu.utilization_ratio")[-rows:], 1.0), p.idle)
    for signal in ("gpu.graphics_active_ratio", "gpu.sm_active_ratio", "gpu.tensor_active_ratio"):
        if signal in window.blocks:
            idle &= ~stats.above(stats.quantile(window.values(signal)[-rows:], 1.0), p.idle)
    mig = stats.above(window.last("gpu.mig_enabled"), 0.5) | shared.kept(
        "instances", (parts,), lambda: np.array(["/" in (g.id or "") for g in parts], bool))
    fresh = window.block("gpu.memory_used_bytes").fresh() & window.block("gpu.utilization_ratio").fresh()
    calm = known & still & idle & fresh & ~mig & gpus.loud(window)
    bare = calm & stats.below(used, p.held_bytes)
    if not (calm & ~bare).any():
        nothing = np.full(len(parts), np.nan)
        return _Rest(calm, used, np.zeros(len(parts), bool), nothing, np.zeros(len(parts), np.int64))
    power, clock = (stats.median(window.values(f"gpu.{n}")[-rows:]) for n in ("power_watts", "sm_clock_hertz"))
    model = shared.kept("models, else nodes", (parts, window.topology), lambda: stats.codes(
        [stats.model_of(window, g.node) or g.node for g in parts]))
    nodes = gpus.nodes(window)
    floor, watts, hertz, others = _others(bare, nodes, model, (used, power, clock), p)
    as_rest = ((stats.below(power, p.more_power * watts) | np.isnan(power)) & (stats.below(clock, p.more_clock * hertz) | np.isnan(clock))
               & ~(np.isnan(power) & np.isnan(clock)))
    held = calm & as_rest & (others >= p.peers_min) & stats.above(used, floor + p.held_bytes)
    return _Rest(calm, used, held, floor, others)


def _others(bare: Bools, nodes: Ints, model: Ints, values: tuple[Floats, ...], p: Params) -> tuple[Floats, Floats, Floats, Ints]:
    """Memory, power and clock of other resting GPUs without memory: of the node's where there are enough, else the model's.
    And how many there are."""
    near, far = [], []
    for value in values:
        shown = np.where(bare, value, np.nan)
        near.append(stats.peers(shown, nodes))
        far.append(stats.peers(shown, model))
    enough = near[0].n >= p.peers_min
    floor, watts, hertz = (np.where(enough, a.middle, b.middle) for a, b in zip(near, far, strict=True))
    return floor, watts, hertz, np.where(enough, near[0].n, far[0].n)


# --- pauses between runs ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Pauses:
    """A GPU that kept memory in the last two pauses. column; used: bytes; onset: ms of the first of them."""

    column: int
    used: float
    onset: int


def _kept(window: Window, p: Params) -> list[_Pauses]:
    """GPUs that keep the same memory whenever the other GPUs of their node are empty, twice and with a run between."""
    used = window.tail("gpu.memory_used_bytes", p.pauses_seconds)
    if len(used) < 4 * window.ticks(p.pause_seconds):
        return []
    least = np.fmin.reduce(used)
    bare = gpus.share_of(stats.below(least, p.held_bytes), np.ones(used.shape[1], bool), gpus.nodes(window))
    judged = stats.above(least, p.held_bytes) & (bare >= p.empty) & ~stats.above(window.last("gpu.mig_enabled"), 0.5)
    columns = stats.columns_where(judged & gpus.loud(window) & window.block("gpu.memory_used_bytes").fresh())
    whole = [e for e in columns.tolist() if "/" not in (window.of_kind("gpu")[e].id or "")]
    return [one for e in whole if (one := _pauses_of(window, used, e, p)) is not None]


def _pauses_of(window: Window, used: Floats, e: int, p: Params) -> _Pauses | None:
    """The last two pauses of a GPU's node; None where it did not keep the same memory in both, at rest."""
    parts = window.of_kind("gpu")
    others = np.array([i for i, gpu in enumerate(parts) if gpu.node == parts[e].node and i != e], np.int64)
    if len(others) < p.peers_min:
        return None
    free = stats.below(used[:, others], p.held_bytes)
    empty = np.asarray(free.mean(axis=1) >= p.empty, bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], empty.astype(np.int64), [0]])))
    # The first readings of a pause may still show the processes that are being ended.
    settle, least = 2, window.ticks(p.pause_seconds)
    pauses = [(int(a) + settle, int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= least + settle]
    if len(pauses) < 2:
        return None
    levels = [_level(window, used, e, others[free[first:stop].all(axis=0)], slice(first, stop), p) for first, stop in pauses[-2:]]
    if not abs(levels[0] - levels[1]) <= p.moved_bytes:
        return None
    return _Pauses(e, levels[1], int(window.times[len(window.times) - len(used) + pauses[-2][0]]))


def _level(window: Window, used: Floats, e: int, bare: Ints, rows: slice, p: Params) -> float:
    """The bytes that a GPU kept in a pause above those of the bare ones, NaN where it did anything, or did not rest as they do."""
    if len(bare) < p.peers_min:
        return float("nan")
    mine, busy = used[rows, e], window.values("gpu.utilization_ratio")[-len(used):][rows, e]
    if not (np.fmax.reduce(mine) - np.fmin.reduce(mine) <= p.moved_bytes and np.fmax.reduce(busy) <= p.idle):
        return float("nan")
    rests = []
    for signal, most in (("gpu.power_watts", p.more_power), ("gpu.sm_clock_hertz", p.more_clock)):
        values = window.values(signal)[-len(used):][rows]
        own, their = float(stats.median(values[:, e])), float(stats.median(stats.median(values[:, bare])))
        rests += [own <= most * their] if not np.isnan(own + their) else []
    return float(stats.median(mine)) if rests and all(rests) else float("nan")


# --- verdicts ---------------------------------------------------------------------------------------------------------
def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU at rest or at work; clear where memory is free, or held by what works there."""
    parts = window.of_kind("gpu")
    if not parts or not len(window.times):
        return []
    rest = _rest(window, params)
    working = (gpus.working(window, params.rest_seconds, params.busy) & gpus.loud(window)
               & window.block("gpu.memory_used_bytes").fresh() & window.block("gpu.utilization_ratio").fresh())
    empty = rest.resting & stats.below(rest.used, params.held_bytes / 2)
    kept = {one.column: one for one in _kept(window, params)}
    well = empty | working
    well[list(kept)] = False
    out = shared.clears(parts, well, FAULT)
    for one in kept.values():
        row = stats.evidence("gpu.memory_used_bytes", one.used, 0.0, "the other GPUs of its node, in each of two pauses between runs")
        out.append(Verdict(parts[one.column], FAULT, "faulty", 0.3, (row,), "held_between_runs", onset_at=one.onset))
    rest.held[list(kept)] = False
    columns = stats.columns_where(rest.held)
    if not len(columns):
        return out
    bare = gpus.share_of(rest.resting & stats.below(rest.used, params.held_bytes), np.ones(len(parts), bool), gpus.nodes(window))
    used_nodes = _used_nodes(window, frozenset(parts[e].node or "" for e in columns if bare[e] >= params.empty), params)
    running = {j.id for j in window.jobs if j.running}
    symptom = (stats.below(window.values("gpu.utilization_ratio")[:, columns], params.idle)
               & stats.above(window.values("gpu.memory_used_bytes")[:, columns], rest.floor[columns] + params.held_bytes))
    onsets = stats.run_start(symptom, window.times, 2)
    for i, e in enumerate(columns.tolist()):
        gpu = parts[e]
        if gpu.node in used_nodes or (gpu.job is not None and (gpu.job in running or not window.jobs)):
            continue  # somebody's: unknown, neither good nor bad
        rows = (stats.evidence("gpu.memory_used_bytes", rest.used[e], rest.floor[e], f"{rest.others[e]} other GPUs at rest"),
                stats.evidence("gpu.utilization_ratio", 0.0, None, "no work for minutes, clock and power at rest"))
        out.append(Verdict(gpu, FAULT, "faulty", 0.3, rows, "held_by_nobody", onset_at=int(onsets[i])))
    return out


PLUGIN = DetectorPlugin(
    name="gpu_memory_leaked", fault=FAULT, judge=judge, params=Params,
    needs=(("gpu.memory_used_bytes",), ("gpu.utilization_ratio",)),
    hold=Hold(on=8, of=9, off=4),
    must_not=(
        "a program that rests (its context keeps the clock up)", "a job that starts or ends", "a job that loads its data",
        "the small footprint of a display or of MPS", "MIG instances", "a node of a running job",
    ),
)
