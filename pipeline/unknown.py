"""The unknown: parts that are odd among the others of their node in a way that no rule names.

A part is described by how it differs from the other parts of its kind on its node, which nearly always do the same work: for
each signal the level of the difference over a quarter of an hour, and how restless it is. What differences are usual, and how
they go together, is learned from the user's own healthy history (`greylag train`, `app.train`): robust centre by slot, robust
scale, and the covariance that most parts follow. Odd is what lies far outside, and the signals are named that the others do
not explain. It informs people and adds a word to suspects; it opens nothing and nothing acts on it.

Nothing here needs scikit-learn: a trained model is numbers in a JSON file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Target
from core.window import Window

Bools = NDArray[np.bool_]
MINUTE_TICKS = 4
MINUTES = 15
LEAST_MINUTES = 8
LEAST_PEERS = 4  # parts on a node, for a median that one odd part does not move
LEVEL, RESTLESS = "level", "restless"

# By kind: the signals, each with the smallest difference that means anything. `relative`: of the node's median.
SIGNALS: Mapping[str, Mapping[str, tuple[float, bool]]] = {
    "gpu": {
        "gpu.temperature_celsius": (1.0, False), "gpu.memory_temperature_celsius": (1.0, False),
        "gpu.sm_clock_hertz": (0.01, True), "gpu.memory_clock_hertz": (0.01, True), "gpu.power_watts": (0.02, True),
        "gpu.utilization_ratio": (0.02, False), "gpu.sm_active_ratio": (0.01, False), "gpu.tensor_active_ratio": (0.01, False),
        "gpu.dram_active_ratio": (0.01, False), "gpu.memory_used_bytes": (0.01, True),
        "gpu.nvlink_bytes_per_second": (0.03, True), "gpu.pcie_bytes_per_second": (0.05, True),
        "gpu.power_violation_ratio": (0.02, False), "gpu.thermal_margin_celsius": (1.0, False)},
    "nic": {
        "nic.transmitted_bytes_per_second": (0.03, True), "nic.received_bytes_per_second": (0.03, True),
        "nic.transmitted_packets_per_second": (0.03, True), "nic.received_packets_per_second": (0.03, True),
        "nic.pcie_stalled_ratio": (0.01, False)}}
# Work without which parts of a node need not be alike: (signal, least of it, greatest difference of work on one node).
BUSY = {"gpu": ("gpu.utilization_ratio", 0.2, 0.5), "nic": ("nic.transmitted_bytes_per_second", 1e6, np.inf)}


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Parts as they stood in one window. names: of the features, (signal, LEVEL or RESTLESS). values: float64[part, feature] in
    units of the smallest difference that means anything, NaN = missing. levels: float64[part, signal], the raw medians."""

    kind: str
    parts: tuple[Target, ...]
    names: tuple[tuple[str, str], ...]
    values: Floats
    levels: Floats


def features(kind: str, parts: Sequence[Target], blocks: Mapping[str, Floats]) -> Seen:
    """What the last quarter of an hour shows of parts on nodes at work; parts of other nodes are left out. blocks: float64[tick,
    part] by signal, the last MINUTES * MINUTE_TICKS ticks of them count; a signal that is not there is missing."""
    signals = list(SIGNALS[kind])
    names = tuple((s, what) for s in signals for what in (LEVEL, RESTLESS))
    minutes = np.stack([_minutes(blocks.get(s), len(parts)) for s in signals]) if parts else np.zeros((len(signals), MINUTES, 0))
    nodes: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        if part.node is not None:
            nodes.setdefault(part.node, []).append(i)
    kept, rows, levels = [], [], []
    for members in nodes.values():
        some = minutes[:, :, members]
        if len(members) < LEAST_PEERS or not _at_work(kind, signals, some):
            continue
        kept += members
        rows.append(_against(kind, signals, some))
        levels.append(_median(some, 1).T)
    shape = (0, len(names))
    return Seen(kind, tuple(parts[i] for i in kept), names, np.concatenate(rows) if rows else np.zeros(shape),
                np.concatenate(levels) if levels else np.zeros((0, len(signals))))


