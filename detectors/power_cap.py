"""A GPU whose power limit is lower than its peers', or lower than it was.

Running at the limit is what the limit is for and no fault; only a limit that differs is: somebody set it, or the board
fell back to a lower one. Nothing is said of a fleet whose limits differ by design.

Where no page shows the limit, the board does: at work the GPU's power stands at a value below that of its peers, while its
clock lies below theirs and wanders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from detectors import gpus, shared, stats

FAULT = "power_cap"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (POWER_MGMT_LIMIT lower); P13 (a low clock at the limit is healthy).

    share: of the right limit, below which it is low. peers_min: others of the same model that must agree.
    past_seconds: the own past. busy, window_seconds: at work for so long; less_clock, less_power: how far below its peers' its clock
    and its power lie where a limit is not shown; hot: °C from which heat explains a low clock.
    """

    share: float = 0.97
    peers_min: int = 3
    past_seconds: int = 86400
    busy: float = 0.5
    window_seconds: float = 150.0
    less_clock: float = 0.03
    less_power: float = 0.05
    hot: float = 80.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that shows its power limit, and on those of the others that are held at a power."""
    return _by_limit(window, params) + (_by_power(window, params) if len(window.times) else [])


def _by_power(window: Window, p: Params) -> list[Verdict]:
    """GPUs at work that do not show a limit."""
    parts = window.of_kind("gpu")
    clock, power = (gpus.span(window, f"gpu.{n}", p.window_seconds) for n in ("sm_clock_hertz", "power_watts"))
    hidden = np.isnan(window.last("gpu.power_limit_watts")) & window.block("gpu.power_watts").fresh()
    judged = hidden & gpus.working(window, p.window_seconds, p.busy) & gpus.loud(window) & ~np.isnan(clock.high + power.mean)
    if not judged.any():
        return []
    groups = gpus.groups(window)
    clocks, watts = (stats.peers(np.where(judged, v, np.nan), groups) for v in (clock.mean, power.mean))
    shown = judged & (clocks.n >= p.peers_min)
    slow = stats.below(clock.high, (1.0 - p.less_clock) * clocks.middle)
    low = (shown & slow & stats.below(power.mean, (1.0 - p.less_power) * watts.middle)
           & ~stats.above(gpus.span(window, "gpu.temperature_celsius", p.window_seconds).mean, p.hot))
    out = shared.clears(parts, shown & ~slow, FAULT)
    columns = stats.columns_where(low)
    if not len(columns):
        return out
    rows = stats.below(window.values("gpu.sm_clock_hertz")[:, columns], (1.0 - p.less_clock) * clocks.middle[columns])
    rows &= gpus.at_work(window, p.busy)[:, columns]
    _, held = gpus.held_power(window, columns, rows)
    onsets = stats.run_start(rows, window.times, 4)
    for i in np.flatnonzero(held):
        e = int(columns[i])
        told = (stats.evidence("gpu.power_watts", power.mean[e], watts.middle[e], f"{watts.n[e]} peers at work", "it stands at this value"),
                stats.evidence("gpu.sm_clock_hertz", clock.mean[e], clocks.middle[e], f"{clocks.n[e]} peers at work"))
        out.append(Verdict(parts[e], FAULT, "faulty", 0.3, told, "held_at_a_power", onset_at=int(onsets[i])))
    return out


def _by_limit(window: Window, params: Params) -> list[Verdict]:
    block = window.block("gpu.power_limit_watts")
    if not len(window.times) or not len(block.entities):
        return []
    now = np.where(block.fresh(), block.last, np.nan)
    peers = stats.peers(now, shared.model_codes(window, block.entities))
    agreed = np.where((peers.n >= params.peers_min) & (peers.spread == 0), peers.middle, np.nan)
    past = window.baseline("gpu.power_limit_watts", params.past_seconds)
    # Where the peers do not agree, the own past is asked; a limit that the whole fleet was given is nobody's fault.
    right = np.where(np.isnan(agreed), np.where(past.n >= 10, past.median, np.nan), agreed)
    judged = ~np.isnan(now) & ~np.isnan(right) & shared.loud(window, block.entities)
    low = stats.below(now, params.share * right) & (now != params.share * right)
    out = shared.clears(block.entities, judged & ~low, FAULT)
    columns = stats.columns_where(judged & low)
    onsets = stats.run_start(stats.below(block.values[:, columns], params.share * right[columns]), window.times, 4)
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        gpu = block.entities[e]
        who = "its own past" if np.isnan(agreed[e]) else f"{peers.n[e]} peers"
        rows = (stats.evidence("gpu.power_limit_watts", now[e], right[e], who),)
        out.append(Verdict(gpu, FAULT, "faulty", 0.3, rows, "limit_lower", onset_at=int(onset)))
    return out


PLUGIN = DetectorPlugin(
    name="power_cap", fault=FAULT, judge=judge, params=Params, needs=(("gpu.power_limit_watts", "gpu.power_watts"),),
    hold=Hold(on=4, of=5, off=4), must_not=("a low clock at the power limit", "a limit that the whole fleet was given",
                                            "boards of another model"),
)
