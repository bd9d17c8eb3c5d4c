"""An exporter that answers with a part of its series: families, or fields of one GPU, that were there are gone, while the page
still comes; or its page is empty or breaks off.

A blank value of DCGM is a field that is gone, not a number. What is no fault: a GPU that is gone altogether (`gpu_lost`), an
exporter that does not answer (`target_down`) or has just restarted, new names for the same fields (the page is as long as it
was), GPUs that are divided into instances (the fields moved there), a profiler that holds all profiling counters of a node for
a while, and a node whose exporter never had the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import shared, stats
from detectors.exporters import ANSWERS, BROKEN, Exporters, exporters_of
from detectors.stats import Bools

FAULT = "exporter_partial"
TICKET = 0.3
# Fields that a program's profiler (nsys, ncu, CUPTI) takes away from DCGM while it runs: all of them together.
_PROFILED = ("gpu.graphics_active_ratio", "gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.dram_active_ratio",
             "gpu.nvlink_bytes_per_second", "gpu.pcie_bytes_per_second")
# By these a GPU that is gone altogether is told: another detector's matter.
VITAL = ("gpu.temperature_celsius", "gpu.power_watts", "gpu.sm_clock_hertz", "gpu.utilization_ratio", "gpu.memory_used_bytes")
# Fields that a GPU, once it has shown them, shows for as long as it is there. Not in it: what is shown only in some states
# (an XID, a recovery action, a sensor that reads 0).
_GPU = (*_PROFILED, "gpu.temperature_celsius", "gpu.thermal_margin_celsius", "gpu.sm_clock_hertz", "gpu.memory_clock_hertz",
        "gpu.power_watts", "gpu.power_limit_watts", "gpu.energy_watts", "gpu.utilization_ratio", "gpu.memory_used_bytes",
        "gpu.memory_free_bytes", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio", "gpu.power_violation_ratio",
        "gpu.pcie_replays_per_second", "gpu.ecc_correctable_per_second", "gpu.ecc_uncorrectable_per_second",
        "gpu.pcie_link_width", "gpu.pcie_link_generation", "gpu.nvlink_errors_per_second", "gpu.uncorrectable_rows",
        "gpu.row_remap_failed")
_NIC = ("nic.received_bytes_per_second", "nic.transmitted_bytes_per_second", "nic.received_packets_per_second",
        "nic.transmitted_packets_per_second", "nic.packets_lost_per_second", "nic.peer_loss_per_second",
        "nic.corrupt_packets_per_second", "nic.retransmits_per_second", "nic.timeouts_per_second",
        "nic.discards_per_second", "nic.link_up", "nic.link_downed_per_second", "nic.carrier_changes_per_second")
_NODE = ("node.boot_time_seconds", "node.time_seconds", "node.load1", "node.memory_available_bytes", "node.memory_total_bytes",
         "node.cpu_busy_ratio", "node.cpu_idle_ratio", "node.cpu_waiting_ratio", "node.io_waiting_ratio",
         "node.memory_stalled_ratio", "node.clock_offset_seconds", "node.clock_synced", "node.tcp_retransmits_per_second",
         "node.tcp_segments_per_second", "node.oom_kills_per_second", "node.major_faults_per_second")
_STEADY: Mapping[str, tuple[str, ...]] = {"gpu": _GPU, "nic": _NIC, "node": _NODE}


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §0 fact 10 and §2 (a blank field omits its line; an empty page while it reloads); DCGM issue 202 (a
    field stays blank after an XID until the reader restarts); our judgement for the rest.

    missed_intervals: readings in a row without a field; at the second tick of the hold mostly one more. gone_seconds: at least; two missed
    cycles of the exporter are 60 s. settle_seconds: after a restart or a failed reading of any exporter of the node nothing is said. broken_seconds: how long
    pages must be empty or broken; with the hold a minute, and one that has started shows nothing until its first cycle (30 s). node_share: of a node's GPUs, from which it is the node's exporter. renamed_share: of the
    series that are gone, by how much a page must be shorter; renamed_min: for so many and more. xid_seconds: an XID within
    this time of a field's end is its cause, and then two readings and early_seconds are enough.
    """

    missed_intervals: float = 2.0
    gone_seconds: float = 60.0
    settle_seconds: float = 120.0
    broken_seconds: float = 45.0
    node_share: float = 0.6
    renamed_share: float = 0.5
    renamed_min: int = 4
    xid_seconds: float = 120.0
    early_seconds: float = 25.0


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    """What is gone of the parts of a kind. gone: bool[signal, part]; here: bool[part], the part (or its page) still comes. last_at:
    float64[signal, part], ms of the newest sample. early: gone for two readings at least."""

    parts: tuple[Target, ...]
    signals: tuple[str, ...]
    gone: Bools
    here: Bools
    last_at: Floats
    early: Bools


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU and node that is shown now."""
    if not len(window.times):
        return []
    exporters = exporters_of(window)
    unsettled = _unsettled(window, exporters, params)
    lost = {kind: _lost(window, kind, params) for kind in _STEADY}
    shown = {kind: one.here for kind, one in lost.items()}
    lost["gpu"] = _with_lone_fields(window, _after_xid(window, lost["gpu"], params), exporters)
    out = _broken_pages(window, exporters, params)
    bad: dict[str, Verdict] = {}
    for verdict in (*_of_gpus(window, lost["gpu"], exporters, params), *_of_hosts(window, lost, exporters, params)):
        if verdict.target.node not in unsettled and verdict.target.node not in out:
            bad.setdefault(verdict.target.key, verdict)
    spoken = {v.target.key: v for v in (*out.values(), *bad.values())}
    well: list[Verdict] = []
    for kind in ("gpu", "node"):
        parts = lost[kind].parts
        clear = shared.without(parts, shown[kind] & shared.loud(window, parts) & ~shared.of_nodes(parts, unsettled), spoken)
        well += shared.clears(parts, clear, FAULT)
    gpus = shared.columns_by_node(lost["gpu"].parts)
    lone = {node for node in gpus if node} - shared.columns_by_node(lost["node"].parts).keys()
    if lone:
        said = spoken.keys() | {verdict.target.key for verdict in well}
        for node in sorted(lone):
            target = Target("node", node)  # a node of which only its GPUs are known
            if target.key not in spoken and any(lost["gpu"].parts[e].key in said for e in gpus[node].tolist()):
                well.append(Verdict(target, FAULT, "clear", reason="clear"))
    return [*spoken.values(), *well]


def _lost(window: Window, kind: str, p: Params) -> _Lost:
    parts = window.of_kind(kind)
    signals = tuple(s for s in _STEADY[kind] if s in window.blocks)
    if not parts or not signals:
        nothing = np.zeros((len(signals), len(parts)), bool)
        return _Lost(parts, signals, nothing, np.zeros(len(parts), bool), nothing.astype(float), nothing)
    blocks = [window.block(s) for s in signals]
    ages = np.stack([b.age_seconds for b in blocks])
    interval = np.stack([np.where(np.isnan(b.interval_seconds), float(window.step_seconds), b.interval_seconds) for b in blocks])
    first = np.stack([b.first_at for b in blocks])
    # No field counts as gone while it still tells that the part is there: one of which all went at once is no page in part.
    here = np.asarray((ages <= np.maximum(p.missed_intervals * interval, 30.0)).any(axis=0))
    if kind == "gpu":
        here |= window.block("gpu.xid").fresh()
    last_at = window.end - 1000.0 * ages
    with np.errstate(invalid="ignore"):
        settled = last_at - first >= 1900.0 * interval  # three samples at least
        gone = np.isfinite(ages) & settled & (ages > np.maximum(p.missed_intervals * interval, p.gone_seconds))
        early = np.isfinite(ages) & settled & (ages > np.maximum(1.9 * interval, p.early_seconds))
    return _Lost(parts, signals, gone, here, last_at, early)


def _after_xid(window: Window, lost: _Lost, p: Params) -> _Lost:
    """What went with an XID of its GPU is believed sooner, while other fields of the GPU still come: one that is off the bus loses
    all at once."""
    comes = (np.isfinite(lost.last_at) & ~lost.early).any(axis=0)
    hit = np.flatnonzero((lost.early & ~lost.gone).any(axis=0) & comes)
    if not len(hit):
        return lost
    gone = lost.gone.copy()
    for e in hit:
        if _xid_near(window, lost.parts[e], int(np.where(lost.early[:, e], lost.last_at[:, e], np.inf).min()), p):
            gone[:, e] |= lost.early[:, e]
    return replace(lost, gone=gone)


def _with_lone_fields(window: Window, lost: _Lost, exporters: Exporters) -> _Lost:
    """GPUs count as shown, too, where their node's exporters all answer and either no field by which a GPU could be told to be
    gone was ever on the page, or all GPUs of a node of several went at once: a board fails alone."""
    if not (lost.gone | lost.early)[:, ~lost.here].any():
        return lost
    whole = {node for node, columns in exporters.by_node.items() if bool((exporters.state[columns] == ANSWERS).all())}
    vital = [i for i, s in enumerate(lost.signals) if s in VITAL]
    nodes: dict[str, list[int]] = {}
    for e, gpu in enumerate(lost.parts):
        if gpu.node in whole and not _is_instance(gpu):
            nodes.setdefault(gpu.node, []).append(e)
    here = lost.here.copy()
    for columns in nodes.values():
        if len(columns) > 1 and not lost.here[columns].any():
            here[columns] = True
        for e in columns:
            if not np.isfinite(lost.last_at[vital, e]).any():
                here[e] = True
    return replace(lost, here=here)


def _unsettled(window: Window, exporters: Exporters, p: Params) -> set[str]:
    """Nodes with an exporter that does not answer, or did not lately, or has just restarted."""
    since = window.end - int(1000 * p.settle_seconds)
    late = {exporters.parts[e].node for e in np.flatnonzero((exporters.bad_at > since) | exporters.silent)}
    late |= {e.target.node for e in window.events_of("exporter_restart", "boot", since=since)}
    return {node for node in late if node is not None}


def _broken_pages(window: Window, exporters: Exporters, p: Params) -> dict[str, Verdict]:
    """By node: an exporter answers, and what it answers is no page."""
    out: dict[str, Verdict] = {}
    lasted = window.end - exporters.since >= 1000 * p.broken_seconds
    for e in np.flatnonzero((exporters.state == BROKEN) & lasted):
        part = exporters.parts[e]
        if part.node is None or part.node in window.silent_nodes or part.node in out:
            continue
        row = stats.evidence("exporter.state", BROKEN, 0.0, "an exporter whose page is whole",
                             f"{part.device} answers with an empty or broken page")
        out[part.node] = Verdict(Target("node", part.node), FAULT, "faulty", TICKET, (row,), "broken_page",
                                 onset_at=int(exporters.since[e]))
    return out


# --- GPUs -------------------------------------------------------------------------------------------------------------
def _of_gpus(window: Window, lost: _Lost, exporters: Exporters, p: Params) -> Iterable[Verdict]:
    hit = np.flatnonzero((lost.gone & lost.here).any(axis=0))
    if not len(hit):
        return
    divided = _divided(lost.parts)
    nodes: dict[str, list[int]] = {}
    for e in hit:
        gpu = lost.parts[e]
        if gpu.node and gpu.node not in window.silent_nodes and not _divided_board(gpu, divided):
            nodes.setdefault(gpu.node, []).append(int(e))
    if not nodes:
        return
    shown: dict[str, int] = {}
    for gpu, here in zip(lost.parts, lost.here, strict=True):
        if here and gpu.node in nodes and not _is_instance(gpu):
            shown[gpu.node] = shown.get(gpu.node, 0) + 1
    for node, columns in sorted(nodes.items()):
        left = _without_profiled(window, lost, columns, shown[node], p)
        if not left or _booted_since(window, node, _first_gone(lost, left)) or _renamed(window, lost, left, exporters, node, p):
            continue
        if len(left) > 1 and len(left) >= p.node_share * shown[node]:
            yield _said(window, Target("node", node), lost, left, "families_missing")
        else:
            yield from (_said(window, lost.parts[e], lost, [e], "fields_missing") for e in left)


def _is_instance(gpu: Target) -> bool:
    return "/" in (gpu.id or "") or "/" in (gpu.device or "")


def _divided(parts: Iterable[Target]) -> frozenset[tuple[str | None, str]]:
    """(node, id or index) of boards that show instances."""
    return frozenset((g.node, whole) for g in parts if _is_instance(g)
                     for whole in ((g.id or "").partition("/")[0], (g.device or "").partition("/")[0]) if whole)


def _divided_board(gpu: Target, divided: frozenset[tuple[str | None, str]]) -> bool:
    return _is_instance(gpu) or (gpu.node, gpu.id or "") in divided or (gpu.node, gpu.device or "") in divided


def _without_profiled(window: Window, lost: _Lost, columns: list[int], shown: int, p: Params) -> list[int]:
    """The GPUs without those that only a profiler has taken the counters of: all of them together, on all GPUs of the node,
    with no XID as the cause."""
    rows = [i for i, s in enumerate(lost.signals) if s in _PROFILED]
    others = [i for i, s in enumerate(lost.signals) if s not in _PROFILED]
    held = [e for e in columns if not lost.gone[others, e].any() and not _fresh(window, lost, rows, e)
            and not _xid_near(window, lost.parts[e], _first_gone(lost, [e]), p)]
    return columns if len(held) < max(2, shown) else [e for e in columns if e not in held]


def _fresh(window: Window, lost: _Lost, rows: list[int], e: int) -> bool:
    return any(bool(window.block(lost.signals[i]).fresh()[e]) for i in rows)


def _xid_near(window: Window, gpu: Target, at: int, p: Params) -> bool:
    near = [x for x in window.events_of("xid", since=at - int(1000 * p.xid_seconds)) if x.at <= at + 1000 * p.xid_seconds]
    if any(x.target.same_part(gpu) or (x.target.node, x.target.device) == (gpu.node, gpu.device) for x in near):
        return True
    codes = window.block("gpu.xid")
    e = next((i for i, one in enumerate(codes.entities) if one.same_part(gpu)), None)
    if e is None:
        return False
    around = np.abs(window.times - at) <= 1000 * p.xid_seconds
    told = np.nan_to_num(codes.values[around, e])
    return len(told) > 0 and bool(told.max() > 0) and bool(told[0] != told[-1] or np.isnan(codes.values[around, e][0]))


def _first_gone(lost: _Lost, columns: list[int]) -> int:
    return int(np.where(lost.gone[:, columns], lost.last_at[:, columns], np.inf).min())


def _booted_since(window: Window, node: str, at: int) -> bool:
    """The node booted after the fields were last seen: it may have come up with other software."""
    return any(e.target.node == node and e.at >= at - 60_000 for e in window.events_of("boot"))


def _renamed(window: Window, lost: _Lost, columns: list[int], exporters: Exporters, node: str, p: Params) -> bool:
    """The node's pages are hardly shorter than before: what is gone came back under other names."""
    cells = int(lost.gone[:, columns].sum())
    mine = exporters.by_node.get(node)
    if cells < p.renamed_min or mine is None or "exporter.series" not in window.blocks:
        return False
    values = window.values("exporter.series")[:, mine]
    k = int(np.searchsorted(window.times, _first_gone(lost, columns), side="right"))
    before, now = stats.filled(values[:max(1, k)])[-1], values[-1]
    known = ~np.isnan(before) & ~np.isnan(now)
    return bool(known.any()) and float((before - now)[known].sum()) < p.renamed_share * cells