def _minutes(values: Floats | None, parts: int) -> Floats:
    """float64[minute, part]: means of the last minutes, NaN where a minute has none."""
    out = np.full((MINUTES, parts), np.nan)
    if values is None or not len(values):
        return out
    tail = values[-MINUTES * MINUTE_TICKS :]
    whole = len(tail) // MINUTE_TICKS
    if whole:
        tail = tail[-whole * MINUTE_TICKS :].reshape(whole, MINUTE_TICKS, parts)
        known = ~np.isnan(tail)
        n = known.sum(axis=1)
        out[-whole:] = np.where(n > 0, np.where(known, tail, 0.0).sum(axis=1) / np.maximum(n, 1), np.nan)
    return out


def _at_work(kind: str, signals: Sequence[str], some: Floats) -> bool:
    """Whether the parts of a node do the same work, all but one of them at most. some: float64[signal, minute, part]."""
    name, least, apart = BUSY[kind]
    work = _median(some[signals.index(name)], 0)
    middle = float(_median(work, 0))
    if not middle >= least:
        return False
    return int(np.count_nonzero(np.abs(work - middle) > apart)) <= 1


def _against(kind: str, signals: Sequence[str], some: Floats) -> Floats:
    """float64[part, feature] of one node."""
    middle = _median(some, 2)[:, :, None]
    columns = []
    for number, signal in enumerate(signals):
        grain, relative = SIGNALS[kind][signal]
        with np.errstate(invalid="ignore", divide="ignore"):
            off = (some[number] - middle[number]) / np.where(middle[number] > 0, middle[number], np.nan) if relative else (
                some[number] - middle[number])
        off = np.where((~np.isnan(off)).sum(axis=0) >= LEAST_MINUTES, off, np.nan) / grain
        level = _median(off, 0)
        columns += [level, 1.4826 * _median(np.abs(off - level), 0)]
    return np.stack(columns, axis=1)


