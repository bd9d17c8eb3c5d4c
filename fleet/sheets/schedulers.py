"""The pages of the schedulers: slurm_exporter on Slurm's head node, and kube-state-metrics.

slurm_exporter sorts families by name and series by their label values, as Go's registry does; kube-state-metrics writes its own
pages, in the order in which it makes them. A node's state stands in a label of slurm_exporter's,
so a change of state is another series; kube-state-metrics has a series for each state that could be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.scheduler import PARTITION, USER
from fleet.sheets.base import Family, Get, Sheet
from fleet.stations import HEAD, Station
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

# The states that slurm_exporter counts nodes by, and the words of Slurm that fall under each.
COUNTED = {
    "alloc": ("allocated",), "comp": ("completing",), "down": ("down",), "drain": ("drained", "draining"), "err": ("error",),
    "fail": ("fail",), "idle": ("idle",), "maint": ("maint",), "mix": ("mixed",), "planned": ("planned",), "resv": ("reserved",),
}
NAMESPACE = "training"
CONDITIONS = ("NetworkUnavailable", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
STATUSES, PHASES = ("true", "false", "unknown"), ("Pending", "Succeeded", "Failed", "Unknown", "Running")
TRUE, FALSE, UNKNOWN = range(3)


class SlurmSheet(Sheet):
    """slurm_exporter: one page, on the head node."""

    name = "slurm"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        self._scheduler = world.watch_scheduler()
        n, gpus = len(world.nodes), world.kind.gpus
        of_nodes = [self._node_family(name, text, get) for name, text, get in (
            ("slurm_node_cpu_alloc", "CPUs of the node that jobs have", self._allocated(float(world.kind.vcpus))),
            ("slurm_node_cpu_idle", "CPUs of the node that no job has", self._free(float(world.kind.vcpus))),
            ("slurm_node_cpu_total", "CPUs of the node", lambda w: np.full((1, n), float(w.kind.vcpus))),
            ("slurm_node_mem_alloc", "Memory of the node that jobs have, in MB",
             self._allocated(float(world.kind.host_memory_bytes // (1 << 20)))),
            ("slurm_node_mem_total", "Memory of the node, in MB",
             lambda w: np.full((1, n), float(w.kind.host_memory_bytes // (1 << 20)))),
            ("slurm_node_status", "State of the node, with its partition", lambda w: np.ones((1, n))))]
        part = f'{{active_feature_set="null",partition="{PARTITION}"}}'
        counts = [Family(f"slurm_nodes_{state}", f"Nodes in the state {state}", "gauge", lambda s: (part,), 1, self._count(words))
                  for state, words in COUNTED.items()]
        def total(name: str, text: str, get: Callable[[], float], labels: str = "") -> Family:
            return Family(name, text, "gauge", lambda s: (labels,), 1, lambda w: np.array([get()]))
        queue = f'{{partition="{PARTITION}",reason="",user="{USER}"}}'
        super().__init__(world, [
            *of_nodes, *counts,
            total("slurm_nodes_total", "All nodes", lambda: float(n)),
            total("slurm_gpus_alloc", "GPUs that jobs have", lambda: self._busy().sum() * gpus),
            total("slurm_gpus_idle", "GPUs that no job has", lambda: (1 - self._busy()).sum() * gpus),
            total("slurm_gpus_total", "All GPUs", lambda: float(n * gpus)),
            total("slurm_gpus_utilization", "Share of GPUs that jobs have", lambda: float(self._busy().mean())),
            total("slurm_queue_pending", "Jobs that wait", lambda: float(sum(j.state == "queued" for j in world.jobs.values())), queue),
            total("slurm_queue_running", "Jobs that run", lambda: float(sum(j.alive for j in world.jobs.values())), queue),
            total("slurm_exporter_collector_success", "Whether the collector succeeded", lambda: 1.0, '{collector="node"}'),
            total("slurm_exporter_collector_duration_seconds", "How long the collector took", lambda: 0.042, '{collector="node"}'),
        ], (Station(0, HEAD),))

    def keys(self) -> list[Hashable]:
        """Where a node's state stands in the labels, another state is another page."""
        return [tuple(self._scheduler.states)]

    def _labels(self, station: Station) -> Sequence[str]:
        return [f'{{node="{node.name}",partition="{PARTITION}",status="{state}"}}'
                for node, state in zip(self.world.nodes, self._scheduler.states, strict=True)]

    def _node_family(self, name: str, text: str, get: Get) -> Family:
        return Family(name, text, "gauge", self._labels, len(self._scheduler.states), get)

    def _busy(self) -> Floats:
        return np.array([float(state.startswith(("mixed", "allocated", "draining"))) for state in self._scheduler.states])

    def _allocated(self, whole: float) -> Get:
        return lambda w: whole * self._busy()[None, :]

    def _free(self, whole: float) -> Get:
        return lambda w: whole * (1.0 - self._busy())[None, :]

    def _count(self, words: tuple[str, ...]) -> Get:
        return lambda w: np.array([float(sum(state.rstrip("*") in words for state in self._scheduler.states))])


