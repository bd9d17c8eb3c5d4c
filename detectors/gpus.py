"""What detectors of GPUs share: which GPUs are peers, which are at work, and how a part's level compares with its past.

Peers do the same work on the same model: GPUs of one job, else of one instance type, else of one node; a frame buffer of
another size is another model, whatever the inventory says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.types import Floats
from core.window import Window
from detectors import shared, stats
from detectors.stats import Bools, Ints, Span

THERMAL_BITS = 0x20 | 0x40  # signals.md §2.1: software and hardware thermal slowdown
BRAKE_BIT, CAP_BIT, IDLE_BIT = 0x80, 0x4, 0x1
# Clocks that somebody or something chose: application clocks, sync boost, display clocks.
CHOSEN_BITS = 0x2 | 0x10 | 0x100
# Rows of the past that are sorted; a quantile of a fleet's whole window costs more and tells no more.
PAST_ROWS = 40
GIB = float(1 << 30)


def groups(window: Window) -> Ints:
    """int[gpu]: equal for peers."""
    return window.once("peer GPUs", lambda: _groups(window))


def _groups(window: Window) -> Ints:
    jobs, parts = shared.job_of_nodes(window), window.of_kind("gpu")
    used, free = window.last("gpu.memory_used_bytes"), window.last("gpu.memory_free_bytes")
    # Reserved memory differs by megabytes, models by gigabytes.
    sizes = np.nan_to_num(np.round((used + free) / (4 * GIB)))
    return shared.standing("peer GPUs", (parts, window.topology, jobs), [sizes], lambda: _codes(window, jobs, sizes.tolist()))


def _codes(window: Window, jobs: Mapping[str, str], sizes: Sequence[float]) -> Ints:
    places: dict[str, tuple[str, str]] = {}
    keys = []
    for gpu, size in zip(window.of_kind("gpu"), sizes, strict=True):
        node = gpu.node or ""
        if node not in places:
            job = jobs.get(node)
            places[node] = (job or "", stats.model_of(window, node) or ("" if job else node))
        job_of_node, model = places[node]
        keys.append((gpu.job or job_of_node, model, size))
    found = stats.codes(keys)
    found.flags.writeable = False
    return found


def nodes(window: Window) -> Ints:
    """int[gpu]: equal for GPUs of one node."""
    return shared.node_names(window.of_kind("gpu"))[1]


def share_of(flags: Bools, known: Bools, of: Ints) -> Floats:
    """float64[gpu]: the share of the flagged among the known of each one's group `of`; NaN where none is known."""
    n = int(of.max(initial=-1)) + 1
    total = np.bincount(of[known], minlength=n).astype(float)
    flagged = np.bincount(of[known & flags], minlength=n).astype(float)
    return stats.ratio(flagged, total)[of]


def count_of(known: Bools, of: Ints) -> Ints:
    """int[gpu]: how many of each one's group `of` are known."""
    return np.bincount(of[known], minlength=int(of.max(initial=-1)) + 1)[of].astype(np.int64)


def bits_span(window: Window, mask: int, seconds: float) -> Span:
    """How often one of the bits of `mask` is set, as a share of the samples; NaN where the reasons are not shown."""
    return window.once(("bits", mask, seconds), lambda: _bits_span(window, mask, seconds))


def _bits_span(window: Window, mask: int, seconds: float) -> Span:
    rows = -max(window.ticks(seconds), stats.PARTS * stats.LONGEST_INTERVAL_TICKS)
    known, bits = window.once(("bits", rows), lambda: _bits(window, rows))
    on = np.where(known, (bits & mask) > 0, np.nan)
    return stats.span(on, stats.intervals_of(window, "gpu.throttle_reasons_bits"), window.ticks(seconds))


def _bits(window: Window, first: int) -> tuple[Bools, Ints]:
    """Which of the rows from `first` on tell reasons, and the reasons."""
    rows = window.values("gpu.throttle_reasons_bits")[first:]
    known = ~np.isnan(rows)
    return known, np.where(known, rows, 0.0).astype(np.int64)


def span(window: Window, signal: str, seconds: float) -> Span:
    """As `stats.span_of`."""
    return stats.span_of(window, signal, seconds)


def working(window: Window, seconds: float, busy: float) -> Bools:
    """bool[gpu]: at work in each third of the span: by utilisation, else by power, else by the driver's idle bit."""
    return window.once(("working", seconds, busy), lambda: _working(window, seconds, busy))


def _working(window: Window, seconds: float, busy: float) -> Bools:
    util = span(window, "gpu.utilization_ratio", seconds).low
    power, limit = span(window, "gpu.power_watts", seconds).low, span(window, "gpu.power_limit_watts", seconds).mean
    by_power = power / np.where(np.isnan(limit), 600.0, limit) - 0.35
    idle = bits_span(window, IDLE_BIT, seconds).mean
    score = np.where(np.isnan(util), np.where(np.isnan(by_power), 0.1 - idle, by_power), util - busy)
    return stats.above(score, 0.0)