def _median(values: Floats, axis: int) -> Floats:
    ordered = np.sort(np.moveaxis(values, axis, 0), axis=0)
    n = np.asarray((~np.isnan(ordered)).sum(axis=0))
    if not len(ordered):
        return np.full(ordered.shape[1:], np.nan)
    low, high = np.maximum((n - 1) // 2, 0), np.minimum(n // 2, len(ordered) - 1)
    a, b = (np.take_along_axis(ordered, i[None], 0)[0] for i in (low, high))
    return np.asarray(np.where(n > 0, (a + b) / 2.0, np.nan))


# --- the trained model ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class KindModel:
    """One kind of part. names: features that the model has. slots: rows of `centre`, the last row is for slots that training had
    not; centre, scale float64[slot or 1, feature]; precision float64[feature, feature]; limit: squared distance beyond which a
    part is odd. low, high: float64[feature], between which 99 % of training lay; level_names, level_low, level_high: the same of
    raw medians by signal. rows: how many parts and windows it has seen."""

    kind: str
    names: tuple[tuple[str, str], ...]
    slots: tuple[str, ...]
    centre: Floats
    scale: Floats
    precision: Floats
    limit: float
    low: Floats
    high: Floats
    level_names: tuple[str, ...]
    level_low: Floats
    level_high: Floats
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """start, end: ms, the span of history it was trained on. hash: SHA-256 of its content."""

    kinds: tuple[KindModel, ...]
    start: int
    end: int
    windows: int
    hash: str = ""


@dataclass(frozen=True, slots=True)
class OddSignal:
    """One signal in which a part is odd. what: level or restless. sigmas: how far it is from what the part's other signals let
    expect. difference: from the node's median (relative or in the signal's unit), usual: what is usual at its place."""

    signal: str
    what: str
    sigmas: float
    difference: float
    usual: float


@dataclass(frozen=True, slots=True)
class OddPart:
    """score: squared distance over the limit, more than 1 is odd. signals: the most odd first, at most three."""

    target: Target
    score: float
    signals: tuple[OddSignal, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found. odd: the most odd first. looked, unknown: parts that could be judged, and that could not."""

    odd: tuple[OddPart, ...] = ()
    looked: int = 0
    unknown: int = 0


MOST_NAMED = 3
NAMED_SIGMAS = 3.0


def scaled(model: KindModel, seen: Seen) -> Floats:
    """float64[part, feature] in the model's scale; rows with a missing feature are NaN throughout."""
    place = {name: i for i, name in enumerate(seen.names)}
    values = seen.values[:, [place[name] for name in model.names]]
    slot = {name: i for i, name in enumerate(model.slots)}
    rows = [slot.get(part.device or "", len(model.slots)) for part in seen.parts]
    out = (values - model.centre[rows]) / model.scale
    missing = np.isnan(out).sum(axis=1, keepdims=True) > 0
    return np.where(missing, np.nan, out)


def distances(model: KindModel, z: Floats) -> Floats:
    """float64[part]: squared Mahalanobis distance, NaN where the part is not known."""
    return np.asarray(np.einsum("ij,jk,ik->i", z, model.precision, z))


def look(model: Model, seen: Sequence[Seen]) -> Look:
    """Odd parts of one window."""
    odd: list[OddPart] = []
    looked = unknown = 0
    for one in model.kinds:
        for parts in (s for s in seen if s.kind == one.kind):
            z = scaled(one, parts)
            d = distances(one, z)
            looked += int((~np.isnan(d)).sum())
            unknown += int(np.isnan(d).sum())
            found = np.flatnonzero(np.nan_to_num(d, nan=0.0) > one.limit)
            odd += [OddPart(parts.parts[i], float(d[i] / one.limit), _named(one, parts, z[i], i)) for i in found.tolist()]
    return Look(tuple(sorted(odd, key=lambda p: (-p.score, p.target.key))), looked, unknown)


def _named(model: KindModel, seen: Seen, z: Floats, i: int) -> tuple[OddSignal, ...]:
    """The signals that the part's other signals do not explain: each one's distance from what they let expect, in sigmas."""
    pull = (model.precision @ z) / np.sqrt(np.diag(model.precision))
    order = np.argsort(-np.abs(pull))
    place = {name: n for n, name in enumerate(seen.names)}
    slot = model.slots.index(seen.parts[i].device or "") if (seen.parts[i].device or "") in model.slots else len(model.slots)
    out: list[OddSignal] = []
    for k in order.tolist():
        if len(out) == MOST_NAMED or (out and abs(pull[k]) < NAMED_SIGMAS):
            break
        signal, what = model.names[k]
        if any(o.signal == signal for o in out):
            continue
        grain = SIGNALS[model.kind][signal][0]
        out.append(OddSignal(signal, what, float(pull[k]), float(seen.values[i, place[model.names[k]]] * grain),
                             float(model.centre[slot, k] * grain)))
    return tuple(out)


# --- whether the fleet is still the one of the training ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ShiftParams:
    """Training's ranges hold 99 % of it, so 1 % of a fleet like it lies outside. outside: from this share on, of a feature, the
    fleet has changed. levels: the same of raw values, which follow the jobs: only when most of the fleet is elsewhere. rows:
    parts and windows without which nothing is said."""

    outside: float = 0.2
    levels: float = 0.8
    rows: int = 64


def shifted(model: KindModel, seen: Sequence[Seen], params: ShiftParams | None = None) -> list[tuple[str, float]]:
    """(signal, share outside of training's range) of what has changed, the most changed first; empty where the fleet is like the
    one of the training, or too little of it was seen."""
    p = params or ShiftParams()
    mine = [s for s in seen if s.kind == model.kind and len(s.parts)]
    if not mine:
        return []
    place = {name: i for i, name in enumerate(mine[0].names)}
    found: dict[str, float] = {}
    values = np.concatenate([s.values for s in mine])
    for k, name in enumerate(model.names):
        share = _outside(values[:, place[name]], float(model.low[k]), float(model.high[k]), p.rows)
        if share >= p.outside:
            found[name[0]] = max(found.get(name[0], 0.0), share)
    signals = list(SIGNALS[model.kind])
    levels = np.concatenate([s.levels for s in mine])
    for k, signal in enumerate(model.level_names):
        share = _outside(levels[:, signals.index(signal)], float(model.level_low[k]), float(model.level_high[k]), p.rows)
        if share >= p.levels:
            found[signal] = max(found.get(signal, 0.0), share)
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


def _outside(values: Floats, low: float, high: float, rows: int) -> float:
    """The share outside; one that nothing is known of counts as gone where the others are there."""
    known = values[~np.isnan(values)]
    if len(values) < rows:
        return 0.0
    if len(known) < rows:
        return 1.0  # a signal that the model rests on is no longer there
    return float(((known < low) | (known > high)).mean())


def of_window(window: Window) -> list[Seen]:
    """The window's parts, by kind."""
    ticks = MINUTES * MINUTE_TICKS
    return [features(kind, window.of_kind(kind), {s: window.values(s)[-ticks:] for s in signals if s in window.blocks})
            for kind, signals in SIGNALS.items()]