# --- hosts ------------------------------------------------------------------------------------------------------------
def _of_hosts(window: Window, lost: Mapping[str, _Lost], exporters: Exporters, p: Params) -> Iterable[Verdict]:
    """Families of the host that are gone: of the node itself, or of all its NICs at once (one alone is another matter)."""
    nic, node = lost["nic"], lost["node"]
    of_nics = shared.columns_by_node(nic.parts)
    gone_nics = {nic.parts[e].node for e in np.flatnonzero((nic.gone & nic.here).any(axis=0))}
    hit = {node.parts[e].node: int(e) for e in np.flatnonzero((node.gone & node.here).any(axis=0))}
    for name in sorted(n for n in set(hit) | gone_nics if n is not None and n not in window.silent_nodes):
        found: list[tuple[_Lost, list[int]]] = [(node, [hit[name]])] if name in hit else []
        whole = _whole_families(nic, of_nics[name].tolist() if name in of_nics else [])
        if whole is not None:
            found.append((whole, of_nics[name].tolist()))
        told = [(one, columns) for one, columns in found
                if not _booted_since(window, name, _first_gone(one, columns))
                and not _renamed(window, one, columns, exporters, name, p)]
        if told:
            yield _said(window, Target("node", name), told[0][0], told[0][1], "families_missing")


