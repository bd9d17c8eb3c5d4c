"""A small GPU cluster on the fake API server: nodes, jobs, a door to them, and a person with kubectl's rights."""

from __future__ import annotations

from typing import Any

import httpx2
from lightkube import Client, KubeConfig

from core.types import Action, Target
from remediation.backends.kubernetes import KubernetesParams, over, setup_of
from remediation.backends.kubernetes_api import Api
from remediation.backends.kubernetes_setup import Probe
from tests.kubernetes.controllers import Controllers
from tests.kubernetes.fake import Cluster, Obj, Request

T0 = 1_800_000_000_000
GPU = "nvidia.com/gpu"
INFO = {"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "containerd://1.7", "kernelVersion": "6.1", "kubeProxyVersion": "",
        "kubeletVersion": "v1.32.4", "machineID": "m", "operatingSystem": "linux", "osImage": "Debian 12", "systemUUID": "s"}
DIAGNOSE = Probe("registry.example/diagnose:1", "greylag", {"exit": ("check", "--level", "{level}"), "dcgm": ("dcgmi", "diag", "-j")})
RESET = Probe("registry.example/reset:1", "greylag", {"reset": ("reset-gpu", "{device}", "{gpus}", "{pause_monitoring}")}, privileged=True)


class Wire(httpx2.BaseTransport):
    """lightkube's way to the fake server without a socket. lose: how many answers get lost after the server acted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.lose = cluster, 0
        self.nonsense: bytes | None = None

    def handle_request(self, request: Any) -> Any:
        asked = Request(request.method, request.url.path, dict(request.url.params.multi_items()),
                        {k.lower(): v for k, v in request.headers.items()}, request.read())
        try:
            told = self.cluster.handle(asked)
        except ConnectionError:
            raise httpx2.ConnectError("refused", request=request) from None
        if self.lose and request.method != "GET":
            self.lose -= 1
            raise httpx2.ReadTimeout("lost", request=request)
        if self.nonsense is not None:
            return httpx2.Response(200, content=self.nonsense, headers={"content-type": "application/json"})
        body = b"".join(told.stream) if told.stream is not None else told.content
        return httpx2.Response(told.status, content=body, headers={"content-type": told.content_type, **told.headers})


def config(token: str = "admin", server: str = "http://fake") -> dict[str, Any]:
    """A kubeconfig."""
    return {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}], "users": [{"name": "u", "user": {"token": token}}]}


def client(cluster: Cluster, token: str = "admin", manager: str | None = None) -> tuple[Any, Wire]:
    """A lightkube client on the fake server."""
    wire = Wire(cluster)
    return Client(KubeConfig.from_dict(config(token)).get(), transport=wire, trust_env=False, field_manager=manager), wire


class Site:
    """n1..n4 with eight GPUs, spare s1, and the door of the backend. `at` moves the cluster's time."""

    def __init__(self, nodes: int = 4, spares: int = 1, token: str = "admin", behaviour: Any = None, **params: Any) -> None:
        self.cluster = Cluster(T0)
        self.cluster.make("Namespace", "greylag")
        self.cluster.make("Namespace", "ml")
        self.controllers = Controllers(self.cluster, behaviour)
        for name in [f"n{i}" for i in range(1, nodes + 1)]:
            self.node(name)
        for name in [f"s{i}" for i in range(1, spares + 1)]:
            self.node(name, {"greylag.io/spare": "true"}, [{"key": "greylag.io/spare", "effect": "NoSchedule"}])
        self.params = KubernetesParams(**{"diagnose": DIAGNOSE, "reset": RESET, **params})
        self.token = token
        self.restart()

    def restart(self) -> None:
        """A new process of Greylag: nothing is remembered but what the cluster holds."""
        made, self.wire = client(self.cluster, self.token, "greylag")
        self.door, self.view = over(Api(made), setup_of(self.params), lambda: self.cluster.now_ms)

    def node(self, name: str, labels: dict[str, str] | None = None, taints: list[Obj] | None = None, gpus: int = 8) -> Obj:
        """A node that is ready."""
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: str(gpus)}, "capacity": {GPU: str(gpus)},
                  "nodeInfo": {**INFO, "bootID": f"boot-{name}-1"}}
        return self.cluster.make("Node", name, metadata={"labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                                 spec={"taints": taints} if taints else {}, status=status)

    def jobset(self, name: str = "train", pods: int = 4, opted: bool = True, namespace: str = "ml", limit: int = 0, restarts: int = 3,
               ignore: bool = True, **labels: str) -> Obj:
        """A JobSet with one Job of `pods` pods, eight GPUs each."""
        spec: Obj = {"parallelism": pods, "completions": pods, "backoffLimit": limit, "completionMode": "Indexed",
                     "template": {"metadata": {"labels": {"app": name}}, "spec": trainer()}}
        if ignore:
            spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
        return self._made("JobSet", name, namespace, opted, labels, {
            "failurePolicy": {"maxRestarts": restarts}, "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": spec}}]})

    def job(self, name: str = "train", pods: int = 4, opted: bool = True, namespace: str = "ml", limit: int = 6, **labels: str) -> Obj:
        """A plain Job."""
        return self._made("Job", name, namespace, opted, labels, {
            "parallelism": pods, "completions": pods, "backoffLimit": limit,
            "template": {"metadata": {"labels": {"app": name}}, "spec": trainer()}})

    def pytorch(self, name: str = "train", pods: int = 4, opted: bool = True, namespace: str = "ml", elastic: Obj | None = None,
                **labels: str) -> Obj:
        """A PyTorchJob with a master and workers; an elastic one has workers alone."""
        template = {"metadata": {"labels": {"app": name}}, "spec": trainer()}
        roles = {"Worker": {"replicas": pods, "template": template}} if elastic is not None else {
            "Master": {"replicas": 1, "template": template}, "Worker": {"replicas": pods - 1, "template": template}}
        return self._made("PyTorchJob", name, namespace, opted, labels, {
            "runPolicy": {}, **({"elasticPolicy": elastic} if elastic is not None else {}), "pytorchReplicaSpecs": roles})

    def _made(self, kind: str, name: str, namespace: str, opted: bool, labels: dict[str, str], spec: Obj) -> Obj:
        marks = {**({"greylag.io/remediate": "true"} if opted else {}), **{k.replace("__", "/").replace("_", "-"): v for k, v in labels.items()}}
        made = self.cluster.make(kind, name, namespace, metadata={"labels": marks}, spec=spec, status={})
        self.controllers.run()
        return made

    def listens(self, kind: str = "Job", name: str = "train", namespace: str = "ml") -> None:
        """The job's launchers read the ConfigMap of its namespace, as docs/kubernetes.md sets it up."""
        job = self.cluster.get(kind, name, namespace)
        assert job is not None
        self.cluster.change(job, lambda o: o["metadata"].setdefault("annotations", {}).update({"greylag.io/restarts-processes": "true"}))
        self.cluster.make("ConfigMap", "greylag-restarts", namespace, data={"other": "inc-0/1/1"})

    def budget(self, app: str = "train", least: int = 4, namespace: str = "ml") -> Obj:
        """A disruption budget over a job's pods."""
        return self.cluster.make("PodDisruptionBudget", app, namespace, spec={
            "minAvailable": least, "selector": {"matchLabels": {"app": app}}})

    def daemon(self, node: str, name: str = "exporter") -> Obj:
        """A pod of a daemon set."""
        return self.cluster.make("Pod", f"{name}-{node}", "default", metadata={"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": "ds-1", "controller": True}]},
            spec={"nodeName": node, "containers": [{"name": "c"}]}, status={"phase": "Running"})

    def watcher(self, key: str = "nvidia.com/gpu.deploy.dcgm-exporter") -> Obj:
        """An exporter's daemon set as the GPU operator makes it: on the nodes whose label says `true`."""
        for node in self.cluster.all("Node"):
            self.cluster.change(node, lambda o: o["metadata"]["labels"].update({key: "true"}), "gpu-operator")
        self.cluster.make("Namespace", "gpu-operator")
        made = self.cluster.make("DaemonSet", "exporter-gpu", "gpu-operator", spec={"template": {
            "metadata": {"labels": {"app": "dcgm-exporter"}},
            "spec": {"nodeSelector": {key: "true"}, "terminationGracePeriodSeconds": 30, "containers": [{"name": "c"}]}}}, status={})
        self.controllers.run()
        return made

    # --- looking -------------------------------------------------------------------------------------------------------
    def get(self, name: str = "n1") -> Obj:
        found = self.cluster.get("Node", name)
        assert found is not None
        return found

    def pods(self, node: str | None = None) -> list[str]:
        """Names of the pods that are not of daemon sets."""
        return [p["metadata"]["name"] for p in self.cluster.all("Pod")
                if (node is None or p["spec"].get("nodeName") == node) and not p["metadata"]["name"].startswith("exporter")]

    def taints(self, name: str = "n1") -> list[str]:
        return [t["key"] for t in self.get(name)["spec"].get("taints") or [] if not t["key"].startswith("node.kubernetes.io/")]

    def where(self) -> set[str]:
        """Nodes on which pods of jobs run."""
        return {p["spec"]["nodeName"] for p in self.cluster.all("Pod") if p["spec"].get("nodeName") and p["status"]["phase"] == "Running"
                and not p["metadata"]["name"].startswith(("exporter", "greylag-"))}

    # --- acting --------------------------------------------------------------------------------------------------------
    def pass_time(self, seconds: float) -> None:
        assert self.cluster.clock is not None
        self.cluster.clock += round(seconds * 1000)
        self.controllers.run()

    def do(self, action: Action, seconds: float = 600, step: float = 15) -> Any:
        """Submits and polls until it has ended."""
        told = self.door.submit(action)
        while told.state == "RUNNING" and seconds > 0:
            self.pass_time(step)
            seconds -= step
            told = self.door.poll(action.id)
        return told

    def patch(self, name: str, change: Any, manager: str = "kubectl-edit") -> None:
        """Another hand changes the node."""
        node = self.get(name)
        self.cluster.change(node, change, manager)

    def cordon(self, name: str, value: bool = True) -> None:
        """A person's kubectl cordon, or uncordon."""
        self.patch(name, lambda o: o["spec"].update(unschedulable=True) if value else o["spec"].pop("unschedulable", None), "kubectl-cordon")

    def ready(self, name: str, value: str) -> None:
        self.patch(name, lambda o: o["status"].update(conditions=[{"type": "Ready", "status": value}]), "kubelet")

    def reboots(self, name: str) -> None:
        """The machine boots."""
        self.patch(name, lambda o: o["status"]["nodeInfo"].update(bootID=o["status"]["nodeInfo"]["bootID"] + "x"), "kubelet")


def trainer() -> Obj:
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "train", "image": "trainer", "resources": {"limits": {GPU: "8"}}}]}


def action(kind: str, node: str = "n1", name: str = "inc-1/1/1", job: str | None = None, deadline: float = 1200.0, device: str | None = None,
           **args: object) -> Action:
    """An action of an incident."""
    target = Target("job", job=job) if job else Target("gpu", node, device, None) if device else Target("node", node)
    incident, attempt, step = name.split("/")
    return Action(name, kind, target, args, deadline, "act", incident, int(attempt), int(step), T0, "policy")
