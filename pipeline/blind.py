"""Blind spots: faults that cannot be judged on some nodes, and the signals that are missing for it.

From the rows of coverage: a detector speaks on a node where of each group of its needs at least one signal is fresh there.
A need that is a kind of event (a kernel line) is met by silence as well, so it is left to whoever knows which logs are read;
and what coverage has no rows of (exporters, labels) to whoever has the window.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from pipeline.coverage import EVENT_SIGNALS, SAYS_OF_OTHERS

SPEAKS = ("fresh", "partial")
MOST_NAMED = 8
Seen = dict[str, dict[str, str]]  # node → signal → state


def by_node(rows: Iterable[Mapping[str, Any]], nodes: Collection[str] | None = None) -> Seen:
    """Coverage rows by node and signal; of these nodes where some are given."""
    out: Seen = {}
    for row in rows:
        if nodes is None or row["node"] in nodes:
            out.setdefault(row["node"], {})[row["signal"]] = row["state"]
    return out


def group_state(group: Sequence[str], seen: Mapping[str, str]) -> str:
    """How a group of needs stands on a node: fresh | lost | not_configured | not_applicable | event (something else than the rows
    may tell it)."""
    states = [_state(name, seen) for name in group if name in SIGNALS]
    if any(state in SPEAKS for state in states):
        return "fresh"
    if any(name not in SIGNALS or (SIGNALS[name].kind in SAYS_OF_OTHERS and name not in seen) for name in group):
        return "event"
    if "lost" in states:
        return "lost"
    return "not_configured" if "not_configured" in states else "not_applicable"


def _state(signal: str, seen: Mapping[str, str]) -> str:
    """A signal that is absent until something happens has no row: there it is as applicable as its kind of part."""
    if signal not in EVENT_SIGNALS or signal in seen:
        return seen.get(signal, "not_configured")
    kind = SIGNALS[signal].kind + "."
    return "not_configured" if any(s.startswith(kind) and state != "not_applicable" for s, state in seen.items()) else "not_applicable"


def blind_spots(plugins: Mapping[str, DetectorPlugin], rows: Iterable[Mapping[str, Any]],
                nodes: Collection[str]) -> list[dict[str, Any]]:
    """A row for each fault and missing group: {fault, state: lost | not_configured | unknown, any_of, nodes, count}; what was
    lost first. Nodes of which nothing at all is known are one row with the fault null."""
    seen = by_node(rows, set(nodes))
    found: dict[tuple[str | None, str, tuple[str, ...]], list[str]] = {}
    for node in sorted(nodes):
        if node not in seen:
            found.setdefault((None, "unknown", ()), []).append(node)
            continue
        for plugin in plugins.values():
            for group in plugin.needs:
                state = group_state(group, seen[node])
                if state in ("lost", "not_configured"):
                    found.setdefault((plugin.fault, state, group), []).append(node)
    order = {"unknown": 0, "lost": 1, "not_configured": 2}
    return [{"fault": fault, "state": state, "any_of": list(group), "nodes": names[:MOST_NAMED], "count": len(names)}
            for (fault, state, group), names in sorted(found.items(), key=lambda item: (order[item[0][1]], item[0][0] or "", item[0][2]))]
