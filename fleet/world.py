"""The emulated cluster: nodes, one training job, planted faults, operations; moved on in whole sub-steps.

Deterministic for a seed: every bank draws from a stream of its own, in sub-steps of 5 s that lie on fixed times, so
neither the way in which time is advanced nor a planted fault changes what the other parts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.errors import BadInput
from core.protocols import FaultPlugin
from core.types import Target
from fleet.goodput import Goodput
from fleet.gpus import GpuBank
from fleet.groups import per_gpu
from fleet.hardware import H100_ROCE, Node, NodeType, build_nodes
from fleet.hosts import HostBank
from fleet.job import Job, JobShape
from fleet.joblog import JobLog
from fleet.knobs import GpuKnobs, HostKnobs, JobKnobs, NicKnobs, StorageKnobs, SwitchKnobs, WorldKnobs
from fleet.logs import KernelLogs
from fleet.network import Network
from fleet.nics import NicBank
from fleet.plants import Planted, Plants
from fleet.running import Running
from fleet.scheduler import Scheduler
from fleet.storage import StorageBank
from fleet.switchports import SwitchPorts
from fleet.telemetry import DEMO, Telemetry
from fleet.topology import Topology
from fleet.work import Work

SUBSTEP_SECONDS = 5
SUBSTEP_MS = SUBSTEP_SECONDS * 1000
GPU_EXPORTER = "dcgm"


class World:
    """Everything that is emulated. Not thread-safe: one thread owns it.

    now_ms: cluster time. revision grows with every change that a page could show, but for the time of day itself.
    """

    def __init__(
        self,
        nodes: int = 16,
        spares: int = 2,
        seed: int = 0,
        start_ms: int = 1_767_225_600_000,
        job: str | None = "train-1",
        kind: NodeType = H100_ROCE,
        shape: JobShape | None = None,
        plugins: Mapping[str, FaultPlugin] | None = None,
        telemetry: Telemetry = DEMO,
    ) -> None:
        if nodes < 1 or spares < 0:
            raise BadInput("fleet", "nodes", (nodes, spares), "at least 1 node and no negative number of spares is needed")
        streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(12)]
        self.kind, self.shape, self.seed = kind, shape or JobShape(), seed
        self.telemetry = telemetry
        self.start_ms = self.now_ms = self._at = -(-start_ms // SUBSTEP_MS) * SUBSTEP_MS
        self.nodes = build_nodes(kind, nodes, spares, self.start_ms, streams[0])
        total = nodes + spares
        self.topology = Topology.of(self.nodes, kind.nics)
        self.knobs = WorldKnobs(
            GpuKnobs(total, kind.gpus), NicKnobs(total, kind.nics), SwitchKnobs(len(self.topology.switches)),
            HostKnobs(total), StorageKnobs(len(self.topology.targets)))
        self.gpus = GpuBank(kind, total, streams[1], self.knobs.gpu)
        self.nics = NicBank(kind, total, streams[2], self.knobs.nic)
        self.network = Network(kind, self.topology, self.knobs.nic, self.knobs.switch, seed)
        self.hosts = HostBank(kind, total, streams[3], self.knobs.host, self.knobs.down_services)
        self.storage = StorageBank(kind, total, len(self.topology.targets), streams[8], self.knobs.storage, self.knobs.host)
        self.kernel = KernelLogs(self.nodes, streams[4], self.gpus, self.start_ms)
        self.plants = Plants(plugins or {}, streams[6])
        self._by_name = {n.name: n for n in self.nodes}
        self.revision = 0
        self.watchers: list[Any] = []
        # Nodes whose health is being tested now, by index: the time account needs to know.
        self.testing: set[int] = set()
        self.paused: set[int] = set()  # nodes whose GPU exporter was stopped for what is done to a GPU
        self.checked: dict[int, int] = {}  # when each node last passed a health check, ms
        self.jobs: dict[str, Running] = {}
        self.switchports: SwitchPorts | None = None
        self.scheduler: Scheduler | None = None
        self.goodput = Goodput(self)
        if job is not None:
            self.add_job(Job(job, self.shape, list(range(nodes)), kind.gpus, JobLog(), streams[5]))

    def add_job(self, job: Running, start: bool = True) -> None:
        """Puts a job on its nodes, and starts it now. Raises BadInput for a name that is taken, or a node that has a job."""
        if job.name in self.jobs:
            raise BadInput("fleet", "job", job.name, "each job needs a name of its own")
        taken = next((n for n in job.nodes if self.job_on(n) is not None), None)
        if taken is not None:
            raise BadInput("fleet", "job", job.name, f"{self.nodes[taken].name} has another job already")
        self.jobs[job.name] = job
        self.knobs.jobs[job.name] = JobKnobs(job.ranks)
        if start:
            job.start(self.now_ms)
        self._measure(job)

    def watch_switches(self) -> SwitchPorts:
        """From now on the switches' ports are counted; asking again gives the same."""
        self.switchports = self.switchports or SwitchPorts(self)
        return self.switchports

    def watch_scheduler(self) -> Scheduler:
        """From now on a scheduler keeps its books; asking again gives the same."""
        self.scheduler = self.scheduler or Scheduler(self)
        return self.scheduler

    # --- looking up --------------------------------------------------------------------------------------------------
    @property
    def faults(self) -> list[Planted]:
        """All that was ever planted, in order."""
        return self.plants.all

    @property
    def has(self) -> frozenset[str]:
        """What this fleet is made of, in the words of `FaultPlugin.needs`."""
        return self.kind.has

    def find(self, name: str | None) -> Node | None:
        """The node of that name, or None."""
        return self._by_name.get(name or "")

    def job_on(self, node: int) -> Running | None:
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
        self.now_ms = max(self.now_ms, to_ms)

    def _substep(self) -> None:
        to = self._at + SUBSTEP_MS
        work = Work.idle(len(self.nodes), self.kind.gpus)
        self.knobs.reset()
        self.plants.apply(self, to)
        for row in self.paused:
            self.knobs.exporter.answers[row, GPU_EXPORTER] = "down"
        self.network.step(self.jobs, SUBSTEP_SECONDS, self.knobs.jobs)
        for job in self.jobs.values():
            self._measure(job)
            job.advance(to)
            job.collect(work, SUBSTEP_MS, job.loaded_share)
        self.storage.step(SUBSTEP_SECONDS, work)
        self.hosts.step(SUBSTEP_SECONDS, work, to, self.storage.stalled)
        self.gpus.step(SUBSTEP_SECONDS, work, self.hosts.inlet)
        self.nics.step(SUBSTEP_SECONDS, work, self.network)
        self.nics.tell(self.kernel, self.nodes, to)
        if self.switchports is not None:
            self.switchports.step(self, to)
        self.kernel.step(self.nodes, SUBSTEP_SECONDS, to)
        self._at = self.now_ms = to
        self.goodput.step(to)
        for watcher in self.watchers:
            watcher.step(to)
        if self.scheduler is not None:
            self.scheduler.step(to)
        self.revision += 1

    def _measure(self, job: Running) -> None:
        rows, knobs = job.rows, self.knobs.jobs[job.name]
        if len(knobs.compute) != job.ranks:
            knobs.resize(job.ranks)
        job.slow = self.gpus.speed[rows].ravel()
        job.slowness = (self.gpus.slowness[rows] * self.knobs.gpu.compute[rows] * self.hosts.launch_factor[rows, None]).ravel()
        job.nvlink = np.repeat(self.gpus.nvlink_factor[rows], job.gpus)
        job.loader = np.repeat(self.hosts.data_factor[rows] * self.storage.read_factor[rows], job.gpus)
        job.saving = float(self.hosts.save_factor[rows].max(initial=1.0))
        job.storing = float((self.hosts.save_factor[rows] * self.storage.write_factor[rows]).max(initial=1.0))
        job.links = per_gpu(self.network.endpoint[rows], job.gpus).ravel()
        job.suffer(knobs, self._at)

    # --- faults ------------------------------------------------------------------------------------------------------
    def inject(
        self, name: str, target: Target | None = None, severity: float | None = None, seed: int | None = None,
        onset: str | None = None, for_seconds: float | None = None,
    ) -> Planted:
        """Plants a fault now; what is not given is drawn. for_seconds: when it goes away by itself, if nothing cures it before.

        Raises BadInput for an unknown fault, place, size or onset, Refused where it cannot be now (`not_training`).
        """
        planted = self.plants.plant(self, name, target, severity, onset, seed)
        if for_seconds is not None:
            planted.heals_at = self.now_ms + int(for_seconds * 1000)
        self.revision += 1
        return planted

    def cure(self, verb: str, node: int | None = None, job: Running | None = None, gpu: int | None = None,
             services: bool = False) -> None:
        """Ends the faults on a node (or in a job and on its nodes) that the verb cures."""
        self.plants.cure(self, verb, self.now_ms, node, job, gpu, services)

    def clear(self, name: str | None = None) -> int:
        """Takes faults away (all, or those of a name) as if they had never been; returns how many."""
        gone = [p for p in self.faults if p.present and name in (None, p.plugin.name)]
        for planted in gone:
            self.plants.end(self, planted, self.now_ms, "lab")
        self.revision += 1
        return len(gone)

    def returned(self, node: int) -> None:
        """A node goes (back) into service: the defects that its parts still have count again."""
        self.plants.returned(node)

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
        """The defects that the node's parts have now."""
        return self.plants.on(node)
