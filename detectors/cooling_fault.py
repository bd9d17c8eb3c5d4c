"""A cooling loop or a rack whose GPUs heat up together: the cooling is at fault, not one of its nodes.

Heat follows power, so what counts is the temperature at like power against the part's own past: its rise. A loop is faulty
when most of its GPUs at work, on most of its nodes, have risen far, and those outside have not. On a hot day all rise; a
job that draws more heats its own GPUs as its power says; one node's fans heat that node alone. Where the air at the inlets
of the rack rose with them it is the rack (its air), else the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import gpus, shared, stats
from detectors.stats import Bools, Ints

FAULT = "cooling_fault"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §10 (GPU_TEMP 30+32L against POWER 70+560L gives 0.057 °C/W in air; a recorded H200 0.036) and §11
    (a hot day: +3 to 6 °C on all nodes, margins stay above 10).

    window_seconds: how far back levels are averaged. busy: utilisation from which a GPU is at work. per_watt: °C that a
    watt more makes in air; per_watt_least: under water, at the least. like_power: share of its present power from which a past moment is comparable. settled: °C a minute
    within which a temperature stands. rise: °C above the own
    past, and above what the others rose, that no weather makes. share: of the GPUs at work under the cause that must have
    risen, and of its nodes. outside: the share of the others that may have risen as well. inlet: °C by which the air at the
    rack's inlets rose where the air is at fault. gpus_min: GPUs at work that a node needs to count; nodes_min: nodes under
    the cause; others_min: GPUs at work elsewhere to compare with.
    """

    window_seconds: float = 90.0
    busy: float = 0.5
    per_watt: float = 0.045
    per_watt_least: float = 0.012
    like_power: float = 0.5
    settled: float = 3.0
    rise: float = 8.0
    share: float = 0.6
    outside: float = 0.2
    inlet: float = 4.0
    gpus_min: int = 2
    nodes_min: int = 2
    others_min: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Heat:
    """By GPU. now: °C; rise: °C above the own past at like power, NaN where not at work or without a past."""

    now: Floats
    rise: Floats
    past: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Cause:
    """A loop or rack with the GPUs under it. name: of the part; inside: their columns; rise: their median rise above the
    others'; other: the others' median rise; hit: share of its GPUs that rose; nodes: share of its nodes."""

    target: Target
    inside: Ints
    rise: float
    other: float
    hit: float
    nodes: float
    spread: float

    def faulty(self, p: Params) -> bool:
        """Most of it rose and hardly anything else."""
        return self.rise >= p.rise and self.hit >= p.share and self.nodes >= p.share and self.spread <= p.outside


def _heat(window: Window, p: Params) -> _Heat:
    temp = gpus.span(window, "gpu.temperature_celsius", p.window_seconds)
    power = gpus.span(window, "gpu.power_watts", p.window_seconds)
    now = temp.mean
    good = (gpus.working(window, p.window_seconds, p.busy) & gpus.loud(window) & ~np.isnan(now) & ~np.isnan(power.mean)
            & gpus.fresh(window, "gpu.temperature_celsius"))
    columns = stats.columns_where(good)
    rise, past = np.full(len(now), np.nan), np.full(len(now), np.nan)
    if len(columns):
        rows = gpus.past_rows(window, p.window_seconds)
        was, watts = window.values("gpu.temperature_celsius")[rows][:, columns], window.values("gpu.power_watts")[rows][:, columns]
        like = stats.above(watts, p.like_power * power.mean[columns]) & _settled(window, rows, p)[:, columns]
        # What the temperature of then would be at the power of now.
        level = np.where(like, was + _warmer_by(power.mean[columns] - watts, p), np.nan)
        far = _far(window, columns, power.mean[columns], p)
        # With no memory but the window, its coolest moments must stand for a past that the fault may nearly fill.
        near = np.where(np.isnan(far), stats.quantile(level, 0.05), stats.quantile(level, 0.25))
        near = np.where(stats.count(level) >= 3, near, np.nan)
        past[columns] = np.where(np.isnan(near), far, np.fmin(near, far))
        rise[columns] = now[columns] - past[columns]
    return _Heat(now, rise, past)


