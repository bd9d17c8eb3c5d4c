"""A GPU whose clock is low without heat, a power limit or a brake as the reason: a performance state that is stuck.

Below its power limit a healthy GPU at work runs at the top of its clock, whatever its kernels are. So a clock clearly below
that of the peers at work is a fault where nothing explains it. What explains it is excluded first: thermal bits, time in
slowdown, heat, the brake, the power limit (a low clock there is what the limit is for, P13), clocks that were set. Low
clocks that a whole node or most of a job have alike were set by somebody (`config_drift` tells which setting); they are
judged only where a label that others lack, a driver's version, separates their nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Verdict
from core.window import Window
from detectors import gpus, shared, stats
from detectors.stats import Bools, Ints, Peers, Span

FAULT = "clock_loss"


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §2 (clock at the cap, idle clocks) and §2.1 (bits), rules.md §3d; recorded H100 and H200 pages.

    window_seconds: how far back levels are averaged. busy: utilisation from which a GPU is at work. loss: share of the clock
    lost against the peers, and against the own past (two steps of an H100's clock are 1.5 %; healthy dips into the power
    limit stay below 1 % of a mean). sigmas: robust sigmas below the peers. always: the share lost that is a fault although
    the part was never seen faster; then every explanation must be excluded by what is shown. at_cap: share of the power
    limit from which the limit explains the clock (recorded H200s at the cap: 94-98 %). duty: share of samples with a bit
    that explains. slowed: seconds per second in slowdown that explain. hot, hot_memory: °C of core and HBM near which heat
    explains; hotter: °C above its own past likewise, for a clock that is lost for another reason cools; margin: °C to the slowdown
    limit. less_power: where no page shows limit or reasons, a lost clock must
    draw this share of the own past's power at most. few: the share of the peers that may be low alike;
    few_joined: where a label joins them. alike: the share of a node's GPUs from which the whole node is low. nodes_min: such nodes that a label must
    join; outside: the share of other nodes that may have it. peers_min: others needed to compare.
    """

    window_seconds: float = 150.0
    busy: float = 0.5
    loss: float = 0.03
    sigmas: float = 4.0
    always: float = 0.08
    at_cap: float = 0.92
    duty: float = 0.25
    slowed: float = 0.01
    hot: float = 80.0
    hot_memory: float = 95.0
    hotter: float = 15.0
    margin: float = 2.0
    less_power: float = 0.97
    few: float = 0.25
    few_joined: float = 0.5
    alike: float = 0.6
    nodes_min: int = 3
    outside: float = 0.1
    peers_min: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What the last minutes show, by GPU. heat, power, chosen: what explains a low clock; told: limit or reasons are shown,
    so that their silence means something."""

    clock: Span
    power: Floats
    limit: Floats
    judged: Bools
    peers: Peers
    temperature: Floats
    heat: Bools
    at_limit: Bools
    chosen: Bools
    told: Bools


def _view(window: Window, p: Params) -> _View:
    def of(signal: str) -> Span:
        return gpus.span(window, f"gpu.{signal}", p.window_seconds)

    clock, power, limit = of("sm_clock_hertz"), of("power_watts").mean, of("power_limit_watts").mean
    block = window.block("gpu.sm_clock_hertz")
    judged = gpus.working(window, p.window_seconds, p.busy) & block.fresh() & gpus.loud(window) & ~np.isnan(clock.high)
    thermal = gpus.bits_span(window, gpus.THERMAL_BITS | gpus.BRAKE_BIT, p.window_seconds).mean
    cap = gpus.bits_span(window, gpus.CAP_BIT, p.window_seconds).mean
    chosen = gpus.bits_span(window, gpus.CHOSEN_BITS, p.window_seconds).mean
    violation = of("power_violation_ratio").mean
    slowed = stats.highest(*(of(f"{n}_ratio").mean for n in ("thermal_violation", "sw_thermal", "hw_thermal", "power_brake")))
    application = window.last("gpu.application_clock_hertz")
    temperature = of("temperature_celsius").mean
    heat = (stats.above(thermal, 0.02) | stats.above(slowed, p.slowed) | stats.above(temperature, p.hot)
            | stats.above(of("memory_temperature_celsius").mean, p.hot_memory)
            | stats.below(of("thermal_margin_celsius").mean, p.margin))
    at_limit = stats.above(power, p.at_cap * limit) | stats.above(cap, p.duty) | stats.above(violation, p.duty)
    locked = stats.below(application, clock.mean * 1.01)
    return _View(clock, power, limit, judged, _peers(window, np.where(judged, clock.mean, np.nan), p), temperature, heat, at_limit,
                 stats.above(chosen, p.duty) | locked, ~np.isnan(limit) | ~np.isnan(cap) | ~np.isnan(violation))


def _peers(window: Window, clock: Floats, p: Params) -> Peers:
    """The peers of each GPU: those of its job. Where a job's clocks lie apart (half of its nodes are low, and no middle tells which
    half), all GPUs of the type, if those are at one clock."""
    own = stats.peers(clock, gpus.groups(window))
    apart = stats.above(own.spread, p.loss / 2 * own.middle)
    if not apart.any():
        return own
    kind = stats.peers(clock, shared.model_codes(window, window.of_kind("gpu")))
    wide = apart & stats.below(kind.spread, p.loss / 4 * kind.middle) & (kind.n > own.n)
    return Peers(np.where(wide, kind.middle, own.middle), np.where(wide, kind.spread, own.spread), np.where(wide, kind.n, own.n))


def _whole_nodes(window: Window, low: Bools, lower: Bools, judged: Bools, p: Params) -> tuple[Bools, Bools]:
    """(bool[gpu], bool[gpu]): parts of nodes whose GPUs are low alike, and those of them on nodes that a label joins which
    few others have.

    low: whose clock is low; lower: whose clock is half as low at least. Clocks that fall together do not cross a limit at
    one tick: neighbours count from half of it, and a label from nodes that are wholly there.
    """
    nodes = gpus.nodes(window)
    several = gpus.count_of(judged, nodes) >= 2
    whole = stats.above(gpus.share_of(lower, judged, nodes), p.alike) & several
    sure = whole & stats.above(gpus.share_of(low, judged, nodes), p.alike)
    joined = np.zeros(len(whole), bool)
    if not sure.any():
        return whole, joined
    parts = window.of_kind("gpu")
    affected = {parts[e].node or "" for e in np.flatnonzero(sure)}
    others = {parts[e].node or "" for e in np.flatnonzero(judged & ~whole)}
    labels: dict[str, set[str]] = {}
    for place in window.topology.places.values():
        for key, value in place.labels:
            labels.setdefault(f"{key}={value}", set()).add(place.node)
    told: set[str] = set()
    for having in labels.values():
        found = having & affected
        if len(found) >= p.nodes_min and len(others) >= 2 and len(having & others) <= p.outside * len(others):
            told |= found
    joined = sure & np.array([(g.node or "") in told for g in parts], bool)
    return whole, joined


@dataclass(frozen=True, slots=True, eq=False)
class _Word:
    """columns: GPUs whose clock is low, with their losses; faulty: of them those that nothing explains."""

    columns: Ints
    past: Floats
    loss_past: Floats
    faulty: Bools
    fell: Bools


def _decide(window: Window, view: _View, loss: Floats, p: Params) -> _Word:
    enough = view.judged & (view.peers.n >= p.peers_min)
    # The highest third must be low too: one reading of an idle moment is none.
    steady = stats.above(1.0 - stats.ratio(view.clock.high, view.peers.middle), p.loss / 2)
    far = stats.above(-stats.robust_z(view.clock.mean, view.peers, 15e6), p.sigmas)
    low = enough & steady & far & stats.above(loss, p.loss)
    columns = stats.columns_where(low)
    if not len(columns):
        return _Word(columns, np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, bool))
    when = gpus.at_work(window, p.busy)
    past = gpus.past(window, "gpu.sm_clock_hertz", columns, p.window_seconds, 0.95, when)
    past_power = gpus.past(window, "gpu.power_watts", columns, p.window_seconds, 0.5, when)
    loss_past = 1.0 - stats.ratio(view.clock.mean[columns], past)
    fell = stats.above(loss_past, p.loss)
    whole, joined = _whole_nodes(window, low, view.judged & stats.above(loss, p.loss / 2), view.judged, p)
    by_setting = whole & ~joined
    crowd = gpus.share_of(low & ~by_setting, view.judged, gpus.groups(window))
    few = stats.below(crowd, np.where(joined, p.few_joined, p.few))[columns]
    explained = (view.heat | view.at_limit | view.chosen | by_setting)[columns]
    past_heat = gpus.past(window, "gpu.temperature_celsius", columns, p.window_seconds, 0.25, when)
    explained |= stats.above(view.temperature[columns] - past_heat, p.hotter)
    draws_less = stats.below(view.power[columns], p.less_power * past_power)
    never_faster = stats.above(loss[columns], p.always) & view.told[columns] & ~np.isnan(view.power[columns])
    # Where no page shows limit or reasons, what stands tells whether a limit holds the clock: power, or the clock itself.
    slow_rows = stats.below(window.values("gpu.sm_clock_hertz")[:, columns], (1.0 - p.loss / 2) * view.peers.middle[columns])
    known, capped = gpus.held_power(window, columns, slow_rows & gpus.at_work(window, p.busy)[:, columns])
    own = view.told[columns] | (known & ~capped) | np.isnan(view.power[columns])
    faulty = ~explained & few & own & np.where(fell, view.told[columns] | draws_less, never_faster)
    return _Word(columns, past, loss_past, faulty, fell)


def _evidence(window: Window, view: _View, word: _Word, i: int) -> tuple[Evidence, ...]:
    e = int(word.columns[i])
    rows = [stats.evidence("gpu.sm_clock_hertz", view.clock.mean[e], view.peers.middle[e],
                           f"median of {view.peers.n[e]} peers at work")]
    if word.fell[i]:
        rows.append(stats.evidence("gpu.sm_clock_hertz", view.clock.mean[e], word.past[i], "its own past at work"))
    if not np.isnan(view.power[e]):
        limit = float(view.limit[e])
        rows.append(stats.evidence("gpu.power_watts", view.power[e], limit, "power limit"))
    temperature = window.last("gpu.temperature_celsius")[e]
    if not np.isnan(temperature):
        rows.append(stats.evidence("gpu.temperature_celsius", temperature, None, "no slowdown by heat"))
    memory = window.last("gpu.memory_clock_hertz")
    usual = float(stats.median(memory[view.judged])) if view.judged.any() else float("nan")
    if memory[e] < 0.97 * usual:
        rows.append(stats.evidence("gpu.memory_clock_hertz", memory[e], usual, "GPUs at work"))
    return tuple(rows)


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU at work that has peers to be compared with; the others are unknown."""
    parts = window.of_kind("gpu")
    if not parts or not len(window.times):
        return []
    view = _view(window, params)
    loss = 1.0 - stats.ratio(view.clock.mean, view.peers.middle)
    word = _decide(window, view, loss, params)
    # A little low is neither: it may be the fault's beginning or its end.
    clear = view.judged & (view.peers.n >= params.peers_min) & stats.below(loss, params.loss / 2)
    explained = view.judged & (view.heat | view.at_limit | view.chosen)
    out = shared.clears(parts, clear | explained, FAULT)
    if not word.faulty.any():
        return out
    usual = view.peers.middle[word.columns]
    symptom = stats.below(window.values("gpu.sm_clock_hertz")[:, word.columns], (1.0 - params.loss / 2) * usual)
    symptom &= gpus.at_work(window, params.busy)[:, word.columns]
    onsets = stats.run_start(symptom, window.times, 4)
    for i in np.flatnonzero(word.faulty):
        e = int(word.columns[i])
        if clear[e] or explained[e]:
            continue
        severity = round(float(np.clip(0.3 + loss[e], 0.3, 0.7)), 3)
        reason = "fell_without_reason" if word.fell[i] else "low_without_reason"
        out.append(Verdict(parts[e], FAULT, "faulty", severity, _evidence(window, view, word, int(i)), reason,
                           onset_at=int(onsets[i])))
    return out


PLUGIN = DetectorPlugin(
    name="clock_loss", fault=FAULT, judge=judge, params=Params, needs=(("gpu.sm_clock_hertz",),),
    hold=Hold(on=4, of=5, off=6),
    must_not=(
        "a low clock at the power limit", "a GPU that is slowed by heat or by the brake", "an idle GPU's low clock",
        "clocks that were locked on a node or a group", "another model", "one reading of an idle moment",
        "a GPU that only waits for others",
    ),
)
