"""What a Kubernetes node says: its state, who holds it, and what Greylag has written on it. Pure functions over objects.

On a node that Greylag holds stand two annotations: `greylag.io/held-by`, the proof that the cordon is ours, and
`greylag.io/actions`, what was asked of it and how far that is. Nobody else writes them, so after a restart they tell
everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from core.clock import parse_rfc3339
from core.protocols import NodeView

Obj = dict[str, Any]
HELD_BY = "greylag.io/held-by"
ACTIONS = "greylag.io/actions"
CHECKED_AT = "greylag.io/checked-at"
MAINTENANCE = "greylag.io/maintenance"  # a person's word: the text is the name of the work
WANTED = "greylag.io/wanted"            # the plain label: `replacement` or `reboot`
PARTNER_OF = "greylag.io/partner-of"    # a spare that a test of ours uses as the other node: the action's id
HANDS = "greylag"
UNKNOWN_HAND = "unknown hand"
KEPT_ACTIONS = 8

# SageMaker HyperPod on EKS: values of its node-health-status label (docs.aws.amazon.com/sagemaker/latest/dg/
# sagemaker-hyperpod-eks-resiliency-node-labels.html).
HYPERPOD = "sagemaker.amazonaws.com/node-health-status"
HYPERPOD_GOOD = "Schedulable"
HYPERPOD_REPLACE = "UnschedulablePendingReplacement"
HYPERPOD_REBOOT = "UnschedulablePendingReboot"

# Marks by which other controllers say that they take a node out. taint or annotation: its key is enough.
TAINTS_OF: tuple[tuple[str, str], ...] = (
    ("ToBeDeletedByClusterAutoscaler", "cluster-autoscaler"),
    ("karpenter.sh/disrupted", "karpenter"),
    ("karpenter.sh/disruption", "karpenter"),          # before v1
    ("aws-node-termination-handler/", "aws-node-termination-handler"),
    ("cloud.google.com/impending-node-termination", "gke"),
    ("medik8s.io/drain", "node-maintenance-operator"),
    ("node.cloudprovider.kubernetes.io/shutdown", "cloud-provider"),
    ("node.kubernetes.io/out-of-service", "out-of-service taint"),
)
ANNOTATIONS_OF: tuple[tuple[str, str], ...] = (
    ("weave.works/kured-reboot-in-progress", "kured"),
    ("quarantineHealthEvent", "nvsentinel"),
)
LABELS_OF: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # label, who, values that mean nothing is under way
    ("nvidia.com/gpu-driver-upgrade-state", "gpu-operator", ("upgrade-done", "upgrade-required")),
    ("nvidia.com/ofed-driver-upgrade-state", "network-operator", ("upgrade-done", "upgrade-required")),
)
CONDITIONS_OF: tuple[tuple[str, str], ...] = (("DrainScheduled", "draino"),)
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"


@dataclass(frozen=True, slots=True)
class Held:
    """Our hold on a node. labels: what we changed, as {label: (what it was, what we wrote)}; None = it was not there."""

    action: str
    incident: str
    at: str
    labels: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An action as it stands on its object. at, until: ms; more: what its steps have to remember."""

    id: str
    kind: str
    state: str
    reason: str
    at: int
    until: int
    ended_at: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def ended(self, state: str, reason: str, at: int) -> Entry:
        """The entry with its end. What its steps had to remember goes: of a large job that is a long list."""
        return replace(self, state=state, reason=reason, ended_at=at, more={})


# --- reading -----------------------------------------------------------------------------------------------------------
def notes(obj: Obj) -> Mapping[str, str]:
    """The object's annotations, empty where it has none."""
    return obj["metadata"].get("annotations") or {}


def labels(obj: Obj) -> Mapping[str, str]:
    """The object's labels, empty where it has none."""
    return obj["metadata"].get("labels") or {}


def taints(node: Obj) -> list[Obj]:
    """The node's taints."""
    return list((node.get("spec") or {}).get("taints") or [])


def cordoned(node: Obj) -> bool:
    """True where nothing new is scheduled on it."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def held(node: Obj) -> Held | None:
    """Our hold as it is written; None where there is none, or where it cannot be read (then it is nobody's proof)."""
    try:
        row = json.loads(notes(node)[HELD_BY])
        kept = {str(k): (v[0], str(v[1])) for k, v in dict(row.get("labels") or {}).items()}
        return Held(str(row["action"]), str(row["incident"]), str(row["at"]), kept)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):
        return None


