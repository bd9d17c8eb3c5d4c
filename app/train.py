"""Training: a sample of quarter hours of the user's own healthy history becomes the model of `pipeline.unknown`.

Windows are spread evenly over the span, each read from the store as the ring would have shown it. Nodes on which an incident
was open are left out of its windows; an incident that names no node takes the whole window. scikit-learn is imported only here
and only when it is needed: nothing that runs all day carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from app.warm import Known, targets_of
from core.clock import TICK_MS, rfc3339
from core.errors import BadInput
from core.types import Floats, Incident, Target
from pipeline.past import Past
from pipeline.ring_rows import SIGNAL_NAMES, SIGNAL_NUMBER
from pipeline.store.duck import DuckStore
from pipeline.unknown import (
    MINUTE_TICKS,
    MINUTES,
    SIGNALS,
    KindModel,
    Model,
    Seen,
    distances,
    features,
    scaled,
    shifted,
)

WINDOW_MS = MINUTES * 60_000
LEAD_MS = 180_000  # so that rates and holds have begun
AROUND_MS = 900_000  # before the onset and after the end of an incident


@dataclass(frozen=True, slots=True)
class TrainParams:
    """Our judgement. windows: how many are read. windows_min, rows_min: fewer make no model (of one kind of part). fit_rows: the
    covariance is learned from so many rows at most. known: share of rows in which a feature must be known. cuts: shares of
    the span, before and after which the fleet must be alike. ridge: added to each variance, in units of a feature's own scale: less than
    a third of the smallest difference that means anything is none. beyond: the limit stands so many robust deviations above what
    the parts reach, on a logarithmic scale, and not below the distance that one in `rare` regular rows passes."""

    windows: int = 200
    windows_min: int = 24
    rows_min: int = 500
    fit_rows: int = 5_000
    known: float = 0.95
    cuts: tuple[float, ...] = (0.25, 0.5, 0.75)
    ridge: float = 0.1
    beyond: float = 5.0
    rare: float = 1e6
    seed: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """What one window showed of one kind."""

    at: int
    seen: Seen


def _quiet(line: str) -> None:
    """Says nothing."""


def train(store: DuckStore, start: int, end: int, params: TrainParams | None = None, say: Callable[[str], None] = _quiet,
          covariance: Callable[[Floats, int], Floats] | None = None) -> Model:
    """A model of the history from start to end (ms). covariance: of rows (float64[row, feature], a seed), robust by default.

    Raises BadInput: too little history, or one that changed within itself.
    """
    p = params or TrainParams()
    where = f"history from {rfc3339(start)} to {rfc3339(end)}"
    rows = _read(store, start, end, p, say)
    kinds = []
    used: set[int] = set()
    for kind in SIGNALS:
        mine = [row for row in rows if row.seen.kind == kind and len(row.seen.parts)]
        if len({row.at for row in mine}) < p.windows_min or sum(len(row.seen.parts) for row in mine) < p.rows_min:
            continue
        kinds.append(_fit(kind, mine, p, where, covariance or robust_covariance))
        used |= {row.at for row in mine}
    if not kinds:
        many = len({row.at for row in rows if len(row.seen.parts)})
        raise BadInput(where, "", f"a total of {many} quarter hours in which parts worked and no incident was open",
                       f"at least {p.windows_min} with {p.rows_min} parts in all are needed")
    return Model(tuple(kinds), start, end, len(used))


# --- reading ----------------------------------------------------------------------------------------------------------
def _read(store: DuckStore, start: int, end: int, p: TrainParams, say: Callable[[str], None]) -> list[_Row]:
    signals = [name for names in SIGNALS.values() for name in names]
    targets = list(targets_of(store, start, signals))
    axes: dict[str, dict[str, int]] = {kind: {} for kind in SIGNALS}
    parts: dict[str, list[Target]] = {kind: [] for kind in SIGNALS}
    columns = []
    for one in targets:
        columns.append(np.array([_column(part, axes, parts) for part in one.meanings.parts], np.int64))
    incidents = store.incident_records(limit=1_000_000)
    rows: list[_Row] = []
    windows = moments(start, end, p.windows, p.seed)
    for n, at in enumerate(windows):
        out = _nodes_out(incidents, at - WINDOW_MS, at)
        if out is None:
            continue
        blocks = _window(store, targets, columns, axes, at)
        for kind, names in SIGNALS.items():
            kept = [i for i, part in enumerate(parts[kind]) if part.node not in out]
            some = {name: blocks[name][:, kept] for name in names if name in blocks}
            rows.append(_Row(at, features(kind, [parts[kind][i] for i in kept], some)))
        if n % 20 == 19:
            say(f"{n + 1} of {len(windows)} windows read")
    return rows


def _column(part: Target, axes: dict[str, dict[str, int]], parts: dict[str, list[Target]]) -> int:
    axis = axes.get(part.kind)
    if axis is None:
        return -1
    if part.key not in axis:
        axis[part.key] = len(axis)
        parts[part.kind].append(part)
    return axis[part.key]


def moments(start: int, end: int, windows: int, seed: int) -> list[int]:
    """Ends (ms, multiples of a minute) of windows that do not overlap, one drawn in each of as many equal pieces of the span."""
    many = min(windows, max(0, (end - start) // (WINDOW_MS + LEAD_MS)))
    rng = np.random.default_rng(seed)
    piece = (end - start) / max(1, many)
    free = max(0.0, piece - WINDOW_MS - LEAD_MS)
    return [int(start + n * piece + LEAD_MS + WINDOW_MS + rng.random() * free) // 60_000 * 60_000 for n in range(many)]


def _window(store: DuckStore, targets: Sequence[Known], columns: Sequence[np.ndarray], axes: dict[str, dict[str, int]],
            at: int) -> dict[str, Floats]:
    """float64[tick, part] by signal of the quarter hour that ends at `at`."""
    widths = {SIGNAL_NUMBER[name]: len(axes[kind]) for kind, names in SIGNALS.items() for name in names if axes[kind]}
    lead = LEAD_MS // TICK_MS
    ticks = np.arange(at - WINDOW_MS - LEAD_MS + TICK_MS, at + 1, TICK_MS)
    past = Past(widths, ticks, lead, TICK_MS)
    for one, places, found in zip(targets, columns,
                                  store.readings_of([(t.target_id, t.ids) for t in targets], int(ticks[0]) - TICK_MS + 1, at),
                                  strict=True):
        past.add(one.meanings, places, found.at, found.values)
    return {SIGNAL_NAMES[number]: values[-MINUTES * MINUTE_TICKS :] for number, values in past.values.items()}


def _nodes_out(incidents: Iterable[Incident], start: int, end: int) -> frozenset[str] | None:
    """Nodes that an open incident touched between the times (ms); None where one names no node: the window is left out."""
    out: set[str] = set()
    for one in incidents:
        last = one.resolved_at if one.resolved_at is not None else 2**62
        if one.onset_at - AROUND_MS > end or last + AROUND_MS < start or one.state == "merged" or one.reason == "marked_wrong":
            continue
        nodes = {t.node for t in (one.culprit, *one.victims, *(s.target for s in one.suspects)) if t is not None and t.node}
        if not nodes:
            return None
        out |= nodes
    return frozenset(out)


# --- fitting ----------------------------------------------------------------------------------------------------------
def _fit(kind: str, rows: Sequence[_Row], p: TrainParams, where: str, covariance: Callable[[Floats, int], Floats]) -> KindModel:
    every = np.concatenate([row.seen.values for row in rows])
    names = rows[0].seen.names
    kept = np.flatnonzero((~np.isnan(every)).mean(axis=0) >= p.known)
    if not len(kept):
        raise BadInput(where, "", f"no signal that is known of {p.known:.0%} of the {kind}s", "train on a span with whole telemetry")
    part_rows = [part for row in rows for part in row.seen.parts]
    values = every[:, kept]
    values = np.where(np.isnan(values), np.nanmedian(values, axis=0), values)
    slots = tuple(sorted({part.device or "" for part in part_rows}))
    centre, scale = _centres(values, [part.device or "" for part in part_rows], slots)
    number = {name: i for i, name in enumerate(slots)}
    z = (values - centre[[number[part.device or ""] for part in part_rows]]) / scale
    levels = np.concatenate([row.seen.levels for row in rows])
    signals = list(SIGNALS[kind])
    level_kept = [i for i in range(len(signals)) if (~np.isnan(levels[:, i])).mean() >= p.known]
    model = KindModel(
        kind, tuple(names[i] for i in kept.tolist()), slots, centre, scale, _precision(z, p, covariance), 1.0,
        *_range(values, np.ones(len(kept))), tuple(signals[i] for i in level_kept),
        *_range(levels[:, level_kept], np.array([SIGNALS[kind][signals[i]][0] for i in level_kept])), len(values))
    _unchanged(model, rows, p, where)
    return _limited(model, rows, p)


def _centres(values: Floats, devices: Sequence[str], slots: Sequence[str]) -> tuple[Floats, Floats]:
    """(median by slot, the last row over all; one robust scale for all): a slot's own median, where it has enough rows."""
    whole = np.median(values, axis=0)
    where = np.array(devices)
    centre = np.stack([*(np.median(values[where == slot], axis=0) for slot in slots), whole])
    number = {name: i for i, name in enumerate(slots)}
    off = values - centre[[number[d] for d in devices]]
    return centre, np.maximum(1.4826 * np.median(np.abs(off), axis=0), 1.0)


