"""What follows from something else is no incident of its own.

A GPU that falls off the bus stops its job; a port that goes down loses packets first. Both would be found twice, and two
attempts would work on one cause. So the findings of a consequence go to the incident of its cause, which is then over only
when the consequence is over as well: the job runs again.

What stops or breaks at once explains a hang, and only when it began about when the hang did: what came long before was
survived. A hang whose own evidence names a rank on another node has another cause: two faults stay two.

A slow job is explained by what makes parts slow, where the part is the rank's own (or stands on a node that waits, or under
the job at all, by how much the consequence names) and began about when the job became slow. A pace is judged over minutes,
so it is seen to be back long after the cause is gone: a slowness that outlives its cause belongs to it for a while, keeps it
from nothing, and becomes an incident of its own when it stays. That it stays has to be seen: where a job stands meanwhile its
finding stands still, and tells of the time before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.types import Evidence, Target
from core.window import Window
from pipeline.correlate import MADE_BY, Group, Key

# Parts that break and take the job on them along.
FATAL = frozenset({"gpu_lost", "xid_fatal", "ecc_uncorrectable", "row_remap_failure", "nvlink_errors", "link_down",
                   "memory_pressure"})
STOPPED_BY = {"stalled_loss": FATAL | {"storage_slow", "gpu_memory_leaked"}, "loss_spike": FATAL,
              "job_crash_loop": FATAL | {"service_down", "gpu_memory_leaked"}}
# It stops no run that goes on, and each that begins, however old it is.
STOPS_EACH_RUN = "gpu_memory_leaked"
# A GPU that answers its driver no more holds up the exporter that asks it: that page stands still, or does not come.
MUTES, MUTED, GPU_PAGE = frozenset({"xid_fatal", "gpu_lost"}), frozenset({"exporter_stale", "target_down"}), ("gpu.", "dcgm")
# What makes a GPU or a whole node slow without stopping it, and what makes the network so.
SLOW_PARTS = frozenset({"thermal_throttle", "power_brake", "power_cap", "clock_loss", "gpu_slow", "ecc_correctable_storm",
                        "nvlink_errors", "pcie_degraded", "cpu_starved", "memory_pressure", "cooling_fault", "config_drift"})
SLOW_LINKS = frozenset({"packet_loss", "link_slow", "link_flap", "link_down"})
# (A governor that saves power slows loaders as well.)
SLOW_DATA = frozenset({"storage_slow", "disk_slow", "disk_full", "cpu_starved", "memory_pressure", "config_drift"})
SLOWED_BY: dict[str, frozenset[str]] = {
    "straggler": SLOW_PARTS | SLOW_LINKS | {"data_stall"},
    "data_stall": SLOW_DATA,
    "throughput_drop": SLOW_PARTS | SLOW_LINKS | SLOW_DATA | {"straggler", "data_stall"},
    # A disk or a client that others keep busy makes loaders wait, and saves.
    "checkpoint_stale": frozenset({"storage_slow", "disk_slow", "disk_full", "data_stall"}),
    "inference_slow": SLOW_PARTS | SLOW_LINKS,
}
# These seldom cost a job much: another cause comes first.
WEAK = frozenset({"ecc_correctable_storm", "config_drift", "link_flap", "pcie_degraded", "disk_full"})
# A GPU's own fault slows the rank on that GPU; these of one GPU slow others of its node as well.
NODE_WIDE = frozenset({"nvlink_errors", "pcie_degraded", "config_drift"})
# On one and the same part: what the graver fault shows as well.
SAME_PART = {
    "xid_fatal": frozenset({"gpu_lost"}),
    "nvlink_errors": frozenset({"gpu_lost"}),
    "pcie_degraded": frozenset({"gpu_lost"}),
    "ecc_uncorrectable": frozenset({"gpu_lost", "row_remap_failure"}),
    "ecc_correctable_storm": frozenset({"gpu_lost", "row_remap_failure", "ecc_uncorrectable"}),
    "link_flap": frozenset({"link_down"}),
    "link_slow": frozenset({"link_down", "link_flap", "packet_loss", "pcie_degraded"}),
    "packet_loss": frozenset({"link_down", "link_flap"}),
    "clock_loss": frozenset({"gpu_lost", "thermal_throttle", "power_brake", "power_cap"}),
    "gpu_slow": frozenset({"gpu_lost", "thermal_throttle", "power_brake", "power_cap", "clock_loss", "ecc_correctable_storm",
                           "pcie_degraded"}),
    "gpu_memory_leaked": frozenset({"gpu_lost"}),
}
# On one and the same node: what a fault of the whole node shows as well, at the whole node.
SAME_NODE = {
    "target_down": frozenset({"service_down"}),
    "exporter_partial": frozenset({"service_down", "target_down"}),
    "exporter_stale": frozenset({"service_down", "exporter_partial"}),
    "clock_skew": frozenset({"service_down"}),
    "power_cap": frozenset({"config_drift"}),
    "clock_loss": frozenset({"config_drift"}),
    "gpu_slow": frozenset({"config_drift"}),
    "config_drift": frozenset({"service_down"}),
}
# The word that all evidence of the one and some of the other must have, where not every fault of the kind explains the other:
# the persistence daemon holds persistence mode, and nothing else that nodes can differ in.
ONLY_WHERE = {("config_drift", "service_down"): "persistence"}
# Looks back for minutes, or ends a little after its cause: what began under the cause stays its own for a while.
LINGERS = frozenset({"gpu_slow", "clock_loss", "config_drift"}) | SLOWED_BY.keys()
# A slowness, or the crashes of the past, as long as they were another incident's. A hang that stays is none of these.
FADES = SLOWED_BY.keys() | {"job_crash_loop"}
# A job is seen to stop at its last step or log line, up to a few minutes before or after what stopped it is seen; what is
# older was survived (a watchdog ends a hang after 10 minutes at the latest).
BEFORE_MS = 900_000
AFTER_MS = 300_000
# A slowness is seen when it is large enough: a cause that comes on slowly is older. A detector of the cause that needs long
# to be sure dates it at most so much later than the job's slowness.
SLOW_BEFORE_MS = 1_800_000
SLOW_AFTER_MS = 900_000
# What costs little and has been there for longer than this was there before the job became slow.
WEAK_BEFORE_MS = 600_000
# It is there from one moment to the next, and slows nothing before.
SHARP = frozenset({"disk_full"})
# What one node lacks its own loaders wait for: a job waits for data as a whole where a cause reaches this share of its nodes.
WHOLE_JOB = 0.5
# Detectors of pace look back for minutes, and ends of findings are held: so long a slowness may outlive its cause.
AFTERMATH_MS = 900_000
# A finding on a pace that nothing was seen of for so long stands still (its holds open and end within two minutes).
STANDS_STILL_MS = 120_000


def explained(groups: Sequence[Group], window: Window, held: Collection[Key] = ()) -> list[Group]:
    """The groups without those that follow from another; that one has their findings.

    held: keys of incidents that keep their findings.
    """
    taken: dict[int, list[Group]] = {}
    gone: set[int] = set()
    for i, group in enumerate(groups):
        cause = None if group.key in held else _cause(i, groups, window)
        if cause is not None:
            gone.add(i)
            taken.setdefault(cause, []).append(group)
    out = []
    for i, group in enumerate(groups):
        if i in gone:
            continue
        # A cause that itself follows from another gave its findings there already; what it had taken goes along.
        more = [f for follower in _all(i, groups, taken) for f in follower.findings]
        known = {f.id for f in group.findings}
        out.append(replace(group, findings=(*group.findings, *(f for f in more if f.id not in known))))
    return out


def _all(i: int, groups: Sequence[Group], taken: dict[int, list[Group]]) -> list[Group]:
    found: list[Group] = []
    for follower in taken.get(i, ()):
        found += [follower, *_all(groups.index(follower), groups, taken)]
    return found


def _cause(i: int, groups: Sequence[Group], window: Window) -> int | None:
    """The index of the group that the i-th follows from: of what stops it, the one that began first; of what slows it, the
    one that costs most and began nearest to it."""
    group = groups[i]
    others = [(j, other) for j, other in enumerate(groups) if j != i]
    found = [(_onset(other), other.key, j) for j, other in others
             if _stops(other, group, window) or _same_part(other, group) or _same_node(other, group)
             or _hangs_on(other, group) or _went_silent(other, group) or _mutes(other, group)]
    if found:
        return min(found)[2]
    slow = [(other.fault in WEAK, abs(_onset(other) - _onset(group)), other.key, j) for j, other in others
            if _slows(other, group, window)]
    return min(slow)[3] if slow else None


def _onset(group: Group) -> int:
    return min(f.onset_at for f in group.findings)


def _stops(cause: Group, group: Group, window: Window) -> bool:
    if group.key[1] != "job" or cause.fault not in STOPPED_BY.get(group.fault, frozenset()):
        return False
    nodes = {n for job in window.jobs if job.id == group.key[2] for n in job.nodes}
    reach = _reach(cause, window)
    if not nodes & reach:
        return False
    named = group.culprit.target
    if named is not None and named.node is not None and named.node not in reach:
        return False
    late = _onset(group) - _onset(cause)
    return late >= -AFTER_MS and (late <= BEFORE_MS or cause.fault == STOPS_EACH_RUN)


def _same_part(cause: Group, group: Group) -> bool:
    if cause.fault not in SAME_PART.get(group.fault, frozenset()) or "device" not in (cause.key[1], group.key[1]):
        return False
    mine, other = group.culprit.target, cause.culprit.target
    if cause.key[1] == "node" and mine is not None:  # several GPUs of a node at once: each of them shows what it would alone
        return any(mine.same_part(f.target) and f.fault in SAME_PART[group.fault] for f in cause.findings)
    return mine is not None and other is not None and mine.same_part(other)


def _same_node(cause: Group, group: Group) -> bool:
    """Both are of one node as a whole (a detector named it, or most of its parts are ill), or the node's settings changed when one of
    its GPUs became slow."""
    if cause.fault not in SAME_NODE.get(group.fault, frozenset()):
        return False
    mine, other = group.culprit.target, cause.culprit.target
    if mine is None or other is None or other.kind != "node":
        return False
    # A setting of the node is seen first at the GPU that suffers most.
    set_here = cause.fault == "config_drift" and -SLOW_AFTER_MS <= _onset(group) - _onset(cause) <= SLOW_BEFORE_MS
    if mine.kind != "node" and not (mine.kind == "gpu" and set_here):
        return False
    return mine.node == other.node and mine.node is not None and _said_of_both(
        cause.fault, (e for f in cause.findings for e in f.evidence), group)


def _said_of_both(cause: str, told: Iterable[Evidence], group: Group) -> bool:
    """`ONLY_WHERE`: nothing else is wrong in the group, and the cause is about that."""
    word = ONLY_WHERE.get((group.fault, cause))
    if word is None:
        return True
    mine = [e for f in group.findings if f.fault == group.fault for e in f.evidence]
    return bool(mine) and all(_says(word, e) for e in mine) and any(_says(word, e) for e in told)


def _says(word: str, row: Evidence) -> bool:
    return word in f"{row.signal} {row.text or ''}".lower()


def _went_silent(cause: Group, group: Group) -> bool:
    """The exporter that answers no more is the page of the rank that hangs, by the rank's own evidence."""
    if (group.fault, cause.fault) != ("target_down", "stalled_loss"):
        return False
    mine, rank = group.culprit.target, cause.culprit.target
    if mine is None or rank is None or mine.node is None or mine.node != rank.node:
        return False
    return (all(f.reason == "exporter_down" for f in group.findings)
            and any(f.reason == "answers_no_more" for f in cause.findings)
            and abs(_onset(group) - _onset(cause)) <= AFTER_MS)


