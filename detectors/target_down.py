"""A target that answered and does not any more, while its node goes on.

One exporter of a node: the node answers through others. All exporters of a node at once: the node itself, one incident.
Nearly all targets of the site at once: what asks them, or the network between, is the suspect and no target. So it is where
most exporters of one kind stop answering within moments of each other while their nodes go on: they share what fails (a name
server, a proxy, a release), and not one of them is the culprit. What is no
fault: a restart of some seconds, a node that is drained, rebooted or gone from the inventory, a target that discovery has
removed (nobody asks it any more), one that never answered, and the end of a recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Target, Verdict
from core.window import Window
from detectors import shared, stats
from detectors.exporters import ANSWERS, BROKEN, DOWN, Exporters, exporters_of, withdrawn
from detectors.stats import Bools, Ints

FAULT = "target_down"
TICKET, DEGRADED = 0.3, 0.6
SITE = Target("collector", device="all targets")


@dataclass(frozen=True)
class Params:
    """Sources: our judgement, by how long things take: an exporter restarts within a minute, a node boots within ten.

    down_seconds, missed_intervals: how long an exporter must not answer, both, from the first reading that failed: two intervals on the
    third one fails, whatever the interval. node_seconds: the same for all of a node's.
    silent_seconds: the same in a recording that does not say whether it was asked: a hole is often the recorder's own.
    site_share, site_nodes: from this share of the nodes (and so many), all silent at once, the collector is the suspect.
    kind_share, kind_nodes: the same of the exporters of one kind; moments_seconds: within which most of them stopped (two
    readings a minute apart).
    """

    down_seconds: float = 60.0
    missed_intervals: float = 2.0
    node_seconds: float = 600.0
    silent_seconds: float = 900.0
    site_share: float = 0.8
    site_nodes: int = 2
    kind_share: float = 0.5
    kind_nodes: int = 4
    moments_seconds: float = 120.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node with a target that answers or did."""
    if not len(window.times) or not window.of_kind("exporter"):
        return []
    found = exporters_of(window)
    refused, silent = found.state == DOWN, _silent(window, found)
    down = refused | silent
    since = np.where(silent, window.end - 1000.0 * np.where(np.isfinite(found.age_seconds), found.age_seconds, 0.0), found.since)
    since = since.astype(np.int64)
    away = withdrawn(window)
    watched = {node: columns for node, columns in found.by_node.items() if node not in away}
    gone = {node for node, columns in watched.items() if refused[columns].all()}
    if len(gone) >= max(params.site_nodes, params.site_share * len(watched)):
        return _site(window, watched, gone, since, params)
    together = {} if len(watched) < params.kind_nodes else _together(window, watched, gone, found, down, since, params)
    out = _kinds(window, together, len(watched), since, params)
    for lost in together.values():
        watched = {node: np.setdiff1d(mine, lost) for node, mine in watched.items()}
    for node, columns in sorted(watched.items()):
        if not len(columns):
            continue
        if node in gone:
            verdict = _whole_node(window, node, columns, since, params)
        elif node in window.silent_nodes:
            continue
        else:
            verdict = _some(window, node, columns, found, down, since, params)
        if verdict is not None:
            out.append(verdict)
    if not together and any(v.state == "clear" for v in out):
        out.append(Verdict(SITE, FAULT, "clear", reason="clear"))
    return out


def _together(window: Window, watched: dict[str, Ints], gone: set[str], found: Exporters, down: Bools, since: Ints,
              p: Params) -> dict[str, Ints]:
    """By kind (the name of the scrape job), the columns of exporters that stopped answering within moments of each other: most
    of their kind, on nodes that go on."""
    if down.sum() < p.kind_nodes:
        return {}
    kinds: dict[str, list[int]] = {}
    for node, columns in watched.items():
        if node not in gone and node not in window.silent_nodes:
            for e in columns.tolist():
                kinds.setdefault((found.parts[e].device or "").partition("/")[0], []).append(e)
    out: dict[str, Ints] = {}
    for kind, every in kinds.items():
        columns = np.array(every, np.int64)
        lost = columns[down[columns]]
        if len(lost) < p.kind_nodes:
            continue
        close = np.abs(since[lost] - np.median(since[lost])) <= 500 * p.moments_seconds
        if close.sum() >= max(p.kind_nodes, p.kind_share * len(columns)):
            out[kind] = lost[close]
    return out


