"""Shared storage that is slow, or gone, for many of the nodes that use it: each client's calls take several times as long as
before at like load, and the clients agree. One client that is slow alone is its own matter.

Times come from NFS clients (mountstats) and from what a site's script reads of Lustre's clients; a target that is gone, from
the clients' connections and from the lines that their kernels log. A save that loads the storage, and a job that starts to
read, are no fault: what was never so loaded before is compared with nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Block, Window
from detectors import service_times, shared, stats
from detectors.stats import Bools, Ints

FAULT = "storage_slow"
DEGRADED, FATAL = 0.6, 0.9
_TARGET = re.compile(r"(.+)-(?:OST|MDT)[0-9a-fA-F]{4}")


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (one storage target slow: many nodes at once; one node only: the client) and §5 (a client's average
    wait is 1 ms idle, 6 ms under writes); the factor is our judgement: load itself makes waits several times as long.

    window_seconds: how far back times are averaged. factor: how many times as long as before. factor_unloaded: the same where
    load is not known. share, clients_min: of the clients of one storage, how many must be slow. calls_min: calls a second from
    which a mean time means something. seen: share of that time of which a client's times must be known. lost_seconds: how long many
    clients must be cut off. told_seconds: how long lines of many kernels count. told_min: how many kernels.
    """

    window_seconds: float = 120.0
    factor: float = 1.7
    factor_unloaded: float = 4.0
    share: float = 0.5
    clients_min: int = 3
    calls_min: float = 1.0
    seen: float = 0.5
    lost_seconds: float = 30.0
    told_seconds: float = 300.0
    told_min: int = 3


@dataclass(slots=True)
class _Storage:
    """What is known of a storage: clients (nodes) by whether they are slow, by what of it; evidence and onset of the worst."""

    known: bool = False
    worst: Verdict | None = None


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each storage with enough clients of which times or connections are known."""
    if not len(window.times):
        return []
    found: dict[str, _Storage] = {}
    for name, verdict in (*_slow(window, params), *_lost(window, params), *_told(window, params)):
        one = found.setdefault(name, _Storage())
        one.known = True
        if verdict is not None and (one.worst is None or verdict.severity > one.worst.severity):
            one.worst = verdict
    return [one.worst or Verdict(Target("storage", device=name), FAULT, "clear", reason="clear") for name, one in sorted(found.items())]


def storage_of(window: Window, part: str, node: str | None) -> str:
    """The storage that a target or a share belongs to, by the inventory's name where it knows one."""
    base = match[1] if (match := _TARGET.fullmatch(part)) else part
    mounts = window.topology.mounts
    if base in mounts:
        return base
    whose = [name for name, nodes in mounts.items() if node in nodes]
    return whose[0] if len(whose) == 1 and len(mounts) == 1 else base


# --- slow -------------------------------------------------------------------------------------------------------------
def _slow(window: Window, p: Params) -> Iterable[tuple[str, Verdict | None]]:
    wait = window.block("storage.wait_seconds")
    if len(wait.entities) and wait.signal in window.blocks:
        yield from _agreed(window, wait.signal, wait.values, service_times.node_load(window, wait.entities), wait.fresh(), p)
    reads, writes = window.block("mount.reads_per_second"), window.block("mount.writes_per_second")
    if "mount.read_time_ratio" in window.blocks or "mount.write_time_ratio" in window.blocks:
        took = _sum(window.values("mount.read_time_ratio"), window.values("mount.write_time_ratio"))
        calls = _sum(reads.values, writes.values)
        times = np.where(stats.above(calls, p.calls_min), stats.ratio(took, calls), np.nan)
        load = _sum(window.values("mount.read_bytes_per_second"), window.values("mount.written_bytes_per_second"))
        load = np.where(np.isnan(load), calls, load)
        yield from _agreed(window, "mount.read_time_ratio", times, load, reads.fresh() | writes.fresh(), p)


def _sum(a: Floats, b: Floats) -> Floats:
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b))