def robust_covariance(rows: Floats, seed: int) -> Floats:
    """The covariance that most rows follow, however far off the others are (minimum covariance determinant)."""
    from sklearn.covariance import MinCovDet

    return np.asarray(MinCovDet(random_state=seed).fit(rows).covariance_, np.float64)


def _precision(z: Floats, p: TrainParams, covariance: Callable[[Floats, int], Floats]) -> Floats:
    """The inverse of the covariance, with the ridge."""
    rng = np.random.default_rng(p.seed)
    some = z if len(z) <= p.fit_rows else z[rng.choice(len(z), p.fit_rows, replace=False)]
    # A feature that hardly moves has no covariance to estimate; noise far below what the ridge adds makes the fit possible.
    some = some + rng.normal(0.0, 0.1 * np.sqrt(p.ridge), some.shape)
    found = covariance(some, p.seed)
    return np.asarray(np.linalg.inv(found + p.ridge * np.eye(len(found))), np.float64)


def _range(values: Floats, grain: Floats) -> tuple[Floats, Floats]:
    """Between which 99 % of the values lie, widened by the smallest difference that means anything and by a tenth."""
    if not values.shape[1]:
        return np.zeros(0), np.zeros(0)
    low, high = np.nanquantile(values, 0.005, axis=0), np.nanquantile(values, 0.995, axis=0)
    more = np.maximum(grain * np.where(np.abs(high) > 1e3, np.abs(high), 1.0), 0.1 * (high - low))
    return low - more, high + more


