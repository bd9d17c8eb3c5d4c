"""A GPU that is slowed by its own heat.

Physics speaks first: thermal clock-event bits as a duty cycle, the driver's time-in-slowdown counters, the margin to the
slowdown limit. Where the exporter shows none of them (dcgm-exporter's default CSV), heat and a lost clock speak together:
much hotter than the peers or than before, slower than the peers or than before, at work, and not at the power limit.

An idle GPU is not judged, a hot GPU that keeps its clock is clear, and a low clock at the power limit is what the limit
is for (P13). GPUs that merely wait for a throttled one keep their clock and stay cool: they are clear as well.

Where most GPUs of the node are far hotter than the job's other nodes, it is the node's own air (its fans), and the GPU that slows
first is only the hottest of them: the node is named as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import gpus, shared, stats
from detectors.stats import Bools, Ints, Peers, Span

FAULT = "thermal_throttle"
THERMAL_BITS = 0x20 | 0x40  # software and hardware thermal slowdown; 0x8 alone or with 0x80 is a power brake (§2.1)
IDLE_BIT = 0x1


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §2 and §2.1, rules.md §3d; where no source is named, our judgement on recorded pages.

    window_seconds: how far back evidence is averaged, at least three scrapes.
    duty: share of samples with a thermal bit that is a fault by itself (gpud: 6 of 10 minutes; ours is shorter because
    the driver's bit lasts as long as the slowdown). duty_weak: the share that is one where heat or clock agree.
    slowed_share: seconds per second in thermal slowdown that are a fault by themselves; slowed_share_weak: the table's
    `THERMAL rate > 0.01 s/s`, where heat or clock agree. margin: °C to the slowdown limit (H100: software slowdown
    at 0, hardware below −2); margin_near: still inside the sensors' noise of the limit;
    margin_far: a margin that speaks against a throttle.
    hot: °C of the core that no healthy part reaches under water or good air (about 75); hot_memory: of the HBM.
    hotter, hotter_sigmas: °C and robust sigmas above the peers; hotter_than_past: °C above the part's own past.
    clock_loss: share of the clock lost against peers or past where only heat and clock speak; clock_loss_weak: the share
    that agrees with physics, or with a heat that lies much_hotter (°C) above peers and past alike. clock_sigmas: robust sigmas below the peers. at_cap: share of the power limit from which a
    low clock is the limit's work. busy: utilisation from which a GPU is at work. peers_min: others needed to compare.
    node_hotter: °C above the middle of the other nodes' middles (slots differ by ±4 and inlets by a few °C, signals.md §10) by which
    the share node_share of the node's GPUs at work, and node_gpus at least, must be hotter for the node to be named.
    """

    window_seconds: float = 120.0
    duty: float = 0.5
    duty_weak: float = 0.2
    slowed_share: float = 0.05
    slowed_share_weak: float = 0.01
    margin: float = 0.5
    margin_near: float = 2.0
    margin_far: float = 5.0
    hot: float = 80.0
    hot_memory: float = 95.0
    hotter: float = 12.0
    hotter_sigmas: float = 8.0
    hotter_than_past: float = 6.0
    much_hotter: float = 20.0
    clock_loss: float = 0.035
    clock_loss_weak: float = 0.02
    clock_sigmas: float = 3.0
    at_cap: float = 0.95
    busy: float = 0.5
    peers_min: int = 3
    node_hotter: float = 8.0
    node_share: float = 0.6
    node_gpus: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What the last minutes show, by GPU."""

    temp: Span
    memory_temp: Span
    clock: Span
    power: Floats
    limit: Floats
    margin: Span
    slowdown_temp: Floats
    duty: Floats
    bit_samples: Floats
    share: Floats
    share_low: Floats
    events: Floats
    active: Bools
    fresh: Bools
    groups: Ints
    skip: int


def _groups(window: Window) -> Ints:
    """Peers do the same work on the same model: GPUs of one job, else of one instance type, else of one node."""
    jobs, parts = shared.job_of_nodes(window), window.of_kind("gpu")

    def make() -> Ints:
        keys = []
        for gpu, model in zip(parts, shared.models(window, parts), strict=True):
            node = gpu.node or ""
            job = gpu.job or jobs.get(node)
            keys.append((job or "", model or ("" if job else node)))
        found = stats.codes(keys)
        found.flags.writeable = False
        return found

    return shared.kept("GPUs that may be as hot", (parts, window.topology, jobs), make)


def _active(window: Window, p: Params, power: Floats, limit: Floats, bits_now: Floats) -> Bools:
    """At work over the span: by utilisation, else the profiling engines, else power, else the driver's idle bit."""
    util = stats.span_of(window, "gpu.utilization_ratio", p.window_seconds).mean
    graphics = stats.span_of(window, "gpu.graphics_active_ratio", p.window_seconds).mean
    # Profiling fields can lie by zero (signals.md §0 fact 5), so they only speak where utilisation does not.
    by_profile = np.where(np.isnan(graphics), np.nan, graphics - 0.3)
    by_power = power / np.where(np.isnan(limit), 600.0, limit) - 0.35
    idle = (np.nan_to_num(bits_now).astype(np.int64) & IDLE_BIT) > 0
    by_bits = np.where(np.isnan(bits_now), np.nan, np.where(idle, -1.0, 1.0))
    score = util - p.busy
    for other in (by_profile, by_power, by_bits):
        score = np.where(np.isnan(score), other, score)
    return stats.above(score, 0.0)