def _settled(window: Window, rows: slice, p: Params) -> Bools:
    """bool[row, gpu]: the temperature hardly moved in the minutes before and after: after a start or a pause a GPU takes
    minutes to become as warm as its power makes it."""
    values = window.values("gpu.temperature_celsius")
    at = np.arange(len(values))[rows]
    ticks = window.ticks(60.0)
    before, after = np.maximum(at - ticks, 0), np.minimum(at + ticks, len(values) - 1)
    moved = stats.highest(np.abs(values[at] - values[before]), np.abs(values[at] - values[after]))
    return ~stats.above(moved, p.settled)


def _far(window: Window, columns: Ints, watts: Floats, p: Params) -> Floats:
    """What the last day says of the temperature at these watts."""
    temp = stats.long_past(window, "gpu.temperature_celsius", 86_400, columns)
    power = stats.long_past(window, "gpu.power_watts", 86_400, columns)
    return np.where(power >= p.like_power * watts, temp + _warmer_by(watts - power, p), np.nan)


def _warmer_by(watts: Floats, p: Params) -> Floats:
    """°C that so many watts more make at most, or that so many less take away at least: nothing of a rise is owed to not knowing the cooler."""
    return np.asarray(np.where(watts > 0, p.per_watt, p.per_watt_least) * watts)


def _causes(window: Window, heat: _Heat, p: Params) -> list[_Cause]:
    known = ~np.isnan(heat.rise)
    if not known.any():
        return []
    nodes = gpus.nodes(window)
    # Of a small part of the fleet the middle of all is that of the others.
    middle, total = float(np.median(heat.rise[known])), int(known.sum())
    out = []
    for kind in ("cooling", "rack"):
        names, of = shared.kept(("hangs on", kind), (window.of_kind("gpu"), window.topology), partial(_codes, window, kind))
        counts = np.bincount(of[known], minlength=int(of.max()) + 1)
        order = np.argsort(of, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(of))])
        for number, name in enumerate(dict.fromkeys(names)):
            if not name or counts[number] < p.gpus_min * p.nodes_min or total - counts[number] < p.others_min:
                continue
            columns = order[bounds[number]:bounds[number + 1]]
            other = middle
            if counts[number] > 0.1 * total:
                other = float(np.median(heat.rise[known & (of != number)]))
            cause = _judged(Target(kind, device=name), columns, nodes, known, heat, other, p)
            if cause is not None:
                out.append(cause)
    return out


def _codes(window: Window, kind: str) -> tuple[list[str], Ints]:
    names = _names(window, kind)
    return names, stats.codes(names)


def _names(window: Window, kind: str) -> list[str]:
    """What each GPU hangs on, empty where unknown."""
    by_node: dict[str | None, str] = {}
    out = []
    for gpu in window.of_kind("gpu"):
        if gpu.node not in by_node:
            place = window.topology.place(gpu.node)
            by_node[gpu.node] = "" if place is None else str(getattr(place, kind) or "")
        out.append(by_node[gpu.node])
    return out


def _judged(target: Target, columns: Ints, nodes: Ints, known: Bools, heat: _Heat, other: float, p: Params) -> _Cause | None:
    mine = columns[known[columns]]
    _, at, counts = np.unique(nodes[mine], return_inverse=True, return_counts=True)
    standing = counts >= p.gpus_min
    if standing.sum() < p.nodes_min:
        return None
    risen = stats.above(heat.rise[mine], p.rise + max(0.0, other))
    hits = np.bincount(at[risen], minlength=len(counts))
    spread = 0.0
    if risen.any():
        others = known.copy()
        others[columns] = False
        spread = float(stats.above(heat.rise[others], p.rise + max(0.0, other)).mean())
    return _Cause(target, columns, float(np.median(heat.rise[mine])) - max(0.0, other), other, float(risen.mean()),
                  float((hits[standing] >= p.share * counts[standing]).mean()), spread)


def _air(window: Window, cause: _Cause, p: Params) -> float:
    """°C by which the air at the inlets under the cause rose more than elsewhere, NaN where not shown."""
    node_parts = window.of_kind("node")
    under = {window.of_kind("gpu")[e].node for e in cause.inside.tolist()}
    mine = np.array([n.node in under for n in node_parts], bool)
    if not mine.any() or mine.all():
        return float("nan")
    now = stats.span_of(window, "node.inlet_temperature_celsius", p.window_seconds).mean
    past = gpus.past(window, "node.inlet_temperature_celsius", np.arange(len(node_parts)), p.window_seconds, 0.1)
    rise = now - past
    return float(stats.median(rise[mine])) - float(np.nan_to_num(stats.median(rise[~mine])))


