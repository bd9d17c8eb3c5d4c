"""What is watched and what is not: one word for each (node, signal). Missing is a state, and it has three names.

not_configured: never seen on this node, though the kind of part is there: one line, no alarm. lost: it was seen and went.
not_applicable: the node has no such part (no GPU, no job). fresh: all its parts report; partial: some do.
Only signals that a detector needs, or that some node reports, are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from core.telemetry import Telemetry
from core.types import Floats, Target
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

STATES = ("not_applicable", "not_configured", "lost", "partial", "fresh")
# Parts that say of a page or of a node's setup what its own series say as well: once is enough.
SAYS_OF_OTHERS = ("exporter", "label")


class Coverage:
    """Keeps the last answer, to tell what changed."""

    def __init__(self, plugins: Mapping[str, DetectorPlugin], telemetry: Telemetry | None = None) -> None:
        self._plugins = dict(plugins)
        self._telemetry = telemetry
        groups = [group for plugin in self._plugins.values() for group in plugin.needs]
        self._needed = {name for group in groups for name in group if name in SIGNALS}
        # A group of needs is met by any of its signals: only one that stands alone is missed by itself.
        self._alone = {group[0] for group in groups if len(group) == 1}
        self._counts: _Counts | None = None
        self._blind: dict[str, tuple[tuple[str, ...], ...]] = {}
        self._places = _Places()

    def update(self, window: Window) -> list[dict[str, Any]]:
        """The rows whose state changed at this tick: what a detector needs and lacks, and what was lost or came back.

        Rows that start out fresh or not applicable are no news.
        """
        counts = _count(window, sorted(name for name in (self._needed | set(window.blocks)) - EVENT_SIGNALS
                                       if SIGNALS[name].kind not in SAYS_OF_OTHERS), self._places)
        news: list[dict[str, Any]] = []
        # Most ticks are like the one before, and a large site has tens of thousands of rows.
        if self._counts is None or not counts.same_as(self._counts):
            news = self._changed(counts)
        return news + self._blind_news(window)

    def _changed(self, fresh: _Counts) -> list[dict[str, Any]]:
        """Takes the counts; gives the rows that are news. Where nodes and signals are as before, only what changed is looked at."""
        former, self._counts = self._counts, fresh
        if former is None or (former.signals, former.nodes) != (fresh.signals, fresh.nodes):
            return self._anew(former, fresh)
        if self._telemetry is not None:
            moved = (former.ratios != fresh.ratios) & ~(np.isnan(former.ratios) & np.isnan(fresh.ratios))
            self._telemetry.amend("greylag_coverage_ratio", self._labelled(fresh, moved.T))
        turned = np.argwhere((fresh.states != former.states).T).tolist()  # by node, then by signal
        return [asdict(fresh.row(node, signal)) for node, signal in turned]

    def _anew(self, former: _Counts | None, fresh: _Counts) -> list[dict[str, Any]]:
        """As `_changed`, of other nodes or signals than before: rows that start out fresh or not applicable are no news."""
        known = {} if former is None else {(row.node, row.signal): row.state for row in former.rows()}
        if self._telemetry is not None:
            rows = self._labelled(fresh, ~np.isnan(fresh.ratios.T))
            self._telemetry.replace("greylag_coverage_ratio", {key: one for key, one in rows.items() if one is not None})
        news: list[dict[str, Any]] = []
        for row in fresh.rows():
            before = known.get((row.node, row.signal))
            quiet = before is None and (row.state in ("fresh", "not_applicable") or row.signal not in self._alone)
            if not quiet and before != row.state:
                news.append(asdict(row))
        return news

    @staticmethod
    def _labelled(counts: _Counts, chosen: NDArray[np.bool_]) -> dict[tuple[tuple[str, str], ...], float | None]:
        """Rows of the metric for the chosen [node, signal]; None where there is no ratio."""
        return {(("node", counts.nodes[node]), ("signal", counts.signals[signal])): _told(value)
                for (node, signal), value in zip(np.argwhere(chosen).tolist(), counts.ratios.T[chosen].tolist(), strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the last tick, by node and signal."""
        return [] if self._counts is None else [asdict(row) for row in self._counts.rows()]

    def _blind_news(self, window: Window) -> list[dict[str, Any]]:
        blind = {name: missing for name in sorted(self._plugins) if (missing := missing_needs(self._plugins[name], window))}
        news = [{"detector": name, "state": "not_configured", "needs": [list(group) for group in missing]}
                for name, missing in blind.items() if self._blind.get(name) != missing]
        news += [{"detector": name, "state": "fresh", "needs": []} for name in sorted(self._blind) if name not in blind]
        self._blind = blind
        return news


