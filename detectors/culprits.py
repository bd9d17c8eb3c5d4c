"""Which rank a hang comes from: the one that is behind in a collective, by the trainer's counters or by the watchdogs.

All others wait for it. Where nobody is behind, or too many are, there is no culprit: the whole job stands still, and
what stands out is named as suspects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.types import Event, Evidence, Floats, JobState, Target
from core.window import Window
from detectors import stats
from detectors.hangs import Parts, Signature
from detectors.progress import Progress
from detectors.stats import Ints

Suspects = tuple[tuple[Target, float, str], ...]
# A watchdog line without its process group may speak of another group's collective (DESIGN §6: at most 0.8).
BEHIND_GROUP, BEHIND_NO_GROUP, BEHIND_METRIC = 0.9, 0.8, 0.9
# Who never entered the collective has no watchdog for it (signals.md §7: lowest or absent). That its line was merely lost is the doubt.
NEVER_ENTERED, NEVER_ENTERED_BLOCKED = 0.75, 0.85
BLOCKED_MS = 900_000  # kernel lines of blocked tasks that are no older belong to the hang
FEWEST_WAITING = 4    # watchdogs that must agree
ANSWERS_NO_MORE = 0.8
TASKS_BLOCKED = 0.8
DOWN = 2.0            # of exporter.state
FELL_SILENT_MS = 30_000
QUEUED_MS = 300_000   # a loader that reads no more feeds its rank from its queue for so long at the most
SILENT, DIFFERS, WAITS_LEAST = 0.2, 0.4, 0.4
# More suspects than this say nothing.
FEW = 4


@dataclass(frozen=True, slots=True)
class Told:
    """culprit: None = whole job. suspects: the culprit with its weight, else what stands out."""

    culprit: Target | None
    suspects: Suspects
    reason: str
    evidence: tuple[Evidence, ...] = ()
    at: int | None = None


def by_counter(window: Window, progress: Progress) -> Told | None:
    """The rank whose collective sequence number (else step) stands still behind the others'. None where that cannot be
    told: no counters, still moving, all equal, or several equally behind."""
    found = _lowest(window, progress)
    if found is None or len(found[0]) != 1:
        return None
    rank = window.of_kind("rank")[int(progress.columns[found[0][0]])]
    return Told(rank, ((rank, BEHIND_METRIC, "seq_behind"),), "seq_behind", (found[1],))


def node_by_counter(window: Window, progress: Progress) -> Told | None:
    """The node of which all ranks stand equally behind by those counters, and no others do: what they share holds them up. Less
    sure than one rank, as where a node's watchdogs say nothing."""
    found = _lowest(window, progress)
    if found is None or len(found[0]) < 2:
        return None
    ranks = [window.of_kind("rank")[int(c)] for c in progress.columns]
    first = ranks[int(found[0][0])]
    if first.node is None or [place for place, rank in enumerate(ranks) if rank.node == first.node] != found[0].tolist():
        return None
    whole = Target("node", first.node, job=first.job)
    return Told(whole, ((whole, NEVER_ENTERED, "seq_behind"),), "seq_behind", (found[1],))


def _lowest(window: Window, progress: Progress) -> tuple[Ints, Evidence] | None:
    """(places among the job's ranks of those that are behind most, what shows it), None where nobody is or it cannot be told."""
    for signal in ("rank.collective_seq", "rank.step"):
        values = window.tail(signal, 60.0)[:, progress.columns]
        now = np.where(progress.fresh, stats.filled(values)[-1], np.nan)  # of a rank whose newest reading is late, the one before
        known = now[~np.isnan(now)]
        if len(known) < 2:
            continue
        if (values.max(axis=0, initial=-np.inf) > now).any():
            return None  # it moved within the last minute
        still = stats.below(stats.quantile(values, 1.0) - stats.quantile(values, 0.0), 0.0)
        if not still[~np.isnan(now)].all():
            return None
        levels, counts = np.unique(known, return_counts=True)
        usual = float(levels[np.argmax(counts)])
        behind = stats.columns_where(stats.below(now, usual - 0.5))
        if not len(behind) or counts.max() < 0.6 * len(known):
            if len(levels) == 1:
                continue
            if len(known) != 2:
                return None
            usual, behind = float(levels[-1]), stats.columns_where(now == levels[0])
        lowest = behind[now[behind] == now[behind].min()]
        seen = stats.evidence(signal, float(now[lowest[0]]), usual, f"most of the job's {len(known)} ranks")
        return lowest, seen
    return None