def _best(window: Window, causes: list[_Cause], p: Params) -> list[tuple[_Cause, float]]:
    """The faulty ones, each GPU under one of them only: of a loop and a rack with the same GPUs the rack where the air
    rose, else the loop; else the one with more GPUs."""
    found = [(c, _air(window, c, p)) for c in causes if c.faulty(p)]

    def order(item: tuple[_Cause, float]) -> tuple[bool, int, bool, str]:
        cause, air = item
        fits = (cause.target.kind == "rack") == (air >= p.inlet)
        return not fits, -len(cause.inside), cause.target.kind == "rack", cause.target.key

    out: list[tuple[_Cause, float]] = []
    for cause, air in sorted(found, key=order):
        if not any(_overlap(cause, taken) for taken, _ in out):
            out.append((cause, air))
    return out


def _overlap(one: _Cause, other: _Cause) -> bool:
    return bool(np.isin(one.inside, other.inside).any())


def _onset(window: Window, cause: _Cause, heat: _Heat, p: Params) -> int:
    """When the middle of its GPUs began to be hotter than their past."""
    columns = cause.inside[~np.isnan(heat.rise[cause.inside])]
    rows = window.values("gpu.temperature_celsius")[:, columns]
    watts = window.values("gpu.power_watts")[:, columns]
    now = gpus.span(window, "gpu.power_watts", p.window_seconds).mean[columns]
    level = rows + p.per_watt * (now - watts) - heat.past[columns]
    middle = stats.median(np.where(stats.above(watts, p.like_power * now), level, np.nan), axis=1)
    symptom = stats.above(middle, max(3.0, 0.4 * float(np.median(heat.rise[columns]))))[:, None]
    return int(stats.run_start(symptom, window.times, 8)[0])


def _evidence(cause: _Cause, air: float, heat: _Heat) -> tuple[Evidence, ...]:
    mine = cause.inside[~np.isnan(heat.rise[cause.inside])]
    rows = [stats.evidence("gpu.temperature_celsius", float(np.median(heat.now[mine])), float(np.median(heat.past[mine])),
                           f"own past at like power, median of {len(mine)} GPUs; others rose {cause.other:.1f} °C",
                           f"{cause.hit:.0%} of its GPUs at work heated up, {cause.spread:.0%} of the others")]
    if not np.isnan(air):
        rows.append(stats.evidence("node.inlet_temperature_celsius", air, 0.0, "rise of the air above that elsewhere"))
    return tuple(rows)


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each cooling loop and rack with GPUs at work on at least two nodes, where others are at work as well."""
    if not window.of_kind("gpu") or not len(window.times) or not window.topology.places:
        return []
    heat = _heat(window, params)
    causes = _causes(window, heat, params)
    best = _best(window, causes, params)
    out = []
    for cause, air in best:
        severity = round(float(np.clip(0.6 + 0.01 * (cause.rise - params.rise), 0.6, 0.85)), 3)
        reason = "air_heats_up" if air >= params.inlet else "heats_up_together"
        out.append(Verdict(cause.target, FAULT, "faulty", severity, _evidence(cause, air, heat), reason,
                           onset_at=_onset(window, cause, heat, params)))
    taken = {c.target.key for c, _ in best}
    for cause in causes:
        explained = any(_overlap(cause, other) for other, _ in best)
        if cause.target.key not in taken and not explained and cause.rise < params.rise / 2:
            out.append(Verdict(cause.target, FAULT, "clear", reason="clear"))
    return out


PLUGIN = DetectorPlugin(
    name="cooling_fault", fault=FAULT, judge=judge, params=Params, needs=(("gpu.temperature_celsius",), ("gpu.power_watts",)),
    hold=Hold(on=3, of=4, off=12),
    must_not=(
        "a hot day on all nodes", "a job that draws more", "a job that starts on the nodes of one loop", "one node's fans",
        "one hot GPU", "a loop that was always warmer",
    ),
)
