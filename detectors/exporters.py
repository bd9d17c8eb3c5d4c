"""What detectors of telemetry share: the exporters of each node, and since when one of them has not answered properly.

`exporter.state` is 0 for a target that answers, 1 for one whose pages are empty or broken, 2 for one that does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats, Target
from core.window import Window
from detectors import shared, stats
from detectors.stats import Bools, Ints

ANSWERS, BROKEN, DOWN = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Exporters:
    """All exporters: columns of the block. by_node: columns of each node. state: now, NaN = unknown. silent: nothing at all
    comes of it any more, though it did. bad_at: ms of the newest tick at which it did not answer properly, 0 = none seen.
    since: ms since when it is in its present state."""

    parts: tuple[Target, ...]
    by_node: dict[str, Ints]
    state: Floats
    age_seconds: Floats
    silent: Bools
    bad_at: Ints
    since: Ints


def exporters_of(window: Window, intervals: float = 4.0, seconds: float = 90.0) -> Exporters:
    """The window's exporters. intervals, seconds: without any reading for both, an exporter is silent. Detectors share it."""
    return window.once(("exporters", intervals, seconds), lambda: _exporters(window, intervals, seconds))


def _exporters(window: Window, intervals: float, seconds: float) -> Exporters:
    block = window.block("exporter.state")
    parts, values = block.entities, block.values
    n = len(parts)
    state = np.where(block.fresh(), block.last, np.nan)
    interval = np.where(np.isnan(block.interval_seconds), float(window.step_seconds), block.interval_seconds)
    silent = np.isfinite(block.age_seconds) & (block.age_seconds > np.maximum(intervals * interval, seconds))
    bad = stats.above(values, BROKEN)
    rows = np.arange(len(values))[:, None]
    newest = np.where(bad, rows, -1).max(axis=0) if len(values) else np.full(n, -1)
    bad_at = np.where(newest >= 0, window.times[np.maximum(newest, 0)], 0) if len(values) else np.zeros(n, np.int64)
    same = values == state if len(values) else np.zeros((0, n), bool)
    since = stats.run_start(np.asarray(same), window.times, 1)
    by_node = {node: columns for node, columns in shared.columns_by_node(parts).items() if node is not None}
    return Exporters(parts, by_node, state,
                     block.age_seconds, silent, bad_at.astype(np.int64), since)


def withdrawn(window: Window) -> frozenset[str]:
    """Nodes out of service: by the inventory, by the scheduler (no new work), or drained and not given back."""
    return window.once("withdrawn", lambda: _withdrawn(window))


def _withdrawn(window: Window) -> frozenset[str]:
    state = window.block("node.scheduler_state")
    found = {state.entities[e].node for e in np.flatnonzero(state.last == 1.0)}
    for event in window.events_of("drain", "undrain"):
        (found.add if event.kind == "drain" else found.discard)(event.target.node)
    found |= {name for name, place in window.topology.places.items() if place.state != "in_service"}
    return frozenset(node for node in found if node is not None)
