"""Nodes whose client of a shared file system is slow alone: its calls take longer than before at like load, those of the other
clients do not, and tasks of the node wait for I/O.

What is slow for many clients is the storage's (`storage_slow`). A client's average wait is a millisecond, so that a longer one
alone costs nobody anything: the node's own tasks must be seen to wait (PSI).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Evidence, Target
from core.window import Window
from detectors import service_times, shared, stats
from detectors.stats import Bools, Ints
from detectors.storage_slow import storage_of

WAIT, PRESSURE = "storage.wait_seconds", "node.io_waiting_ratio"
WINDOW_SECONDS = 120.0
# Sources as for `storage_slow`: how many times as long; other clients that must be well, and how well.
FACTOR, OTHERS_MIN, OTHERS = 1.7, 3, 1.3
TARGETS = 0.5       # share of the storage's targets that this client finds slow
# PSI is healthy below 0.05 (signals.md §4); other nodes of the storage wait less by this factor.
WAITING, ABOVE = 0.1, 4.0


@dataclass(frozen=True, slots=True)
class Client:
    """mount: the client as a part; onset: ms; evidence: how long its calls take, and that tasks wait."""

    mount: Target
    onset: int
    evidence: tuple[Evidence, ...]


def slow_alone(window: Window) -> tuple[dict[str, Client], frozenset[str]]:
    """By node, the clients that are slow alone; and the nodes whose clients are as quick as ever."""
    block = window.block(WAIT)
    if WAIT not in window.blocks or not len(window.times):
        return {}, frozenset()
    known = block.fresh() & ~np.isnan(block.last)
    known &= shared.loud(window, block.entities)
    of_nodes, places = shared.node_names(block.entities)
    known &= np.array([name is not None for name in of_nodes], bool)[places]
    waits = _waits(window)
    if not waits:
        return {}, frozenset(str(of_nodes[i]) for i in np.unique(places[known]).tolist())
    ticks = window.ticks(WINDOW_SECONDS)
    load = service_times.node_load(window, block.entities)
    found = service_times.compared(block.values, load, stats.interval_ticks(block, window.step_seconds), ticks)
    factor = np.where(known, stats.ratio(found.now, found.before), np.nan)
    clients: dict[tuple[str, str], list[int]] = {}
    names: dict[str, str] = {}
    for e in np.flatnonzero(~np.isnan(factor)):
        part = block.entities[e]
        target = part.device or ""
        if target not in names:
            names[target] = storage_of(window, target, part.node)
        clients.setdefault((names[target], part.node or ""), []).append(int(e))
    level = {key: float(np.median(factor[columns])) for key, columns in clients.items()}
    out: dict[str, Client] = {}
    others = stats.peers(np.array(list(level.values())), stats.codes(name for name, _ in level))
    for i, ((storage, node), columns) in enumerate(clients.items()):
        slow = [e for e in columns if factor[e] >= FACTOR]
        if (len(slow) < max(1.0, TARGETS * len(columns)) or others.n[i] < OTHERS_MIN or others.middle[i] > OTHERS
                or node not in waits):
            continue
        out[node] = _client(window, storage, node, np.array(slow, np.int64), found, waits[node])
    quick = frozenset(node for (_, node), value in level.items() if value < 1.0 + (FACTOR - 1.0) / 2 and node not in waits)
    return out, quick - out.keys()


def _waits(window: Window) -> dict[str, Evidence]:
    """By node, how much its tasks wait for I/O, where that is far more than on the others."""
    span = stats.span_of(window, PRESSURE, WINDOW_SECONDS)
    nodes = window.of_kind("node")
    others = stats.peers(span.mean, np.zeros(len(nodes), np.int64))
    high: Bools = stats.above(span.low, WAITING) & stats.above(span.mean, ABOVE * np.maximum(others.middle, 0.01))
    return {nodes[e].node or "": stats.evidence(PRESSURE, float(span.mean[e]), float(others.middle[e]), "median of other nodes")
            for e in np.flatnonzero(high)}


def _client(window: Window, storage: str, node: str, slow: Ints, found: service_times.Times, waits: Evidence) -> Client:
    values = window.values(WAIT)[:, slow]
    over = stats.above(values, FACTOR * found.before[slow]).mean(axis=1) >= 0.5
    onset = int(stats.run_start(np.asarray(over)[:, None], window.times, 4)[0])
    now, before = float(np.median(found.now[slow])), float(np.median(found.before[slow]))
    row = stats.evidence(WAIT, now, before, "the same client before, at like load",
                         f"calls to {len(slow)} targets of {storage}; other clients are as quick as ever")
    mounts = [t for t in window.of_kind("mount") if t.node == node and (t.device or "").strip("/") == storage.strip("/")]
    return Client(mounts[0] if mounts else Target("mount", node, storage), onset, (row, waits))