def past_rows(window: Window, seconds: float) -> slice:
    """Rows of the window that are the past of a span of `seconds`: thinned out to at most `PAST_ROWS`."""
    end = max(0, len(window.times) - max(window.ticks(seconds), stats.PARTS * stats.LONGEST_INTERVAL_TICKS // 2) - 2)
    return slice(0, end, max(1, -(-end // PAST_ROWS)))


def past(window: Window, signal: str, columns: Ints, seconds: float, q: float, when: Bools | None = None) -> Floats:
    """float64[len(columns)]: the quantile `q` of the part's own past in the window where there is enough of it, else the
    median of the last day without open findings.

    when: bool[tick, part], ticks that count. A quantile near the healthy end (high of a clock, low of a time) still tells
    the healthy level when the fault fills most of the window.
    """
    rows = past_rows(window, seconds)
    values = window.values(signal)[rows][:, columns]
    if when is not None:
        values = np.where(when[rows][:, columns], values, np.nan)
    near = np.where(stats.count(values) >= 3, stats.quantile(values, q), np.nan)
    far = stats.long_past(window, signal, 86_400, columns)
    return np.where(np.isnan(near), far, near)


def at_work(window: Window, busy: float = 0.5) -> Bools:
    """bool[tick, gpu], read-only: at work at that tick, or not known to be otherwise."""
    def make() -> Bools:
        util = window.values("gpu.utilization_ratio")
        found = np.isnan(util) | stats.above(util, busy)
        found.flags.writeable = False
        return found

    return window.once(("at work", busy), make)


def fresh(window: Window, *signals: str) -> Bools:
    """bool[gpu]: one of the signals is fresh."""
    out = np.zeros(len(window.of_kind("gpu")), bool)
    for signal in signals:
        out |= window.block(signal).fresh()
    return out


def loud(window: Window) -> Bools:
    """bool[gpu]: its node is not silent."""
    return shared.loud(window, window.of_kind("gpu"))


# Under a limit of power the board holds the power and lets the clock wander; a clock that is stuck stands, and the power follows
# the work. Power at the limit lies within 4 % (recorded H200s: 94-98 % of it), healthy power at work spreads over twice that.
HELD_SPREAD = 0.045
HELD_ROWS = 8          # two minutes, four cycles of an exporter


def held_power(window: Window, columns: Ints, low: Bools, together: bool = False) -> tuple[Bools, Bools]:
    """(told, held), bool[len(columns)] each: whether it can be told what holds the clock of GPUs that are slow at the rows `low`
    (bool[tick, column]), and whether a limit of power does: the power stands and the clock wanders. together: it stands at what the
    others of the columns have at that tick, for one limit of all of them may be lowered bit by bit."""
    power, clock = (np.where(low, window.values(f"gpu.{n}")[:, columns], np.nan) for n in ("power_watts", "sm_clock_hertz"))
    power, clock = power[-window.ticks(300):], clock[-window.ticks(300):]
    if together:
        power = stats.ratio(power, stats.median(power, axis=1)[:, None])
    told = (stats.count(power) >= HELD_ROWS) & (stats.count(clock) >= HELD_ROWS)

    def spread(values: Floats) -> Floats:
        return stats.ratio(stats.quantile(values, 0.85) - stats.quantile(values, 0.15), stats.median(values))

    # The reading at which it fell is on the way to where it stands: that is no wandering.
    wanders = stats.above(stats.quantile(clock, 0.85) - stats.quantile(clock, 0.15), 1e6)
    return told, told & wanders & stats.below(spread(power), HELD_SPREAD)


# Without readings that change there is nothing to compare: so many are needed since it began.
READINGS = 3


@dataclass(frozen=True, slots=True)
class Grown:
    """By which share a signal of a GPU grew against its peers', with the standard error of that; its level and theirs since then."""

    signal: str
    share: float
    error: float
    now: float
    usual: float


def grown(window: Window, signal: str, e: int, peers: Ints, since: int | None) -> Grown | None:
    """None where too few readings tell. Where there is no time before the row, all peers' levels are taken to have been one."""
    if signal not in window.blocks or len(peers) < READINGS:
        return None
    values = window.values(signal)
    start = len(values) - window.ticks(300) if since is None else min(since + 1, len(values) - 1)
    # A page that shows each reading twice tells each once; one that stands still tells nothing.
    told = np.flatnonzero(~np.isnan(values[:, e]))
    told = told[np.concatenate([[True], np.diff(values[told, e]) != 0.0])] if len(told) else told
    others = stats.median(values[told][:, peers], axis=1)
    ratio = stats.ratio(values[told, e], others)
    at_work = ~np.isnan(ratio) & stats.above(others, 0.3 * float(stats.quantile(others, 0.75)))
    late, early = at_work & (told >= max(0, start)), at_work & (told < max(0, start - 1))
    if late.sum() < READINGS:
        return None
    now, scatter = float(np.median(ratio[late])), _error(ratio[late])
    before, more = 1.0, 0.0
    if since is not None and early.sum() >= 4:
        before, more = float(np.median(ratio[early])), _error(ratio[early])
    if not before > 0.0:
        return None
    usual = float(np.median(others[late]))
    return Grown(signal, now / before - 1.0, float(np.hypot(scatter, more)), now * usual, usual)


def _error(values: Floats) -> float:
    """The standard error of the median of values that differ by noise, from the steps between them."""
    steps = np.abs(np.diff(values))
    return 1.25 * 1.4826 / np.sqrt(2.0) * float(np.median(steps)) / float(np.sqrt(len(values))) if len(steps) else 0.0
