"""Drift from what a store has: which hourly rollups mean a watched quantity, put together by part and by day.

The canonical signals of a series are told by the layouts that the store keeps. Copies and sums are combined as in the window;
a part that moved has other series since, and its days go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from core.inventory import Inventory
from core.signals import SIGNALS
from core.types import Floats, Series, SignalRef, Target
from pipeline.drift import BITS_PER_BYTE, MARGIN, WATCHES, DriftReport, Params, Watch, judge
from pipeline.drift_days import DAY_MS, HOUR_MS, Days, growth, margins, rates
from pipeline.store.duck import DuckStore
from pipeline.store.rollups import Rollup

PARTS_AT_ONCE = 256
MOST_PARTS = 1_000_000
PACKET_BYTES = 4096.0  # where only bytes are counted: the MTU of RoCE and InfiniBand
LEAST_PACKETS = 1e6 / 86_400  # a second: with less traffic a share says nothing
Meaning = tuple[str, Series, SignalRef]


def _nothing() -> None:
    """No pause."""


def drift_report(store: DuckStore, now: int, inventory: Inventory, params: Params | None = None,
                 breathe: Callable[[], None] = _nothing) -> DriftReport:
    """All tickets at `now` (ms). breathe: called between pieces of work, so that others get their turn. Raises GreylagError."""
    p = params or Params()
    end = now // HOUR_MS * HOUR_MS
    reader = Reader(store, end, p.days, breathe)
    models = {node.name: node.instance_type or "" for node in inventory.nodes}
    every: list[tuple[Watch, Days]] = []
    for watch in WATCHES:
        every.append((watch, reader.margins() if watch.signal == MARGIN else reader.watched(watch)))
    kinds = [[models.get(part.node or "", "") for part in days.parts] for _, days in every]
    return judge(every, kinds, end, p)


class Reader:
    """Reads quantities by part and day. end: ms, the end of the newest day."""

    def __init__(self, store: DuckStore, end: int, days: int, breathe: Callable[[], None] = _nothing) -> None:
        self._store, self._end, self._days, self._breathe = store, end, days, breathe
        self._start = end - days * DAY_MS

    def watched(self, watch: Watch) -> Days:
        """A counter's rate by day, divided by what the watch says."""
        meanings = self._meanings(watch.signal)
        parts = self._parts(watch.signal, meanings)
        keys = list(parts)
        values = np.full((self._days, len(keys)), np.nan)
        columns = {key: i for i, key in enumerate(keys)}
        for some in _pieces(keys):
            found = self._rates(watch.signal, meanings, some)
            if watch.per is not None and found:
                found = _divided(found, self._divisors(watch.per, some), watch.per)
            for key, one in found.items():
                values[:, columns[key]] = one
        return Days(watch.signal, tuple(parts.values()), values)

    def margins(self) -> Days:
        """GPUs' thermal margin under load by day: as it is shown, else from the absolute limit."""
        shown = self._meanings(MARGIN)
        level = self._meanings("gpu.slowdown_temperature_celsius") if not shown else []
        core = self._meanings("gpu.temperature_celsius") if level else []
        power = self._meanings("gpu.power_watts")
        parts = self._parts(MARGIN if shown else "gpu.slowdown_temperature_celsius", shown or level)
        pieces = []
        for some in _pieces(list(parts)):
            margin = self._hours(shown, some) if shown else self._hours(level, some, "max") - self._hours(core, some)
            pieces.append(margins([parts[key] for key in some], margin, self._hours(power, some), self._days * 24))
        if not pieces:
            return Days(MARGIN, (), np.full((self._days, 0), np.nan), np.zeros(0))
        levels = [one.level for one in pieces if one.level is not None]
        return Days(MARGIN, tuple(parts.values()), np.concatenate([one.values for one in pieces], axis=1), np.concatenate(levels))

    # --- the store ----------------------------------------------------------------------------------------------------
    def _meanings(self, signal: str) -> list[Meaning]:
        return self._store.meanings(signal, self._start, self._end, None, MOST_PARTS)

    def _parts(self, signal: str, meanings: Sequence[Meaning]) -> dict[str, Target]:
        """The parts by key; one that several places showed stands where it was seen last."""
        out = {ref.target.key: ref.target for _, _, ref in meanings}
        places = {(ref.target.key, ref.target.node, ref.target.device) for _, _, ref in meanings}
        if len(places) > len(out):
            out.update({ref.target.key: ref.target for _, _, ref in
                        self._store.meanings(signal, self._end - 2 * HOUR_MS, self._end + HOUR_MS, None, MOST_PARTS)})
        return out

    def _rollups(self, meanings: Sequence[Meaning], keys: Sequence[str]) -> list[tuple[Meaning, Rollup]]:
        among = set(keys)
        mine = [one for one in meanings if one[2].target.key in among]
        if not mine:
            return []
        self._breathe()
        found = {one.series: one for one in self._store.rollups_of([m[1] for m in mine], self._start, self._end - 1, HOUR_MS)}
        return [(one, found[one[1]]) for one in mine if one[1] in found]

    def _rates(self, signal: str, meanings: Sequence[Meaning], keys: Sequence[str]) -> dict[str, Floats]:
        """Rate per second by day of each part."""
        grown: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
        for (target, _, ref), rollup in self._rollups(meanings, keys):
            total, hours = growth(rollup.at, rollup.last, rollup.max, self._end, self._days)
            grown.setdefault((ref.target.key, target), []).append((total * ref.scale, hours))
        out: dict[str, Floats] = {}
        how = SIGNALS[signal].combine
        for (key, _), rows in grown.items():
            if how == "sum":
                each = [rates(np.sum([t for t, _ in rows], axis=0), np.max([h for _, h in rows], axis=0))]
            else:
                each = [rates(total, hours) for total, hours in rows]
            for one in each:
                known = out.get(key)
                first = how == "first" and known is not None
                out[key] = one if known is None else np.where(np.isnan(known), one, known) if first else np.fmax(known, one)
        return out

    def _divisors(self, signal: str, keys: Sequence[str]) -> dict[str, Floats]:
        """By day: a port's bits a second, or the packets that it sent."""
        meanings = self._meanings(signal)
        if any(one[2].counter for one in meanings):
            return self._rates(signal, meanings, keys)
        if not meanings and signal == "nic.transmitted_packets_per_second":
            sent = self._rates("nic.transmitted_bytes_per_second", self._meanings("nic.transmitted_bytes_per_second"), keys)
            return {key: one / PACKET_BYTES for key, one in sent.items()}
        hours = self._hours(meanings, keys, "max")
        by_day = hours.reshape(self._days, 24, len(keys))
        with np.errstate(invalid="ignore"):
            greatest = np.fmax.reduce(by_day, axis=1)
        return {key: greatest[:, i] for i, key in enumerate(keys)}

    def _hours(self, meanings: Sequence[Meaning], keys: Sequence[str], what: str = "mean") -> Floats:
        """float64[hour, part] of a gauge, NaN = missing."""
        out = np.full((self._days * 24, len(keys)), np.nan)
        columns = {key: i for i, key in enumerate(keys)}
        for (_, _, ref), rollup in self._rollups(meanings, keys):
            row = (rollup.at - self._start) // HOUR_MS
            good = (row >= 0) & (row < len(out))
            column = columns[ref.target.key]
            values = getattr(rollup, what)[good] * ref.scale
            known = out[row[good], column]
            out[row[good], column] = np.where(np.isnan(known), values, known)
        return out


def _pieces(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[a : a + PARTS_AT_ONCE] for a in range(0, len(keys), PARTS_AT_ONCE)]


def _divided(found: Mapping[str, Floats], by: Mapping[str, Floats], per: str) -> dict[str, Floats]:
    """Shares by day; NaN where what it is a share of is not known or too little."""
    bits = per == "nic.rate_bytes_per_second"
    out = {}
    for key, one in found.items():
        whole = by.get(key)
        if whole is None:
            continue
        enough = whole > (0.0 if bits else LEAST_PACKETS)
        with np.errstate(invalid="ignore", divide="ignore"):
            out[key] = np.where(enough, one / (whole * (BITS_PER_BYTE if bits else 1.0)), np.nan)
    return out
