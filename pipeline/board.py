"""Fatal XIDs on several GPUs of one node at about one time: what they share is ill, the baseboard, a PCIe switch or the power.

By the Llama 3 report (220 faults of GPUs and their memory, 16,384 GPUs, 54 days) another of a node's eight dies within ten minutes
by chance once in 80,000 times. The codes differ by what each GPU was doing: all faults that a fatal XID can be are one here. An NVLink has two ends, and both tell of it: two GPUs with
nothing but NVLink errors are one link, and stay with it. Nodes that are ill for a cause that they share are that cause's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from core.types import Evidence, Finding, Target
from pipeline.correlate import FEWEST_PARTS, SAME_TIME_MS, TWO_ENDED, Group, Key
from pipeline.localise import SHARED_EVIDENCE, Culprit, ranked
from pipeline.topology import pci_key

# The gravest first: it names the incident.
FAULTS = ("gpu_lost", "xid_fatal", "ecc_uncorrectable", "row_remap_failure", "nvlink_errors")
REASON = "several_gpus"  # of core.reasons.REMARKS
SEVERAL = 2
# An XID as its detectors say it; a line that a GPU fell off the bus is XID 79 without its number.
TOLD, XID = frozenset({"fatal_xid", "off_the_bus"}), "gpu.xid"


def one_board(groups: Sequence[Group], live: Collection[Key] = ()) -> list[Group]:
    """The groups, those of GPUs of one node whose fatal XIDs came together as one group of the node.

    live: keys of the incidents that are open; one of a node keeps its name, and what is left of it.
    """
    by_node: dict[str, list[Group]] = {}
    for group in groups:
        if group.fault in FAULTS and group.key[1] in ("device", "node") and len(group.nodes) == 1:
            by_node.setdefault(group.nodes[0], []).append(group)
    out = list(groups)
    for node, mine in by_node.items():
        held = next((fault for fault in FAULTS if (fault, "node", node) in live), None)
        for found in _close_in_time(mine):
            together = [g for g in mine if g in out and any(f in found for f in g.findings)]
            if not together or not (_several(found) or _is_left(held, mine)):
                continue
            out = [g for g in out if g not in together]
            out.append(_of_node(node, held, together, found))
    return sorted(out, key=lambda g: (not g.shared, g.key))


def _close_in_time(groups: Sequence[Group]) -> list[list[Finding]]:
    """The findings of fatal XIDs, parted where the next one is more than ten minutes later."""
    fatal = {f.id: f for g in groups for f in g.findings if f.fault in FAULTS and f.target.kind == "gpu" and _is_xid(f)}
    out: list[list[Finding]] = []
    for finding in sorted(fatal.values(), key=lambda f: (f.onset_at, f.target.key, f.id)):
        if not out or finding.onset_at - out[-1][-1].onset_at > SAME_TIME_MS:
            out.append([])
        out[-1].append(finding)
    return out


def _is_xid(finding: Finding) -> bool:
    return finding.reason in TOLD or any(e.signal == XID for e in finding.evidence)


def _several(found: Sequence[Finding]) -> bool:
    links = all(f.fault in TWO_ENDED for f in found)
    return _gpus(found) >= (FEWEST_PARTS if links else SEVERAL)


def _gpus(found: Sequence[Finding]) -> int:
    """How many GPUs are told of. The log names them by PCI address and the exporter by number: where nothing joins the two, the
    same GPU may stand under both names."""
    names = {_name(f.target) for f in found}
    by_address = sum(pci_key(name) is not None for name in names)
    return max(by_address, len(names) - by_address)


def _name(gpu: Target) -> str:
    """A GPU as a whole, whichever of its slices is told of."""
    return gpu.id if gpu.device is None and gpu.id is not None else (gpu.device or "").partition("/")[0]


def _is_left(held: str | None, groups: Sequence[Group]) -> bool:
    """An open incident of the node goes on while a GPU of it is ill, though under another fault than the incident's; what
    comes long after those of its own fault is something else."""
    return held is not None and not any(f.fault == held for g in groups for f in g.findings)


def _of_node(node: str, held: str | None, groups: Sequence[Group], found: Sequence[Finding]) -> Group:
    target = Target("node", node)
    fault = held or min((g.fault for g in groups), key=FAULTS.index)
    culprit = Culprit(target, "node", SHARED_EVIDENCE, ranked([(target, SHARED_EVIDENCE, REASON)], SHARED_EVIDENCE))
    findings = {f.id: f for g in groups for f in g.findings}
    victims = {t.key: t for t in (*(f.target for f in findings.values()), *(t for g in groups for t in g.victims)) if t.kind != "node"}
    return replace(groups[0], key=(fault, "node", node), fault=fault, scope="node", scope_key=node, culprit=culprit, nodes=(node,),
                   findings=tuple(findings.values()), victims=tuple(victims.values()),
                   evidence=(_words(found),) if _several(found) else ())


def _words(found: Sequence[Finding]) -> Evidence:
    gpus = sorted({_name(f.target) for f in found}, key=lambda name: (len(name), name))
    minutes = -(-(found[-1].onset_at - found[0].onset_at) // 60_000)
    text = f"baseboard, PCIe switch or power: fatal XIDs on GPUs {', '.join(gpus)} within {max(1, minutes)} min"
    return Evidence("xid", "count", float(_gpus(found)), 1.0, "GPUs that die by themselves", text)
