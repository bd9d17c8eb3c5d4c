"""The emulated cluster: nodes, one training job, planted faults, operations; moved on in whole sub-steps.

Deterministic for a seed: every bank draws from a stream of its own, in sub-steps of 5 s that lie on fixed times, so
neither the way in which time is advanced nor a planted fault changes what the other parts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.errors import BadInput, Refused
from core.protocols import FaultPlugin
from core.types import Target
from fleet.gpus import GpuBank
from fleet.hardware import H100_ROCE, Node, NodeType, build_nodes
from fleet.hosts import HostBank
from fleet.job import Job, JobShape
from fleet.joblog import JobLog
from fleet.logs import KernelLogs
from fleet.nics import NicBank
from fleet.work import Work

SUBSTEP_SECONDS = 5
SUBSTEP_MS = SUBSTEP_SECONDS * 1000
# Severity of a fault whose place is drawn: the step time grows by this share.
SEVERITIES = (0.14, 0.4)


@dataclass(slots=True)
class Planted:
    """A fault in the world. culprit: as it was named when planted. present: the part still has the defect."""

    plugin: FaultPlugin
    culprit: Target
    severity: float
    at: int
    cured_at: int | None = None
    present: bool = True


class World:
    """Everything that is emulated. Not thread-safe: one thread owns it.

    now_ms: cluster time. revision grows with every change that a page could show.
    """

    def __init__(
        self,
        nodes: int = 16,
        spares: int = 2,
        seed: int = 0,
        start_ms: int = 1_767_225_600_000,
        job: str = "train-1",
        kind: NodeType = H100_ROCE,
        shape: JobShape | None = None,
        plugins: Mapping[str, FaultPlugin] | None = None,
    ) -> None:
        if nodes < 1 or spares < 0:
            raise BadInput("fleet", "nodes", (nodes, spares), "at least 1 node and no negative number of spares is needed")
        streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(8)]
        self.kind, self.shape, self.seed = kind, shape or JobShape(), seed
        self.start_ms = self.now_ms = self._at = -(-start_ms // SUBSTEP_MS) * SUBSTEP_MS
        self.nodes = build_nodes(kind, nodes, spares, self.start_ms, streams[0])
        total = nodes + spares
        self.gpus, self.nics = GpuBank(kind, total, streams[1]), NicBank(kind, total, streams[2])
        self.hosts = HostBank(kind, total, streams[3])
        self.kernel = KernelLogs(self.nodes, streams[4])
        self.rail_slowness = np.ones((total, kind.nics))
        self._lab_rng = streams[6]
        self._by_name = {n.name: n for n in self.nodes}
        self._plugins = dict(plugins) if plugins is not None else {}
        self.faults: list[Planted] = []
        self.revision = 0
        self.watchers: list[Any] = []
        self.jobs = {job: Job(job, self.shape, list(range(nodes)), kind.gpus, JobLog(), streams[5])}
        for one in self.jobs.values():
            one.start(self.start_ms)
            self._measure(one)

    # --- looking up --------------------------------------------------------------------------------------------------
    def find(self, name: str | None) -> Node | None:
        """The node of that name, or None."""
        return self._by_name.get(name or "")

    def job_on(self, node: int) -> Job | None:
        """The job that the node belongs to, running or not."""
        return next((j for j in self.jobs.values() if node in j.nodes), None)

    def gpu_target(self, node: int, gpu: int) -> Target:
        """The GPU as a Target, with the job and rank on it."""
        one, job = self.nodes[node], self.job_on(node)
        rank = None if job is None else job.rank_of(node, gpu)
        return Target("gpu", one.name, str(gpu), one.uuids[gpu], job.name if job else None, rank, one.serials[gpu])

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, to_ms: int) -> None:
        """Moves the world on to `to_ms`; values change on multiples of 5 s."""
        while self._at + SUBSTEP_MS <= to_ms:
            self._substep()
        if to_ms > self.now_ms:
            self.now_ms = to_ms
            self.revision += 1

    def _substep(self) -> None:
        to = self._at + SUBSTEP_MS
        work = Work.idle(len(self.nodes), self.kind.gpus)
        for job in self.jobs.values():
            self._measure(job)
            job.advance(to)
            job.collect(work, SUBSTEP_MS, job.loaded_share)
        for fault in self.faults:
            if fault.present and fault.plugin.step is not None:
                fault.plugin.step(self, fault.culprit, fault.severity, (to - fault.at) / 1000)
        self.hosts.step(SUBSTEP_SECONDS, work, to)
        self.gpus.step(SUBSTEP_SECONDS, work, self.hosts.inlet)
        self.nics.step(SUBSTEP_SECONDS, work)
        self.kernel.step(self.nodes, SUBSTEP_SECONDS, to)
        self._at = self.now_ms = to
        for watcher in self.watchers:
            watcher.step(to)
        self.revision += 1

    def _measure(self, job: Job) -> None:
        rows = np.array(job.nodes, dtype=np.int64)
        job.slow = self.gpus.thermal[rows].ravel()
        job.slowness = self.gpus.slowness[rows].ravel()
        job.rails = self.rail_slowness[rows].max(axis=0)

    # --- faults ------------------------------------------------------------------------------------------------------
    def inject(
        self, name: str, target: Target | None = None, severity: float | None = None, seed: int | None = None,
    ) -> Planted:
        """Plants a fault now; without a target its place, and without a severity its size, is drawn.

        Raises BadInput for an unknown fault or place, Refused `not_training` where a rank that should hang does not train.
        """
        plugin = self._plugins.get(name)
        if plugin is None:
            raise BadInput("fault", "fault", name, f"allowed are: {', '.join(sorted(self._plugins))}")
        rng = self._lab_rng if seed is None else np.random.default_rng(seed)
        job = next(iter(self.jobs.values()))
        if plugin.fault == "stalled_loss" and job.phase != "train":
            raise Refused("not_training", "a rank can only hang while it trains")
        drawn = target is None
        culprit = self._draw(plugin, rng, job) if target is None else self._whole(target, plugin)
        size = float(rng.uniform(*SEVERITIES)) if severity is None else float(severity)
        if not drawn and not 0 <= size <= 10:
            raise BadInput("fault", "severity", severity, "a number from 0 to 10 is needed")
        planted = Planted(plugin, culprit, size, self.now_ms)
        plugin.start(self, culprit, size, self.now_ms)
        self.faults.append(planted)
        self.revision += 1
        return planted

    def _draw(self, plugin: FaultPlugin, rng: np.random.Generator, job: Job) -> Target:
        taken = {f.culprit.node for f in self.faults if f.present}
        free = [n for n in job.nodes if self.nodes[n].name not in taken] or job.nodes
        node = free[int(rng.integers(0, len(free)))]
        device = int(rng.integers(0, self.kind.gpus))
        if plugin.target_kind == "nic":
            return Target("nic", self.nodes[node].name, self.nodes[node].nic(device))
        return self.gpu_target(node, device)

    def _whole(self, target: Target, plugin: FaultPlugin) -> Target:
        node = self.find(target.node)
        if node is None and target.rank is not None:
            job = self.jobs.get(target.job or "", next(iter(self.jobs.values())))
            if 0 <= target.rank < job.ranks:
                return self.gpu_target(*job.place(target.rank))
        if node is None:
            raise BadInput("fault", "target.node", target.node, "a node of the fleet is needed")
        if plugin.target_kind == "gpu" and (target.device or "").isdigit() and int(target.device or "") < self.kind.gpus:
            return self.gpu_target(node.index, int(target.device or ""))
        return replace(target, kind=plugin.target_kind)

    def cure(self, verb: str, node: int | None = None, job: Job | None = None) -> None:
        """Ends the faults on a node (or on a job's nodes) that the verb cures.

        A replaced part keeps its defect: it is only out of the way, and comes back with its node.
        """
        rows = set(job.nodes) if job is not None else {node}
        for fault in self.faults:
            place = self.find(fault.culprit.node)
            if fault.cured_at is not None or place is None or place.index not in rows:
                continue
            if verb in fault.plugin.cured_by:
                fault.cured_at = self.now_ms
                # What a new process ends sits in the process; the rest sits in the part and leaves with it.
                fault.present = verb == "replace" and "restart_process" not in fault.plugin.cured_by
                if not fault.present and fault.plugin.stop is not None:
                    fault.plugin.stop(self, fault.culprit)

    def clear(self, name: str | None = None) -> int:
        """Takes faults away (all, or those of a name) as if they had never been; returns how many."""
        gone = 0
        for fault in self.faults:
            if fault.present and (name is None or fault.plugin.name == name):
                if fault.plugin.stop is not None:
                    fault.plugin.stop(self, fault.culprit)
                fault.present = False
                fault.cured_at = fault.cured_at or self.now_ms
                gone += 1
        self.revision += 1
        return gone

    def returned(self, node: int) -> None:
        """A node goes (back) into service: the defects that its parts still have count again."""
        for fault in self.faults:
            place = self.find(fault.culprit.node)
            if fault.present and place is not None and place.index == node:
                fault.cured_at = None

    def other_hand(self, name: str, by: str | None) -> None:
        """Somebody else drains a node (by: who), or gives back what was held (None). Raises BadInput."""
        node = self.find(name)
        if node is None:
            raise BadInput("hand", "node", name, "a node of the fleet is needed")
        job = self.job_on(node.index)
        if by is not None:
            if job is not None:
                job.stop(self.now_ms, clean=False)
            node.state, node.held_by = "drained", by
        else:
            node.state, node.held_by = ("in_service" if job is not None else "spare"), None
        self.revision += 1

    def defects(self, node: int) -> list[Planted]:
        """The faults that the node's parts have now."""
        return [f for f in self.faults if f.present and f.culprit.node == self.nodes[node].name]
