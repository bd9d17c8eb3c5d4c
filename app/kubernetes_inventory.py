"""The inventory from Kubernetes: nodes with type, place in the network and GPUs, and jobs with their nodes.

Labels say where a node stands; which ones is known for AWS, Google Cloud, NVIDIA topograph and GPU feature discovery, and
`inventory.kubernetes.labels` adds those of a site. Jobs are read from the pods that run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.clock import monotonic_seconds
from core.config import GreylagConfig
from core.errors import ConfigError
from core.inventory import GpuEntry, Inventory, JobEntry, NodeEntry
from core.yamlfile import build
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Access, Api, connect
from remediation.backends.kubernetes_nodes import Obj
from remediation.backends.kubernetes_setup import Setup
from remediation.backends.kubernetes_view import KubernetesView
from remediation.backends.kubernetes_work import Work

# Which label says what, the first that a node has. Sources: AWS docs "Place distributed AI/ML workloads with network topology
# labels" (layer 1 is the top, 3 or 4 the bottom); NVIDIA topograph "Node labels and annotations" (both of its families);
# Google Kubernetes Engine's gce-topology labels; Kubernetes' well-known labels; GPU feature discovery.
AWS_LAYERS = tuple(f"topology.k8s.aws/network-node-layer-{n}" for n in (4, 3, 2, 1))
PLACES: dict[str, tuple[str, ...]] = {
    "instance_type": ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    "rack": ("topology.kubernetes.io/rack",),
    "leaf": ("network.topology.nvidia.com/leaf", "fabric.topograph.run/tier-0", "cloud.google.com/gce-topology-subblock"),
    "spine": ("network.topology.nvidia.com/spine", "fabric.topograph.run/tier-1", "cloud.google.com/gce-topology-block"),
    "nvlink_domain": ("network.topology.nvidia.com/accelerator", "accelerator.topograph.run/domain", "nvidia.com/gpu.clique"),
    "pdu": (), "cooling": (),
}
GPU_COUNTS = ("nvidia.com/gpu.count", "amd.com/gpu.count")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
ORDER = ("jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index",
         "training.kubeflow.org/replica-index")
ROLE = "training.kubeflow.org/replica-type"
FIRST_ROLES = ("master", "launcher", "chief")


@dataclass(frozen=True, slots=True)
class KubernetesInventoryParams:
    """kubeconfig_file, context, namespaces, node_selector, spare_label, timeout_seconds: as of the backend `kubernetes`.
    labels: of rack, leaf, spine, pdu, cooling, nvlink_domain or instance_type the label that says it here.
    every_seconds: how old the answer may be before the cluster is read again, wall time."""

    kubeconfig_file: str | None = None
    context: str | None = None
    namespaces: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    spare_label: str = "greylag.io/spare"
    labels: Mapping[str, str] = field(default_factory=dict)
    every_seconds: float = 60.0
    timeout_seconds: float = 10.0


def node_entry(node: Obj, params: KubernetesInventoryParams) -> NodeEntry:
    """What the inventory says of a node."""
    labels = nodes_.labels(node)
    found = {name: next((labels[k] for k in (params.labels.get(name, ""), *known) if labels.get(k)), None)
             for name, known in PLACES.items()}
    layers = [labels[k] for k in AWS_LAYERS if labels.get(k)]
    found["leaf"] = found["leaf"] or (layers[0] if layers else None)
    found["spine"] = found["spine"] or (layers[1] if len(layers) > 1 else None)
    state = "drained" if nodes_.cordoned(node) else "spare" if params.spare_label in labels else "in_service"
    gpus = tuple(GpuEntry(i) for i in range(gpu_count(node)))
    return NodeEntry(str(node["metadata"]["name"]), **found, state=state, gpus=gpus, labels=dict(labels))  # type: ignore[arg-type]


def gpu_count(node: Obj) -> int:
    """How many GPUs the node should have: what feature discovery labels, else what its device plug-in offers."""
    for name in GPU_COUNTS:
        if nodes_.labels(node).get(name, "").isdigit():
            return int(nodes_.labels(node)[name])
    capacity = (node.get("status") or {}).get("capacity") or {}
    return next((int(capacity[r]) for r in GPU_RESOURCES if str(capacity.get(r, "")).isdigit()), 0)


def job_entries(pods: list[Obj]) -> tuple[JobEntry, ...]:
    """The jobs of the pods that run, with their nodes in the order of their ranks."""
    alive = [p for p in pods if not work_.ended(p) and (p.get("spec") or {}).get("nodeName")]
    named = work_.names_of(alive)
    ids = work_.job_ids(list(named), named)
    by_work: dict[Work, list[Obj]] = {}
    for pod in alive:
        work = work_.work_of(pod)
        if work is not None:
            by_work.setdefault(work, []).append(pod)
    return tuple(_job(ids[work], sorted(rows, key=_rank)) for work, rows in sorted(by_work.items()))


def _job(name: str, pods: list[Obj]) -> JobEntry:
    nodes = tuple(dict.fromkeys(str(p["spec"]["nodeName"]) for p in pods))
    starts = [s for p in pods if (s := (p.get("status") or {}).get("startTime"))]
    gpus = {node: sum(_gpus(p) for p in pods if p["spec"]["nodeName"] == node) for node in nodes}
    same = set(gpus.values())
    return JobEntry(name, nodes, min(starts) if starts else None, None, same.pop() or None if len(same) == 1 else None)


def _gpus(pod: Obj) -> int:
    return sum(int(limits.get(r, 0)) for one in (pod.get("spec") or {}).get("containers") or ()
               for limits in [(one.get("resources") or {}).get("limits") or {}] for r in GPU_RESOURCES)


def _rank(pod: Obj) -> tuple[Any, ...]:
    labels = nodes_.labels(pod)
    numbers = tuple(int(labels[k]) if labels.get(k, "").isdigit() else -1 for k in ORDER)
    return (labels.get(ROLE, FIRST_ROLES[0]) not in FIRST_ROLES, *numbers, str(pod["metadata"]["name"]))


class KubernetesInventory:
    """Reads the cluster: the first time at once, later in a thread of its own, so that no tick waits for an API server."""

    def __init__(self, api: Api, params: KubernetesInventoryParams, now: Callable[[], float] = monotonic_seconds) -> None:
        self._view = KubernetesView(api, Setup(params.namespaces, params.node_selector, spare_label=params.spare_label))
        self._params, self._now = params, now
        self._known: Inventory | None = None
        self._error: Exception | None = None
        self._read_at = 0.0
        self._thread: threading.Thread | None = None

    def __call__(self) -> Inventory:
        """The inventory as it was last read. Raises what the last reading raised, once."""
        error, self._error = self._error, None
        if self._known is None:
            self._known, self._read_at = self.read(), self._now()
        elif self._now() - self._read_at >= self._params.every_seconds and (self._thread is None or not self._thread.is_alive()):
            self._read_at = self._now()
            self._thread = threading.Thread(target=self._again, name="kubernetes-inventory", daemon=True)
            self._thread.start()
        if error is not None:
            raise error
        return self._known

    def read(self) -> Inventory:
        """The inventory as the cluster has it now. Raises Unavailable, Refused."""
        nodes = tuple(sorted((node_entry(n, self._params) for n in self._view.all_nodes()), key=lambda n: n.name))
        known = {n.name for n in nodes}
        jobs = tuple(j for j in job_entries(self._view.pods()) if known.issuperset(j.nodes))
        return Inventory(nodes, jobs)

    def wait(self, seconds: float = 30.0) -> None:
        """Until a reading that is under way has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _again(self) -> None:
        try:
            self._known = self.read()
        except Exception as error:
            self._error = error


def kubernetes_inventory(section: Mapping[str, Any], config: GreylagConfig, transport: Any = None) -> KubernetesInventory:
    """From the section `inventory.kubernetes`. Raises ConfigError."""
    params = build(KubernetesInventoryParams, section, config.file, "inventory.kubernetes")
    for name in params.labels:
        if name not in PLACES:
            raise ConfigError(config.file, f"inventory.kubernetes.labels.{name}", "an unknown place", f"allowed are: {', '.join(PLACES)}")
    file = str(config.resolve(params.kubeconfig_file)) if params.kubeconfig_file is not None else None
    return KubernetesInventory(connect(Access(file, params.context, params.timeout_seconds), "inventory.kubernetes", transport), params)
