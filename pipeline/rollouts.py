"""What was rolled out to nodes before they fell ill: a driver, a firmware, a kernel, as a label that the inventory need not know.

Changes come as `config_change` events: those that a node's own labels show (`pipeline.changes`), and those that people post.
A fact of a node that is ill counts where it changed within the day before its onset; a node that is well has it where it shows it
or changed to it in that time. Such facts then are labels as the inventory's are, and have to separate the ill from the well alike.
What a part of the fleet has had for ever, or got after it fell ill, is no rollout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from core.types import Finding
from core.window import Place, Topology, Window
from pipeline.changes import SIGNALS

DAY_MS = 86_400_000
# A driver is there before its exporter starts and its page is read: a GPU can fail before anybody sees the new version.
SEEN_LATE_MS = 600_000
HALF = 0.5
# A part that is another now, not another setting of the same one.
NO_ROLLOUT = frozenset({"gpu model"})

Label = tuple[str, str]


def with_rollouts(window: Window, findings: Sequence[Finding]) -> Window:
    """The window, with what was rolled out before these findings among the labels of its nodes; the same one where nothing was."""
    changed = window.once("changes of nodes", lambda: _changes(window))
    onsets: dict[str, list[int]] = {}
    for finding in findings:
        if finding.target.node is not None:
            onsets.setdefault(finding.target.node, []).append(finding.onset_at)
    if not changed or not onsets:
        return window
    first, last = min(map(min, onsets.values())) - DAY_MS, max(map(max, onsets.values())) + SEEN_LATE_MS
    fresh: dict[Label, set[str]] = {}
    had: dict[Label, set[str]] = {}
    for node, label, at in changed:
        if first <= at <= last:
            had.setdefault(label, set()).add(node)
        if any(onset - DAY_MS <= at <= onset + SEEN_LATE_MS for onset in onsets.get(node, ())):
            fresh.setdefault(label, set()).add(node)
    if not fresh:
        return window
    shown = _shown(window, fresh.keys())
    nodes_of = {}
    for label, ill in fresh.items():
        nodes = had[label] | shown.get(label, set())
        if len(ill) >= HALF * len(nodes & onsets.keys()):
            nodes_of[label] = nodes
    return replace(window, topology=_labelled(window.topology, nodes_of)) if nodes_of else window


def _changes(window: Window) -> tuple[tuple[str, Label, int], ...]:
    """(node, what it changed to, ms). One without nodes is everybody's, and separates nothing."""
    out = []
    for event in window.events_of("config_change"):
        what, new = str(event.fields.get("what")), event.fields.get("new")
        if event.target.node is None or what in NO_ROLLOUT or (new is None and event.fields.get("old") is not None):
            continue
        # Where a node shows several values (a firmware of each board), its own event has them in a row.
        values = ["changed"] if new is None else str(new).split(", ") if event.fields.get("by") is None else [str(new)]
        out += [(event.target.node, (what, value), event.at) for value in values]
    return tuple(out)


def _shown(window: Window, labels: Collection[Label]) -> dict[Label, set[str]]:
    out: dict[Label, set[str]] = {}
    parts = window.of_kind("label")
    mask = np.logical_or.reduce([window.block(name).fresh() & (window.last(name) > 0) for name in SIGNALS])
    for i in np.flatnonzero(mask):
        name, _, value = (parts[i].device or "").partition("=")
        node = parts[i].node
        if node is not None and (name, value) in labels:
            out.setdefault((name, value), set()).add(node)
    return out


def _labelled(topology: Topology, nodes_of: dict[Label, set[str]]) -> Topology:
    places = dict(topology.places)
    for label, nodes in sorted(nodes_of.items()):
        for node in nodes:
            place = places.get(node) or Place(node)
            if label not in place.labels:
                places[node] = replace(place, labels=(*place.labels, label))
    return replace(topology, places=places)
