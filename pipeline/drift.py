"""Slow drift: parts that get worse over days, long before a limit that somebody named, as tickets with days to go.

A ticket needs a trend over at least ten days that chance hardly makes, that goes on in both halves of the time, that is far
above the quantity's own noise, and that reaches its limit within the horizon. What most parts of a model do together (a
season, more traffic, a rollout) is one ticket of the fleet. No fault of the closed list is meant: these are no incidents and
nothing acts on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.signals import unit_of
from core.types import Floats, Target
from pipeline.drift_days import Days
from pipeline.trend import Trend, trend

Bools = NDArray[np.bool_]
MARGIN = "gpu.thermal_margin_celsius"
HOUR = 3600.0
AS_WELL = 1.5  # a shape that leaves so much more than the best one is no candidate
LEAST_PEERS = 3  # others on the node, to be compared with
BEYOND = 1e-3  # chance that a part only does what its node does
LEAST_HALF = 4  # days, without which half of the time has no slope
MOST_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched. signal: canonical, named in the ticket. limit: the value that is not to be reached, limit_name: who says
    so. floor: nearer to the healthy side than this, no trend is told. per: the signal that it is divided by. unit: of value,
    limit and floor. falls: True where it is getting worse by falling.
    chance: in place of the parameter of that name: how rare such a trend must be (a margin, freed of load and of what its peers
    do, wanders less than a count)."""

    signal: str
    limit: float
    limit_name: str
    floor: float
    per: str | None = None
    unit: str = ""
    falls: bool = False
    chance: float | None = None


# Limits with their sources. Floors are some ten times what signals.md §10 calls healthy.
WATCHES: tuple[Watch, ...] = (
    Watch("gpu.ecc_correctable_per_second", 0.2, "the rate at which a storm of correctable errors is told (0.2 a second)", 1e-4),
    Watch("gpu.pcie_replays_per_second", 8 / 60, "DCGM's PCIe health watch (8 replays a minute)", 10 / 86_400),
    Watch("gpu.nvlink_errors_per_second", 100.0, "DCGM's NVLink health watch (100 CRC errors a second)", 0.01),
    Watch("nic.corrected_bits_per_second", 2.4e-4, "the bit error rate that KP4 FEC can correct (IEEE 802.3, 2.4e-4)", 1e-8,
          "nic.rate_bytes_per_second", "errors per bit"),
    Watch("nic.lane_errors_per_second", 2.4e-4, "the bit error rate that KP4 FEC can correct (IEEE 802.3, 2.4e-4)", 1e-8,
          "nic.rate_bytes_per_second", "errors per bit"),
    Watch("nic.uncorrected_symbols_per_second", 120 / HOUR, "the symbol errors that InfiniBand allows (120 an hour)", 10 / 86_400),
    Watch("nic.corrupt_packets_per_second", 120 / HOUR, "the symbol errors that InfiniBand allows (120 an hour)", 10 / 86_400),
    Watch("nic.retransmits_per_second", 1e-4, "the share of packets sent again from which a path is degraded (1e-4)", 1e-5,
          "nic.transmitted_packets_per_second", "ratio"),
    Watch(MARGIN, 0.0, "the slowdown limit (margin 0)", 20.0, None, "°C", True, 1e-3),
)
BITS_PER_BYTE = 8.0


@dataclass(frozen=True, slots=True)
class Params:
    """Our judgement, measured on generated healthy series (docs/drift.md).

    days: how far back. days_min: known days without which nothing is said. chance: of such a trend without a cause, by part
    and signal. change: the rise over all of the time, in robust sigmas of a day. doubled: and, of what only grows, by this
    factor; falls_min: of a margin, by so many degrees. horizon_days: a limit farther away is no ticket. shared: from this share
    of at least shared_parts parts of one model on, the drift is the fleet's. recent: newest days of which one must be known.
    """

    days: int = 30
    days_min: int = 10
    chance: float = 1e-5
    change: float = 6.0
    doubled: float = 2.0
    falls_min: float = 3.0
    horizon_days: float = 60.0
    shared: float = 0.2
    shared_parts: int = 8
    recent: int = 2


@dataclass(frozen=True, slots=True)
class DriftTicket:
    """id: stable for part and signal. target: the part, or kind fleet with the model as device where it is the fleet's; parts:
    how many. value: now; was: at the first known day; per_day: how it changes now, a day. days_to_go to the limit, with its
    90 % interval (high None = it may never come); 0 = it is reached. growth: linear or exponential. chance: of such a trend
    without a cause. days: how many are known. peers: the median of its like now, None where there are too few."""

    id: str
    target: Target
    signal: str
    unit: str
    value: float
    was: float
    per_day: float
    limit: float
    limit_name: str
    days_to_go: float
    days_low: float
    days_high: float | None
    growth: str
    chance: float
    days: int
    parts: int
    peers: float | None
    at: int
    text: str


