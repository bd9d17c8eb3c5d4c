"""A GPU whose power limit is lower than its peers', or lower than it was.

Running at the limit is what the limit is for and no fault; only a limit that differs is: somebody set it, or the board
fell back to a lower one. Nothing is said of a fleet whose limits differ by design.

Where no page shows the limit, the board does: at work the GPU's power stands at a value below that of its peers, while its
clock lies below theirs and wanders. A limit that was cut for many of them at once leaves no peers to differ from: then their power
stands at one value, below what each drew before, with clocks below what they were, and boards of the model elsewhere keep theirs.
Lighter work leaves the clock where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import gpus, shared, stats
from detectors.stats import Bools, Ints, Span

FAULT = "power_cap"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (POWER_MGMT_LIMIT lower); P13 (a low clock at the limit is healthy).

    share: of the right limit, below which it is low. peers_min: others of the same model that must agree.
    past_seconds: the own past. busy, window_seconds: at work for so long; less_clock, less_power: how far below its peers' its clock
    and its power lie where a limit is not shown; hot: °C from which heat explains a low clock. one_value: share
    by which boards that stand at one limit differ from their middle (recorded H200s at their limit: 94-98 % of it).
    """

    share: float = 0.97
    peers_min: int = 3
    past_seconds: int = 86400
    busy: float = 0.5
    window_seconds: float = 150.0
    one_value: float = 0.03
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
    # One reading of the limit that is late hides nothing.
    hidden = ~window.block("gpu.power_limit_watts").fresh() & window.block("gpu.power_watts").fresh()
    judged = hidden & gpus.working(window, p.window_seconds, p.busy) & gpus.loud(window) & ~np.isnan(clock.high + power.mean)
    if not judged.any():
        return []
    groups = gpus.groups(window)
    clocks, watts = (stats.peers(np.where(judged, v, np.nan), groups) for v in (clock.mean, power.mean))
    shown = judged & (clocks.n >= p.peers_min)
    slow = stats.below(clock.high, (1.0 - p.less_clock) * clocks.middle)
    cool = ~stats.above(gpus.span(window, "gpu.temperature_celsius", p.window_seconds).mean, p.hot)
    low = shown & slow & stats.below(power.mean, (1.0 - p.less_power) * watts.middle) & cool
    together = _together(window, judged & cool & ~low, clock, power, p)
    spoken = np.zeros(len(parts), bool)
    spoken[[e for e, _ in together]] = True
    out = shared.clears(parts, shown & ~slow & ~spoken, FAULT) + [word for _, word in together]
    columns = stats.columns_where(low)
    if not len(columns):
        return out
    rows = stats.below(window.values("gpu.sm_clock_hertz")[:, columns], (1.0 - p.less_clock) * clocks.middle[columns])
    rows &= gpus.at_work(window, p.busy)[:, columns]
    _, held = gpus.held_power(window, columns, rows)
    # A mean that a save fell into is low on the hungriest board as well, which stands at its own limit above all others.
    held &= stats.below(_level(window, columns, rows), (1.0 - p.less_power) * watts.middle[columns])
    onsets = stats.run_start(rows, window.times, 4)
    for i in np.flatnonzero(held):
        e = int(columns[i])
        told = (stats.evidence("gpu.power_watts", power.mean[e], watts.middle[e], f"{watts.n[e]} peers at work", "it stands at this value"),
                stats.evidence("gpu.sm_clock_hertz", clock.mean[e], clocks.middle[e], f"{clocks.n[e]} peers at work"))
        out.append(Verdict(parts[e], FAULT, "faulty", 0.3, told, "held_at_a_power", onset_at=int(onsets[i])))
    return out


def _together(window: Window, judged: Bools, clock: Span, power: Span, p: Params) -> list[tuple[int, Verdict]]:
    """GPUs of one model that are all held at one power, below what they drew before, with their positions."""
    parts = window.of_kind("gpu")
    most = np.fmax.reduce(window.values("gpu.sm_clock_hertz")[gpus.past_rows(window, p.window_seconds)], axis=0, initial=np.nan)
    most = np.fmax(most, stats.long_past(window, "gpu.sm_clock_hertz", p.past_seconds, np.arange(len(parts))))
    asked = stats.columns_where(judged & stats.below(clock.high, (1.0 - p.less_clock) * most))
    drew, ran = (_before(window, f"gpu.{n}", asked, p) for n in ("power_watts", "sm_clock_hertz"))
    slower = stats.below(clock.high[asked], (1.0 - p.less_clock) * ran)
    rows = stats.below(window.values("gpu.sm_clock_hertz")[:, asked], (1.0 - p.less_clock) * ran)
    rows &= gpus.at_work(window, p.busy)[:, asked]
    # A mean of minutes holds a save here and there; what a board stands at is the usual value of these minutes. At the limit that it
    # always had a board takes no less than it ever took: kernels that ask for more are no fault (P13).
    level = _level(window, asked, rows)
    fell = slower & stats.below(np.fmax(level, power.mean[asked]), (1.0 - p.less_power) * drew)
    as_ever = judged.copy()
    as_ever[asked[slower]] = False
    columns, drew, ran, rows, level = asked[fell], drew[fell], ran[fell], rows[:, fell], level[fell]
    if len(columns) <= p.peers_min:
        return []
    held = gpus.held_power(window, columns, rows)[1] | gpus.held_power(window, columns, rows, together=True)[1]
    onsets = stats.run_start(rows, window.times, 4)
    models = shared.model_codes(window, parts)
    out: list[tuple[int, Verdict]] = []
    for model in np.unique(models[columns[held]]).tolist():
        all_held = np.flatnonzero(held & (models[columns] == model))
        value = float(np.median(level[all_held]))
        mine = all_held[np.abs(level[all_held] / value - 1.0) <= p.one_value]
        others = int((as_ever & (models == model)).sum())
        if len(mine) <= p.peers_min or 2 * len(mine) < len(all_held) or others < p.peers_min:
            continue  # each at its own value; or what all boards at work were given, which is nobody's fault
        for i in mine.tolist():
            e = int(columns[i])
            told = (stats.evidence("gpu.power_watts", level[i], drew[i], "its own past at work", f"{len(mine)} boards stand at this value"),
                    stats.evidence("gpu.sm_clock_hertz", clock.mean[e], ran[i], "its own past at work"))
            out.append((e, Verdict(parts[e], FAULT, "faulty", 0.3, told, "held_at_a_power", onset_at=int(onsets[i]))))
    return out


def _level(window: Window, columns: Ints, rows: Bools) -> Floats:
    """float64[len(columns)]: what the GPUs usually drew in the last minutes, of the readings of `rows` (at work, with a low clock)."""
    return stats.median(np.where(rows, window.values("gpu.power_watts")[:, columns], np.nan)[-window.ticks(300):])


def _before(window: Window, signal: str, columns: Ints, p: Params) -> Floats:
    """float64[len(columns)]: what the GPUs had at work before, also when the window shows little of it any more."""
    near = gpus.past(window, signal, columns, p.window_seconds, 0.75, gpus.at_work(window, p.busy))
    return np.fmax(near, stats.long_past(window, signal, p.past_seconds, columns))


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