def by_silence(window: Window, progress: Progress) -> Told | None:
    """The one rank whose process is asked and answers no more since the job stopped, while all others answer and wait.

    A process that stands still as a whole (stopped, stuck in a call that lets nothing else run) serves no metrics either.
    Mere silence, of a log or in a recording, names nobody: its page must have been asked for in vain, on a node that answers.
    """
    gone = stats.columns_where(~progress.fresh)
    if len(gone) != 1 or progress.fresh.sum() < 2:
        return None
    column = int(progress.columns[gone[0]])
    rank = window.of_kind("rank")[column]
    block = window.block("rank.step")
    silent_since = window.end - 1000.0 * block.age_seconds[column]
    interval = float(np.nan_to_num(block.interval_seconds[column], nan=float(window.step_seconds)))
    if not abs(silent_since - progress.moved_at) <= FELL_SILENT_MS + 2500.0 * interval:
        return None
    asked = window.block("exporter.state")
    states = [float(asked.last[e]) for e, part in enumerate(asked.entities) if part.node == rank.node and asked.fresh()[e]]
    if DOWN not in states or rank.node in window.silent_nodes:
        return None
    seen = stats.evidence("exporter.state", DOWN, 0.0, f"the pages of the job's other {int(progress.fresh.sum())} ranks",
                          f"its page is asked for and has not come for {block.age_seconds[column]:.0f} s")
    return Told(rank, ((rank, ANSWERS_NO_MORE, "answers_no_more"),), "answers_no_more", (seen,))


def by_watchdog(window: Window, job: JobState, since: int) -> Told | None:
    """What watchdogs and flight recorders said after `since` (ms). None where they said nothing."""
    events = [e for e in window.events_of("nccl_watchdog", "nccl_flight_recorder", since=since)
              if e.target.job == job.id]
    if not events:
        return None
    first = min(e.at for e in events)
    ranks = {rank for e in events if (rank := _rank(e)) is not None}
    best: tuple[int, int, int, bool, float] | None = None
    for group, values in _by_group(events).items():
        found = _behind(values)
        if found is not None and (best is None or len(values) > best[0]):
            best = len(values), found[0], found[1], group is not None, found[2]
    count = Evidence("nccl_watchdog", "count", float(len(events)), 0.0, f"lines of {len(ranks)} ranks")
    if best is not None:
        reporters, rank, seq, grouped, usual = best
        target = _target(window, job, rank, events)
        weight = BEHIND_GROUP if grouped else BEHIND_NO_GROUP
        seen = Evidence("rank.collective_seq", "seq", float(seq), usual, f"the other {reporters - 1} ranks' watchdogs")
        return Told(target, ((target, weight, "watchdog_behind"),), "watchdog_behind", (seen, count), first)
    absent = _never_entered(window, job, events, first, count)
    if absent is not None:
        return absent
    silent = [window.of_kind("rank")[c] for c in job.ranks if window.of_kind("rank")[c].rank not in ranks]
    suspects = tuple((t, SILENT, "logged_nothing") for t in silent) if 0 < len(silent) <= FEW and len(ranks) > 1 else ()
    return Told(None, suspects, "watchdog_equal", (count,), first)