def _view(window: Window, p: Params) -> _View:
    def of(signal: str) -> Span:
        return stats.span_of(window, signal, p.window_seconds)

    bits = window.block("gpu.throttle_reasons_bits")
    intervals = stats.intervals_of(window, "gpu.throttle_reasons_bits")
    duty = gpus.bits_span(window, THERMAL_BITS, p.window_seconds)
    shares = [of(f"gpu.{name}_ratio") for name in ("thermal_violation", "sw_thermal", "hw_thermal")]
    temp, clock = of("gpu.temperature_celsius"), of("gpu.sm_clock_hertz")
    power, limit = of("gpu.power_watts").mean, of("gpu.power_limit_watts").mean
    fresh = np.zeros(len(window.of_kind("gpu")), bool)
    for signal in ("gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.throttle_reasons_bits"):
        fresh |= window.block(signal).fresh()
    slowest = stats.intervals_of(window, "gpu.temperature_celsius")
    skip = max(window.ticks(p.window_seconds), stats.PARTS * int(slowest.max(initial=1))) + 4
    return _View(
        temp, of("gpu.memory_temperature_celsius"), clock, power, limit, of("gpu.thermal_margin_celsius"),
        of("gpu.slowdown_temperature_celsius").mean, duty.mean, duty.mean * duty.known / intervals,
        stats.highest(*(s.mean for s in shares)), stats.highest(*(s.low for s in shares)),
        of("gpu.thermal_events_in_window").low, _active(window, p, power, limit, bits.last), fresh, _groups(window), skip,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Clock and heat against peers and the part's own past. loss: share of clock lost, the larger of the two."""

    clock_peers: Peers
    temp_peers: Peers
    past_clock: Floats
    past_temp: Floats
    loss_peers: Floats
    loss_past: Floats
    hot: Bools
    hotter: Bools
    hotter_than_past: Bools
    far_slower: Bools
    draws_more: Bools


def _past(window: Window, signal: str, at_work: Bools, suspicious: Ints, skip: int, q: float) -> Floats:
    """The part's own level at work before the span. Only for suspicious parts: the past of a fleet is costly."""
    out = np.full(len(window.of_kind("gpu")), np.nan)
    if len(suspicious):
        near = stats.own_past(window, signal, suspicious, skip, q, at_work)
        far = stats.long_past(window, signal, 6 * 3600, suspicious)
        out[suspicious] = np.where(np.isnan(near), far, near)
    return out


def _compare(window: Window, view: _View, p: Params) -> _Compared:
    working = view.active & view.fresh
    clock_peers = stats.peers(np.where(working, view.clock.mean, np.nan), view.groups)
    temp_peers = stats.peers(np.where(working, view.temp.mean, np.nan), view.groups)
    power_peers = stats.peers(np.where(working, view.power, np.nan), view.groups)
    hot = (stats.above(view.temp.mean, p.hot) | stats.above(view.memory_temp.mean, p.hot_memory)
           | stats.below(view.margin.mean, p.margin_near)
           | stats.above(view.temp.mean - view.slowdown_temp, -3.0))
    delta = view.temp.mean - temp_peers.middle
    compared = temp_peers.n >= p.peers_min
    hotter = (compared & stats.above(delta, p.hotter)
              & stats.above(stats.robust_z(view.temp.mean, temp_peers, 1.0), p.hotter_sigmas))
    suspicious = stats.columns_where(working & (hot | hotter | stats.above(view.duty, 0.05)
                                                | stats.above(view.share, p.slowed_share_weak)))
    at_work = gpus.at_work(window, p.busy)
    # A high quantile of the clock and a low one of the heat: a fault that fills half the window leaves them standing.
    past_clock = _past(window, "gpu.sm_clock_hertz", at_work, suspicious, view.skip, 0.75)
    past_temp = _past(window, "gpu.temperature_celsius", at_work, suspicious, view.skip, 0.25)
    past_power = _past(window, "gpu.power_watts", at_work, suspicious, view.skip, 0.5)
    enough = clock_peers.n >= p.peers_min
    loss_peers = np.where(enough, 1.0 - stats.ratio(view.clock.mean, clock_peers.middle), np.nan)
    loss_past = 1.0 - stats.ratio(view.clock.mean, past_clock)
    heated = stats.above(delta, p.much_hotter) & stats.above(view.temp.mean - past_temp, p.much_hotter)
    # 15 MHz is one step of the clock: the least sigma.
    far = stats.above(-stats.robust_z(view.clock.mean, clock_peers, 15e6), p.clock_sigmas)
    return _Compared(
        clock_peers, temp_peers, past_clock, past_temp, loss_peers, loss_past, hot, hotter,
        stats.above(view.temp.mean - past_temp, p.hotter_than_past),
        enough & far & stats.above(loss_peers, np.where(heated, p.clock_loss_weak, p.clock_loss)),
        # No limit on the page: heat takes power away, so a GPU that draws more than before, and more than its peers,
        # is held by its limit. Peers alone do not tell: those that wait for a throttled GPU draw less as well.
        np.isnan(view.limit) & stats.above(view.power / power_peers.middle, 1.05)
        & stats.above(view.power / past_power, 1.03),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Word:
    """The decision by GPU: faulty by physics, faulty by heat and clock, and known to be well."""

    physics: Bools
    heat_and_clock: Bools
    clear: Bools


def _decide(view: _View, c: _Compared, p: Params) -> _Word:
    capped = stats.above(view.power / view.limit, p.at_cap) | c.draws_more
    loss = stats.highest(c.loss_peers, c.loss_past)
    slowed = stats.above(loss, p.clock_loss_weak)
    clock_kept = stats.below(loss, p.clock_loss_weak)
    several = stats.above(view.bit_samples, 1.5)  # one sample with a thermal bit is no fault
    strong = (several & stats.above(view.duty, p.duty)) | stats.above(view.share_low, p.slowed_share)
    weak = ((several & stats.above(view.duty, p.duty_weak)) | stats.above(view.share_low, p.slowed_share_weak)
            | stats.above(view.events, 4.0))
    warm = c.hot | c.hotter | c.hotter_than_past | stats.below(view.margin.mean, p.margin_far) | np.isnan(view.temp.mean)
    no_counter_says_heat = ~stats.above(view.duty, 1e-9) & ~stats.above(view.share, 1e-5)
    counters_say_none = no_counter_says_heat & ~(np.isnan(view.duty) & np.isnan(view.share))
    at_limit = stats.below(view.margin.high, p.margin) & (slowed | np.isnan(loss)) & ~counters_say_none
    agrees = warm & (slowed | np.isnan(loss)) & ~capped
    physics = (strong & (warm | slowed)) | (weak & agrees) | at_limit
    margin_says_none = stats.above(view.margin.mean, p.margin_far)
    slower = c.far_slower | (stats.above(c.loss_past, p.clock_loss) & c.hotter_than_past
                             & ~stats.below(c.loss_peers, -p.clock_loss))
    heat = c.hotter | (c.hot & (c.hotter_than_past | stats.above(
        view.temp.mean - c.temp_peers.middle, p.hotter_than_past)))
    by_heat = heat & slower & ~capped & ~counters_say_none & ~margin_says_none
    judged = view.active & view.fresh
    physics, by_heat = physics & judged, by_heat & judged & ~physics
    quiet = ~stats.above(view.duty, p.duty_weak) & ~stats.above(view.share_low, p.slowed_share_weak)
    seen = ~np.isnan(view.duty) | ~np.isnan(view.share) | ~np.isnan(view.margin.mean) | ~np.isnan(view.temp.mean)
    clear = judged & seen & ~physics & ~by_heat & quiet & (clock_kept | ~(c.hot & slowed) | capped)
    return _Word(physics, by_heat, clear)


def _evidence(e: int, view: _View, c: _Compared) -> tuple[Evidence, ...]:
    """All numbers that spoke, the physics first."""
    out: list[Evidence] = []
    add = stats.evidence
    if view.duty[e] > 0:
        duty = round(float(view.duty[e]), 4)  # of the bits, only how often the thermal ones are set is comparable
        out.append(Evidence("gpu.throttle_reasons_bits", "ratio", duty, 0.0, "share of samples with a thermal bit"))
    if view.share[e] > 0:
        out.append(add("gpu.thermal_violation_ratio", view.share[e], 0.0, "no time in thermal slowdown"))
    if view.events[e] > 0:
        out.append(add("gpu.thermal_events_in_window", view.events[e], 0.0, "none in the exporter's window"))
    if not np.isnan(view.margin.mean[e]):
        out.append(add("gpu.thermal_margin_celsius", view.margin.mean[e], 0.0, "slowdown begins at 0"))
    if not np.isnan(view.temp.mean[e]):
        peers = f"median of {c.temp_peers.n[e]} peers at work"
        out.append(add("gpu.temperature_celsius", view.temp.mean[e], c.temp_peers.middle[e], peers))
    if not np.isnan(c.loss_peers[e]):
        peers = f"median of {c.clock_peers.n[e]} peers at work"
        out.append(add("gpu.sm_clock_hertz", view.clock.mean[e], c.clock_peers.middle[e], peers))
    if not np.isnan(c.loss_past[e]):
        out.append(add("gpu.sm_clock_hertz", view.clock.mean[e], c.past_clock[e], "its own past at work"))
    if not np.isnan(view.power[e]):
        out.append(add("gpu.power_watts", view.power[e], view.limit[e], "power limit"))
    return tuple(out)


def _onsets(window: Window, columns: Ints, c: _Compared) -> Ints:
    """When the newest run of symptoms began: a thermal bit, time in slowdown, no margin, or heat with a lost clock."""
    def of(signal: str) -> Floats:
        return window.values(signal)[:, columns]

    bits = np.nan_to_num(of("gpu.throttle_reasons_bits")).astype(np.int64) & THERMAL_BITS
    symptom = bits > 0
    for name in ("thermal_violation", "sw_thermal", "hw_thermal"):
        symptom |= stats.above(of(f"gpu.{name}_ratio"), 0.01)
    symptom |= stats.below(of("gpu.thermal_margin_celsius"), 0.5)
    usual = stats.highest(c.clock_peers.middle[columns], c.past_clock[columns])
    symptom |= (stats.below(of("gpu.sm_clock_hertz") / usual, 0.97) & stats.above(of("gpu.temperature_celsius"), 70.0)
                & stats.above(of("gpu.utilization_ratio"), 0.5))
    return stats.run_start(symptom, window.times, 4)


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU at work with fresh data; the others are unknown."""
    parts = window.of_kind("gpu")
    if not parts or not len(window.times):
        return []
    view = _view(window, params)
    compared = _compare(window, view, params)
    word = _decide(view, compared, params)
    out = shared.clears(parts, word.clear & shared.loud(window, parts), FAULT)
    columns = stats.columns_where(word.physics | word.heat_and_clock)
    names, at = shared.node_names(parts)
    targets = shared.kept("nodes of GPUs", (parts,), lambda: tuple(Target("node", name) for name in names))
    well = np.zeros(len(names), bool)
    well[at[word.clear & shared.loud(window, parts)]] = True
    # Not while any of its GPUs at work is not known to be well: the node's finding would end before theirs, and leave them to stand alone.
    well[at[view.active & view.fresh & ~word.clear]] = False
    out += shared.clears(targets, well, FAULT)
    words: dict[int, list[Verdict]] = {}
    onsets = _onsets(window, columns, compared) if len(columns) else columns
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        if parts[e].node in window.silent_nodes:
            continue
        loss = np.nan_to_num(np.fmax(compared.loss_peers[e], compared.loss_past[e]))
        severity = float(np.clip(0.45 + 0.9 * loss, 0.3, 0.85))
        reason = "thermal_slowdown" if word.physics[e] else "hot_and_slow"
        out.append(Verdict(parts[e], FAULT, "faulty", round(severity, 3), _evidence(e, view, compared), reason,
                           onset_at=int(onset)))
        words.setdefault(int(at[e]), []).append(out[-1])
    return out + _of_nodes(view, words, targets, at, params)


def _of_nodes(view: _View, words: dict[int, list[Verdict]], targets: tuple[Target, ...], at: Ints, p: Params) -> list[Verdict]:
    """A word on each node with throttled GPUs (`words`, by position) of which most GPUs are hot. at: int[gpu], each one's node."""
    out: list[Verdict] = []
    if not words:
        return out
    known = view.active & view.fresh & ~np.isnan(view.temp.mean)
    counts = np.bincount(at[known], minlength=len(targets))
    order = np.flatnonzero(known)
    order = order[np.lexsort((view.temp.mean[order], at[order]))]
    enough, first = counts >= p.node_gpus, np.cumsum(counts) - counts
    middle, group = np.full(len(targets), np.nan), np.full(len(targets), -1, np.int64)
    low, high = ((first + half)[enough] for half in ((counts - 1) // 2, counts // 2))
    middle[enough] = (view.temp.mean[order[low]] + view.temp.mean[order[high]]) / 2.0
    group[enough] = view.groups[order[first[enough]]]
    others = stats.peers(middle, group)
    for i, found in sorted(words.items()):
        mine = order[first[i]:first[i] + counts[i]]
        hot = stats.above(view.temp.mean[mine], others.middle[i] + p.node_hotter)
        if others.n[i] and enough[i] and hot.mean() >= p.node_share:
            worst = max(found, key=lambda v: (v.severity, v.target.key))
            row = stats.evidence("gpu.temperature_celsius", middle[i], float(others.middle[i]), f"median of {others.n[i]} other nodes",
                                 f"{int(hot.sum())} of its {len(mine)} GPUs at work are as hot")
            out.append(Verdict(targets[i], FAULT, "faulty", worst.severity, (row, *worst.evidence), worst.reason,
                               onset_at=min(v.onset_at for v in found if v.onset_at is not None)))
    return out


PLUGIN = DetectorPlugin(
    name="thermal_throttle",
    fault=FAULT,
    judge=judge,
    params=Params,
    needs=(("gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio", "gpu.sw_thermal_ratio", "gpu.hw_thermal_ratio",
            "gpu.thermal_margin_celsius", "gpu.temperature_celsius"),),
    # The span is two minutes long already; four of five ticks more make it open two to three minutes after onset.
    hold=Hold(on=3, of=4, off=8, expire=40),
    must_not=(
        "a low clock at the power limit", "a power brake", "an idle GPU's low clock", "a hot GPU that keeps its clock",
        "a thermal bit in one sample", "a hot day on all nodes", "GPUs that wait for a throttled one",
        "a warm-up or a checkpoint pause",
    ),
)
