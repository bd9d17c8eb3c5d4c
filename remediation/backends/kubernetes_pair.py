"""A test between two nodes: a Job on the accused one talks to a Job of ours on a spare.

The spare is lent for as long as the test runs: an annotation on it names the action, so that no replacement and no other test
takes it, and a Greylag that starts anew finds it. It stays where it is, a spare, and the mark goes when the test has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from core.errors import Unavailable
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiConflict, ApiMissing
from remediation.backends.kubernetes_nodes import Entry, Obj
from remediation.backends.kubernetes_setup import Refuse, Setup
from remediation.backends.kubernetes_view import KubernetesView

# (node, action's entry, test, its command, name of the Job, the longest it may run) -> Job
Made = Callable[[Obj, Entry, str, tuple[str, ...], str, int], Obj]


def usable_spare(node: Obj, setup: Setup) -> bool:
    """It is ready and nobody's, and no test of ours is using it."""
    return setup.spare_label in nodes_.labels(node) and nodes_.ready(node) == "True" and not nodes_.cordoned(node) \
        and nodes_.other_hand(node, setup.other_hands) is None


def free_spares(view: KubernetesView, setup: Setup, avoid: Collection[str]) -> list[str]:
    """Names of the spares that can be had, the one that passed a diagnosis last first. avoid: those that must not be taken."""
    usable = [n for n in view.all_nodes() if usable_spare(n, setup) and n["metadata"]["name"] not in avoid]
    return [n["metadata"]["name"] for n in sorted(usable, key=lambda n: (-(nodes_.checked_at(n) or 0), n["metadata"]["name"]))]


class Partner:
    """The other node of a test. made: how a Job of the backend looks."""

    def __init__(self, api: Api, setup: Setup, view: KubernetesView, made: Made) -> None:
        self.api, self.setup, self.view, self.made = api, setup, view, made

    def choose(self, node: str, asked: list[str], avoid: Collection[str], is_spare: bool) -> tuple[list[str], str | None]:
        """(the tests that are run, the spare that is the other node; None where no test needs one). Raises Refuse `target_busy`
        where a node that is out has to wait for one; a spare is tested without rather than not at all."""
        pairs = [one for one in asked if one in self.setup.diagnose.servers and one in self.setup.diagnose.commands]
        if not pairs:
            return asked, None
        free = [name for name in free_spares(self.view, self.setup, avoid) if name != node]
        if free:
            return asked, free[0]
        alone = [one for one in asked if one not in pairs]
        if alone and is_spare:
            return alone, None
        raise Refuse("target_busy")

    def address(self, entry: Entry, test: str, name: str, seconds: int) -> tuple[str | None, str]:
        """(address of what serves the test on the spare, why there will be none). Both empty while it starts."""
        spare, space = str(entry.more.get("partner") or ""), self.setup.diagnose.namespace
        try:
            node = self.view.node(spare)
        except Refuse:
            return None, f"{spare} is gone"
        if not lent(node, entry.id):
            if not usable_spare(node, self.setup):
                return None, f"{spare} was taken by another hand before the test began"
            try:
                node = {**self.api.patch(node, {"metadata": {"annotations": {nodes_.PARTNER_OF: entry.id}}}), "kind": "Node"}
            except ApiConflict:
                return None, ""
        try:
            job = {**self.api.get("Job", name, space), "kind": "Job"}
        except ApiMissing:
            with suppress(ApiConflict):
                self.api.create("Job", space, self.made(node, entry, test, self.setup.diagnose.servers[test], name, seconds))
            return None, ""
        if work_.finished(job):
            return None, f"what serves it on {spare} ended before it began"
        pods = self.api.list("Pod", space, {work_.JOB_LABELS[1]: name})
        found = [str(status["podIP"]) for p in pods if (status := p.get("status") or {}).get("phase") == "Running" and status.get("podIP")]
        return (found[0], "") if found else (None, "")

    def release(self, entry: Entry, names: Collection[str]) -> None:
        """The spare is as it was, and what served on it ends. Raises ApiConflict, Unavailable: then it is asked for again."""
        spare = entry.more.get("partner")
        if not spare:
            return
        for name in names:
            self.api.delete("Job", self.setup.diagnose.namespace, name)
        try:
            node = self.view.node(str(spare))
        except Refuse:
            return  # it is gone
        if lent(node, entry.id):
            self.api.patch(node, {"metadata": {"annotations": {nodes_.PARTNER_OF: None}}})

    def try_release(self, entry: Entry, names: Collection[str]) -> None:
        """As `release`, where there is no later look: what another write spoils is tried again once."""
        for _ in range(2):
            with suppress(ApiConflict, Unavailable):
                self.release(entry, names)
                return


def lent(node: Obj, action_id: str) -> bool:
    """The spare is lent to this action."""
    return nodes_.notes(node).get(nodes_.PARTNER_OF) == action_id


def avoided(args: Any) -> list[str]:
    """The names in an action's `avoid`: spares that are unchecked, drifted, failed or under test, with commas between them."""
    return [name for one in str(args.get("avoid") or "").split(",") if (name := one.strip())]