@dataclass(frozen=True, eq=False)
class _Counts:
    """values: int64[signal, node, 3], how many parts there are, ever spoke and are fresh."""

    signals: tuple[str, ...]
    nodes: tuple[str, ...]
    values: NDArray[np.int64]

    def same_as(self, other: _Counts) -> bool:
        return (self.signals, self.nodes) == (other.signals, other.nodes) and np.array_equal(self.values, other.values)

    @cached_property
    def states(self) -> NDArray[np.int64]:
        """int64[signal, node]: places in STATES."""
        parts, ever, fresh = self.values[..., 0], self.values[..., 1], self.values[..., 2]
        return np.asarray(np.select([parts == 0, ever == 0, fresh == 0, fresh < ever], [0, 1, 2, 3], 4), np.int64)

    @cached_property
    def ratios(self) -> Floats:
        """float64[signal, node]: the share of the parts with a fresh value; NaN where there are no parts."""
        parts = self.values[..., 0]
        return np.divide(self.values[..., 2], parts, out=np.full(parts.shape, np.nan), where=parts > 0)

    def row(self, node: int, signal: int) -> CoverageRow:
        """The row of a node and a signal, by their places."""
        return CoverageRow(self.nodes[node], self.signals[signal], STATES[self.states[signal, node]], _told(float(self.ratios[signal, node])))

    def rows(self) -> Iterator[CoverageRow]:
        """By node, then by signal."""
        for node, states, ratios in zip(self.nodes, self.states.T.tolist(), self.ratios.T.tolist(), strict=True):
            for signal, state, ratio in zip(self.signals, states, ratios, strict=True):
                yield CoverageRow(node, signal, STATES[state], _told(ratio))


def coverage(window: Window, signals: Sequence[str]) -> list[CoverageRow]:
    """A row for each node and signal, nodes in natural order. Nodes are those of the inventory in service, and those seen."""
    return list(_count(window, signals).rows())


class _Places:
    """The nodes, and where each part stands among them, kept as long as the windows show the same parts in the same places."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self.nodes: tuple[str, ...] = ()
        self.where: dict[str, NDArray[np.int64]] = {}
        self.counts: dict[str, NDArray[np.int64]] = {}  # int64[node]: how many parts of the kind stand on each

    def read(self, window: Window) -> None:
        """Brings them up to date."""
        of: tuple[object, ...] = (window.topology, *(x for kind, parts in sorted(window.entities.items()) for x in (kind, parts)))
        if len(of) == len(self._of) and all(a is b or (isinstance(a, str) and a == b) for a, b in zip(of, self._of, strict=True)):
            return
        names = {t.node for kind in window.entities for t in window.of_kind(kind) if t.node is not None}
        names |= {name for name, place in window.topology.places.items() if place.state == "in_service"}
        self.nodes = tuple(sorted(names, key=natural))
        index = {name: i for i, name in enumerate(self.nodes)}
        self.where = {kind: _node_numbers(window.of_kind(kind), index) for kind in window.entities}
        self.counts = {kind: np.bincount(at[at >= 0], minlength=len(names)) for kind, at in self.where.items()}
        self._of = of


def _count(window: Window, signals: Sequence[str], places: _Places | None = None) -> _Counts:
    places = places or _Places()
    places.read(window)
    nodes, where = places.nodes, places.where
    values = np.zeros((len(signals), len(nodes), 3), np.int64)
    for row, signal in enumerate(signals):
        at = where.get(SIGNALS[signal].kind)
        if at is None:
            continue
        block = window.block(signal)
        placed = at >= 0
        for column, chosen in enumerate((placed, placed & np.isfinite(block.age_seconds), placed & block.fresh())):
            everyone = np.array_equal(chosen, placed)
            values[row, :, column] = places.counts[SIGNALS[signal].kind] if everyone else np.bincount(at[chosen], minlength=len(nodes))
    return _Counts(tuple(signals), nodes, values)


def _node_numbers(parts: tuple[Target, ...], index: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([-1 if t.node is None else index[t.node] for t in parts], np.int64)


def _told(ratio: float) -> float | None:
    """As rows and the metric show it."""
    return None if math.isnan(ratio) else round(ratio, 4)