def _kinds(window: Window, together: dict[str, Ints], nodes: int, since: Ints, p: Params) -> list[Verdict]:
    """One verdict on what the exporters of each kind share."""
    late = {kind: mine for kind, mine in together.items() if window.end - int(since[mine].max()) >= 1000 * p.down_seconds}
    if not late:
        return []
    rows = tuple(stats.evidence("exporter.state", DOWN, ANSWERS, "targets that answer",
                                f"{kind} stopped answering on {len(mine)} of {nodes} nodes within moments: what asks them, or "
                                "what they share, is the suspect") for kind, mine in sorted(late.items()))
    start = min(int(since[mine].min()) for mine in late.values())
    return [Verdict(SITE, FAULT, "faulty", DEGRADED, rows, "one_kind_at_once", onset_at=start)]


def _silent(window: Window, found: Exporters) -> Bools:
    """Targets of which nothing comes any more, in a recording: live, a target that is asked always gives an answer or a
    failure, so that one of which nothing comes is one that nobody asks. The rest of its node must go on."""
    lag = window.block("collector.lag_seconds")
    nothing = np.zeros(len(found.parts), bool)
    if not found.silent.any() or bool(lag.fresh().any()):
        return nothing
    places = window.topology.places
    for node, columns in found.by_node.items():
        if not found.silent[columns].any() or node in window.silent_nodes or (places and node not in places):
            continue
        if (found.state[columns] <= BROKEN).any() or _speaks(window, node):
            nothing[columns] = found.silent[columns]
    return nothing


def _speaks(window: Window, node: str) -> bool:
    """Anything else of the node is fresh: a rank's own word, or a line of a log within the last minute."""
    for kind in ("rank", "gpu", "nic", "node"):
        columns = shared.on_nodes(window.of_kind(kind), (node,))
        for name, block in window.blocks.items() if len(columns) else ():
            if name.startswith(f"{kind}.") and bool(block.fresh()[columns].any()):
                return True
    return any(e.target.node == node for e in reversed(window.events) if e.at > window.end - 60_000)


def _whole_node(window: Window, node: str, columns: Ints, since: Ints, p: Params) -> Verdict | None:
    """All targets of the node refuse: the node. It may be booting."""
    start = int(since[columns].max())
    if window.end - start < 1000 * p.node_seconds:
        return None
    row = Evidence("exporter.state", "enum", DOWN, ANSWERS, "targets that answer",
                   f"none of the node's {len(columns)} targets has answered for {(window.end - start) / 60000:.0f} minutes")
    return Verdict(Target("node", node), FAULT, "faulty", DEGRADED, (row,), "node_unreachable", onset_at=start)


def _some(window: Window, node: str, columns: Ints, found: Exporters, down: Bools, since: Ints, p: Params) -> Verdict | None:
    """Some of the node's targets are down, others answer."""
    lost = [int(e) for e in columns[down[columns]]]
    if not lost:
        answering = bool((found.state[columns] <= BROKEN).any())
        return Verdict(Target("node", node), FAULT, "clear", reason="clear") if answering else None
    interval = window.block("exporter.state").interval_seconds
    needed = np.fmax(p.down_seconds, p.missed_intervals * np.nan_to_num(interval))
    needed = np.where(found.state == DOWN, needed, np.fmax(needed, p.silent_seconds))
    late = [e for e in lost if window.end - since[e] >= 1000 * needed[e]]
    target = Target("node", node)
    if not late:
        return None
    rows = tuple(_row(window, found, e, int(since[e])) for e in late[:6])
    return Verdict(target, FAULT, "faulty", TICKET, rows, "exporter_down", onset_at=int(min(since[e] for e in late)))


def _row(window: Window, found: Exporters, e: int, since: int) -> Evidence:
    what = "has given nothing" if np.isnan(found.state[e]) else "has not answered"
    return Evidence("exporter.state", "enum", DOWN, ANSWERS, "a target that answers",
                    f"{found.parts[e].device} {what} for {(window.end - since) / 1000:.0f} s")


def _site(window: Window, watched: dict[str, Ints], gone: set[str], since: Ints, p: Params) -> list[Verdict]:
    """One verdict on what asks."""
    start = max(int(since[watched[node]].max()) for node in gone)
    if window.end - start < 1000 * p.down_seconds:
        return []
    row = stats.evidence("exporter.state", DOWN, ANSWERS, "targets that answer",
                         f"no target of {len(gone)} of {len(watched)} nodes answers: what asks them, or the network between, "
                         "is the suspect")
    return [Verdict(SITE, FAULT, "faulty", DEGRADED, (row,), "whole_site", onset_at=start)]


PLUGIN = DetectorPlugin(
    name="target_down", fault=FAULT, judge=judge, params=Params, needs=(("exporter.state",),),
    hold=Hold(on=1, of=1, off=4),  # how long it did not answer is asked by seconds; any answer begins anew
    must_not=("a restart of some seconds", "a node that is drained, rebooted or retired", "a target that discovery removed",
              "a target that never answered", "the end of a recording", "a site of which nothing answers: that is the collector"),
)