@dataclass(frozen=True, slots=True)
class DriftReport:
    """at: end (ms) of the newest day. tickets: those with the fewest days first. looked: parts of which enough days are known, by
    signal: of all others nothing is known, which is not good news."""

    at: int
    tickets: tuple[DriftTicket, ...] = ()
    looked: Mapping[str, int] = field(default_factory=dict)
    blind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A trend of values on a scale. offset: of logarithms, None = the values as they are. sign: 1 where worse is more, -1 where it
    is less. shown: float64[day, part], the values on the scale, more is worse. newest: float64[part], what the line leaves of
    the newest half of the days, in the quantity's unit."""

    offset: float | None
    sign: float
    shown: Floats
    fit: Trend
    newest: Floats

    def value(self, day: float) -> Floats:
        """float64[part] at a day, in the quantity's unit."""
        at = self.fit.at(day) * self.sign
        return at if self.offset is None else np.exp(np.minimum(at, MOST_LOG)) - self.offset

    def place(self, value: float) -> float:
        """Where a value stands on the scale."""
        return self.sign * value if self.offset is None else float(np.log(max(value + self.offset, 1e-300)))


def _lines(watch: Watch, when: Floats, values: Floats, days_min: int) -> list[_Line]:
    """Linear growth, and growth by a factor of what only grows. A count of zero is half of a count (a 20th of the floor)."""
    sign = -1.0 if watch.falls else 1.0
    offset = watch.floor / 20.0
    with np.errstate(invalid="ignore"):
        scales: list[tuple[float | None, Floats]] = [(None, values * sign)]
        if not watch.falls:
            scales.append((offset, np.log(_since_last_zero(values, days_min) + offset)))
    lines = []
    for shift, shown in scales:
        bare = _Line(shift, sign, shown, trend(when, shown), np.zeros(0))
        left = np.abs(values - np.stack([bare.value(day) for day in when.tolist()]))[len(when) // 2 :]
        lines.append(replace(bare, newest=_medians(left.T)))
    return lines


def _since_last_zero(values: Floats, days_min: int) -> Floats:
    """Without the days up to the last one of zero, where enough come after it: a factor's growth cannot be seen in days too few
    for a single count, and they would flatten it."""
    days = len(values)
    zero = np.where(values <= 0, np.arange(days)[:, None], -1).max(axis=0, initial=-1)
    after = (~np.isnan(values) & (np.arange(days)[:, None] > zero)).sum(axis=0)
    cut = (np.arange(days)[:, None] <= zero) & (after >= days_min)
    return np.where(cut, np.nan, np.maximum(values, 0.0))


def judge(every: Sequence[tuple[Watch, Days]], models: Sequence[Sequence[str]], at: int, params: Params) -> DriftReport:
    """Tickets of all quantities. models: for each of `every`, the model of each part (empty = not known), parts of one model are
    compared. at: ms, the end of the newest day."""
    tickets: list[DriftTicket] = []
    looked: dict[str, int] = {}
    blind: dict[str, int] = {}
    for (watch, days), model in zip(every, models, strict=True):
        fresh = ~np.isnan(days.values[-params.recent:]).all(axis=0) if len(days.values) else np.zeros(len(days.parts), bool)
        enough = ((~np.isnan(days.values)).sum(axis=0) >= params.days_min) & fresh
        looked[watch.signal] = looked.get(watch.signal, 0) + int(enough.sum())
        blind[watch.signal] = blind.get(watch.signal, 0) + int((~enough).sum())
        tickets += _tickets(watch, days, model, enough, at, params)
    tickets.sort(key=lambda t: (t.days_to_go, t.signal, t.target.key))
    return DriftReport(at, tuple(tickets), looked, blind)


def _tickets(watch: Watch, days: Days, model: Sequence[str], enough: Bools, at: int, p: Params) -> list[DriftTicket]:
    some = np.flatnonzero(enough)
    if not len(some):
        return []
    kinds = [model[i] for i in some.tolist()]
    parts = tuple(days.parts[i] for i in some.tolist())
    values = days.values[:, some]
    level = None if days.level is None else days.level[some]
    if watch.falls:
        values = _against_peers(values, [f"{kind}/{part.device}" for kind, part in zip(kinds, parts, strict=True)], kinds)
    when = np.arange(len(values), dtype=np.float64) - (len(values) - 1)
    lines = _lines(watch, when, values, p.days_min)
    least = np.min([one.newest for one in lines], axis=0)
    worse = [_worse(watch, when, one, level, p) & (one.newest <= AS_WELL * least) for one in lines]
    found = []
    for i in np.flatnonzero(np.logical_or.reduce(worse)).tolist():
        chosen = min((one for one, bad in zip(lines, worse, strict=True) if bad[i]), key=lambda one: float(one.newest[i]))
        if not watch.falls and not _beyond_node(watch, when, values, parts, i):
            continue
        if _is_step(chosen.shown[:, i], when, chosen.fit, i):
            continue
        # Where two shapes fit about as well, nobody knows which goes on: the interval is that of both.
        others = [one for one in lines if one.newest[i] <= AS_WELL * least[i]]
        found.append(_ticket(watch, parts[i], days_known(values[:, i]), chosen, others, i, level, at))
    near = [t for t in found if t.days_to_go <= p.horizon_days]
    return _with_peers(_shared(near, parts, kinds, p), values if level is None else level[None, :], parts, kinds)


def days_known(values: Floats) -> int:
    """How many days have a value."""
    return int((~np.isnan(values)).sum())


def _worse(watch: Watch, when: Floats, line: _Line, level: Floats | None, p: Params) -> Bools:
    """Which series get worse beyond chance, noise and floor."""
    fit, half = line.fit, len(when) // 2
    early, late = trend(when[:half], line.shown[:half]), trend(when[half:], line.shown[half:])
    first = np.array([when[np.flatnonzero(~np.isnan(column))[0]] for column in line.shown.T])
    start = fit.middle + fit.slope * (first - fit.middle_at)
    with np.errstate(invalid="ignore"):
        worse = (fit.rising <= (watch.chance or p.chance)) & (fit.slope > 0) & (fit.low > 0)
        worse &= (fit.at(0.0) - start) >= p.change * fit.spread
        worse &= ((early.slope > 0) | (early.n < LEAST_HALF)) & (late.slope > 0)
        if watch.falls:
            shown = line.value(0.0) if level is None else level
            return np.asarray(worse & (fit.at(0.0) - start >= p.falls_min) & (shown <= watch.floor))
        before = np.exp(start) - line.offset if line.offset is not None else start
        return np.asarray(worse & (line.value(0.0) >= watch.floor) & (line.value(0.0) >= p.doubled * np.maximum(before, 0.0)))


def _beyond_node(watch: Watch, when: Floats, values: Floats, parts: Sequence[Target], i: int) -> bool:
    """False where the others of its node do the same: another job, not this part. True where there are too few of them."""
    others = [j for j, part in enumerate(parts) if j != i and part.node == parts[i].node and part.node is not None]
    if len(others) < LEAST_PEERS:
        return True
    offset = watch.floor / 20.0
    middle = _medians(values[:, others])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.log(np.maximum(values[:, i], 0.0) + offset) - np.log(np.maximum(middle, 0.0) + offset)
    fit = trend(when, share[:, None])
    return bool(fit.rising[0] <= BEYOND and fit.low[0] > 0)


def _is_step(values: Floats, when: Floats, fit: Trend, i: int) -> bool:
    """True where two levels tell the days better than the line: another job, a repair, another driver. values: float64[day]."""
    known = np.flatnonzero(~np.isnan(values))
    y, x = values[known], when[known]
    line = float(np.abs(y - (fit.middle[i] + fit.slope[i] * (x - fit.middle_at[i]))).sum())
    levels = [np.abs(y[:k] - np.median(y[:k])).sum() + np.abs(y[k:] - np.median(y[k:])).sum() for k in range(2, len(y) - 1)]
    return bool(levels) and float(min(levels)) < line


def _ticket(watch: Watch, part: Target, known: int, line: _Line, others: Sequence[_Line], i: int, level: Floats | None,
            at: int) -> DriftTicket:
    now, was = float(line.value(0.0)[i]), float(line.value(-float(known - 1))[i])
    shift = 0.0
    if level is not None:  # corrected values: only their change counts, from where the part stands
        shift = float(level[i]) - now
        now, was = float(level[i]), was + shift
    go = _crossing(line, line.fit.slope, watch.limit - shift, i)
    low = min(_crossing(one, one.fit.high, watch.limit - shift, i) for one in others)
    high = max(_crossing(one, one.fit.low, watch.limit - shift, i) for one in others)
    slope = float(line.fit.slope[i])
    per_day = line.sign * slope if line.offset is None else float(np.expm1(slope)) * now
    name = hashlib.sha256(f"{part.key}\x00{watch.signal}".encode()).hexdigest()[:12]
    return DriftTicket(
        f"drift-{name}", part, watch.signal, watch.unit or unit_of(watch.signal), now, max(was, 0.0), per_day, watch.limit,
        watch.limit_name, max(0.0, go), max(0.0, min(low, go)), max(0.0, high) if np.isfinite(high) else None,
        "linear" if line.offset is None else "exponential", float(line.fit.rising[i]), known, 1, None, at, "")


def _crossing(line: _Line, slopes: Floats, limit: float, i: int) -> float:
    """Days from now until the line with this slope through its middle reaches the limit; inf where it never does."""
    slope = float(slopes[i])
    if not slope > 0:
        return float("inf")
    return float(line.fit.middle_at[i]) + (line.place(limit) - float(line.fit.middle[i])) / slope


def words(ticket: DriftTicket) -> str:
    """`gpu.pcie_replays_per_second of n03 GPU 5 went from 0.0002 to 0.003 1/s in 14 days: DCGM's PCIe health watch (8 replays a
    minute) in 21 days (12 to 40)`."""
    whose = str(ticket.target) if ticket.parts == 1 else f"{ticket.parts} parts" + (f" ({ticket.target.device})" if ticket.target.device else "")
    text = f"{ticket.signal} of {whose} went from {ticket.was:.3g} to {ticket.value:.3g} {ticket.unit} in {ticket.days} days: "
    if ticket.days_to_go <= 0:
        return f"{text}it has reached {ticket.limit_name}"
    high = f"{ticket.days_high:.0f}" if ticket.days_high is not None else "never"
    text += f"{ticket.limit_name} in {ticket.days_to_go:.0f} days ({ticket.days_low:.0f} to {high})"
    return text + (f"; its like stand at {ticket.peers:.3g}" if ticket.peers is not None else "")


# --- peers ------------------------------------------------------------------------------------------------------------
def _against_peers(values: Floats, slots: Sequence[str], models: Sequence[str]) -> Floats:
    """Less what parts of the same model and slot did together (a hot week): the median of their changes. Groups of fewer
    than four share their model's."""
    out = values.copy()
    with np.errstate(invalid="ignore"):
        off = values - _medians(values.T)[None, :]
    for part, (slot, model) in enumerate(zip(slots, models, strict=True)):
        group = [i for i, one in enumerate(slots) if one == slot] if slots.count(slot) >= 4 else [
            i for i, one in enumerate(models) if one == model]
        if len(group) >= 4:
            common = _medians(off[:, group])
            out[:, part] = values[:, part] - np.where(np.isnan(common), 0.0, common)
    return out


def _medians(rows: Floats) -> Floats:
    """float64[row]: each row's median without the missing."""
    out = np.full(len(rows), np.nan)
    known = np.flatnonzero(~np.isnan(rows).all(axis=1)) if rows.size else np.zeros(0, np.int64)
    if len(known):
        out[known] = np.nanmedian(rows[known], axis=1)
    return out


def _shared(found: list[DriftTicket], parts: Sequence[Target], kinds: Sequence[str], p: Params) -> list[DriftTicket]:
    """What many parts of one model do together is one ticket, of the one that is nearest to its limit."""
    kind_of = {part.key: kind for part, kind in zip(parts, kinds, strict=True)}
    out: list[DriftTicket] = []
    for kind in dict.fromkeys(kinds):
        mine = [t for t in found if kind_of[t.target.key] == kind]
        many = sum(one == kind for one in kinds)
        if many < p.shared_parts or len(mine) <= p.shared * many:
            out += mine
            continue
        first = min(mine, key=lambda t: (t.days_to_go, t.target.key))
        fleet = Target("fleet", device=kind or None)
        name = hashlib.sha256(f"{fleet.key}\x00{kind}\x00{first.signal}".encode()).hexdigest()[:12]
        out.append(replace(first, id=f"drift-{name}", target=fleet, parts=len(mine)))
    return out


def _with_peers(found: Sequence[DriftTicket], values: Floats, parts: Sequence[Target], kinds: Sequence[str]) -> list[DriftTicket]:
    place = {part.key: i for i, part in enumerate(parts)}
    newest = _medians(values[-3:].T)
    out = []
    for ticket in found:
        i = place.get(ticket.target.key)
        like = [j for j, kind in enumerate(kinds) if i is not None and j != i and kind == kinds[i] and not np.isnan(newest[j])]
        peers = float(np.median(newest[like])) if len(like) >= 3 else None
        fresh = replace(ticket, peers=peers)
        out.append(replace(fresh, text=words(fresh)))
    return out
