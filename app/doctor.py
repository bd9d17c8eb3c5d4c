"""`greylag doctor`: which faults can be judged on this site today, and what would add each other one, at what cost in series.

Judged means: on a node, of each group of signals that a detector of the fault needs, at least one is fresh there, or the log
that tells it is followed. Nothing here guesses: needs come from the detectors, exporters' names from the sources' tables,
and what is there from the running site's coverage. A fault without fresh signals is not healthy, it is not watched.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from app import wiring
from core.faults import faults
from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from core.window import Window
from pipeline.blind import SPEAKS, Seen, by_node, group_state
from pipeline.coverage import EVENT_SIGNALS, SAYS_OF_OTHERS

PREFERRED = ("dcgm", "node_exporter", "trainer", "efa", "lustre", "infiniband_exporter", "slurm", "kube_state_metrics", "vllm")
USUAL_PARTS = {"gpu": 8, "nic": 8, "rank": 8, "node": 1}  # a node of which nothing is seen yet: eight GPUs, NICs and ranks
KERNEL_EVENTS = ("xid", "gpu_lost", "oom", "kernel_error", "link_up", "link_down")
UNCOUNTED = ("label", "service", "exporter")  # their series are not one a part
TRAINER_EVENTS = ("nccl_watchdog", "nccl_flight_recorder", "overflow", "nonfinite", "job_phase", "checkpoint")
# Collectors of node_exporter that are off by default (signals.md §4), by how their metrics start.
NODE_FLAGS = {"node_ethtool_": "--collector.ethtool", "node_mountstats_": "--collector.mountstats",
              "node_pcidevice_": "--collector.pcidevice", "node_systemd_": "--collector.systemd"}
# What dcgm-exporter's default list of fields has (signals.md §2, column D), without `DCGM_FI_`.
DCGM_DEFAULT = frozenset({
    "DEV_SM_CLOCK", "DEV_MEM_CLOCK", "DEV_GPU_TEMP", "DEV_MEMORY_TEMP", "DEV_POWER_USAGE", "DEV_TOTAL_ENERGY_CONSUMPTION",
    "DEV_GPU_UTIL", "DEV_XID_ERRORS", "DEV_PCIE_REPLAY_COUNTER", "DEV_CORRECTABLE_REMAPPED_ROWS",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_FAILURE", "DEV_FB_FREE", "DEV_FB_USED", "PROF_GR_ENGINE_ACTIVE",
    "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE", "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"})
RUN = {"dcgm": "dcgm-exporter", "node_exporter": "node_exporter", "efa": "the EFA exporter", "lustre": "lustre_exporter",
       "infiniband_exporter": "infiniband_exporter (switches)", "slurm": "a Slurm exporter", "kube_state_metrics": "kube-state-metrics",
       "vllm": "vLLM's own page", "amd": "AMD's device-metrics-exporter", "snmp": "snmp_exporter (switches)", "redfish": "a Redfish exporter"}
MOST_WAYS = 2
STATES = ("judged", "partly", "blind", "no_detector")


@dataclass(frozen=True, slots=True)
class _Way:
    """A metric of an exporter that carries a signal."""

    source: str
    metric: str
    signal: str


@cache
def _ways() -> dict[str, tuple[_Way, ...]]:
    """By signal: what carries it, in the order of the sources' tables; one spelling for each source."""
    found: dict[str, dict[str, _Way]] = {}
    for name, plugin in wiring.sources().items():
        described = getattr(importlib.import_module(f"collectors.sources.{name}"), "described", None)
        for row in described() if described is not None and plugin.map_series is not None else ():
            metric = row.metric.replace("[amd_]", "")
            if metric not in plugin.second_choice:
                found.setdefault(row.meaning.signal, {}).setdefault(name, _Way(name, metric, row.meaning.signal))
    return {signal: tuple(by_source.values()) for signal, by_source in found.items()}


@dataclass(frozen=True, slots=True)
class _Site:
    """What is known of the site. seen: node → signal → state. fresh: signals with a fresh value anywhere. parts: parts of a
    kind on a node that has any. logs: kinds of logs that are followed or spoke. order: sources, the likeliest first."""

    seen: Seen
    fresh: frozenset[str]
    parts: Mapping[str, int]
    logs: frozenset[str]
    order: tuple[str, ...]
    present: frozenset[str]

    @property
    def nodes(self) -> int:
        return len(self.seen)


def _said_of_others(seen: Seen, window: Window) -> None:
    """Adds what coverage has no rows of: the signals of exporters and labels, on each node where one is fresh."""
    for name in SIGNALS:
        if SIGNALS[name].kind in SAYS_OF_OTHERS:
            block = window.blocks.get(name)
            here = set() if block is None else {block.entities[i].node for i in block.fresh().nonzero()[0]}
            for node, states in seen.items():
                states[name] = "fresh" if node in here else "not_configured"


