"""A disk that takes several times as long for a call as the disks it can be compared with, and as it took itself before.

Compared are the other disks of its node and the disk of the same name on other nodes of the type, as long as they carry about
as much: no absolute time is slow by itself, a hard disk is no NVMe drive. A disk that idles is not judged, nor is one that has
more to do than the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import service_times, stats
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
    tells nothing. load_share: of its own load, what peers must carry at least. peers_min: so many of them.
    """

    window_seconds: float = 180.0
    calls_min: float = 2.0
    peers_factor: float = 2.0
    own_factor: float = 1.7
    alone_factor: float = 5.0
    load_share: float = 0.4
    peers_min: int = 2


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each disk that works now and has peers at like load."""
    disks = window.of_kind("disk")
    if not disks or not len(window.times):
        return []
    siblings = stats.codes([(d.node, _class(d.device)) for d in disks])
    namesakes = stats.codes([(d.device, stats.model_of(window, d.node)) for d in disks])
    out: dict[str, Verdict] = {}
    for took, calls, size in _WAYS:
        _judge_way(window, params, (took, calls, size), siblings, namesakes, out)
    return [out[key] for key in sorted(out)]


def _class(device: str | None) -> str:
    return re.sub(r"\d+", "", re.sub(r"^(sd|vd|xvd|hd)[a-z]+$", r"\1", device or ""))


def _judge_way(window: Window, p: Params, names: tuple[str, str, str], siblings: Ints, namesakes: Ints,
               out: dict[str, Verdict]) -> None:
    took, calls, size = names
    block = window.block(calls)
    if calls not in window.blocks or took not in window.blocks:
        return
    rate = block.values
    times = np.where(stats.above(rate, p.calls_min), stats.ratio(window.values(took), rate), np.nan)
    load = np.where(np.isnan(window.values(size)), rate, window.values(size))
    intervals = stats.interval_ticks(block, window.step_seconds)
    ticks = window.ticks(p.window_seconds)
    found = service_times.compared(times, load, intervals, ticks)
    mean = stats.ratio(_recent(window.values(took), ticks), _recent(np.where(np.isnan(times), np.nan, rate), ticks))
    peers, n = _peers(mean, found.load, namesakes, p)
    # Most disks are like the other nodes' and need no second look; the rest is compared with its own node's as well.
    look = np.isin(siblings, siblings[(n < p.peers_min) | stats.above(found.now, p.peers_factor * peers)])
    if look.any():
        near, m = _peers(mean[look], found.load[look], siblings[look], p)
        peers[look], n[look] = np.fmax(peers[look], near), np.maximum(n[look], m)
    apart = stats.above(found.now, p.peers_factor * peers)
    own = stats.above(found.now, p.own_factor * found.before)
    slow = apart & np.where(np.isnan(found.before), stats.above(found.now, p.alone_factor * peers), own)
    onsets = stats.run_start(_symptom(times, p, peers, found.before), window.times, 4)
    judged = block.fresh() & ~np.isnan(found.now) & (n >= p.peers_min)
    for e in np.flatnonzero(judged):
        disk = block.entities[e]
        if disk.node in window.silent_nodes:
            continue
        known = out.get(disk.key)
        if not slow[e]:
            out.setdefault(disk.key, Verdict(disk, FAULT, "clear", reason="clear"))
        elif known is None or known.state != "faulty":
            rows = (stats.evidence(took, mean[e] * rate[-1, e] if np.isfinite(rate[-1, e]) else mean[e], None, "its own calls",
                                   f"{found.now[e] * 1000:.3g} ms a call, {peers[e] * 1000:.3g} ms on {n[e]} disks at like load"
                                   + (f", {found.before[e] * 1000:.3g} ms before" if np.isfinite(found.before[e]) else "")),)
            out[disk.key] = Verdict(disk, FAULT, "faulty", TICKET, rows, "calls_slow", onset_at=int(onsets[e]))


def _symptom(times: Floats, p: Params, peers: Floats, before: Floats) -> Bools:
    limit = np.where(np.isnan(before), p.alone_factor * peers, np.fmax(p.peers_factor * peers, p.own_factor * before))
    return stats.above(times, limit)


def _recent(values: Floats, ticks: int) -> Floats:
    return stats.mean(values[-ticks:])


def _peers(mean: Floats, load: Floats, group: Ints, p: Params) -> tuple[Floats, Ints]:
    """The time of each disk's peers and how many they are, NaN and 0 where they carry far less than it does. Of two groups the
    higher time counts: a disk has to be slow by both."""
    times, loads = stats.peers(mean, group), stats.peers(load, group)
    like = (times.n >= p.peers_min) & ~stats.below(loads.middle, p.load_share * load)
    return np.where(like, times.middle, np.nan), np.where(like, times.n, 0)


PLUGIN = DetectorPlugin(
    name="disk_slow", fault=FAULT, judge=judge, params=Params, needs=(("disk.read_time_ratio", "disk.write_time_ratio"),),
    hold=Hold(on=3, of=4, off=8),
    must_not=("a disk that idles", "a disk of another kind", "a disk with more to do than the others", "all disks slow at once"),
)
