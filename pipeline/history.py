"""A canonical signal's past, from the store: what the window held at any time that the retention still covers.

The layouts that travelled with the data say which stored series mean the signal; their raw samples go through the same
`core.derive` as live ones, counters become rates, and copies are combined as `core.signals` says. Bounded: at most 2,000
points a part (the step grows to a multiple of 15 s) and 512 parts; what is cut is said in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.clock import TICK_MS, rfc3339, tick_at_or_after, tick_at_or_before
from core.derive import derive
from core.errors import BadInput
from core.render import plain
from core.signals import SIGNALS, unit_of
from core.types import Floats, Series, SignalRef, Target
from core.window import Window

MOST_POINTS = 2_000
MOST_PARTS = 512
FEWEST_PARTS = 16
MOST_SAMPLES = 4_000_000  # an answer over a long time has fewer parts: reading stays a matter of a second or two
PIECE_SAMPLES = 1_000_000
UNKNOWN_INTERVAL_MS = 60_000.0  # as in the window, before an interval is known
HOLD_INTERVALS = 1.5  # a gauge is held so long (core.window.Block)
GAP_INTERVALS = 3.0  # a counter's rate is missing across a longer gap (core.window.Block)

Times = NDArray[np.int64]
Meaning = tuple[str, Series, SignalRef]  # the scrape target's id, the series, and what it means there


class Archive(Protocol):
    """What is asked of the store (`pipeline.store.duck.DuckStore`)."""

    def meanings(self, signal: str, start: int, end: int, node: str | None = None,
                 most: int = MOST_PARTS) -> list[Meaning]:
        """What means the signal between the two times (ms)."""
        ...

    def arrays_of(self, series: Sequence[Series], start: int, end: int) -> Sequence[Any]:
        """Each series with `at` int64[n] (ms) and raw `values` float64[n]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """One signal. times: int64[point] (ms, multiples of 15 s). values: float64[point, part], NaN = missing.

    cut: what was left out, in words; None where nothing was.
    """

    signal: str
    step_ms: int
    times: Times
    parts: tuple[Target, ...]
    values: Floats
    cut: str | None = None


