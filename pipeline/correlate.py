"""Findings that belong together: one group is one incident.

**Shared causes.** Parts that fail on their own do so rarely: the Llama 3 report (419 unexpected interruptions of 2,048
nodes in 54 days) gives 0.004 a node and day, so three nodes of one rack of 16 within ten minutes are chance less than once
in a million ten-minute spans of that rack. Hence: at least 3 parts on at least 2 nodes under one cause, and either at least half of
the monitored nodes under it, or at least 3 nodes whose onsets lie within 10 minutes. To err this way is the safe way: no
node is replaced for a shared cause.
Once such an incident is open it keeps taking in what belongs to it, so that it does not fall apart as parts recover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from core.faults import faults
from core.types import Evidence, Finding, Target
from core.window import Window
from pipeline.localise import (
    OWN_EVIDENCE,
    SHARED_EVIDENCE,
    Culprit,
    blame_job,
    blame_part,
    named,
    peer_only,
    ranked,
    strength,
    strongest,
)
from pipeline.ports import one_port
from pipeline.rollouts import with_rollouts
from pipeline.topology import NETWORK_FAULTS, Cause, causes_of, members

FEWEST_PARTS = 3
FEWEST_NODES = 2
SAME_TIME_MS = 600_000
HALF = 0.5
WHOLE_NODE_SHARE = 0.5  # 4 of 8: by chance that is never seen
# Ranks of one job and one node that become slow together share the host under them: two are enough, for a rank that is slow alone
# is rare (Greyhound counts a few slow GPUs among thousands at a time).
FEWEST_RANKS = 2
OUTSIDE = 0.5           # a cause explains a wide fault when outside it less than half as many nodes are affected
LABEL_OUTSIDE = 0.1     # a label separates when at most so many nodes without it are affected
# Both ends of one link inside a node count its errors: a receiver its CRC errors, a sender its replays. The end that is
# clearly worse off is named; where none is, nothing tells them apart, and all are suspects alike.
TWO_ENDED = frozenset({"nvlink_errors"})
WORSE = 1.5           # times the errors of the next end: a GPU that is ill on several links counts those of all of them
SIGMAS = 3.0          # and more than chance, for counts over COUNTED_SECONDS (detectors look back five minutes)
COUNTED_SECONDS = 300.0
GRAVER = 0.1          # of severity: a fatal line of one end and counters of the other
# What a detector can name as the shared cause itself, and the scope of its incidents.
SCOPE_OF_CAUSE = {"cooling": "rack", "rack": "rack", "pdu": "rack"}
# Which faults of parts such a cause makes: heat belongs to the loop or the rack that lost its cooling, and so does what heat
# makes slow.
MADE_BY = {fault: frozenset({"cooling_fault"}) for fault in ("thermal_throttle", "clock_loss", "gpu_slow")}
JOB_WIDE = frozenset({"throughput_drop", "data_stall"})
# A rack that lost its power shows both, of parts and of their nodes: it is one incident, under the graver name.
GONE, SILENT = "gpu_lost", "target_down"

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """key: (fault, family, name), the identity of the incident while it is open; family: device, node, job, or the kind
    of the shared cause. nodes: where its parts stand. evidence: for the group itself, besides that of its findings."""

    key: Key
    fault: str
    scope: str
    scope_key: str
    culprit: Culprit
    findings: tuple[Finding, ...]
    victims: tuple[Target, ...]
    nodes: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def shared(self) -> bool:
        return self.key[1] not in ("device", "job")


def correlate(window: Window, findings: Sequence[Finding], live: Collection[Key] = ()) -> list[Group]:
    """All groups, wider ones first, in an order that does not depend on that of the findings.

    live: keys of the incidents that are open.
    """
    by_fault: dict[str, list[Finding]] = {}
    findings = one_port(findings, window)
    for finding in sorted(findings, key=lambda f: (f.fault, f.target.key, f.id)):
        by_fault.setdefault(finding.fault, []).append(finding)
    groups: list[Group] = []
    for fault, found in by_fault.items():
        if _job_wide(fault):
            groups += _by_job(fault, found, window)
        else:
            seen = with_rollouts(window, found)
            for together in _apart(fault, found, findings, seen):
                groups += _by_cause(fault, together, seen, live)
    return sorted(_lost_racks(groups, live), key=lambda g: (not g.shared, g.key))


def _job_wide(fault: str) -> bool:
    """A job stalls once, whichever rank is found to be behind: such faults are one incident for each job."""
    known = faults().get(fault)
    return fault in JOB_WIDE or (known is not None and known.owner == "job owner")


def _by_job(fault: str, findings: list[Finding], window: Window) -> list[Group]:
    by_job: dict[str, list[Finding]] = {}
    for finding in findings:
        by_job.setdefault(finding.target.job or finding.target.key, []).append(finding)
    out = []
    for job, found in by_job.items():
        culprit = blame_job(found, window)
        key = culprit.target.key if culprit.target is not None and culprit.scope == "device" else job
        out.append(Group((fault, "job", job), fault, culprit.scope, key, culprit, tuple(found), (), _nodes(found)))
    return out


def _by_cause(fault: str, findings: list[Finding], window: Window, live: Collection[Key]) -> list[Group]:
    groups = [_named_cause(fault, f, window) for f in findings if f.target.kind in SCOPE_OF_CAUSE]
    left = [f for f in findings if f.target.kind not in SCOPE_OF_CAUSE]
    while (cause := _shared_cause(fault, left, window, live)) is not None:
        back = cause.kind == "label" and not _is_anywhere(cause.name, window)
        under = left if back else [f for f in left if _is_under(f, cause, fault, window)]
        groups.append(_shared(fault, cause, under, window))
        left = _without(left, under)
    whole = {f.target.node: f for f in left if f.target.kind == "node"}
    for node, found in _by_node(left).items():
        # An incident that a detector opened by naming the node keeps its name when most of its parts are found as well.
        keeps = node in whole and (fault, "device", whole[node].target.key) in live
        if not keeps and (_whole_node(found, node, window) or (fault, "node", node) in live):
            together = [*found, *([whole[node]] if node in whole else [])]
            groups.append(_node_group(fault, node, together))
            left = _without(left, together)
        elif node in whole:  # a detector named the node: its parts are its
            groups.append(_device(fault, [whole[node]], found, window))
            left = _without(left, [whole[node], *found])
    return groups + _single(fault, left, window, live)


# --- shared causes ----------------------------------------------------------------------------------------------------
FLEET = Cause("fleet", "", "fleet")


def _shared_cause(fault: str, findings: list[Finding], window: Window, live: Collection[Key]) -> Cause | None:
    """The cause that explains most of the findings, None where they are not enough.

    One that has an open incident keeps it. In its place a label that all affected nodes have by now, of which it explains a
    part: the nodes of a roll-out do not fall ill at one time, and the first of them may stand in one rack. Or a cause around it,
    where more nodes fell ill with its own: those that were found first may hang on one of a rack's feeds.
    """
    if not findings:
        return None
    candidates: dict[Cause, list[Finding]] = {}
    order: dict[Cause, int] = {}
    for finding in findings:
        for i, cause in enumerate(causes_of(finding.target, fault, window.topology)):
            candidates.setdefault(cause, []).append(finding)
            order[cause] = min(i, order.get(cause, i))
    affected = set(_nodes(findings))
    held = [c for c in (*candidates, FLEET) if _key(fault, c) in live] or _rolled_back(fault, window, live)
    first = min(held, key=lambda c: (c.kind != "fleet", order.get(c, 0), c.name), default=None)
    if first is not None:
        wider = [] if first not in candidates or set(_nodes(candidates[first])) == affected else [
            c for c in candidates if (c.kind == "label" and set(_nodes(candidates[c])) == affected)
            or _around(c, first, candidates, window)]
        candidates = {c: candidates[c] for c in wider}
    monitored = _monitored(window, findings[0].target.kind) if candidates or first is None else frozenset()
    under = {c: members(c, window.of_kind(findings[0].target.kind), window.topology) | set(_nodes(found))
             for c, found in candidates.items() if _parts(found) >= FEWEST_PARTS}
    good = [c for c, nodes in under.items() if _enough(c, candidates[c], nodes, monitored, affected)]
    if first is not None:
        return min(good, key=lambda c: c.name, default=first)
    best = min(good, key=lambda c: (-len(set(_nodes(candidates[c]))), order[c], c.name), default=None)
    widespread = (_parts(findings) >= FEWEST_PARTS and len(affected) >= FEWEST_PARTS
                  and len(affected) >= HALF * len(monitored))
    # A node has ports on several leaves: one of them explains a wide fault only where it has most of the ports that are ill.
    most = best is not None and (best.kind != "switch" or _parts(candidates[best]) >= HALF * _parts(findings))
    if best is not None and (not widespread or (most and _share(affected, monitored - under[best])
                                                < OUTSIDE * _share(affected, under[best]))):
        return best
    return FLEET if widespread else best


def _monitored(window: Window, kind: str) -> frozenset[str]:
    """The nodes with parts of the kind."""
    return window.once(("monitored", kind), lambda: frozenset(t.node for t in window.of_kind(kind) if t.node is not None))


def _around(cause: Cause, live: Cause, candidates: dict[Cause, list[Finding]], window: Window) -> bool:
    """The cause is of the live one's scope, holds all that is under the live one, and at least half of what it holds besides fell
    ill at that time too."""
    if cause.scope != live.scope or cause.kind in ("label", "fleet"):
        return False
    found = candidates[cause]
    parts = window.of_kind(found[0].target.kind)
    inside, all_of_it = members(live, parts, window.topology), members(cause, parts, window.topology)
    onsets = [f.onset_at for f in found]
    return (inside < all_of_it and max(onsets) - min(onsets) <= SAME_TIME_MS
            and _share(set(_nodes(found)), all_of_it - inside) >= HALF)


def _rolled_back(fault: str, window: Window, live: Collection[Key]) -> list[Cause]:
    """Labels with an open incident that no node has any more: what is still ill is what had them."""
    names = sorted(name for of, family, name in live if (of, family) == (fault, "label"))
    return [Cause("label", name, "fleet") for name in names if not _is_anywhere(name, window)]


def _is_anywhere(label: str, window: Window) -> bool:
    return any(f"{key}={value}" == label for place in window.topology.places.values() for key, value in place.labels)


def _without(findings: Sequence[Finding], taken: Sequence[Finding]) -> list[Finding]:
    gone = {f.id for f in taken}  # a lost rack has a thousand findings: comparing each with each takes half a second
    return [f for f in findings if f.id not in gone]


def _parts(found: Sequence[Finding]) -> int:
    return len({f.target.key for f in found})


def _share(affected: set[str], nodes: Collection[str]) -> float:
    return len(affected & set(nodes)) / len(nodes) if nodes else 0.0


def _enough(cause: Cause, found: list[Finding], under: Collection[str], monitored: frozenset[str], affected: set[str]) -> bool:
    """The rule of the module's text. under: the monitored nodes under the cause."""
    nodes = set(_nodes(found))
    if _parts(found) < FEWEST_PARTS or len(nodes) < FEWEST_NODES:
        return False
    if cause.kind == "label":
        # what all nodes have tells nothing; a label that separates is on the affected ones and hardly elsewhere
        outside = monitored - set(under)
        return (len(nodes) >= FEWEST_PARTS and len(nodes) >= HALF * len(under) and len(outside) >= FEWEST_NODES
                and _share(affected, outside) <= LABEL_OUTSIDE)
    onsets = sorted(f.onset_at for f in found)
    together = len(nodes) >= FEWEST_PARTS and onsets[-1] - onsets[0] <= SAME_TIME_MS
    return len(nodes) >= HALF * len(under) or together