def _agreed(window: Window, signal: str, values: Floats, load: Floats, fresh: Bools, p: Params) -> Iterable[tuple[str, Verdict | None]]:
    """What the clients of each target or share agree on."""
    block = window.block(signal)
    known = fresh & shared.loud(window, block.entities)
    if not known.any():
        return
    ticks = window.ticks(p.window_seconds)
    intervals = stats.interval_ticks(block, window.step_seconds)
    found = service_times.compared(values, load, intervals, ticks)
    factor = np.where(np.isnan(found.load), p.factor_unloaded, p.factor)
    judged = known & ~np.isnan(found.before) & ~np.isnan(found.now)
    # Of a page that came back a moment ago too little is known: what is seen of it may be a save.
    judged &= stats.count(values[-ticks:]) * intervals >= p.seen * ticks
    slow = judged & stats.above(found.now, factor * found.before)
    for part, columns in _by_device(block, judged):
        name = storage_of(window, part, block.entities[columns[0]].node)
        hit = columns[slow[columns]]
        if len(columns) < p.clients_min:
            continue
        if len(hit) < max(p.clients_min, p.share * len(columns)):
            yield name, None
            continue
        limit = factor * found.before
        over = stats.above(values[:, hit], limit[hit])
        onset = stats.run_start(np.asarray(over.mean(axis=1) >= p.share)[:, None], window.times, 4)[0]
        now, before = float(np.median(found.now[hit])), float(np.median(found.before[hit]))
        text = f"calls to {part} take {now * 1000:.3g} ms on {len(hit)} of {len(columns)} clients, {before * 1000:.3g} ms before at like load"
        unit = "s"
        row = Evidence(signal, unit, round(now, 6), round(before, 6), "the same clients before, at like load", text)
        yield name, Verdict(Target("storage", device=name), FAULT, "faulty", DEGRADED, (row,), "calls_slow", onset_at=int(onset))


# --- gone -------------------------------------------------------------------------------------------------------------
def _lost(window: Window, p: Params) -> Iterable[tuple[str, Verdict | None]]:
    """Many clients are cut off from one target."""
    block = window.block("storage.connected")
    known = block.fresh() & ~np.isnan(block.last)
    if not known.any():
        return
    off = stats.below(block.values, 0.5)
    since = stats.run_start(off, window.times, 1)
    cut = (block.last < 0.5) & (window.end - since >= 1000 * p.lost_seconds)
    for part, columns in _by_device(block, known & shared.loud(window, block.entities)):
        hit = columns[cut[columns]]
        if len(columns) < p.clients_min:
            continue
        name = storage_of(window, part, block.entities[columns[0]].node)
        if len(hit) < max(p.clients_min, p.share * len(columns)):
            yield name, None
            continue
        row = Evidence("storage.connected", "bool", 0.0, 1.0, "clients that are connected",
                       f"{len(hit)} of {len(columns)} clients have lost {part}")
        yield name, Verdict(Target("storage", device=name), FAULT, "faulty", FATAL, (row,), "clients_cut_off",
                            onset_at=int(since[hit].min()))


def _by_device(block: Block, which: Bools) -> Iterator[tuple[str, Ints]]:
    """By target or share, in order of name, the columns that `which` picks, where there are any."""
    for name, columns in shared.columns_by_device(block.entities).items():
        mine = columns[which[columns]]
        if len(mine):
            yield name, mine


def _told(window: Window, p: Params) -> Iterable[tuple[str, Verdict | None]]:
    """The kernels of many nodes say so of one target within minutes."""
    lines: dict[str, dict[str, tuple[int, str]]] = {}
    for event in window.events_of("kernel_error", since=window.end - int(1000 * p.told_seconds)):
        part = event.target.device if event.target.kind == "storage" else _server(str(event.fields.get("message") or ""))
        if event.fields.get("subsystem") in ("lustre", "nfs") and part and event.target.node not in window.silent_nodes | {None}:
            lines.setdefault(part, {}).setdefault(str(event.target.node), (event.at, event.line or ""))
    for part, nodes in sorted(lines.items()):
        name = storage_of(window, part, next(iter(nodes)))
        users = window.topology.mounts.get(name, ())
        if len(nodes) < max(p.told_min, p.share * len(users)):
            continue
        at, line = min(nodes.values())
        row = Evidence("kernel_error", "count", float(len(nodes)), 0.0, "clients whose kernels say nothing", line)
        # Many kernels have said it: that nothing is heard again makes it no surer, and that it is over is told by the clients.
        yield name, Verdict(Target("storage", device=name), FAULT, "faulty", FATAL, (row,), "clients_say_so", discrete=True, onset_at=at)


def _server(message: str) -> str | None:
    found = re.search(r"nfs: server (\S+?),? not responding", message)
    return found[1] if found else None


PLUGIN = DetectorPlugin(
    name="storage_slow", fault=FAULT, judge=judge, params=Params,
    needs=(("storage.wait_seconds", "storage.connected", "mount.read_time_ratio", "mount.write_time_ratio", "kernel_error"),),
    hold=Hold(on=3, of=4, off=8),
    must_not=("one client that is slow alone", "a save that loads the storage", "a job that starts to read", "an idle mount"),
)
