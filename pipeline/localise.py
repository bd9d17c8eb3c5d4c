"""Names the culprit of a group of findings, with probabilities, and the parts that merely suffer.

The culprit is the part with evidence of its own. In synchronous training everybody slows, so suffering is no evidence:
a NIC whose peers lost packets, or a rank that waits, is a victim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from core.types import Finding, JobState, Suspect, Target
from core.window import Window
from pipeline.confidence import chances

# How sure one finding on a part makes us that this part is it: physics (a counter, a throttle bit) of the part itself.
OWN_EVIDENCE = chances()["own"]
# A rank that is behind in its collectives: its software, its GPU or its node; without a process group, less (DESIGN §6).
RANK_EVIDENCE = chances()["rank"]
WATCHDOG_LIMIT = 0.8
SHARED_EVIDENCE = chances()["shared"]
# A job's own numbers. Of a hang, where nothing tells which of its parts it comes from: that the job hangs is sure, that all of it is
# to blame is not, and only the job may be started again for it.
JOB_EVIDENCE, UNPLACED_EVIDENCE = chances()["job"], 0.85
UNPLACED = frozenset({"no_step", "watchdog_equal", "hang_signature"})
MOST_SUSPECTS = 8


@dataclass(frozen=True, slots=True)
class Culprit:
    """target None: a scope without a part to blame. confidence 0–1. suspects: most probable first."""

    target: Target | None
    scope: str
    confidence: float
    suspects: tuple[Suspect, ...]


def peer_only(finding: Finding) -> bool:
    """The finding rests on what the part does for its peers (sends again, hears NAKs), not on a loss that it saw."""
    return any(word in finding.reason for word in ("peer", "remote", "retransmits"))


def strongest(findings: Iterable[Finding]) -> Finding:
    """The one with evidence of its own, then the most severe, then the first."""
    return min(findings, key=lambda f: (peer_only(f), -f.severity, f.onset_at, f.target.key))


def named(target: Target, window: Window) -> Target:
    """A rank as the GPU that it runs on where that is known, with job and rank filled; other parts as they are."""
    if target.kind != "rank" or target.node is None or target.device is None:
        return target
    gpu = window.once("GPUs by place", lambda: {(g.node, g.device): g for g in reversed(window.of_kind("gpu"))}).get(
        (target.node, target.device))
    if gpu is not None:
        return replace(gpu, job=target.job, rank=target.rank)
    return Target("gpu", target.node, target.device, job=target.job, rank=target.rank)


def strength(finding: Finding) -> float:
    """How much the evidence itself is worth, 0.98 (slight) to 1 (fatal)."""
    return 0.98 + 0.02 * min(1.0, max(0.0, finding.severity))


def blame_part(findings: Sequence[Finding], window: Window) -> Culprit:
    """The culprit of findings on one part, or on parts of which one has the evidence and the others follow."""
    best = strongest(findings)
    chance = _chance(best)
    target = named(best.target, window)
    suspects = [(target, chance, best.reason)]
    suspects += [(named(t, window), weight, why) for t, weight, why in best.suspects]
    scope = "device"
    if target.kind in ("rank", "job"):
        scope = "job"
    elif target.kind in ("node", "storage", "collector"):
        scope = target.kind
    return Culprit(target, scope, round(chance * strength(best), 3), ranked(suspects, chance))


def _chance(finding: Finding) -> float:
    """The detector's own weight for the part where it gave one. Else: a part's own evidence; of a rank, less: watchdog lines that
    name no process group tell which rank is behind, not which group waits, and count for at most 0.8."""
    for target, weight, _ in finding.suspects:
        if target.same_part(finding.target):
            return min(1.0, max(0.0, weight))
    if finding.target.kind != "rank":
        return OWN_EVIDENCE
    words = " ".join([finding.reason, *(e.signal for e in finding.evidence)])
    return WATCHDOG_LIMIT if "watchdog" in words else RANK_EVIDENCE


def blame_job(findings: Sequence[Finding], window: Window) -> Culprit:
    """The culprit of findings on one job and its ranks: a rank where one stands out, else the job as a whole."""
    ranks = [f for f in findings if f.target.kind != "job"]
    if not ranks:
        best = strongest(findings)
        candidates = ranked([(named(t, window), weight, why) for t, weight, why in best.suspects], 1.0)
        chance = UNPLACED_EVIDENCE if best.reason in UNPLACED else JOB_EVIDENCE
        return Culprit(None, "job", round(chance * strength(best), 3), candidates)
    best = strongest(ranks)
    found = blame_part(ranks, window)
    if len(ranks) == 1:
        return found
    # several ranks stand out: the chance is shared by severity
    total = sum(f.severity for f in ranks) or 1.0
    chance = _chance(best) * (best.severity / total if best.severity else 1 / len(ranks))
    suspects = [(named(f.target, window), _chance(f) * (f.severity / total if f.severity else 1 / len(ranks)),
                 f.reason) for f in ranks]
    return Culprit(found.target, found.scope, round(chance * strength(best), 3), ranked(suspects, 1.0))


def ranked(weighted: Sequence[tuple[Target, float, str]], first: float) -> tuple[Suspect, ...]:
    """Suspects with probabilities that add up to at most 1, most probable first. A part named twice counts once, with
    all its reasons. first: what the first of them keeps for itself; the others share the rest by weight."""
    merged: dict[str, tuple[Target, float, tuple[str, ...]]] = {}
    for target, weight, why in weighted:
        known = merged.get(target.key)
        if known is None:
            merged[target.key] = (target, max(0.0, weight), (why,) if why else ())
        elif why and why not in known[2]:
            merged[target.key] = (known[0], known[1], (*known[2], why))
    rows = list(merged.values())
    if not rows:
        return ()
    if first < 1.0:
        rest = sum(weight for _, weight, _ in rows[1:])
        scale = min(1.0, (1.0 - first) / rest) if rest else 1.0
        rows = [rows[0], *((t, w * scale, why) for t, w, why in rows[1:])]
    else:
        total = sum(weight for _, weight, _ in rows)
        rows = [(t, w / max(1.0, total), why) for t, w, why in rows]
    rows.sort(key=lambda r: (-r[1], r[0].key))
    return tuple(Suspect(t, round(w, 4), why) for t, w, why in rows[:MOST_SUSPECTS])


def jobs_hit(nodes: Iterable[str], job_ids: Iterable[str], jobs: Sequence[JobState]) -> tuple[str, ...]:
    """The jobs that are named, and those that run on one of the nodes, in the order of `jobs`."""
    where, direct = set(nodes), set(job_ids)
    found = [j.id for j in jobs if j.id in direct or (j.running and where & set(j.nodes))]
    return (*found, *sorted(direct - set(found)))