def _apart(fault: str, found: list[Finding], findings: Sequence[Finding], window: Window) -> list[list[Finding]]:
    """The findings under each shared cause that a detector named and that makes such faults, and the rest: what happens to
    be ill elsewhere at that time must not make one wide fault of them."""
    causes = [f for f in findings if f.target.kind in SCOPE_OF_CAUSE and f.fault in MADE_BY.get(fault, ())]
    out, rest = [], found
    for one in sorted(causes, key=lambda f: f.target.key):
        cause = Cause(one.target.kind, one.target.device or "", SCOPE_OF_CAUSE[one.target.kind])
        nodes = members(cause, window.of_kind("gpu"), window.topology)
        out.append([f for f in rest if f.target.node in nodes])
        rest = [f for f in rest if f.target.node not in nodes]
    return [*out, rest]


def _lost_racks(groups: list[Group], live: Collection[Key]) -> list[Group]:
    """Where a rack answers no more, the GPUs that were lost in it at that time are its. It keeps the name of lost GPUs while that
    incident is open, also when nobody tells of the GPUs any more."""
    for rack in [g for g in groups if g.fault == SILENT and g.scope == "rack"]:
        key: Key = (GONE, *rack.key[1:])
        mine = [g for g in groups if g.fault == GONE and (g.key == key or _went_with(g, rack))]
        if not mine and key not in live:
            continue
        parts = (rack, *mine)
        findings = {f.id: f for g in parts for f in g.findings}
        victims = {t.key: t for g in parts for t in (*(f.target for f in g.findings), *g.victims)}
        nodes = tuple(sorted({n for g in parts for n in g.nodes}))
        groups = [g for g in groups if g is not rack and g not in mine]
        groups.append(replace(rack, key=key, fault=GONE, findings=tuple(findings.values()), victims=tuple(victims.values()), nodes=nodes))
    return groups