class KubeSheet(Sheet):
    """kube-state-metrics: one page. A training job is a PyTorchJob whose pods are its nodes' workers."""

    name = "kube"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        n = len(world.nodes)
        self._room = pods = max(1, n)
        node = [f'{{node="{one.name}"}}' for one in world.nodes]
        conditions = [f'{{node="{one.name}",condition="{condition}",status="{status}"}}'
                      for one in world.nodes for condition in CONDITIONS for status in STATUSES]
        def fixed(name: str, text: str, blocks: Sequence[str], get: Get) -> Family:
            return Family(name, text, "gauge", lambda s: blocks, len(blocks), get)
        super().__init__(world, [
            fixed("kube_node_info", "[STABLE] What is known of a cluster node.",
                  [f'{{node="{one.name}",kernel_version="{one.kind.kernel}",os_image="Ubuntu 22.04.5 LTS",'
                   f'container_runtime_version="containerd://1.7.27",kubelet_version="v1.33.4",provider_id="",pod_cidr="",'
                   f'system_uuid="{one.serial}",internal_ip="10.10.{i >> 8}.{i & 255}"}}' for i, one in enumerate(world.nodes)],
                  lambda w: np.ones((1, n))),
            fixed("kube_node_spec_unschedulable", "[STABLE] Whether a node takes new pods.", node, self._cordoned),
            fixed("kube_node_status_condition", "[STABLE] The condition of a cluster node.", conditions, self._conditions),
            Family("kube_pod_info", "[STABLE] What is known of a pod.", "gauge", lambda s: self._pods(',node="{node}",created_by_kind="PyTorchJob"'),
                   pods, lambda w: self._of_pods(np.ones(1))),
            Family("kube_pod_status_phase", "[STABLE] The phase that a pod is in.", "gauge", self._phase_labels, len(PHASES) * pods,
                   lambda w: self._of_pods(self._phases())),
            Family("kube_pod_container_status_restarts_total", "[STABLE] How often a container was started again.", "counter",
                   lambda s: self._pods(',container="pytorch"'), pods, lambda w: self._of_pods(None)),
        ], (Station(0, HEAD),))

    def keys(self) -> list[Hashable]:
        """Pods have the names of their jobs."""
        return [tuple((job.name, tuple(job.nodes)) for job in self.world.jobs.values())]

    def _seats(self) -> list[tuple[str, int, int, int]]:
        """(job, worker, node, run) of each pod."""
        return [(job.name, worker, row, job.run) for job in self.world.jobs.values() for worker, row in enumerate(job.nodes)]

    def _pods(self, more: str = "") -> list[str]:
        blocks = [f'{{namespace="{NAMESPACE}",pod="{job}-worker-{worker}",uid="{self.world.nodes[row].serial}-{job}"'
                  + more.replace("{node}", self.world.nodes[row].name) + "}" for job, worker, row, _ in self._seats()]
        return [*blocks, *[""] * (self._room - len(blocks))]

    def _phase_labels(self, station: Station) -> list[str]:
        return [block.replace("}", f',phase="{phase}"}}') if block else "" for block in self._pods()
                for phase in PHASES]

    def _of_pods(self, values: Floats | None) -> Floats:
        """float64[1, …]: what each pod shows, absent where there are fewer; None = how often it was started again."""
        seats = self._seats()
        shown = np.array([[run - 1.0] for *_, run in seats]) if values is None else np.broadcast_to(values, (len(seats), values.shape[-1]))
        out = np.full((self._room, shown.shape[-1] if len(seats) else (1 if values is None else values.shape[-1])), np.nan)
        out[: len(seats)] = shown
        return out.reshape(1, -1)

    def _phases(self) -> Floats:
        names = {"running": "Running", "queued": "Pending", "done": "Succeeded", "stopped": "Succeeded"}
        return np.array([[float(names.get(self.world.jobs[job].state, "Failed") == phase) for phase in PHASES]
                         for job, *_ in self._seats()]).reshape(-1, len(PHASES))

    def _cordoned(self, world: World) -> Floats:
        return np.array([[float(node.held_by is not None or node.state in ("draining", "drained")) for node in world.nodes]])

    def _conditions(self, world: World) -> Floats:
        out = np.zeros((len(world.nodes), len(CONDITIONS), len(STATUSES)))
        out[:, :-1, FALSE] = 1.0
        ready = np.array([node.up for node in world.nodes])
        out[:, -1, TRUE], out[:, -1, UNKNOWN] = ready, ~ready
        return out.reshape(1, -1)