def _whole_families(nic: _Lost, columns: list[int]) -> _Lost | None:
    """Of these NICs what is gone on each one that ever had it; None where nothing is."""
    if not columns:
        return None
    had = np.isfinite(nic.last_at[:, columns])
    gone = (nic.gone & nic.here)[:, columns]
    whole = gone.any(axis=1) & (gone == had).all(axis=1)
    if not whole.any():
        return None
    return replace(nic, gone=nic.gone & whole[:, None])


def _said(window: Window, target: Target, lost: _Lost, columns: list[int], reason: str) -> Verdict:
    gone = lost.gone[:, columns]
    names = [lost.signals[i] for i in np.flatnonzero(gone.any(axis=1))]
    who = f"{len(columns)} parts" if len(columns) > 1 else str(lost.parts[columns[0]])
    values = window.values(names[0])[:, columns]
    last = stats.filled(values)[-1] if len(values) else np.full(len(columns), np.nan)
    known = last[~np.isnan(last)]
    rows = [Evidence(names[0], stats.unit_of(names[0]), None, float(known[0]) if len(known) else None, "the page until then",
                     f"{len(names)} signals of {who} are gone from a page that still comes")]
    rows += [Evidence(name, stats.unit_of(name), None, None, "the page until then") for name in names[1:6]]
    return Verdict(target, FAULT, "faulty", TICKET, tuple(rows), reason, onset_at=_first_gone(lost, columns))


PLUGIN = DetectorPlugin(
    name="exporter_partial", fault=FAULT, judge=judge, params=Params,
    needs=(("gpu.temperature_celsius", "gpu.utilization_ratio", "gpu.sm_active_ratio", "node.load1", "exporter.state"),),
    hold=Hold(on=2, of=3, off=4),
    must_not=("a GPU that is gone altogether", "an exporter that does not answer or has just restarted",
              "new names for the same fields", "GPUs divided into instances", "a program's profiler",
              "a node that never had the field"),
)