def _unchanged(model: KindModel, rows: Sequence[_Row], p: TrainParams, where: str) -> None:
    """Raises BadInput where one part of the span is not like the rest of it, on either side of a quarter of the time."""
    times = sorted({row.at for row in rows})
    for share in p.cuts:
        cut = times[int(len(times) * share)]
        early, late = [row.seen for row in rows if row.at < cut], [row.seen for row in rows if row.at >= cut]
        found = shifted(_ranges(model, early), late) or shifted(_ranges(model, late), early)
        if found:
            words = ", ".join(f"{signal} of {part:.0%}" for signal, part in found[:3])
            raise BadInput(where, "", f"a fleet that changed about {rfc3339(cut)}",
                           f"{words} of the {model.kind}s is elsewhere before than after: train on a span without the change")


def _ranges(model: KindModel, seen: Sequence[Seen]) -> KindModel:
    """The model with the ranges of these rows."""
    place = {name: i for i, name in enumerate(seen[0].names)}
    values = np.concatenate([s.values for s in seen])[:, [place[name] for name in model.names]]
    signals = list(SIGNALS[model.kind])
    levels = np.concatenate([s.levels for s in seen])[:, [signals.index(s) for s in model.level_names]]
    low, high = _range(values, np.ones(values.shape[1]))
    level_low, level_high = _range(levels, np.array([SIGNALS[model.kind][s][0] for s in model.level_names]))
    return replace(model, low=low, high=high, level_low=level_low, level_high=level_high)


def _limited(model: KindModel, rows: Sequence[_Row], p: TrainParams) -> KindModel:
    """The model with its limit: above what the parts of the history reach at their oddest, few odd ones notwithstanding."""
    most: dict[str, float] = {}
    for row in rows:
        d = distances(model, scaled(model, row.seen))
        for part, one in zip(row.seen.parts, d.tolist(), strict=True):
            if not np.isnan(one):
                most[part.key] = max(most.get(part.key, 0.0), one)
    logs = np.log(np.maximum(np.array(list(most.values())), 1e-9))
    middle = float(np.median(logs))
    reach = float(np.exp(middle + p.beyond * 1.4826 * float(np.median(np.abs(logs - middle)))))
    return replace(model, limit=max(reach, chi_squared(len(model.names), 1 / p.rare)))


def chi_squared(degrees: int, chance: float) -> float:
    """What a chi-squared number of so many degrees exceeds with this chance (Wilson and Hilferty's approximation)."""
    z = NormalDist().inv_cdf(1 - chance)
    each = 2.0 / (9.0 * degrees)
    return float(degrees * (1 - each + z * each**0.5) ** 3)
