"""What is done to a node: drain, exclude_node, undrain, replace, reboot.

Each is a step with `begin` (what to write at once, with the entry), `advance` (how far it is, asked again and again) and
`expire` (what to leave behind when its time is up). The door writes; nothing here does, except for evictions, deletions and
the spare that a replacement puts into service.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from core.clock import parse_rfc3339, rfc3339
from core.types import Action
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiBlocked, ApiConflict
from remediation.backends.kubernetes_nodes import Entry, Held, Obj
from remediation.backends.kubernetes_pair import avoided, free_spares, usable_spare
from remediation.backends.kubernetes_setup import Progress, Refuse, Setup, with_more
from remediation.backends.kubernetes_view import KubernetesView
from remediation.backends.kubernetes_work import Work

LONGEST_GRACE = 3600
# Why pods stay, the reason that a person can do most about first.
BLOCKED = ("disruption_budget", "not_requeueable", "waits_for_job", "waits_for_checkpoint", "policy")
DONE = Progress("DONE", "done")


class Hold:
    """exclude_node: cordon and taint, and nothing else."""

    subject = "node"

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        self.api, self.setup, self.view = api, setup, view

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        """The cordon. One that is ours already stays as it is."""
        return nodes_.hold_changes(node, self.hold(node, action, now), self.setup.taint), {}

    def hold(self, node: Obj, action: Action, now: int) -> Held:
        """Our hold, or a new one."""
        known = nodes_.held(node) if nodes_.ours(node) else None
        return known or Held(action.id, action.incident, rfc3339(now))

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        """Done with the first write."""
        return DONE

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        """The cordon stays: the engine knows of it and hands it to a person."""
        return Progress("FAILED", reason)


class Drain(Hold):
    """drain: cordon and taint, then evict the pods of jobs that opted in and wait for all others.

    Arguments: `wait_for: checkpoint` lets each job first save once more, where it tells when it does (its annotation
    `greylag.io/checkpoint-at`), for at most the backend's checkpoint_wait_seconds; `evict: delete` deletes pods instead of asking for their eviction, which goes past disruption budgets;
    `grace_seconds` overrides the pods' own grace, at least 1: nothing is ever killed at once.
    """

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        how, grace = action.args.get("evict", "evict"), action.args.get("grace_seconds")
        if how not in ("evict", "delete"):
            raise Refuse("not_supported")
        if grace is not None and (isinstance(grace, bool) or not isinstance(grace, (int, float)) or not 1 <= grace <= LONGEST_GRACE):
            raise Refuse("not_supported")
        changes, _ = super().begin(node, action, now)
        return changes, {"how": how, "grace": None if grace is None else int(grace), "save": action.args.get("wait_for") == "checkpoint"}

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        """Asks for what is still to go. DONE when no pod of a job and none with a GPU is left."""
        hand = nodes_.other_hand(node, self.setup.other_hands)
        if hand is not None or not nodes_.ours(node):
            return Progress("FAILED", "other_hand", detail=f"{hand or 'somebody'} has taken the node over")
        pods = self.view.busy_pods(node)
        waits: dict[str, list[str]] = {}
        asked: dict[Work, str | None] = {}
        for pod in pods:
            reason = None if work_.leaving(pod) else self._move(pod, entry, asked, now)
            waits.setdefault(reason or "policy", []).append(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if not pods:
            return DONE
        worst = next(r for r in BLOCKED if r in waits)
        names = waits[worst]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return Progress("RUNNING", worst, detail=f"{len(pods)} pods left: {', '.join(names[:3])}{more}")

    def _move(self, pod: Obj, entry: Entry, asked: dict[Work, str | None], now: int) -> str | None:
        """Asks the pod to go; the reason why not, or None."""
        work = work_.work_of(pod)
        key = work or Work("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if key not in asked:
            asked[key] = self._may_go(pod, work, entry, now)
        if asked[key] is not None:
            return asked[key]
        try:
            if entry.more.get("how") == "delete":
                self.api.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], entry.more.get("grace"))
            else:
                self.api.evict(pod, entry.more.get("grace"))
        except ApiBlocked:
            return "disruption_budget"
        except ApiConflict:
            return None  # another pod of that name: the next look sees where it is
        return None

    def _may_go(self, pod: Obj, work: Work | None, entry: Entry, now: int) -> str | None:
        """Why the pod may not be stopped: nobody said that it may, or its job would not start it again."""
        said = work_.says_yes(pod, self.setup.opt_in_label)
        owner = self.view.owner(work) if work is not None else None
        if said is False or not (said or self.view.opted_in(owner if owner is not None else pod)):
            return "waits_for_job"
        if owner is not None:
            child = self.view.owner(Work("Job", work.namespace, _job_name(pod))) if work and work.kind == "JobSet" else None
            if work_.would_end(owner, child):
                return "not_requeueable"
            if entry.more.get("save") and now - entry.at < self.setup.checkpoint_wait_seconds * 1000 \
                    and (saved := work_.checkpoint_at(owner)) is not None and saved <= entry.at:
                return "waits_for_checkpoint"
        elif work is None and work_.owner_kind(pod) is None:
            return "not_requeueable"  # a bare pod: nothing makes it anew
        return None


class Undrain(Hold):
    """undrain: takes our cordon, taint and labels away, once a diagnosis has passed since the node was taken out. Never anybody
    else's."""

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        hold = nodes_.held(node)
        if not nodes_.cordoned(node):
            if hold is None:
                return {}, {"reason": "already_so"}
            changes = nodes_.release_changes(node, hold, self.setup.taint)  # somebody has uncordoned it: our leavings go
            return changes, {"reason": "already_so"}
        if hold is None or not nodes_.ours(node):
            raise Refuse("other_hand")
        if (nodes_.checked_at(node) or 0) < parse_rfc3339(hold.at):
            raise Refuse("not_diagnosed")
        return nodes_.release_changes(node, hold, self.setup.taint), {}

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        return Progress("DONE", str(entry.more.get("reason") or "done"))


