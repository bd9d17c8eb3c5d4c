"""What is watched and what is not: one word for each (node, signal). Missing is a state, and it has three names.

not_configured: never seen on this node, though the kind of part is there: one line, no alarm. lost: it was seen and went.
not_applicable: the node has no such part (no GPU, no job). fresh: all its parts report; partial: some do.
Only signals that a detector needs, or that some node reports, are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from core.telemetry import Telemetry
from core.types import Target
from core.window import Window
from pipeline.detect import missing_needs
from pipeline.ring_parts import natural

EVENT_SIGNALS = frozenset({"gpu.xid"})  # absent until the first one: its absence says nothing


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """ratio: share of the node's parts of that kind with a fresh value, null where no part is known."""

    node: str
    signal: str
    state: str
    ratio: float | None


class Coverage:
    """Keeps the last answer, to tell what changed."""

    def __init__(self, plugins: Mapping[str, DetectorPlugin], telemetry: Telemetry | None = None) -> None:
        self._plugins = dict(plugins)
        self._telemetry = telemetry
        self._rows: dict[tuple[str, str], CoverageRow] = {}
        self._blind: dict[str, tuple[tuple[str, ...], ...]] = {}

    def update(self, window: Window) -> list[dict[str, Any]]:
        """The rows whose state changed at this tick: what a detector needs and lacks, and what was lost or came back.

        Rows that start out fresh or not applicable are no news.
        """
        wanted = self._needed() | set(window.blocks)
        fresh = {(row.node, row.signal): row for row in coverage(window, sorted(wanted - EVENT_SIGNALS))}
        news: list[dict[str, Any]] = []
        for key, row in fresh.items():
            before = self._rows.get(key)
            quiet = before is None and (row.state in ("fresh", "not_applicable") or not self._matters(row.signal))
            if not quiet and (before is None or before.state != row.state):
                news.append(asdict(row))
        self._rows = fresh
        news += self._blind_news(window)
        if self._telemetry is not None:
            self._telemetry.replace("greylag_coverage_ratio", {
                (("node", row.node), ("signal", row.signal)): row.ratio for row in fresh.values() if row.ratio is not None})
        return news

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the last tick, by node and signal."""
        return [asdict(row) for row in self._rows.values()]

    def _needed(self) -> set[str]:
        return {name for p in self._plugins.values() for group in p.needs for name in group if name in SIGNALS}

    def _matters(self, signal: str) -> bool:
        """A group of needs is met by any of its signals: only one that stands alone is missed by itself."""
        return any(group == (signal,) for p in self._plugins.values() for group in p.needs)

    def _blind_news(self, window: Window) -> list[dict[str, Any]]:
        blind = {name: missing for name in sorted(self._plugins) if (missing := missing_needs(self._plugins[name], window))}
        news = [{"detector": name, "state": "not_configured", "needs": [list(group) for group in missing]}
                for name, missing in blind.items() if self._blind.get(name) != missing]
        news += [{"detector": name, "state": "fresh", "needs": []} for name in sorted(self._blind) if name not in blind]
        self._blind = blind
        return news


def coverage(window: Window, signals: list[str]) -> list[CoverageRow]:
    """A row for each node and signal, nodes in natural order. Nodes are those of the inventory in service, and those seen."""
    places = window.topology.places
    names = {t.node for kind in window.entities for t in window.of_kind(kind) if t.node is not None}
    names |= {name for name, place in places.items() if place.state == "in_service"}
    nodes = sorted(names, key=natural)
    index = {name: i for i, name in enumerate(nodes)}
    where = {kind: _node_numbers(window.of_kind(kind), index) for kind in window.entities}
    out: list[list[CoverageRow]] = [[] for _ in nodes]
    for signal in signals:
        kind = SIGNALS[signal].kind
        at = where.get(kind, np.zeros(0, np.int64))
        block = window.block(signal)
        placed = at >= 0
        parts = np.bincount(at[placed], minlength=len(nodes))
        ever = np.bincount(at[placed & np.isfinite(block.age_seconds)], minlength=len(nodes))
        fresh = np.bincount(at[placed & block.fresh()], minlength=len(nodes))
        for i, node in enumerate(nodes):
            out[i].append(_row(node, signal, int(parts[i]), int(ever[i]), int(fresh[i])))
    return [row for rows in out for row in rows]


def _node_numbers(parts: tuple[Target, ...], index: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([-1 if t.node is None else index[t.node] for t in parts], np.int64)


def _row(node: str, signal: str, parts: int, ever: int, fresh: int) -> CoverageRow:
    if not parts:
        return CoverageRow(node, signal, "not_applicable", None)
    if not ever:
        return CoverageRow(node, signal, "not_configured", 0.0)
    state = "lost" if not fresh else "fresh" if fresh >= ever else "partial"
    return CoverageRow(node, signal, state, round(fresh / parts, 4))
