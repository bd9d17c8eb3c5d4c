"""Which node of pairwise measurements is slow: one that is slow with every partner while its partners are fast with others.

A measurement of two nodes blames neither. A node that is fast with anybody is cleared; a slow pair of which one node is cleared
blames the other; a slow pair of two nodes that are fast with nobody cannot be told apart without one more pair.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from core.types import Evidence, Target, Verdict
from core.window import Window
from detectors import stats

SIGNAL = "link.pair_bytes_per_second"
BETWEEN = "<->"
DEGRADED = 0.6
ALIKE = 0.85  # pairs within this share of the best are fast: pairs of one fabric differ by a few percent

Pair = tuple[str, str]


def judge(window: Window, fault: str, share: float, pairs_min: int) -> list[Verdict]:
    """Verdicts on the nodes of the measured pairs. share: of what fast pairs reach, below which a pair is slow. pairs_min: fast
    pairs that there must be."""
    measured = _measured(window)
    values = {pair: value for pair, (value, _) in measured.items()}
    best = max(values.values(), default=0.0)
    fast = {pair for pair, value in values.items() if value >= ALIKE * best}
    if len(fast) < pairs_min:
        return []
    right = float(np.median([values[pair] for pair in fast]))
    slow = {pair for pair, value in values.items() if value < share * right}
    cleared = {node for pair in fast for node in pair}
    guilty: dict[str, list[Pair]] = {}
    open_pairs: list[Pair] = []
    for pair in sorted(slow):
        suspects = [node for node in pair if node not in cleared]
        if len(suspects) == 1:
            guilty.setdefault(suspects[0], []).append(pair)
        elif len(suspects) == 2:
            open_pairs.append(pair)
    # A pair that holds a guilty node needs no other one.
    open_pairs = [pair for pair in open_pairs if not guilty.keys() & set(pair)]
    doubtful = [(Target("node", node), 0.5, "slow_pair") for pair in open_pairs for node in pair]
    out = [_node(node, pairs, measured, right, fault) for node, pairs in sorted(guilty.items(), key=lambda g: (-len(g[1]), g[0]))]
    if out and doubtful:
        out[0] = Verdict(out[0].target, fault, "faulty", DEGRADED, out[0].evidence, out[0].reason, True, out[0].onset_at, tuple(doubtful))
    elif doubtful:
        out = [_pair(pair, measured, right, fault) for pair in open_pairs]
    return out + [Verdict(Target("node", node), fault, "clear", reason="clear") for node in sorted(cleared - guilty.keys())]


def _measured(window: Window) -> dict[Pair, tuple[float, int]]:
    """The newest value of each pair, and its time."""
    block = window.blocks.get(SIGNAL)
    if block is None or not len(window.times):
        return {}
    known = ~np.isnan(block.values)
    out: dict[Pair, tuple[float, int]] = {}
    for e in np.flatnonzero(known.any(axis=0)):
        a, _, b = (block.entities[e].device or "").partition(BETWEEN)
        row = int(np.flatnonzero(known[:, e])[-1])
        first = window.end - 1000.0 * block.age_seconds[e] if np.isfinite(block.age_seconds[e]) else float(window.times[row])
        out[a, b] = (float(block.values[row, e]), int(first))
    return out


def _rows(pairs: list[Pair], measured: Mapping[Pair, tuple[float, int]], right: float) -> tuple[Evidence, ...]:
    return tuple(stats.evidence(SIGNAL, measured[pair][0], right, "fast pairs", f"{pair[0]} with {pair[1]}") for pair in pairs[:6])


def _node(node: str, pairs: list[Pair], measured: Mapping[Pair, tuple[float, int]], right: float, fault: str) -> Verdict:
    return Verdict(Target("node", node), fault, "faulty", DEGRADED, _rows(pairs, measured, right), "slow_pairs", True,
                   max(measured[pair][1] for pair in pairs))


def _pair(pair: Pair, measured: Mapping[Pair, tuple[float, int]], right: float, fault: str) -> Verdict:
    """Two nodes that cannot be told apart: the path between them."""
    suspects = tuple((Target("node", node), 0.5, "slow_pair") for node in pair)
    return Verdict(Target("link", device=BETWEEN.join(pair)), fault, "faulty", DEGRADED, _rows([pair], measured, right), "slow_pair",
                   True, measured[pair][1], suspects)