def _went_with(group: Group, rack: Group) -> bool:
    """All of it stands in the rack and began when the rack fell silent."""
    onset, silent = min(f.onset_at for f in group.findings), min(f.onset_at for f in rack.findings)
    return set(group.nodes) <= set(rack.nodes) and abs(onset - silent) <= SAME_TIME_MS


def _named_cause(fault: str, finding: Finding, window: Window) -> Group:
    """A finding on what parts share (a cooling loop) is at its scope already; the parts under it are its victims."""
    target = finding.target
    cause = Cause(target.kind, target.device or "", SCOPE_OF_CAUSE[target.kind])
    gpus = window.of_kind("gpu")
    nodes = members(cause, gpus, window.topology)
    chance = OWN_EVIDENCE
    culprit = Culprit(target, cause.scope, round(chance * strength(finding), 3), ranked([(target, chance, finding.reason)], chance))
    return Group(_key(fault, cause), fault, cause.scope, cause.name, culprit, (finding,),
                 tuple(t for t in gpus if t.node in nodes), tuple(sorted(nodes)))


def _key(fault: str, cause: Cause) -> Key:
    return fault, cause.kind, cause.name


def _is_under(finding: Finding, cause: Cause, fault: str, window: Window) -> bool:
    return cause.kind == "fleet" or cause in causes_of(finding.target, fault, window.topology)


