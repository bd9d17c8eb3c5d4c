"""What the controllers and kubelets of a cluster do between two requests: schedule, start, stop, make anew, collect.

`settle(cluster)` moves everything as far as it goes at the cluster's time. Written after the documented behaviour of the
Job controller (suspend, backoffLimit, podFailurePolicy), the JobSet controller (suspend, restarts) and the Kubeflow
training operator (runPolicy.suspend, pods of fixed names made anew).
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

from tests.kubernetes.fake import BY_KIND, Cluster, Obj

GPU = "nvidia.com/gpu"


class Controllers:
    """Set as `cluster.settle`. behaviour: pod -> (exit status, log) when it ends at once, None while it runs.

    stopped: names of controllers that do nothing (`scheduler`, `job`, `jobset`, `pytorch`, `kubelet`, `gc`).
    """

    def __init__(self, cluster: Cluster, behaviour: Callable[[Obj], tuple[int, str] | None] | None = None) -> None:
        self.cluster, self.behaviour = cluster, behaviour or (lambda pod: None)
        self.stopped: set[str] = set()
        self.busy = False
        cluster.settle = lambda _: self.run()

    def run(self) -> None:
        """Until nothing moves any more."""
        if self.busy:
            return
        self.busy = True
        try:
            for _ in range(20):
                before = self.cluster.version
                for name, step in (("nodes", self._taints), ("kubelet", self._stop_pods), ("gc", self._collect), ("daemons", self._daemons),
                                   ("jobset", self._jobsets),
                                   ("pytorch", self._pytorch), ("job", self._jobs), ("scheduler", self._schedule),
                                   ("kubelet", self._end_pods)):
                    if name not in self.stopped:
                        step()
                if self.cluster.version == before:
                    return
        finally:
            self.busy = False

    def _taints(self) -> None:
        """The node controller's own taints: for a cordon, and for a node that does not answer."""
        for node in self.cluster.all("Node"):
            ready = next((c["status"] for c in node["status"].get("conditions", []) if c["type"] == "Ready"), "True")
            wanted = [k for k, is_so in (("node.kubernetes.io/unschedulable", node["spec"].get("unschedulable")),
                                         ("node.kubernetes.io/not-ready", ready == "False"),
                                         ("node.kubernetes.io/unreachable", ready == "Unknown")) if is_so]
            have = [t["key"] for t in node["spec"].get("taints") or [] if t["key"].startswith("node.kubernetes.io/")]
            if sorted(have) != sorted(wanted):
                rest = [t for t in node["spec"].get("taints") or [] if not t["key"].startswith("node.kubernetes.io/")]
                now = [*rest, *({"key": k, "effect": "NoSchedule"} for k in wanted)]
                self.cluster.change(node, lambda o, now=now: o["spec"].update(taints=now) if now else o["spec"].pop("taints"),
                                    "kube-controller-manager")

    # --- kubelet -------------------------------------------------------------------------------------------------------
    def _stop_pods(self) -> None:
        for pod in self.cluster.all("Pod"):
            until = pod["metadata"].get("deletionTimestamp")
            if until is None or until > self.cluster.stamp():
                continue
            if _ready(self.cluster.get("Node", pod["spec"].get("nodeName", ""))):
                self._count_stopped(pod)
                self.cluster.remove(pod)

    def _count_stopped(self, pod: Obj) -> None:
        """A running pod that is deleted counts as failed, unless the Job is suspended or its podFailurePolicy ignores that."""
        job = self._owner(pod, "Job")
        if job is None or job["spec"].get("suspend") or pod["status"]["phase"] not in ("Running", "Pending"):
            return
        rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
        if any(r["action"] == "Ignore" and any(c["type"] == "DisruptionTarget" for c in r.get("onPodConditions", [])) for r in rules):
            return
        self.cluster.change(job, lambda o: o["status"].update(failed=o["status"].get("failed", 0) + 1))

    def _end_pods(self) -> None:
        for pod in self.cluster.all("Pod"):
            if pod["status"].get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
                continue
            told = self.behaviour(pod)
            if told is not None:
                self.end_pod(pod, *told)

    def end_pod(self, pod: Obj, code: int, log: str = "") -> None:
        """The pod's program ends."""
        def ends(new: Obj) -> None:
            new["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
            new["status"]["containerStatuses"] = [{"name": "test", "ready": False, "restartCount": 0, "image": "", "imageID": "",
                                                   "state": {"terminated": {"exitCode": code}}}]
        self.cluster.logs[pod["metadata"]["namespace"], pod["metadata"]["name"]] = log
        self.cluster.change(pod, ends, "kubelet")
        job = self._owner(pod, "Job")
        if job is not None:
            word = "succeeded" if code == 0 else "failed"
            self.cluster.change(job, lambda o: o["status"].update({word: o["status"].get(word, 0) + 1}))

    # --- scheduler -----------------------------------------------------------------------------------------------------
    def _schedule(self) -> None:
        for pod in self.cluster.all("Pod"):
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            node = next((n["metadata"]["name"] for n in self.cluster.all("Node") if self._fits(pod, n)), None)
            if node is None:
                continue

            def starts(new: Obj, node: str = node) -> None:
                new["spec"]["nodeName"] = node
                new["status"] = {"phase": "Running", "startTime": self.cluster.stamp(), "podIP": f"10.0.0.{sum(node.encode()) % 250 + 1}",
                                 "conditions": [{"type": "Ready", "status": "True"}]}
            self.cluster.change(pod, starts, "kubelet")

    def _fits(self, pod: Obj, node: Obj) -> bool:
        spec = pod["spec"]
        keys = {t.get("key") for t in spec.get("tolerations") or []}
        taints = list(node["spec"].get("taints") or [])
        if node["spec"].get("unschedulable"):
            taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        if any(t["key"] not in keys and t["effect"] in ("NoSchedule", "NoExecute") for t in taints) or not _ready(node):
            return False
        labels = node["metadata"].get("labels") or {}
        if any(labels.get(k) != v for k, v in (spec.get("nodeSelector") or {}).items()):
            return False
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms")
        if terms is not None and not any(all(node["metadata"]["name"] in f["values"] for f in t.get("matchFields", [])) for t in terms):
            return False
        free = int((node["status"].get("allocatable") or {}).get(GPU, 0)) - sum(
            _gpus(p) for p in self.cluster.all("Pod") if p["spec"].get("nodeName") == node["metadata"]["name"]
            and p["status"].get("phase") in ("Running", "Pending"))
        return _gpus(pod) <= free

    # --- Job -----------------------------------------------------------------------------------------------------------
    def _jobs(self) -> None:
        for job in self.cluster.all("Job"):
            if any(c["status"] == "True" and c["type"] in ("Complete", "Failed") for c in job["status"].get("conditions", [])):
                continue
            pods = [p for p in self.cluster.all("Pod") if _owned(p, job)]
            alive = [p for p in pods if p["status"].get("phase") in ("Running", "Pending")]
            if job["spec"].get("suspend"):
                for pod in alive:
                    self.cluster.begin_delete(pod)
                self._condition(job, "Suspended", "True")
                continue
            self._condition(job, "Suspended", "False", only_change=True)
            status, spec = job["status"], job["spec"]
            if status.get("failed", 0) > spec.get("backoffLimit", 6):
                for pod in alive:
                    self.cluster.begin_delete(pod)
                self._condition(job, "Failed", "True", "BackoffLimitExceeded")
            elif status.get("succeeded", 0) >= spec.get("completions", spec.get("parallelism", 1)):
                self._condition(job, "Complete", "True")
            elif self._late(job):
                for pod in alive:
                    self.cluster.begin_delete(pod)
                self._condition(job, "Failed", "True", "DeadlineExceeded")
            else:
                self._fill(job, [p for p in alive if not p["metadata"].get("deletionTimestamp")])

    def _late(self, job: Obj) -> bool:
        limit = job["spec"].get("activeDeadlineSeconds")
        return limit is not None and job["metadata"]["creationTimestamp"] <= self.cluster.stamp(self.cluster.now_ms - limit * 1000)

    def _fill(self, job: Obj, alive: list[Obj]) -> None:
        wanted = min(job["spec"].get("parallelism", 1), job["spec"].get("completions", 1 << 30))
        taken = {p["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index") for p in alive}
        for index in range(wanted):
            if str(index) not in taken and len(taken) < wanted:
                taken.add(str(index))
                name = job["metadata"]["name"]
                own = {"batch.kubernetes.io/job-name": name, "job-name": name, "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
                       "batch.kubernetes.io/job-completion-index": str(index)}
                self._pod(job, f"{name}-{index}-{uuid.uuid4().hex[:5]}", job["spec"]["template"], own)

    # --- JobSet --------------------------------------------------------------------------------------------------------
    def _jobsets(self) -> None:
        for one in self.cluster.all("JobSet"):
            status = one["status"]
            if any(c["status"] == "True" and c["type"] in ("Completed", "Failed") for c in status.get("conditions", [])):
                continue
            children = [j for j in self.cluster.all("Job") if _owned(j, one)]
            attempt = str(status.get("restarts", 0))
            for child in children:
                if child["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] != attempt:
                    self._delete_tree(child)
            current = [j for j in children if j["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == attempt]
            if any(c["type"] == "Failed" for j in current for c in j["status"].get("conditions", [])):
                most = (one["spec"].get("failurePolicy") or {}).get("maxRestarts", 0)
                if status.get("restarts", 0) < most:
                    self.cluster.change(one, lambda o: o["status"].update(restarts=o["status"].get("restarts", 0) + 1))
                else:
                    self._condition(one, "Failed", "True")
                continue
            stop = bool(one["spec"].get("suspend"))
            for child in current:
                if bool(child["spec"].get("suspend")) != stop:
                    self.cluster.change(child, lambda o, stop=stop: o["spec"].update(suspend=stop))
            self._condition(one, "Suspended", "True" if stop else "False", only_change=not stop)
            self._children(one, {j["metadata"]["name"] for j in children}, attempt)

    def _children(self, one: Obj, there: set[str], attempt: str) -> None:
        for replicated in one["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                name = f"{one['metadata']['name']}-{replicated['name']}-{index}"
                if name in there:
                    continue
                marks = {"jobset.sigs.k8s.io/jobset-name": one["metadata"]["name"], "jobset.sigs.k8s.io/restart-attempt": attempt,
                         "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"]}
                spec = copy.deepcopy(replicated["template"]["spec"])
                spec["suspend"] = bool(one["spec"].get("suspend"))
                meta = spec["template"].setdefault("metadata", {})
                meta["labels"] = {**(meta.get("labels") or {}), **marks}
                self.cluster.create(BY_KIND["Job"], one["metadata"]["namespace"], {
                    "metadata": {"name": name, "labels": marks, "ownerReferences": [_reference(one)]}, "spec": spec, "status": {}},
                    "jobset")

    # --- PyTorchJob ----------------------------------------------------------------------------------------------------
    def _pytorch(self) -> None:
        for one in self.cluster.all("PyTorchJob"):
            pods = [p for p in self.cluster.all("Pod") if _owned(p, one)]
            if ((one["spec"].get("runPolicy")) or {}).get("suspend"):
                for pod in pods:
                    self.cluster.begin_delete(pod)
                self._condition(one, "Suspended", "True")
                continue
            self._condition(one, "Suspended", "False", only_change=True)
            names = {p["metadata"]["name"] for p in pods}
            for role, spec in one["spec"]["pytorchReplicaSpecs"].items():
                for pod in pods:  # those of indexes beyond the number of replicas are ended
                    own = pod["metadata"]["labels"]
                    if own["training.kubeflow.org/replica-type"] == role.lower() and int(own["training.kubeflow.org/replica-index"]) >= spec.get("replicas", 1):
                        self.cluster.begin_delete(pod)
                for index in range(spec.get("replicas", 1)):
                    name = f"{one['metadata']['name']}-{role.lower()}-{index}"
                    if name not in names:
                        own = {"training.kubeflow.org/job-name": one["metadata"]["name"], "training.kubeflow.org/replica-index": str(index),
                               "training.kubeflow.org/replica-type": role.lower(),
                               "training.kubeflow.org/operator-name": "pytorchjob-controller"}
                        self._pod(one, name, spec["template"], own)

    # --- DaemonSet -----------------------------------------------------------------------------------------------------
    def _daemons(self) -> None:
        """A pod on each node that the template's nodeSelector takes, and on no other."""
        for one in self.cluster.all("DaemonSet"):
            if "template" not in one["spec"]:
                continue
            spec = one["spec"]["template"]["spec"]
            wanted = {n["metadata"]["name"] for n in self.cluster.all("Node")
                      if all(n["metadata"]["labels"].get(k) == v for k, v in (spec.get("nodeSelector") or {}).items())}
            have = {p["spec"]["nodeName"]: p for p in self.cluster.all("Pod") if _owned(p, one)}
            for name, pod in have.items():
                if name not in wanted:
                    self.cluster.begin_delete(pod)
            for name in sorted(wanted - have.keys()):
                place = {**one["spec"]["template"], "spec": {**spec, "nodeName": name}}
                self._pod(one, f"{one['metadata']['name']}-{name}", place, {})
                made = self.cluster.get("Pod", f"{one['metadata']['name']}-{name}", one["metadata"]["namespace"])
                self.cluster.change(made, lambda o: o["status"].update(phase="Running"), "kubelet")

    # --- garbage, small things -----------------------------------------------------------------------------------------
    def _collect(self) -> None:
        uids = {o["metadata"]["uid"] for kind in self.cluster.objects.values() for o in kind.values()}
        for kind in ("Job", "Pod"):
            for obj in self.cluster.all(kind):
                owners = obj["metadata"].get("ownerReferences") or []
                if owners and all(r["uid"] not in uids for r in owners if r["kind"] != "DaemonSet") \
                        and not all(r["kind"] == "DaemonSet" for r in owners):
                    self.cluster.begin_delete(obj)

    def _delete_tree(self, job: Obj) -> None:
        self.cluster.remove(job)

    def _pod(self, owner: Obj, name: str, template: Obj, own: dict[str, str]) -> None:
        meta = copy.deepcopy(template.get("metadata") or {})
        meta.update(name=name, labels={**(meta.get("labels") or {}), **own}, ownerReferences=[_reference(owner)])
        self.cluster.create(BY_KIND["Pod"], owner["metadata"]["namespace"],
                            {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": {"phase": "Pending"}}, "kube-controller-manager")

    def _condition(self, obj: Obj, name: str, value: str, reason: str = "", only_change: bool = False) -> None:
        rows = [c for c in obj["status"].get("conditions", []) if c["type"] == name]
        if (rows and rows[0]["status"] == value) or (only_change and not rows):
            return

        def sets(new: Obj) -> None:
            rest = [c for c in new["status"].get("conditions", []) if c["type"] != name]
            new["status"]["conditions"] = [*rest, {"type": name, "status": value, "reason": reason or name}]
        self.cluster.change(obj, sets)

    def _owner(self, pod: Obj, kind: str) -> Obj | None:
        for one in pod["metadata"].get("ownerReferences") or []:
            if one["kind"] == kind:
                return self.cluster.get(kind, one["name"], pod["metadata"]["namespace"])
        return None


def _reference(owner: Obj) -> Obj:
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def _owned(obj: Obj, owner: Obj) -> bool:
    return any(r["uid"] == owner["metadata"]["uid"] for r in obj["metadata"].get("ownerReferences") or [])


def _ready(node: Obj | None) -> bool:
    return node is not None and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))


def _gpus(pod: Any) -> int:
    return sum(int((c.get("resources") or {}).get("limits", {}).get(GPU, 0)) for c in pod["spec"].get("containers") or [])