def entries(obj: Obj) -> tuple[Entry, ...]:
    """Our actions on the object, oldest first."""
    try:
        return tuple(Entry(**row) for row in json.loads(notes(obj)[ACTIONS]))
    except (KeyError, ValueError, TypeError):
        return ()


def entry(obj: Obj, action_id: str) -> Entry | None:
    """The action as it stands on the object."""
    return next((e for e in entries(obj) if e.id == action_id), None)


def ready(node: Obj) -> str | None:
    """Status of the node's Ready condition: True, False, Unknown; None where it has none yet."""
    for one in (node.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready":
            return str(one.get("status"))
    return None


def boot_id(node: Obj) -> str | None:
    """Changes with each boot."""
    found = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID")
    return str(found) if found else None


def cordon_manager(node: Obj) -> str | None:
    """Who set `spec.unschedulable`, as managedFields name it; None where they do not say. Several hands own it where one of them
    applied it on the server (server-side apply) while it was set already: then another hand than ours."""
    found = []
    for row in node["metadata"].get("managedFields") or ():
        spec = (row.get("fieldsV1") or {}).get("f:spec")
        if isinstance(spec, Mapping) and "f:unschedulable" in spec and row.get("manager"):
            found.append(str(row["manager"]))
    return next((name for name in found if name != HANDS), found[0] if found else None)


def ours(node: Obj) -> bool:
    """True where the node is cordoned and the cordon is Greylag's: our annotation stands, and nobody has cordoned it anew."""
    return cordoned(node) and held(node) is not None and cordon_manager(node) in (None, HANDS)


def holder(node: Obj, more: Mapping[str, str] | None = None) -> str | None:
    """Who else holds the node out of service, or None. more: taint, label or annotation key -> name."""
    status = labels(node).get(HYPERPOD, HYPERPOD_GOOD)
    if status != HYPERPOD_GOOD and not _we_wrote(node, HYPERPOD, status):
        return "hyperpod"
    if cordoned(node) and not ours(node):
        return maintenance(node, more) or cordon_manager(node) or UNKNOWN_HAND
    return None


def other_hand(node: Obj, more: Mapping[str, str] | None = None) -> str | None:
    """Who else takes the node out, or is about to: its holder, or the work that a mark names."""
    return holder(node, more) or maintenance(node, more)


def maintenance(node: Obj, more: Mapping[str, str] | None = None) -> str | None:
    """The work or controller that a mark on the node names."""
    text = notes(node).get(MAINTENANCE)
    if text:
        return text[:80]
    if notes(node).get(PARTNER_OF):
        return "a test of Greylag's"
    keys = [str(t.get("key")) for t in taints(node)]
    for known, who in TAINTS_OF:
        if any(k == known or (known.endswith("/") and k.startswith(known)) for k in keys):
            return who
    for known, who in ANNOTATIONS_OF:
        if known in notes(node):
            return who
    for known, who, idle in LABELS_OF:
        if labels(node).get(known, idle[0]) not in idle:
            return who
    conditions = (node.get("status") or {}).get("conditions") or ()
    for known, who in CONDITIONS_OF:
        if any(c.get("type") == known and c.get("status") == "True" for c in conditions):
            return who
    for known, who in (more or {}).items():
        if known in keys or known in labels(node) or known in notes(node):
            return who
    return None


def _we_wrote(node: Obj, label: str, value: str) -> bool:
    hold = held(node)
    return hold is not None and label in hold.labels and hold.labels[label][1] == value


def view(node: Obj, jobs: Iterable[str], busy: bool, spare_label: str, more: Mapping[str, str] | None = None) -> NodeView:
    """The node as the guards see it. busy: pods that a drain would wait for or evict are on it."""
    name = str(node["metadata"]["name"])
    hand = holder(node, more)
    who = hand if hand is not None else HANDS if ours(node) else None
    return NodeView(name, _state(node, busy, spare_label), who, tuple(sorted(set(jobs))), maintenance(node, more), checked_at(node))


def _state(node: Obj, busy: bool, spare_label: str) -> str:
    status = ready(node)
    if any(e.kind == "reboot" and e.state == "RUNNING" for e in entries(node)):
        return "rebooting"
    if any(t.get("key") == UNINITIALIZED for t in taints(node)):
        return "provisioning"
    if status is None:
        return "provisioning"
    if status != "True":
        return "down" if status == "False" else "unknown"
    if cordoned(node):
        return "draining" if busy else "drained"
    return "spare" if spare_label and spare_label in labels(node) else "in_service"


def checked_at(node: Obj) -> int | None:
    """When a diagnosis last passed, ms; None where none is written or it cannot be read."""
    try:
        return parse_rfc3339(notes(node)[CHECKED_AT])
    except (KeyError, ValueError):
        return None


# --- writing: merge patches --------------------------------------------------------------------------------------------
def write_held(hold: Held) -> str:
    """The annotation's text."""
    return json.dumps({"by": HANDS, **asdict(hold)}, sort_keys=True)


def write_entry(obj: Obj, new: Entry) -> str:
    """The annotation's text with the entry in it, in its place or at the end; the oldest ended ones make room."""
    rows = list(entries(obj))
    at = next((i for i, e in enumerate(rows) if e.id == new.id), None)
    if at is None:
        rows.append(new)
    else:
        rows[at] = new
    while len(rows) > KEPT_ACTIONS:
        rows.pop(next((i for i, e in enumerate(rows) if e.state != "RUNNING" and e.id != new.id), 0))
    return json.dumps([asdict(e) for e in rows], sort_keys=True)


def noting(obj: Obj, new: Entry, changes: Obj | None = None) -> Obj:
    """`changes` and the entry, as one patch: what is done and that it is done are written together."""
    out: Obj = dict(changes or {})
    meta = dict(out.get("metadata") or {})
    meta["annotations"] = {**(meta.get("annotations") or {}), ACTIONS: write_entry(obj, new)}
    out["metadata"] = meta
    return out


def hold_changes(node: Obj, hold: Held, taint: str) -> Obj:
    """Cordon and taint. NoSchedule only: NoExecute would put pods out past their disruption budgets."""
    rest = [t for t in taints(node) if t.get("key") != taint]
    value = re.sub(r"[^A-Za-z0-9._-]", "-", hold.incident)[:63].strip("._-")  # what the API server takes for a value
    ours_now = {"key": taint, "value": value or "held", "effect": "NoSchedule"}
    return {"metadata": {"annotations": {HELD_BY: write_held(hold)}}, "spec": {"unschedulable": True, "taints": [*rest, ours_now]}}


def label_changes(node: Obj, hold: Held, wanted: Mapping[str, str]) -> Obj:
    """Sets labels and remembers what they were."""
    kept = dict(hold.labels)
    for name, value in wanted.items():
        before = kept[name][0] if name in kept else labels(node).get(name)
        kept[name] = (before, value)
    return {"metadata": {"labels": dict(wanted), "annotations": {HELD_BY: write_held(replace(hold, labels=kept))}}}


def restored_labels(node: Obj, hold: Held) -> dict[str, str | None]:
    """What our labels were, for those that still say what we wrote; others have been set anew and stay."""
    return {name: before for name, (before, wrote) in hold.labels.items() if labels(node).get(name) == wrote}


def release_changes(node: Obj, hold: Held, taint: str) -> Obj:
    """Takes our cordon, taint, labels and annotation away, and nothing else."""
    rest = [t for t in taints(node) if t.get("key") != taint]
    return {"metadata": {"annotations": {HELD_BY: None}, "labels": restored_labels(node, hold)},
            "spec": {"unschedulable": None, "taints": rest or None}}


def restore_changes(node: Obj, hold: Held, names: Iterable[str]) -> Obj:
    """Puts these of our labels back as they were, where they still say what we wrote; the hold and its other labels stay."""
    ours_now = set(names)
    rest = {k: v for k, v in hold.labels.items() if k not in ours_now}
    return {"metadata": {"labels": {k: v for k, v in restored_labels(node, hold).items() if k in ours_now},
                         "annotations": {HELD_BY: write_held(replace(hold, labels=rest))}}}


def spare_changes(node: Obj, spare_label: str) -> Obj:
    """Puts a spare into service: its label and the taint of the same key go."""
    rest = [t for t in taints(node) if t.get("key") != spare_label]
    return {"metadata": {"labels": {spare_label: None}}, "spec": {"taints": rest or None}}