def _shared(fault: str, cause: Cause, found: list[Finding], window: Window) -> Group:
    nodes = set(_nodes(found))
    target: Target | None = None if cause.kind == "fleet" else cause.culprit
    share = 1.0
    if cause.kind != "fleet":
        share = _share(nodes, members(cause, window.of_kind(found[0].target.kind), window.topology) | nodes)
    chance = round(SHARED_EVIDENCE * (0.8 + 0.2 * share), 3)
    suspects = () if target is None else ranked([(target, chance, "shared_cause")], chance)
    victims = tuple({f.target.key: f.target for f in found}.values())
    return Group(_key(fault, cause), fault, cause.scope, cause.name or "fleet",
                 Culprit(target, cause.scope, chance, suspects), tuple(found), victims, tuple(sorted(nodes)))


# --- nodes and devices ------------------------------------------------------------------------------------------------
def _nodes(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(sorted({f.target.node for f in findings if f.target.node is not None}))


def _by_node(findings: list[Finding]) -> dict[str, list[Finding]]:
    out: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.target.node is not None and finding.target.kind in ("gpu", "nic", "disk", "link", "rank"):
            out.setdefault(finding.target.node, []).append(finding)
    return out


def _whole_node(found: list[Finding], node: str, window: Window) -> bool:
    """At least half of its parts of a kind, or as many within ten minutes as are never ill together by chance: the node (its
    fans, its PCIe switch, its host), not its parts one by one."""
    kind, onsets = found[0].target.kind, [f.onset_at for f in found]
    together = max(onsets) - min(onsets) <= SAME_TIME_MS
    if kind == "rank" and together and len({f.target.job for f in found}) == 1:
        return _parts(found) >= FEWEST_RANKS
    monitored = window.once(("parts by node", kind), lambda: Counter(t.node for t in window.of_kind(kind)))[node]
    enough = len(found) >= WHOLE_NODE_SHARE * monitored
    # One GPU that is ill on several links shows at its peers, and one bad rail at several ports.
    if kind == "gpu" and found[0].fault not in TWO_ENDED:
        enough |= together
    return len(found) >= FEWEST_PARTS and enough


def _node_group(fault: str, node: str, found: list[Finding]) -> Group:
    target = Target("node", node)
    culprit = Culprit(target, "node", SHARED_EVIDENCE, ranked([(target, SHARED_EVIDENCE, "shared_cause")], SHARED_EVIDENCE))
    victims = tuple({f.target.key: f.target for f in found}.values())
    return Group((fault, "node", node), fault, "node", node, culprit, tuple(found), victims, (node,))


def _single(fault: str, findings: list[Finding], window: Window, live: Collection[Key]) -> list[Group]:
    """One group for each part. Where one end of a path shows the loss itself, ends that only repair it are its victims;
    where none does, the ends that stand out are what the detector named."""
    if fault in TWO_ENDED:
        return [_ends(fault, found, window, live) for found in _by_node(findings).values()]
    own = [f for f in findings if not (fault in NETWORK_FAULTS and peer_only(f))] or findings
    peers = [f for f in findings if f not in own]
    if not own:
        return []
    main = strongest(own)
    by_part: dict[str, list[Finding]] = {}
    for finding in own:
        by_part.setdefault(named(finding.target, window).key, []).append(finding)
    return [_device(fault, found, peers if main in found else [], window) for _, found in sorted(by_part.items())]


def _ends(fault: str, found: list[Finding], window: Window, live: Collection[Key]) -> Group:
    """The parts of a node that count the errors of one link: the one that is clearly worse, else all of them alike."""
    ordered = sorted(found, key=lambda f: (-f.severity, -_errors(f), f.onset_at, f.target.key))
    alike = [ordered[0], *(f for f in ordered[1:] if not _clearly_worse(ordered[0], f))]
    group = _device(fault, [ordered[0]], ordered[1:], window)
    # The incident keeps its name while it is open, whichever end counts a few more just now.
    keys = [(fault, "device", named(f.target, window).key) for f in ordered]
    key = next((k for k in keys if k in live), group.key)
    culprit = group.culprit
    if len(alike) > 1:
        parts = {f.target.key: f for f in sorted(alike, key=lambda f: f.target.key)}.values()
        chance = OWN_EVIDENCE / len(parts)
        culprit = Culprit(culprit.target, culprit.scope, round(chance * strength(ordered[0]), 3),
                          ranked([(named(f.target, window), chance, f.reason) for f in parts], 1.0))
    return replace(group, key=key, scope_key=key[2], culprit=culprit)


def _errors(finding: Finding) -> float:
    """Errors a second that the part itself counts, 0 where only a line tells of them."""
    return sum(e.observed or 0.0 for e in finding.evidence if e.unit.endswith("/s"))


def _clearly_worse(one: Finding, other: Finding) -> bool:
    if one.severity >= other.severity + GRAVER:
        return True
    mine, its = _errors(one) * COUNTED_SECONDS, _errors(other) * COUNTED_SECONDS
    return mine >= WORSE * its and mine - its >= SIGMAS * (mine + its) ** 0.5 and mine > 0


def _device(fault: str, found: list[Finding], victims: list[Finding], window: Window) -> Group:
    culprit = blame_part(found, window)
    key = culprit.target.key if culprit.target is not None else found[0].target.key
    return Group((fault, "device", key), fault, culprit.scope, key, culprit, (*found, *victims),
                 tuple(f.target for f in victims), _nodes(found))
