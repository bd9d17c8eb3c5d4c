"""A disk that takes several times as long for a call as the disks it can be compared with, and as it took itself before.

Compared are the other disks of its node and the disk of the same name on other nodes of the type, and of those only the ones
that carry about as much at that time: no absolute time is slow by itself, a hard disk is no NVMe drive, a read waits behind the
writes of the same disk, and a large call takes longer than a small one. So a disk is not judged that idles, that has more to do
than the others, or that is written by a job's save while other jobs' disks rest; a job's nodes that save together are each
other's peers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import service_times, shared, stats
from detectors.stats import Bools, Ints

FAULT = "disk_slow"
TICKET = 0.3
_WAYS = (("disk.read_time_ratio", "disk.reads_per_second", "disk.read_bytes_per_second"),
         ("disk.write_time_ratio", "disk.writes_per_second", "disk.written_bytes_per_second"))


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §4 (NVMe 0.05 to 1 ms, hard disks far more: no floor fits all); our judgement for the factors, well above
    the spread of healthy disks under one load.

    window_seconds: how far back times are averaged. calls_min: calls a second from which a disk works. peers_factor, own_factor:
    how many times the peers' time, and its own before at like load. alone_factor: the same against peers where its own past
    tells nothing. load_share: of its own load (bytes and calls, reads and writes together, and bytes a call), what a peer must
    carry at least: queues make a disk at 0.7 of its capacity wait 1.7 times as long as at 0.5, so less than that is not like
    load. peers_min: so many of them.
    """

    window_seconds: float = 180.0
    calls_min: float = 2.0
    peers_factor: float = 2.0
    own_factor: float = 1.7
    alone_factor: float = 5.0
    load_share: float = 0.7
    peers_min: int = 2


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each disk that works now and has peers at like load."""
    disks = window.of_kind("disk")
    if not disks or not len(window.times):
        return []
    siblings = shared.kept("siblings", (disks,), lambda: stats.codes([(d.node, _class(d.device)) for d in disks]))
    namesakes = shared.model_codes(window, disks, True)
    out: dict[str, Verdict] = {}
    well = np.zeros(len(disks), bool)
    for took, calls, size in _WAYS:
        well |= _judge_way(window, params, (took, calls, size), siblings, namesakes, out)
    return [*out.values(), *shared.clears(disks, shared.without(disks, well, out), FAULT)]


def _class(device: str | None) -> str:
    return re.sub(r"\d+", "", re.sub(r"^(sd|vd|xvd|hd)[a-z]+$", r"\1", device or ""))


def _judge_way(window: Window, p: Params, names: tuple[str, str, str], siblings: Ints, namesakes: Ints,
               out: dict[str, Verdict]) -> Bools:
    """Adds the faulty ones to `out`; gives bool[disk], those that are well."""
    took, calls, size = names
    block = window.block(calls)
    if calls not in window.blocks or took not in window.blocks:
        return np.zeros(len(block.entities), bool)
    rate = block.values
    times = np.where(stats.above(rate, p.calls_min), stats.ratio(window.values(took), rate), np.nan)
    active = ~np.isnan(times)
    moved, asked = _both(window, size), _both(window, calls)
    load = np.where(active, np.where(np.isnan(moved), asked, moved), np.nan)
    intervals = stats.intervals_of(window, calls)
    ticks = window.ticks(p.window_seconds)
    found = service_times.compared(times, load, intervals, ticks)
    mean = stats.ratio(_recent(window.values(took), active, ticks), _recent(rate, active, ticks))
    loads = np.stack([_recent(moved, active, ticks), _recent(asked, active, ticks),
                      stats.ratio(_recent(window.values(size), active, ticks), _recent(rate, active, ticks))])
    peers, n = _peers(mean, loads, found.now, (namesakes, siblings), p)
    apart = stats.above(found.now, p.peers_factor * peers)
    own = stats.above(found.now, p.own_factor * found.before)
    slow = apart & np.where(np.isnan(found.before), stats.above(found.now, p.alone_factor * peers), own)
    judged = block.fresh() & ~np.isnan(found.now) & (n >= p.peers_min) & shared.loud(window, block.entities)
    columns = stats.columns_where(judged & slow)
    symptom = _symptom(times[:, columns], p, peers[columns], found.before[columns])
    for e, onset in zip(columns.tolist(), stats.run_start(symptom, window.times, 4).tolist(), strict=True):
        disk = block.entities[e]
        if disk.key not in out:
            rows = (stats.evidence(took, mean[e] * rate[-1, e] if np.isfinite(rate[-1, e]) else mean[e], None, "its own calls",
                                   f"{found.now[e] * 1000:.3g} ms a call, {peers[e] * 1000:.3g} ms on {n[e]} disks at like load"
                                   + (f", {found.before[e] * 1000:.3g} ms before" if np.isfinite(found.before[e]) else "")),)
            out[disk.key] = Verdict(disk, FAULT, "faulty", TICKET, rows, "calls_slow", onset_at=int(onset))
    return judged & ~slow


def _symptom(times: Floats, p: Params, peers: Floats, before: Floats) -> Bools:
    limit = np.where(np.isnan(before), p.alone_factor * peers, np.fmax(p.peers_factor * peers, p.own_factor * before))
    return stats.above(times, limit)


def _both(window: Window, signal: str) -> Floats:
    """float64[tick, disk]: reads and writes together, of which one may be missing."""
    other = next(way[names.index(signal)] for names in _WAYS if signal in names for way in _WAYS if signal not in way)
    one, two = window.values(signal), window.values(other)
    return np.where(np.isnan(one), two, one + np.nan_to_num(two))


def _recent(values: Floats, active: Bools, ticks: int) -> Floats:
    """float64[disk]: the mean of the last ticks in which the disk worked."""
    return stats.mean(np.where(active, values, np.nan)[-ticks:])


def _peers(mean: Floats, loads: Floats, now: Floats, groups: tuple[Ints, ...], p: Params) -> tuple[Floats, Ints]:
    """The time of each disk's peers and how many they are. Of two groups the higher time counts: a disk has to be slow by both.

    loads: float64[kind of load, disk]. A disk that has peers and is no slower than they needs no comparison with the next group.
    """
    peers, n = np.full(len(mean), np.nan), np.zeros(len(mean), np.int64)
    for group in groups:
        look = np.flatnonzero(np.isin(group, group[(n < p.peers_min) | stats.above(now, p.peers_factor * peers)]))
        time, many = _in_group(mean[look], loads[:, look], now[look], group[look], p)
        enough = many >= p.peers_min
        peers[look] = np.fmax(peers[look], np.where(enough, time, np.nan))
        n[look] = np.maximum(n[look], np.where(enough, many, 0))
    return peers, n


def _in_group(mean: Floats, loads: Floats, now: Floats, group: Ints, p: Params) -> tuple[Floats, Ints]:
    """Most disks are no slower than the usual disk of their group, whatever that carries (who carries less is not slower);
    the others are compared with those at like load one by one."""
    usual = stats.peers(mean, group)
    time, many = usual.middle.copy(), usual.n.copy()
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    for e in np.flatnonzero(stats.above(now, p.peers_factor * usual.middle) & (many >= p.peers_min)):
        first, after = np.searchsorted(ordered, (group[e], group[e] + 1))
        others = order[first:after]
        own = loads[:, e][:, None]
        like = (np.isnan(own) | stats.above(loads[:, others], p.load_share * own)).all(axis=0)
        alike = others[like & ~np.isnan(mean[others]) & (others != e)]
        many[e] = len(alike)
        time[e] = float(np.median(mean[alike])) if many[e] >= p.peers_min else np.nan
    return time, many


PLUGIN = DetectorPlugin(
    name="disk_slow", fault=FAULT, judge=judge, params=Params, needs=(("disk.read_time_ratio", "disk.write_time_ratio"),),
    hold=Hold(on=3, of=4, off=8),
    must_not=("a disk that idles", "a disk of another kind", "a disk with more to do than the others", "all disks slow at once",
              "a save of one job", "a disk that another process loads"),
)