def grid(start: int, end: int) -> tuple[Times, int]:
    """The points from start to end (ms) and their step: 15 s, or the smallest multiple that gives at most 2,000 points.

    Raises BadInput where end is before start.
    """
    if end < start:
        raise BadInput("end", "", rfc3339(end), "a time that is not before start is needed")
    first, last = tick_at_or_after(start), tick_at_or_before(end)
    many = (last - first) // TICK_MS + 1
    step = TICK_MS * max(1, -(-many // MOST_POINTS))
    return np.arange(first, last + 1, step, dtype=np.int64), step


def history(store: Archive, signal: str, start: int, end: int, node: str | None = None) -> History:
    """The signal from start to end (ms) of at most 512 parts, those of `node` among them first.

    Raises BadInput for a name that is no signal, and for times that make no span.
    """
    if signal not in SIGNALS:
        raise BadInput("signal", "", signal, "a canonical signal is needed (core/contracts.md lists them)")
    times, step = grid(start, end)
    reach = start - int(2 * GAP_INTERVALS * UNKNOWN_INTERVAL_MS)  # what is held at the first point, and the rate before it
    most = min(MOST_PARTS, max(FEWEST_PARTS, MOST_SAMPLES * TICK_MS // max(1, end - reach)))
    found = store.meanings(signal, reach, end, node, most) if node else []
    if len({ref.target.key for _, _, ref in found}) <= most:
        found += store.meanings(signal, reach, end, None, most)
    rows = list({(target, series, ref.target.key): (target, series, ref) for target, series, ref in found}.values())
    parts: dict[str, Target] = {}
    for _, _, ref in rows:
        if ref.target.key in parts or len(parts) < most:
            parts[ref.target.key] = ref.target
    cut = [f"only {most} parts are read"] if len({ref.target.key for _, _, ref in rows}) > most else []
    if step > TICK_MS:
        cut.append(f"one point each {step // 1000} s, {MOST_POINTS} at most")
    kept = [row for row in rows if row[2].target.key in parts]
    columns = {key: i for i, key in enumerate(parts)}
    values = _combine(signal, kept, _read(store, signal, kept, times, reach, end), columns, len(times))
    return History(signal, step, times, tuple(parts.values()), values, "; ".join(cut) or None)


def of_window(window: Window | None, signal: str) -> History:
    """The signal as the last window held it; empty before the first window."""
    if window is None:
        return History(signal, TICK_MS, np.zeros(0, np.int64), (), np.zeros((0, 0)))
    block = window.block(signal)
    return History(signal, window.step_seconds * 1000, window.times, block.entities, block.values)


def _read(store: Archive, signal: str, rows: Sequence[Meaning], times: Times, start: int, end: int) -> dict[int, Floats]:
    """Row number → float64[point] on the grid. The store is read in pieces, so that memory stays bounded."""
    by_series: dict[Series, list[int]] = {}
    for i, (_, series, _) in enumerate(rows):
        by_series.setdefault(series, []).append(i)
    every = list(by_series)
    piece = max(1, PIECE_SAMPLES // max(1, (end - start) // TICK_MS))
    out: dict[int, Floats] = {}
    for first in range(0, len(every), piece):
        for one in store.arrays_of(every[first : first + piece], start, end):
            for i in by_series.get(one.series, ()):
                at, seen = _canonical(signal, rows[i][2], one.at, one.values)
                out[i] = _on_grid(times, at, seen, _interval(one.at))
    return out


def _interval(at: Times) -> float:
    """The usual spacing of the samples (ms), NaN where there is only one."""
    return float(np.median(np.diff(at))) if len(at) > 1 else float("nan")


def _canonical(signal: str, ref: SignalRef, at: Times, raw: Floats) -> tuple[Times, Floats]:
    """Canonical values at the samples' times; counters as the rate since the sample before, NaN where that is not known."""
    seen = derive(signal, raw, ref.scale)
    if not ref.counter:
        return at, seen
    rate = np.full(len(seen), np.nan)
    good = np.flatnonzero(np.isfinite(seen))
    gap = GAP_INTERVALS * (UNKNOWN_INTERVAL_MS if np.isnan(_interval(at)) else _interval(at))
    change, took = np.diff(seen[good]), np.diff(at[good]).astype(np.float64)
    rate[good[1:]] = np.where((change >= 0) & (took <= gap), change / took * 1000.0, np.nan)
    return at, rate


def _on_grid(times: Times, at: Times, values: Floats, interval: float) -> Floats:
    """float64[point]: at each time the newest sample, held for 1.5 intervals."""
    newest = np.searchsorted(at, times, side="right") - 1
    safe = np.maximum(newest, 0)
    hold = max(UNKNOWN_INTERVAL_MS if np.isnan(interval) else HOLD_INTERVALS * interval, TICK_MS)
    has = (newest >= 0) & (times - at[safe] <= hold)
    return np.where(has & np.isfinite(values[safe]), values[safe], np.nan)


def _combine(signal: str, rows: Sequence[Meaning], read: Mapping[int, Floats],
             columns: Mapping[str, int], points: int) -> Floats:
    """float64[point, part]: copies, sums and maxima, as the window combines them.

    Parts of a sum add up within one scrape target; of several targets that report one part the largest sum counts.
    """
    out = np.full((points, len(columns)), np.nan)
    how = SIGNALS[signal].combine
    sums: dict[tuple[str, int], Floats] = {}
    for i, (target, _, ref) in enumerate(rows):
        one, column = read.get(i), columns[ref.target.key]
        if one is None:
            continue
        if how == "first":
            out[:, column] = np.where(np.isnan(out[:, column]), one, out[:, column])
        elif how == "max":
            out[:, column] = np.fmax(out[:, column], one)
        else:
            known = sums.get((target, column))
            both = np.where(np.isnan(one), 0.0, one) + (0.0 if known is None else np.where(np.isnan(known), 0.0, known))
            missing = np.isnan(one) & (True if known is None else np.isnan(known))
            sums[target, column] = np.where(missing, np.nan, both)
    for (_, column), total in sums.items():
        out[:, column] = np.fmax(out[:, column], total)
    return out


def wanted(target: Target, filters: Mapping[str, str]) -> bool:
    """Whether the part is one that node, device and job ask for."""
    return all(str(getattr(target, key)) == value for key, value in filters.items())


def document(found: History, filters: Mapping[str, str]) -> dict[str, Any]:
    """The API's answer: `series` of the parts that `filters` (node, device, job) ask for, `median` over all `parts`."""
    series = [{"target": plain(target), "values": [_shown(v) for v in found.values[:, column].tolist()]}
              for column, target in enumerate(found.parts) if wanted(target, filters)]
    return {"signal": found.signal, "unit": unit_of(found.signal), "step_seconds": found.step_ms // 1000,
            "times": [rfc3339(t) for t in found.times.tolist()], "parts": len(found.parts), "median": medians(found.values),
            "series": series, "cut": found.cut}


def medians(values: Floats) -> list[float | None]:
    """The median over all parts at each point, None where nothing is known. values: float64[point, part]."""
    out: list[float | None] = [None] * len(values)
    known = np.flatnonzero(~np.isnan(values).all(axis=1)) if values.size else np.zeros(0, np.int64)
    if len(known):
        for i, value in zip(known.tolist(), np.nanmedian(values[known], axis=1).tolist(), strict=True):
            out[i] = _shown(value)
    return out


def _shown(value: float) -> float | None:
    # 12 digits: a timestamp in seconds keeps its milliseconds, which the 6 digits of the story would lose.
    return float(f"{value:.12g}") if np.isfinite(value) else None
