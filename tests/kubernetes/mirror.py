"""The fake world of the shared contract suite, carried out by the Kubernetes backend on a fake cluster.

The suite turns the world's knobs (how long a kind takes, what it refuses, who holds a node) and reads what was carried
out; this door turns them into objects of a cluster before each call, and tells the world afterwards what happened there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.protocols import NodeView
from core.types import Action, Outcome
from remediation.backends.kubernetes_nodes import entry
from remediation.backends.kubernetes_setup import Probe
from tests.kubernetes.fake import Obj
from tests.kubernetes.site import Site
from tests.kubernetes.test_probe import dcgm
from tests.remediation.worlds import T0, World


class KubernetesMirror:
    """Door and view at once, over a cluster that looks as the world does."""

    def __init__(self, world: World) -> None:
        names = [n for n in world.states if n.startswith("n")]
        self.world = world
        self.site = Site(nodes=len(names), spares=len(world.states) - len(names), behaviour=self._ends,
                         diagnose=Probe("image", "greylag", {"dcgm": ("dcgmi", "diag", "-j")}))
        self.site.jobset(pods=len(names))
        self.shown = dict(world.states)

    def submit(self, action: Action) -> Outcome:
        """As ControlDoor."""
        if action.kind == "diagnose" and not action.args.get("tests"):
            self._empty(action)
        self._before(action)
        known = self._known(action.id)
        try:
            return self.site.door.submit(action)
        finally:
            if not known and self._known(action.id):
                self.world.executed[action.id] = self.world.executed.get(action.id, 0) + 1
                self.world.order.append(action)

    def poll(self, action_id: str) -> Outcome:
        """As ControlDoor."""
        self._before()
        self.site.controllers.run()
        return self.site.door.poll(action_id)

    def nodes(self) -> Mapping[str, NodeView]:
        """As WorldView."""
        self._before()
        return self.site.view.nodes()

    # --- the world's knobs ---------------------------------------------------------------------------------------------
    def _before(self, action: Action | None = None) -> None:
        cluster = self.site.cluster
        cluster.down, cluster.clock = self.world.down, max(T0, self.world.now)
        for pod in cluster.all("Pod"):
            pod["spec"]["terminationGracePeriodSeconds"] = max(1, round(self.world.lasts.get("drain", 0)))
        for name, view in self.world.states.items():
            if view != self.shown.get(name):
                self._empty_node(name)
                self.site.patch(name, lambda o: o["spec"].update(unschedulable=True), str(view.held_by))
                self.shown[name] = view
        reason = self.world.refuse.get(action.kind) if action is not None else None
        if action is not None and reason is not None:
            self._refuse(action, reason)
        if not self.world.down:
            self.site.controllers.run()

    def _refuse(self, action: Action, reason: str) -> None:
        """Makes the cluster such that the backend refuses for this reason."""
        node = action.target.node or "n1"
        if reason == "other_hand":
            self.site.cordon(node)
        elif reason == "target_busy" and not self.site.cluster.all("PodDisruptionBudget"):
            self.site.budget(least=99)
            self.site.door.submit(Action("inc-0/1/1", "drain", action.target, {}, 1e6, "act", "inc-0", 1, 1, T0, "policy"))
        elif reason == "not_supported":
            self.site.door._steps.pop(action.kind, None)

    def _ends(self, pod: Obj) -> tuple[int, str] | None:
        test = pod["metadata"].get("labels", {}).get("greylag.io/diagnosis")
        if test is None:
            return None
        failed = self.world.fail.get("diagnose")
        return (1, dcgm(memory="Fail")) if failed and test == "dcgm" else (1 if failed else 0, dcgm())

    def _empty(self, action: Action) -> None:
        """The suite asks for a diagnosis without a drain before it: the node is out and empty already."""
        if self._known(action.id):
            return
        self._before()
        self.site.do(Action("inc-0/1/2", "drain", action.target, {}, 600.0, "act", "inc-0", 1, 2, T0, "policy"))

    def _empty_node(self, name: str) -> None:
        self.site.controllers.stopped.add("scheduler")
        for pod in self.site.cluster.all("Pod"):
            if pod["spec"].get("nodeName") == name:
                self.site.cluster.remove(pod)

    def _known(self, action_id: str) -> bool:
        found: list[Any] = [*self.site.cluster.all("Node"), *self.site.cluster.all("JobSet")]
        return any(entry(o, action_id) is not None for o in found)