def _mutes(cause: Group, group: Group) -> bool:
    """The GPU exporter of the node waits for a GPU that answers no more; all that the group tells is about that exporter."""
    if group.fault not in MUTED or not MUTES & {f.fault for f in cause.findings} or not group.nodes or set(group.nodes) - set(cause.nodes):
        return False
    rows = [e for f in group.findings if f.fault == group.fault for e in f.evidence]
    told = all(e.signal.startswith(GPU_PAGE[0]) or GPU_PAGE[1] in (e.text or "") for e in rows)
    return bool(rows) and told and -AFTER_MS <= _onset(group) - _onset(cause) <= BEFORE_MS


def _hangs_on(cause: Group, group: Group) -> bool:
    """All its parts stand under a shared cause that is found itself."""
    if cause.fault not in MADE_BY.get(group.fault, frozenset()) or not cause.shared or not group.nodes:
        return False
    return set(group.nodes) <= set(cause.nodes)


def _slows(cause: Group, group: Group, window: Window) -> bool:
    """True where the cause is of a kind that makes such a slowness, at the right place, and began at about its time."""
    if cause.fault not in SLOWED_BY.get(group.fault, frozenset()):
        return False
    before = WEAK_BEFORE_MS if cause.fault in WEAK else SLOW_BEFORE_MS
    after = AFTER_MS if cause.fault in SHARP else SLOW_AFTER_MS
    if not -after <= _onset(group) - _onset(cause) <= before:
        return False
    victim, part = group.culprit.target, cause.culprit.target
    if victim is None or victim.kind == "job":
        jobs = {group.key[2]} if group.key[1] == "job" else {f.target.job for f in group.findings}
        nodes = {n for job in window.jobs if job.id in jobs for n in job.nodes}
        named = {f.target.job for f in cause.findings}
        hit = nodes & _reach(cause, window)
        if hit and group.fault == "data_stall":
            return len(hit) >= WHOLE_JOB * len(nodes)
        return bool(hit) or bool(named & jobs - {None})
    if victim.node not in _reach(cause, window):
        return False
    own = part is not None and part.kind == "gpu" and cause.key[1] == "device" and cause.fault not in NODE_WIDE
    if own and part is not None and victim.kind == "gpu":
        return victim.same_part(part)
    return True