def _never_entered(window: Window, job: JobState, events: list[Event], first: int, count: Evidence) -> Told | None:
    """The one rank, or the ranks of one node, that said nothing while the watchdogs of all others of a job of known size wait in
    one and the same collective. None where that is not so."""
    by_group = _by_group(events)
    waiting = next(iter(by_group.values())) if len(by_group) == 1 else {}
    world = len(job.nodes) * (job.ranks_per_node or 0)
    if len(waiting) < max(FEWEST_WAITING, world // 2) or len(set(waiting.values())) != 1 or max(waiting) >= world:
        return None
    absent = [_target(window, job, rank, events) for rank in range(world) if rank not in waiting]
    nodes = {rank.node for rank in absent}
    node = next(iter(nodes), None)
    if len(nodes) != 1 or node is None:
        return None
    blocked = _of_blocked(_blocked(window, node))
    chance = NEVER_ENTERED_BLOCKED if blocked else NEVER_ENTERED
    seq = float(next(iter(waiting.values())))
    seen = Evidence("rank.collective_seq", "seq", None, seq, f"the watchdogs of the other {len(waiting)} ranks, which all wait there")
    if len(absent) == 1:
        return Told(absent[0], ((absent[0], chance, "never_entered"),), "never_entered", (seen, count, *blocked), first)
    if len(absent) != job.ranks_per_node:
        return None
    whole = Target("node", node, job=job.id)
    return Told(whole, ((whole, chance, "never_entered"),), "never_entered", (seen, count, *blocked), first)


def _blocked(window: Window, node: str) -> list[Event]:
    """Lines of a node's kernel about tasks that wait for ever."""
    return [e for e in window.events_of("kernel_error", since=window.end - BLOCKED_MS)
            if e.target.node == node and e.fields.get("subsystem") == "hung_task"]


def _of_blocked(lines: list[Event]) -> tuple[Evidence, ...]:
    return (Evidence("kernel_error", "count", float(len(lines)), 0.0, "kernels that say nothing", lines[-1].line),) if lines else ()


def blocked_node(window: Window, job: JobState, since: int) -> Told | None:
    """The one node of the job on which a file system answers no more since the job stopped (`since`, ms), by node_exporter's word, or
    whose kernel says that tasks are blocked since: its ranks enter no collective. Ranks that wait for another spin on their GPUs
    and are not blocked."""
    lines = {node: told for node in job.nodes if (told := _blocked(window, node))}
    mounts = _silent_mounts(window, job, since)
    nodes = lines.keys() | {mount.node for mount in mounts if mount.node is not None}
    if len(nodes) != 1 or len(job.nodes) < 2:
        return None
    node = next(iter(nodes))
    if not mounts and lines[node][0].at < since - FELL_SILENT_MS:
        return None
    part = Target("node", node, job=job.id)
    said = tuple(Evidence("mount.device_error", "bool", 1.0, 0.0, "before the job stopped", f"{mount.device} answers no more")
                 for mount in mounts) + _of_blocked(lines.get(node, []))
    named: Suspects = tuple((mount, TASKS_BLOCKED / 4, "mount_silent") for mount in mounts[:1])
    reason = "mount_silent" if mounts else "tasks_blocked"
    return Told(part, ((part, TASKS_BLOCKED, reason), *named), reason, said)


def _silent_mounts(window: Window, job: JobState, since: int) -> list[Target]:
    """The file systems of the job's nodes that node_exporter cannot ask any more (it gives a stuck mount up after five seconds and
    sets its `device_error`), and could until about `since` (ms), or until their loaders' queues began to run dry before."""
    if "mount.device_error" not in window.blocks:
        return []
    block, values, nodes = window.block("mount.device_error"), window.values("mount.device_error"), set(job.nodes)
    bad = np.flatnonzero(stats.above(block.last, 0.5) & block.fresh())
    before = int(np.searchsorted(window.times, since - QUEUED_MS, side="right"))
    return [block.entities[column] for column in bad.tolist() if block.entities[column].node in nodes
            and not stats.above(values[:before, column], 0.5).any()]


def _rank(event: Event) -> int | None:
    said = event.fields.get("rank", event.target.rank)
    return int(said) if isinstance(said, (int, float)) and not isinstance(said, bool) else None


def _by_group(events: list[Event]) -> Mapping[object, dict[int, int]]:
    """By process group: each rank's newest sequence number. What it enqueued counts where all of the group say so."""
    enqueued: dict[object, dict[int, int]] = {}
    timed_out: dict[object, dict[int, int]] = {}
    for event in events:
        rank, group = _rank(event), event.fields.get("group")
        if rank is None:
            continue
        for name, book in (("last_enqueued", enqueued), ("seq", timed_out)):
            value = event.fields.get(name)
            if isinstance(value, (int, float)):
                ranks = book.setdefault(group, {})
                ranks[rank] = max(ranks.get(rank, -1), int(value))
    return {group: enqueued[group] if len(enqueued.get(group, {})) >= len(timed_out.get(group, {})) else timed_out[group]
            for group in sorted({*enqueued, *timed_out}, key=str)}


def _behind(values: Mapping[int, int]) -> tuple[int, int, float] | None:
    """(rank, its number, the others' usual number) of the one rank that is behind, None where it is not one."""
    if len(values) < 2:
        return None
    ordered = sorted(values.items(), key=lambda item: (item[1], item[0]))
    (rank, lowest), (_, second) = ordered[0], ordered[1]
    if lowest == second:
        return None
    return rank, lowest, float(np.median([v for _, v in ordered[1:]]))


def _target(window: Window, job: JobState, rank: int, events: list[Event]) -> Target:
    ranks = window.of_kind("rank")
    named = [ranks[column] for column in job.ranks if ranks[column].rank == rank]
    named += [event.target for event in events if _rank(event) == rank and event.target.kind == "rank"]
    known = next(iter(named), Target("rank", job=job.id, rank=rank))
    if known.node is None and job.ranks_per_node and rank // job.ranks_per_node < len(job.nodes):
        # Of a rank that only the job's log tells of, the log knows no place.
        known = replace(known, node=job.nodes[rank // job.ranks_per_node], device=str(rank % job.ranks_per_node))
    return known


def suspects(window: Window, progress: Progress, parts: Parts, signature: Signature) -> Suspects:
    """Ranks and GPUs that stand out in a hang without a culprit: a GPU that does nothing while the others wait, the
    rank that waited least in its last step, ranks that report no more."""
    out: list[tuple[Target, float, str]] = []
    ranks = [window.of_kind("rank")[int(c)] for c in progress.columns]
    gpus = window.of_kind("gpu")
    by_place = {(r.node, r.device or ""): r for r in ranks if r.device is not None}
    for column in _odd_gpus(signature.utilization, parts.gpus):
        gpu = gpus[column]
        out.append((by_place.get((gpu.node, gpu.device or ""), gpu), DIFFERS, "gpu_differs"))
    waits = stats.filled(window.values("rank.comm_wait_seconds")[:, progress.columns])
    last = waits[-1] if len(waits) else np.zeros(0)
    middle = float(stats.median(last)) if len(last) else float("nan")
    least = stats.columns_where(stats.below(last, 0.5 * middle))
    if len(least) == 1 and middle > 0:
        out.append((ranks[int(least[0])], WAITS_LEAST, "waits_least"))
    gone = stats.columns_where(~progress.fresh)
    if 0 < len(gone) <= FEW and len(gone) * 4 <= len(ranks):
        out += [(ranks[int(e)], SILENT, "reports_no_more") for e in gone]
    named: dict[str, tuple[Target, float, str]] = {}
    for one in out:
        named.setdefault(one[0].key, one)
    return tuple(sorted(named.values(), key=lambda s: (-s[1], s[0].key)))


def _odd_gpus(utilization: Floats, columns: Ints) -> list[int]:
    odd = stats.below(utilization, 0.5)
    busy = stats.above(utilization, 0.9)
    if not 0 < odd.sum() <= 2 or busy.sum() < 3 * odd.sum():
        return []
    return [int(c) for c in columns[odd]]
