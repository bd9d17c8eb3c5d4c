"""A network and its ports without the rest of the world: constant traffic, knobs that stay as they are turned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fleet.groups import Groups
from fleet.hardware import Node, NodeType, build_nodes, kind_named
from fleet.joblog import ByteLog
from fleet.knobs import JobKnobs, NicKnobs, SwitchKnobs
from fleet.logs import KernelLogs
from fleet.network import Network
from fleet.nics import NicBank
from fleet.shape import JobShape
from fleet.topology import Topology
from fleet.work import Work

SECONDS = 5
ROCE, EFA = kind_named("h100-8x-roce"), kind_named("p5.48xlarge")
INFINIBAND = replace(ROCE, name="h100-8x-ib", fabric="infiniband")


@dataclass
class FakeJob:
    """What the network reads of a job."""

    name: str
    nodes: list[int]
    gpus: int = 8
    run: int = 1
    alive: bool = True
    linked: bool = True
    shape: JobShape = field(default_factory=JobShape)
    pp: int = 1

    @property
    def groups(self) -> Groups:
        return Groups.fit(len(self.nodes) * self.gpus, self.gpus, None, self.pp)

    def rank_of(self, node: int, gpu: int) -> int | None:
        return self.nodes.index(node) * self.gpus + gpu if node in self.nodes else None


class Rig:
    """nodes of a kind, all of them in the jobs (one job over all by default)."""

    def __init__(self, kind: NodeType = ROCE, nodes: int = 8, seed: int = 1, jobs: list[FakeJob] | None = None) -> None:
        self.kind = kind
        self.nodes: list[Node] = build_nodes(kind, nodes, 0, 0, np.random.default_rng(0))
        self.topology = Topology.of(self.nodes, kind.nics)
        self.nic = NicKnobs(nodes, kind.nics)
        self.switch = SwitchKnobs(len(self.topology.switches))
        self.network = Network(kind, self.topology, self.nic, self.switch, seed)
        self.bank = NicBank(kind, nodes, np.random.default_rng(seed), self.nic)
        self.kernel = KernelLogs(self.nodes, np.random.default_rng(2))
        self.jobs = {j.name: j for j in jobs or [FakeJob("train-1", list(range(nodes)), kind.gpus)]}
        self.job_knobs = {name: JobKnobs(1) for name in self.jobs}
        self.work = Work.idle(nodes, kind.gpus)
        self.work.traffic += 3.3e10
        self.at = 1_767_225_600_000

    def run(self, seconds: int = SECONDS) -> dict[str, np.ndarray]:
        """Moves on; how much each counter grew."""
        before = {name: values.copy() for name, values in self.bank.counters.items()}
        for _ in range(seconds // SECONDS):
            for knobs in self.job_knobs.values():
                knobs.reset()
            self.network.step(self.jobs, SECONDS, self.job_knobs)
            self.bank.step(SECONDS, self.work, self.network)
            self.at += SECONDS * 1000
            self.bank.tell(self.kernel, self.nodes, self.at)
        return {name: values - before[name] for name, values in self.bank.counters.items()}

    def log(self, node: int) -> str:
        found: ByteLog = self.kernel.of(node)
        return found.read().decode()

    def leaf(self, node: int, nic: int) -> int:
        return int(self.topology.leaf_of[node, nic])
