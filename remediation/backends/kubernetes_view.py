"""The cluster as the guards re-read it: each node, who holds it, which jobs run there. Also what the door asks about pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.errors import Refused, Unavailable
from core.protocols import NodeView
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiMissing, each_namespace
from remediation.backends.kubernetes_nodes import Obj
from remediation.backends.kubernetes_setup import Refuse, Setup
from remediation.backends.kubernetes_work import Work


class KubernetesView:
    """WorldView over the API server, and the reading that the actions share."""

    def __init__(self, api: Api, setup: Setup) -> None:
        self._api, self._setup = api, setup

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes that the selector takes, by name. Raises Unavailable, also where a permission is missing."""
        try:
            found = self._api.list("Node", labels=self._setup.node_selector)
            pods = [p for p in self.pods() if p.get("spec", {}).get("nodeName")]
        except Refused as refused:
            raise Unavailable(f"the Kubernetes API does not let Greylag read its nodes and pods: {refused.detail}") from None
        ids = work_.job_ids(*_named(pods))
        jobs: dict[str, set[str]] = {}
        busy: set[str] = set()
        for pod in pods:
            node = str(pod["spec"]["nodeName"])
            work = work_.work_of(pod)
            if work is not None:
                jobs.setdefault(node, set()).add(ids[work])
            if matters(pod):
                busy.add(node)
        setup = self._setup
        views = (nodes_.view(n, jobs.get(n["metadata"]["name"], ()), n["metadata"]["name"] in busy, setup.spare_label,
                             setup.other_hands) for n in found)
        return {one.node: one for one in views}

    # --- for the actions ----------------------------------------------------------------------------------------------
    def node(self, name: str | None) -> Obj:
        """The node as it is now. Raises Refuse `node_unknown`."""
        try:
            found = self._api.get("Node", name or "-")
        except ApiMissing:
            raise Refuse("node_unknown") from None
        if not all(nodes_.labels(found).get(k) == v for k, v in self._setup.node_selector.items()):
            raise Refuse("node_unknown")
        return found

    def pods(self, node: str | None = None, labels: Mapping[str, str] | None = None, namespace: str | None = None) -> list[Obj]:
        """Pods that have not ended, of the namespaces that we know (or of one), of a node, with labels."""
        fields = {"spec.nodeName": node} if node is not None else None
        spaces = (namespace,) if namespace is not None else self._setup.namespaces
        return [p for space in each_namespace(spaces) for p in self._api.list("Pod", space, labels, fields, unended=True)]

    def pods_of(self, obj: Obj) -> list[Obj]:
        """A job's pods."""
        work = Work(str(obj["kind"]), obj["metadata"]["namespace"], obj["metadata"]["name"])
        return [p for p in self.pods(labels=work_.pod_selector(work), namespace=work.namespace)
                if work_.work_of(p) == work]

    def busy_pods(self, node: Obj) -> list[Obj]:
        """The pods on a node that a drain has to see gone. On a node that does not answer, a pod that was told to stop can do
        no more: the API server shows it until the node is back or gone."""
        silent = nodes_.ready(node) != "True"
        return [p for p in self.pods(node["metadata"]["name"]) if matters(p) and not (silent and work_.leaving(p))]

    def silent_nodes(self) -> set[str]:
        """Names of the nodes that do not answer."""
        return {n["metadata"]["name"] for n in self.all_nodes() if nodes_.ready(n) != "True"}

    def job(self, name: str | None) -> Obj:
        """The job that people call `name` (or namespace/name). Raises Refuse `job_unknown`, `job_ambiguous`."""
        found: list[Obj] = []
        asked = name or ""
        space, _, rest = asked.partition("/")
        for kind in work_.KINDS:
            found += self._jobs(kind, space if rest else None, asked)
        if not found and rest:  # a greylag.io/job that has a slash in it
            for kind in work_.KINDS:
                found += self._jobs(kind, None, asked)
        if not found:
            raise Refuse("job_unknown")
        if len(found) > 1:
            raise Refuse("job_ambiguous")
        return found[0]

    def _jobs(self, kind: str, namespace: str | None, asked: str) -> list[Obj]:
        spaces = (namespace,) if namespace is not None else self._setup.namespaces
        if namespace is not None and self._setup.namespaces and namespace not in self._setup.namespaces:
            return []
        try:
            rows = [_kinded(o, kind) for space in each_namespace(spaces) for o in self._api.list(kind, space)]
        except ApiMissing:
            return []  # its CRD is not installed
        return [o for o in rows if work_.is_job(o) and work_.called(Work(kind, o["metadata"]["namespace"], o["metadata"]["name"]), o, asked)]

    def all_jobs(self) -> list[Obj]:
        """All jobs that people made."""
        out: list[Obj] = []
        for kind in work_.KINDS:
            try:
                out += [_kinded(o, kind) for space in each_namespace(self._setup.namespaces) for o in self._api.list(kind, space)]
            except ApiMissing:
                continue
        return [o for o in out if work_.is_job(o)]

    def all_nodes(self) -> list[Obj]:
        """The nodes as objects."""
        return self._api.list("Node", labels=self._setup.node_selector)

    def owner(self, work: Work) -> Obj | None:
        """The job's object; None where it is gone."""
        try:
            return _kinded(self._api.get(work.kind, work.name, work.namespace), work.kind)
        except ApiMissing:
            return None

    def see_touchable(self, job: Obj) -> None:
        """Raises Refuse for a job that has ended, has not opted in, or is suspended."""
        if work_.finished(job):
            raise Refuse("job_ended")
        if not self.opted_in(job):
            raise Refuse("not_opted_in")
        if work_.suspended(job):
            raise Refuse("job_held")

    def opted_in(self, obj: Obj) -> bool:
        """True where the job (or pod) itself says that it may be stopped, or its namespace is on the list; its own `false`
        wins."""
        said = work_.says_yes(obj, self._setup.opt_in_label)
        return said if said is not None else obj["metadata"].get("namespace") in self._setup.opted_in_namespaces


def matters(pod: Obj) -> bool:
    """True for a pod that keeps a node busy: of a job, or with a GPU. Others (exporters, agents) stay through a repair."""
    return not work_.stays(pod) and (work_.work_of(pod) is not None or uses_gpu(pod))


def uses_gpu(pod: Obj) -> bool:
    """True where one of its containers asks for a GPU, an accelerator of AWS or Intel, or a part of a GPU."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for part in ("limits", "requests"):
            for name in (one.get("resources") or {}).get(part) or {}:
                if name.endswith(("/gpu", "/gaudi")) or name.startswith(("nvidia.com/mig-", "aws.amazon.com/neuron")):
                    return True
    return bool(spec.get("resourceClaims"))  # dynamic resource allocation: what it claims is not told here


def _named(pods: Iterable[Obj]) -> tuple[list[Work], dict[Work, str]]:
    named = work_.names_of(pods)
    return list(named), named


def _kinded(obj: Obj, kind: str) -> Obj:
    """Items of a list lack their kind."""
    return {**obj, "kind": kind}