def _reach(cause: Group, window: Window) -> frozenset[str]:
    """The nodes that a cause can slow: where its parts stand; of shared storage, all that mount it."""
    part = cause.culprit.target
    nodes = frozenset(cause.nodes)
    if part is not None and part.kind == "storage":
        nodes |= frozenset(window.topology.mounts.get(part.device or "", ()))
    return nodes


@dataclass(frozen=True, slots=True)
class Past:
    """An incident that has gone quiet. culprit None: nobody was named. evidence: its own. at: since when it is quiet (ms)."""

    fault: str
    culprit: Target | None
    evidence: tuple[Evidence, ...]
    at: int


def outlived(groups: Sequence[Group], over: Mapping[str, int], now: int, past: Sequence[Past] = (),
             live: Collection[Key] = ()) -> list[Group]:
    """The groups without those whose cause is over for less than `AFTERMATH_MS`: all their findings were its, or they began
    on the cause's part before it went quiet and are seen only now. Nor does a slowness open an incident that is not seen now.

    over: by finding, when the incident of its cause went quiet (ms). now: ms. past: incidents that are quiet. live: keys of
    open incidents, which stay.
    """
    recent = [one for one in past if now - one.at <= AFTERMATH_MS]

    def late(group: Group) -> bool:
        if group.fault in FADES and all(now - over.get(f.id, -AFTERMATH_MS) <= AFTERMATH_MS for f in group.findings):
            return True
        if group.fault not in LINGERS or group.key in live:
            return False
        stale = now - max(f.updated_at for f in group.findings) > STANDS_STILL_MS
        return stale or any(_began_under(one, group) for one in recent)

    return [group for group in groups if not late(group)]


def _began_under(cause: Past, group: Group) -> bool:
    """On the very part of the cause, while that was there."""
    mine, other = group.culprit.target, cause.culprit
    if mine is None or other is None or not mine.same_part(other) or _onset(group) > cause.at:
        return False
    same = SAME_PART if mine.kind != "node" else SAME_NODE
    if cause.fault not in same.get(group.fault, frozenset()) | SLOWED_BY.get(group.fault, frozenset()):
        return False
    return _said_of_both(cause.fault, cause.evidence, group)
