"""What follows from something else is no incident of its own.

A GPU that falls off the bus stops its job; a port that goes down loses packets first. Both would be found twice, and two
attempts would work on one cause. So the findings of a consequence go to the incident of its cause, which is then over only
when the consequence is over as well: the job runs again.

Only what stops or breaks at once explains something here, and only when it began about when the consequence did: what came
long before was survived. A hang whose own evidence names a rank on another node has another cause: two faults stay two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from core.window import Window
from pipeline.correlate import Group, Key

# Parts that break and take the job on them along.
FATAL = frozenset({"gpu_lost", "xid_fatal", "ecc_uncorrectable", "row_remap_failure", "nvlink_errors", "link_down",
                   "memory_pressure"})
STOPPED_BY = {"stalled_loss": FATAL}
# On one and the same part: what the graver fault shows as well.
SAME_PART = {
    "xid_fatal": frozenset({"gpu_lost"}),
    "nvlink_errors": frozenset({"gpu_lost"}),
    "pcie_degraded": frozenset({"gpu_lost"}),
    "ecc_uncorrectable": frozenset({"gpu_lost", "row_remap_failure"}),
    "ecc_correctable_storm": frozenset({"gpu_lost", "row_remap_failure", "ecc_uncorrectable"}),
    "link_flap": frozenset({"link_down"}),
    "link_slow": frozenset({"link_down"}),
    "packet_loss": frozenset({"link_down", "link_flap"}),
}
# A job is seen to stop at its last step or log line, up to a few minutes before or after what stopped it is seen; what is
# older was survived (a watchdog ends a hang after 10 minutes at the latest).
BEFORE_MS = 900_000
AFTER_MS = 300_000


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
    """The index of the group that the i-th follows from: the one that began first."""
    group = groups[i]
    found = [(_onset(other), other.key, j) for j, other in enumerate(groups)
             if j != i and (_stops(other, group, window) or _same_part(other, group))]
    return min(found)[2] if found else None


def _onset(group: Group) -> int:
    return min(f.onset_at for f in group.findings)


def _stops(cause: Group, group: Group, window: Window) -> bool:
    if group.key[1] != "job" or cause.fault not in STOPPED_BY.get(group.fault, frozenset()):
        return False
    nodes = {n for job in window.jobs if job.id == group.key[2] for n in job.nodes}
    if not nodes & set(cause.nodes):
        return False
    named = group.culprit.target
    if named is not None and named.node is not None and named.node not in cause.nodes:
        return False
    return -AFTER_MS <= _onset(group) - _onset(cause) <= BEFORE_MS


def _same_part(cause: Group, group: Group) -> bool:
    if cause.fault not in SAME_PART.get(group.fault, frozenset()) or "device" not in (cause.key[1], group.key[1]):
        return False
    mine, other = group.culprit.target, cause.culprit.target
    return mine is not None and other is not None and mine.same_part(other)