def _site(rows: Iterable[Mapping[str, Any]], window: Window | None, logs: Collection[str]) -> _Site:
    seen = by_node(rows)
    if window is not None:
        _said_of_others(seen, window)
    fresh = {signal for states in seen.values() for signal, state in states.items() if state in SPEAKS}
    parts: dict[str, int] = {}
    spoke, order = set(logs), list(PREFERRED)
    if window is not None:
        fresh |= {name for name, block in window.blocks.items() if bool(block.fresh().any())}
        for kind in window.entities:
            on = Counter(t.node for t in window.of_kind(kind) if t.node is not None)
            if on:
                parts[kind] = max(1, round(sum(on.values()) / len(on)))
        spoke |= {_log_of(event.kind) for event in window.events if event.kind in (*KERNEL_EVENTS, *TRAINER_EVENTS)}
        if any(t.id and not t.id.startswith(("GPU-", "MIG-")) for t in window.of_kind("gpu")):
            order.insert(0, "amd")
        if any((t.device or "").startswith("rdmap") for t in window.of_kind("nic")):
            order.insert(0, "efa")
    shows = {"dcgm": "gpu.power_watts" if "amd" not in order else "", "node_exporter": "node.load1", "trainer": "rank.step"}
    present = frozenset(source for source, signal in shows.items() if signal in fresh)
    return _Site(seen, frozenset(fresh), parts, frozenset(spoke), tuple(dict.fromkeys(order)), present)


def document(plugins: Mapping[str, DetectorPlugin], rows: Iterable[Mapping[str, Any]], window: Window | None,
             logs: Collection[str]) -> dict[str, Any]:
    """The whole examination as JSON types: {nodes, logs, faults: [{fault, state, nodes_judged, nodes_blind, missing, sharper}]}.

    rows: of the coverage. logs: kinds of logs that the configuration follows (kernel, trainer).
    """
    site = _site(rows, window, logs)
    found = [_fault(name, [p for p in plugins.values() if p.fault == name], site) for name in faults()]
    return {"nodes": site.nodes, "logs": sorted(site.logs), "faults": found}


def _fault(name: str, plugins: Sequence[DetectorPlugin], site: _Site) -> dict[str, Any]:
    if not plugins:
        return {"fault": name, "state": "no_detector", "nodes_judged": 0, "nodes_blind": 0, "missing": [], "sharper": []}
    judged = blind = 0
    lacking: Counter[tuple[str, ...]] = Counter()
    for states in site.seen.values():
        found = [groups for plugin in plugins if (groups := _lacks(plugin, states, site)) is not None]
        if not found:
            continue  # the node has no such part
        best = min(found, key=len)
        judged, blind = judged + (not best), blind + bool(best)
        lacking.update(best)
    state = "judged" if judged and not blind else "partly" if judged else "blind"
    if not judged and not blind:
        # What stands on no node (jobs, Greylag's collectors, switches), or a kind of part of which none is seen yet.
        groups = min(([g for g in p.needs if not _met_anywhere(g, site)] for p in plugins), key=len)
        state = "blind" if groups else "judged"
        lacking.update(dict.fromkeys(groups, 0))
    return {"fault": name, "state": state, "nodes_judged": judged, "nodes_blind": blind,
            "missing": [{"any_of": list(group), "nodes": n, "add": _adds(group, site)} for group, n in sorted(lacking.items())],
            "sharper": _sharper(plugins, site) if judged or state == "judged" else []}


def _lacks(plugin: DetectorPlugin, states: Mapping[str, str], site: _Site) -> list[tuple[str, ...]] | None:
    """The groups of needs that a node lacks; None where it has no part to which they apply."""
    lacking = []
    for group in plugin.needs:
        state = group_state(group, states)
        if state == "event":  # no signal of it is fresh, a log may tell it
            signals = [name for name in group if name in SIGNALS]
            state = group_state(signals, states) if signals else "not_configured"
            if state != "not_applicable" and _log_tells(group, site):
                continue
        if state == "not_applicable":
            return None
        if state != "fresh":
            lacking.append(group)
    return lacking


def _log_of(event: str) -> str:
    return "trainer" if event in TRAINER_EVENTS else "kernel"


def _log_tells(group: Sequence[str], site: _Site) -> bool:
    return any(name not in SIGNALS and _log_of(name) in site.logs for name in group)


def _met_anywhere(group: Sequence[str], site: _Site) -> bool:
    return any(name in site.fresh for name in group) or _log_tells(group, site)


