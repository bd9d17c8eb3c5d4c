"""An exporter that answers with old values: everything that it says of a node stands still, although up is 1.

node_exporter reads the node's clock for each page, so a page on which the clock stands is an old one. A GPU's power flickers by
milliwatts in every sample, idle or not, and its energy counter never stops; so a page on which all of them stand for many
collection cycles was not collected anew. Where power is shown in whole watts only, it can stand for
minutes on GPUs that wait: such a page is judged by its energy counter alone. Values that repeat between two cycles of the
exporter are life.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Target, Verdict
from core.window import Window
from detectors import shared, stats

FAULT = "exporter_stale"
LIVELY_ROWS = 8  # within two minutes nearly all lively values have changed
# What flickers on any GPU that is powered.
_LIVELY = ("gpu.power_watts", "gpu.temperature_celsius", "gpu.memory_temperature_celsius", "gpu.sm_clock_hertz",
           "gpu.tensor_active_ratio", "gpu.graphics_active_ratio", "gpu.memory_used_bytes")


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (identical values for many collection intervals, the energy counter included);
    dcgm-exporter #164: values stood for hours while its health page was well. dcgm-exporter collects every 30 s.

    still_seconds: how long all of a node's GPU values must stand. clock_seconds: how long the node's clock must, and for how many
    pages: clock_pages.
    """

    still_seconds: float = 240.0
    clock_seconds: float = 120.0
    clock_pages: int = 4


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node of which the clock, or GPU power as it flickers, is shown now."""
    return _by_power(window, params) + _by_clock(window, params)


def _by_clock(window: Window, p: Params) -> list[Verdict]:
    """By the node's clock, which each page of node_exporter tells anew."""
    block = window.block("node.time_seconds")
    if not len(block.entities) or not len(window.times):
        return []
    values = stats.filled(block.values)
    moved = _changes(block.values, values)
    interval = np.where(np.isnan(block.interval_seconds), float(window.step_seconds), block.interval_seconds)
    needed = np.ceil(np.maximum(p.clock_seconds, p.clock_pages * interval) / window.step_seconds)
    nodes = shared.kept("nodes with a clock", (block.entities,), lambda: tuple(Target("node", e.node) for e in block.entities))
    named = np.array([name is not None for name in shared.node_names(nodes)[0]], bool)[shared.node_names(nodes)[1]]
    shown = block.fresh() & ~np.isnan(block.last) & named & shared.loud(window, nodes)
    quick = shown & (moved >= 0) & (len(window.times) - 1 - moved < needed)
    out = shared.clears(nodes, quick, FAULT)
    for e in np.flatnonzero(shown & ~quick):
        target, length = nodes[e], int(needed[e])
        known = stats.count(block.values[-length:, e:e + 1])[0]
        if known >= 0.8 * length and len(values) > length and not np.isnan(values[-length - 1, e]):
            since = max(int(moved[e]), 0)
            minutes = (window.end - int(window.times[since])) / 60_000
            rows = (stats.evidence("node.time_seconds", float(block.last[e]), window.end / 1000.0, "the time of the scrape",
                                   f"the node's clock has stood for {minutes:.0f} minutes on pages that come"),)
            out.append(Verdict(target, FAULT, "faulty", 0.3, rows, "clock_stands", onset_at=int(window.times[since])))
    return out


def _by_power(window: Window, params: Params) -> list[Verdict]:
    gpus = window.of_kind("gpu")
    ticks = window.ticks(params.still_seconds)
    if not gpus or len(window.times) < ticks:
        return []
    power = window.block("gpu.power_watts")
    energy = ~np.isnan(window.values("gpu.energy_watts")).all(axis=0)
    fine = (np.nan_to_num(power.values) % 1.0 > 0).any(axis=0)
    shown = power.fresh() & ~np.isnan(power.last) & (fine | energy)
    moved = _moved_at(window)
    names, places = shared.node_names(gpus)
    counted = shown & shared.loud(window, gpus)
    newest = np.full(len(names), -1.0)
    np.maximum.at(newest, places[counted], moved[counted])
    spoken = np.zeros(len(names), bool)
    spoken[places[counted]] = True
    quick = (len(window.times) - 1 - newest) * window.step_seconds < params.still_seconds
    named = shared.kept("nodes of GPUs", (gpus,), lambda: tuple(Target("node", name) for name in names))
    given = np.array([name is not None for name in names], bool)
    out = shared.clears(named, spoken & quick & given, FAULT)
    mine = shared.columns_by_node(gpus)
    for node in sorted(name for name, slow in zip(names, spoken & ~quick, strict=True) if slow and name is not None):
        columns = mine[node][counted[mine[node]]]
        known = stats.count(power.values[-ticks:, columns])
        last = moved[columns].max()
        still = (len(window.times) - 1 - last) * window.step_seconds
        target = Target("node", node)
        if int(known.min()) >= 0.8 * ticks and last >= 0:
            level = float(power.last[columns].mean())
            rows = (stats.evidence("gpu.power_watts", level, None, "a value that flickers",
                                   f"no value of {len(columns)} GPUs has changed for {still / 60:.0f} minutes"),)
            out.append(Verdict(target, FAULT, "faulty", 0.3, rows, "values_stand", onset_at=int(window.times[int(last)])))
    return out


def _moved_at(window: Window) -> Floats:
    """float64[gpu]: the newest tick at which any lively value of the GPU changed, -1 = none was seen to."""
    newest = np.full(len(window.of_kind("gpu")), -1.0)
    for signal in _LIVELY:
        if signal in window.blocks:
            newest = np.maximum(newest, _changes(window.values(signal)))
    energy = window.values("gpu.energy_watts")
    if energy.size and "gpu.energy_watts" in window.blocks:
        newest = np.maximum(newest, _newest(stats.above(energy, 1e-6)))
    return newest


def _newest(flags: stats.Bools) -> Floats:
    """float64[entity]: the newest row that is true, -1 = none."""
    last = len(flags) - 1 - np.argmax(flags[::-1], axis=0)
    return np.asarray(np.where(flags.any(axis=0), last, -1), np.float64)


def _changes(values: Floats, whole: Floats | None = None) -> Floats:
    """float64[entity]: the newest tick whose value differs from the known one before, -1 = none. whole: `values` filled.

    Most change at each tick or two: the window is looked through only for those that did not in its last rows.
    """
    n = len(values)
    out = np.full(values.shape[1], -1.0)
    if n < 2:
        return out
    tail = stats.filled(values[-LIVELY_ROWS:])
    newest = _newest((tail[1:] != tail[:-1]) & ~np.isnan(tail[1:]) & ~np.isnan(tail[:-1]))
    out = np.where(newest >= 0, newest + n - len(tail) + 1, -1.0)
    columns = np.flatnonzero(newest < 0)
    if len(columns) and n > len(tail):
        some = stats.filled(values[:, columns]) if whole is None else whole[:, columns]
        found = _newest((some[1:] != some[:-1]) & ~np.isnan(some[1:]) & ~np.isnan(some[:-1]))
        out[columns] = np.where(found >= 0, found + 1, -1.0)
    return out


PLUGIN = DetectorPlugin(
    name="exporter_stale", fault=FAULT, judge=judge, params=Params, needs=(("gpu.power_watts", "node.time_seconds"),),
    hold=Hold(on=3, of=4, off=4), must_not=("values that repeat between two collection cycles", "an idle GPU",
                                            "an exporter that does not answer"),
)
