"""What parts compare themselves with, after a restart: hours of 1-minute means, made anew from the stored samples.

The ring keeps minutes of the signals that detectors ask for, from when they first asked; which ones, and since when, is
committed with each tick. `recall` fills them in again, the newest hours first, and stops at its time: what it did not
reach is missing from the past, as after a first start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from app.warm import SPAN_MS, targets_of
from core.clock import TICK_MS, monotonic_seconds
from core.signals import SIGNALS
from core.types import Floats
from pipeline.baseline import MINUTE_MS
from pipeline.past import Past
from pipeline.ring import Ring
from pipeline.ring_rows import SIGNAL_NAMES, SIGNAL_NUMBER
from pipeline.store.duck import DuckStore

STATE = "past"
LONGEST_MS = 6 * 3_600_000  # no detector asks for more
MOST_SECONDS = 5.0
LEAD_MS = 3 * 60_000  # before a stretch, so that rates and holds have begun: three intervals of a minute
OVERLAP_MS = 3 * 60_000  # into the ring's half hour, whose first minute is no whole one
MOST_CELLS = 4_000_000
LONGEST_STRETCH = 3_600_000


def asked(ring: Ring, before: Mapping[str, int]) -> dict[str, int]:
    """The signals that detectors asked the past of, with the end of the oldest minute (ms) of each: as it was at first."""
    return {name: min(at, before.get(name, at)) for name, at in sorted(ring.asked().items())}


def read(text: str | None) -> dict[str, int]:
    """What the last tick committed of `asked`."""
    found = json.loads(text) if text else {}
    return {str(name): int(at) for name, at in found.items() if name in SIGNALS}


def recall(ring: Ring, store: DuckStore, last_tick: int, wanted: Mapping[str, int], seconds: float = MOST_SECONDS) -> int:
    """Gives the ring, whose half hour is filled, the past of the wanted signals up to `last_tick` (ms); gives the start
    (ms) of what was read, `last_tick` where nothing was."""
    signals = [name for name in wanted if ring.width(name)]
    until = (last_tick - SPAN_MS + OVERLAP_MS) // MINUTE_MS * MINUTE_MS
    oldest = max(last_tick - LONGEST_MS, min((wanted[name] for name in signals), default=last_tick) - MINUTE_MS)
    if not signals:
        return last_tick
    deadline = monotonic_seconds() + seconds
    widths = {SIGNAL_NUMBER[name]: ring.width(name) for name in signals}
    targets = sorted(targets_of(store, oldest - LEAD_MS, signals), key=lambda one: (one.target_id.startswith("log/"), one.target_id))
    columns = [ring.columns_of(one.meanings.parts) for one in targets]
    series = sum(len(one.ids) for one in targets)
    stretch = max(LEAD_MS, min(LONGEST_STRETCH, MOST_CELLS // max(1, series) * TICK_MS)) // MINUTE_MS * MINUTE_MS
    ends: list[np.ndarray] = []
    means: dict[int, list[Floats]] = {number: [] for number in widths}
    end = until
    while end > oldest and targets and monotonic_seconds() < deadline:
        start = max(end - stretch, oldest // MINUTE_MS * MINUTE_MS)
        ticks = np.arange(start - LEAD_MS + TICK_MS, end + 1, TICK_MS)
        past = Past(widths, ticks, LEAD_MS // TICK_MS, TICK_MS)
        found = store.readings_of([(one.target_id, one.ids) for one in targets], start - LEAD_MS + 1, end)
        for one, places, rows in zip(targets, columns, found, strict=True):
            past.add(one.meanings, places, rows.at, rows.values)
        some, values = past.minutes()
        ends.append(some)
        for number, one_signal in values.items():
            means[number].append(one_signal)
        end = start
    findings = store.finding_records(since=end, limit=100_000)
    whole = np.concatenate([*ends[::-1], np.empty(0, np.int64)])
    for number, width in widths.items():
        name = SIGNAL_NAMES[number]
        kept = np.flatnonzero(whole >= wanted[name])
        rows_of = np.concatenate([*means[number][::-1], np.empty((0, width))])
        ring.remember(name, whole[kept], rows_of[kept], findings)
    return end if ends else last_tick