class Labelled(Hold):
    """What replace and reboot share: the node has to be ours and empty, and asks for its fate by labels."""

    wanted, hyperpod = "", ""

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        hold = nodes_.held(node)
        if hold is None or not nodes_.ours(node) or self.view.busy_pods(node):
            raise Refuse("not_drained")
        labels = {nodes_.WANTED: self.wanted}
        how = self.setup.hyperpod
        if how == "always" or (how == "auto" and nodes_.HYPERPOD in nodes_.labels(node)):
            labels[nodes_.HYPERPOD] = self.hyperpod
        return nodes_.label_changes(node, hold, labels), {}

    def unlabelled(self, node: Obj) -> Obj:
        """Our labels as they were, where they still say what we wrote; the hold stays."""
        hold = nodes_.held(node)
        if hold is None:
            return {}
        restored = nodes_.restored_labels(node, hold)
        return {"metadata": {"labels": restored, "annotations": {
            nodes_.HELD_BY: nodes_.write_held(Held(hold.action, hold.incident, hold.at))}}}


class Replace(Labelled):
    """replace: puts a spare into service and labels the node for replacement. DONE when both are so: the new machine comes
    when the provider or a person brings it. Arguments: `spare`: which; without it the one whose diagnosis is newest. `avoid`:
    spares that must not be taken (unchecked, drifted, or under test), with commas between them."""

    wanted, hyperpod = "replacement", nodes_.HYPERPOD_REPLACE

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        changes, more = super().begin(node, action, now)
        asked = action.args.get("spare")
        avoid = avoided(action.args)
        spare = self._free(str(asked) if asked else None, avoid)
        if spare is None and (asked or self._any_spares()):
            raise Refuse("no_spare")
        return changes, {**more, "spare": spare, "avoid": avoid}

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        """Puts the spare into service; where another hand took it meanwhile, the next one."""
        name = entry.more.get("spare")
        if name is None:
            return DONE
        try:
            spare = self.view.node(str(name))
            if usable_spare(spare, self.setup):
                self.api.patch(spare, nodes_.spare_changes(spare, self.setup.spare_label))
                return Progress("DONE", "done", detail=f"{name} is in service")
            if self.setup.spare_label not in nodes_.labels(spare) and nodes_.other_hand(spare, self.setup.other_hands) is None:
                return Progress("DONE", "done", detail=f"{name} is in service")  # a write whose answer was lost
        except (ApiConflict, Refuse):
            pass
        other = self._free(None, entry.more.get("avoid") or ())
        if other is None:
            return Progress("FAILED", "no_spare", self.unlabelled(node), detail=f"{name} is not to be had any more")
        return Progress("RUNNING", "policy", more=with_more(entry, spare=other), repeat=other != name)

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        return Progress("FAILED", reason, self.unlabelled(node))

    def _any_spares(self) -> bool:
        return any(self.setup.spare_label in nodes_.labels(n) for n in self.view.all_nodes())

    def _free(self, asked: str | None, avoid: Collection[str]) -> str | None:
        """A spare that is ready and nobody's: the one that was asked for, else the one that passed a diagnosis last."""
        free = free_spares(self.view, self.setup, avoid)
        return (asked if asked in free else None) if asked is not None else (free[0] if free else None)


class Reboot(Labelled):
    """reboot: labels the node for a reboot; DONE when its boot id has changed and it is ready again. A label that nobody
    followed in time is taken back, so that no reboot comes later out of the blue."""

    wanted, hyperpod = "reboot", nodes_.HYPERPOD_REBOOT

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        changes, more = super().begin(node, action, now)
        boot = nodes_.boot_id(node)
        if boot is None:
            raise Refuse("not_supported")  # nothing would tell that it has booted
        return changes, {**more, "boot": boot}

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        if nodes_.boot_id(node) in (None, entry.more.get("boot")) or nodes_.ready(node) != "True":
            return Progress("RUNNING", "policy")
        return Progress("DONE", "done", self.unlabelled(node))

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        return Progress("FAILED", reason, self.unlabelled(node))


def _job_name(pod: Obj) -> str:
    return next((nodes_.labels(pod)[label] for label in work_.JOB_LABELS if nodes_.labels(pod).get(label)), "-")


def steps(api: Api, setup: Setup, view: KubernetesView) -> Mapping[str, Hold]:
    """The steps by the kind of action."""
    made = {"exclude_node": Hold, "drain": Drain, "undrain": Undrain, "replace": Replace, "reboot": Reboot}
    return {kind: cls(api, setup, view) for kind, cls in made.items()}