def _adds(group: Sequence[str], site: _Site) -> list[dict[str, Any]]:
    """The likeliest ways to get one of the signals, each with its cost."""
    out: list[dict[str, Any]] = []
    ranked = {source: i for i, source in enumerate(site.order)}
    ways = [way for name in group if name not in EVENT_SIGNALS for way in _ways().get(name, ())]
    for way in sorted(ways, key=lambda w: ranked.get(w.source, len(ranked))):
        if way.source not in [one["source"] for one in out] and way.source != "scraper":
            out.append(_add(way, site))
        if len(out) == MOST_WAYS:
            break
    logs = {_log_of(name) for name in group if name not in SIGNALS} - site.logs
    out += [{"source": f"{kind} log", "metric": None, "how": f"follow the {kind} log: `logs: [{{kind: {kind}, path: \"...\"}}]`",
             "series_per_node": 0, "series": 0} for kind in sorted(logs)]
    return out


def _add(way: _Way, site: _Site) -> dict[str, Any]:
    kind = SIGNALS[way.signal].kind
    each = site.parts.get(kind, USUAL_PARTS.get(kind)) if kind not in UNCOUNTED else None
    return {"source": way.source, "metric": way.metric, "signal": way.signal, "how": how(way.source, way.metric),
            "series_per_node": each, "series": None if each is None else each * max(1, site.nodes)}


def how(source: str, metric: str) -> str:
    """What to change so that an exporter shows a metric."""
    if source == "dcgm":
        field = metric.partition("{")[0]
        if field.removeprefix("DCGM_FI_") in DCGM_DEFAULT:
            return f"scrape dcgm-exporter; its default list of fields has {field}"
        return f"add {field} to dcgm-exporter's list of fields (-f FILE.csv)"
    if source == "node_exporter":
        flag = next((flag for start, flag in NODE_FLAGS.items() if metric.startswith(start)), None)
        return f"start node_exporter with {flag} (keep the series that docs/sources.md names by metric_relabel_configs)" if flag \
            else f"scrape node_exporter; {metric} is on by default"
    if source == "trainer":
        return f"expose {metric} in the trainer (docs/trainer-metrics.md), or follow its log"
    if source == "site_files":
        return f"write {metric} into a text file for node_exporter (docs/sources.md, site_files)"
    return f"scrape {RUN.get(source, source)} for {metric}"


def _sharper(plugins: Sequence[DetectorPlugin], site: _Site) -> list[dict[str, Any]]:
    """Further signals of the needs that nobody shows yet and an exporter that is here already could."""
    out: list[dict[str, Any]] = []
    for name in dict.fromkeys(n for p in plugins for group in p.needs for n in group if n in SIGNALS and n not in site.fresh):
        way = next((w for w in _ways().get(name, ()) if w.source in site.present), None)
        if way is not None and name not in EVENT_SIGNALS:
            out.append(_add(way, site))
    return out[:MOST_WAYS]


# --- for people -------------------------------------------------------------------------------------------------------
def lines(doc: Mapping[str, Any]) -> list[str]:
    """The examination as text: what can be judged, what cannot and why, what would add it."""
    groups = {state: [f for f in doc["faults"] if f["state"] == state] for state in STATES}
    count = {state: len(found) for state, found in groups.items()}
    out = [f"{len(doc['faults'])} faults: {count['judged']} can be judged here, {count['partly']} on some nodes only, {count['blind']} not"
           + (f", {count['no_detector']} have no detector" if count["no_detector"] else "")
           + f". {doc['nodes']} nodes; logs: {', '.join(doc['logs']) or 'none'}."]
    out += ["", "judged:"] if groups["judged"] else []
    out += _wrapped([f["fault"] for f in groups["judged"]])
    for state, title in (("partly", "on some nodes only:"), ("blind", "not judged:")):
        out += ["", title] if groups[state] else []
        for fault in groups[state]:
            where = f" (on {fault['nodes_judged']} of {fault['nodes_judged'] + fault['nodes_blind']} nodes)" if state == "partly" else ""
            out.append(f"  {fault['fault']}{where}")
            for missing in fault["missing"]:
                out.append(f"    needs {' or '.join(missing['any_of'])}")
                out += [f"    + {one['how']}{cost(one)}" for one in missing["add"]]
    sharper = [f for f in doc["faults"] if f["sharper"]]
    out += ["", "surer with:"] if sharper else []
    out += list(dict.fromkeys(f"  {f['fault']}: {one['how']}{cost(one)}" for f in sharper for one in f["sharper"]))
    out += ["", "no detector yet:", *_wrapped([f["fault"] for f in groups["no_detector"]])] if groups["no_detector"] else []
    return out


def cost(one: Mapping[str, Any]) -> str:
    """What it adds: `: 8 series a node, 128 in all`."""
    if one["series"] is None:
        return ": a series a part"
    return ": no series" if not one["series"] else f": {one['series_per_node']} series a node, {one['series']} in all"


def _wrapped(names: Sequence[str], width: int = 110) -> list[str]:
    out: list[str] = []
    for name in names:
        if out and len(out[-1]) + len(name) < width:
            out[-1] += f" {name}"
        else:
            out.append(f"  {name}")
    return out
