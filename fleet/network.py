"""The fabric between the nodes: who sends to whom over which path, and how much slower that makes each endpoint.

Each job's collectives run around its nodes, rail by rail (`ring`), or between pairs at growing distance (`pairwise`). What
crosses from leaf to leaf takes equal-cost paths over the spines. A *hashed* fabric (RoCE, InfiniBand) holds each queue pair
of a flow on one path for as long as its connection lives: flows that meet on a path share it, and a path that drops
everything stalls its flows; a new start of the job connects anew and hashes anew. A *sprayed* fabric (EFA's SRD) sends
each flow over all paths: a lost path costs it a dip that is over within a minute, and nothing collides.

A collective is bound by the rate of its slowest link, so an endpoint with half of the rate takes twice as long.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import NodeType
from fleet.knobs import JobKnobs, NicKnobs, SwitchKnobs
from fleet.topology import PATHS, Topology

if TYPE_CHECKING:
    from fleet.running import Running
    from fleet.world import World

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Of what a port sends or receives the share that goes to its neighbour in the ring; the rest is spread over the rail (tree
# collectives, barriers, control).
NEIGHBOUR_SHARE = 0.55
# Share of the link rate that a collective can use: headers and protocol take the rest.
USABLE = 0.95
# Go-back-N hides a little loss; beyond it each lost packet costs the time of so many (retransmission timers mostly).
FREE_PER_MILLION = 18.0
COST_OF_LOSS = 12_860.0
# SRD resends only what was lost, on another path.
COST_OF_SPRAYED_LOSS = 1600.0
# A link marked all the time: DCQCN takes this share of its rate away, and less than in proportion before that.
CONGESTED = 0.6
# A full slot carries a quarter more than its port.
PCIE_HEADROOM = 1.26
# While a flow stands still its collective takes so many times as long: the time of some retries. Then the transport's
# retries are used up and the job's connection breaks.
STALLED = 25.0
GIVES_UP_SECONDS = 60.0
GAVE_UP = ("NCCL error: remote process exited or there was a network error, NET/IB: Got completion from peer with status=12 "
           "opcode=0 (transport retry counter exceeded)")
# A sprayed flow loses this share of its rate when a path goes, and finds the others within a minute.
DIP, DIP_SECONDS = 0.2, 14.0
PATTERNS = ("ring", "pairwise")
# Pairwise exchanges are sampled at these distances around the ring (powers of two, as recursive doubling takes them).
DISTANCES = (1, 2, 4, 8, 16)
# A hashed connection is made of so many queue pairs, each hashed by itself, so that few flows seldom meet; where a fabric is
# full of crossing flows some links still carry more than their rate.
QUEUE_PAIRS = 4


@dataclass(slots=True)
class Connections:
    """The flows of one start of a job, or of one pipeline stage of it (a data group stays inside a stage). ring: the nodes
    in order. to: int64[member, slot], whom each sends to; a slot is a queue pair to a partner. path: int64[member, nic,
    slot]. crosses: bool of that shape, the flow goes over a spine. broken_seconds: for how long some flow has stood still.
    next: the ring from its second member on, the first one last."""

    job: str
    ring: Ints
    to: Ints
    path: Ints
    crosses: Bools
    broken_seconds: float = 0.0
    next: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.next = np.roll(self.ring, -1)


class Network:
    """endpoint: float64[node, nic] >= 1, the factor on the time that a collective takes at that endpoint.

    up: whether the port has a carrier. share: what is left of its rate, 0-1. loss: lost per million that arrive there;
    congestion: 0-1, marked among what arrives there. stalled: a flow that it sends stands still. sharing: flows on the
    most shared link on the way of what it sends. detour: share of rate that a sprayed flow misses just now. volume:
    float64[node], the share of the job's bytes that its links can take (slow links get less to do, not longer steps).
    """

    def __init__(self, kind: NodeType, topology: Topology, nic: NicKnobs, switch: SwitchKnobs, seed: int) -> None:
        self.kind, self.topology, self.nic, self.switch, self._seed = kind, topology, nic, switch, seed
        self.sprayed = kind.fabric == "efa"
        self.patterns: dict[str, str] = {}
        self.connections: list[Connections] = []
        self._made: dict[str, tuple[int, list[int]]] = {}
        self.broken: dict[str, int] = {}
        shape = topology.leaf_of.shape
        self.endpoint, self.share, self.sharing = np.ones(shape), np.ones(shape), np.ones(shape)
        self.loss, self.congestion, self.detour = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.up, self.stalled = np.ones(shape, bool), np.zeros(shape, bool)
        self.linked, self.volume = np.zeros(shape[0], bool), np.ones(shape[0])
        self._odd: Ints = np.arange(0)  # nodes with a port that was not as new in the last step
        self._shared: Bools = np.zeros(shape[0], bool)  # nodes with a port whose flows share a link
        self.quiet = True  # nothing is wrong with any port or switch; flows may share a path all the same
        self._forced: dict[str, list[tuple[int, int]]] = {}
        # In which order each switch's paths go when a share of them is lost.
        order = np.random.default_rng([seed, 0x9A7]).random((len(topology.switches), PATHS))
        self._order = order.argsort(axis=1).argsort(axis=1)
        self._lost, self._dips = np.zeros(len(topology.switches)), np.zeros(len(topology.switches))

    # --- connections -------------------------------------------------------------------------------------------------
    def connect(self, jobs: Mapping[str, Running]) -> None:
        """Makes the connections of jobs that started anew and drops those of jobs that ended."""
        wanted = {name: (job.run, job.nodes) for name, job in jobs.items()
                  if job.alive and job.linked and len(job.nodes) > 1}
        if wanted == self._made:
            return
        kept = [flows for flows in self.connections if wanted.get(flows.job) == self._made.get(flows.job)]
        fresh = [name for name in wanted if wanted[name] != self._made.get(name)]
        self.connections = kept + [flows for name in fresh for flows in self._connected(jobs[name])]
        self._made = {name: (run, list(nodes)) for name, (run, nodes) in wanted.items()}
        self._forced = {name: pairs for name, pairs in self._forced.items() if name in wanted and name not in fresh}
        self._settle(jobs)

    def _connected(self, job: Running) -> list[Connections]:
        nodes, stages = np.array(job.nodes, dtype=np.int64), job.groups.pp
        if stages < 2 or len(nodes) % stages or len(nodes) // stages < 2:
            stages = 1
        nics, leaf, made = self.kind.nics, self.topology.leaf_of, []
        rng = np.random.default_rng(zlib.crc32(f"{self._seed}/{job.name}/{job.run}".encode()))
        for ring in np.split(nodes, stages):
            n = len(ring)
            distances = [d for d in DISTANCES if d < n] if self.patterns.get(job.name) == "pairwise" else [1]
            to = np.stack([np.roll(ring, -d) for d in distances for _ in range(1 if self.sprayed else QUEUE_PAIRS)], axis=1)
            path = rng.integers(0, PATHS, (n, nics, to.shape[1]))
            crosses = leaf[ring][:, :, None] != leaf[to].transpose(0, 2, 1)
            made.append(Connections(job.name, ring, to, path, crosses))
        return made

    def _settle(self, jobs: Mapping[str, Running]) -> None:
        """What holds until the next connection: who is linked, how much there is to send, which flows share a link."""
        self.linked[:], self.volume[:], self.sharing[:] = False, 1.0, 1.0
        link = self.kind.nic_bytes_per_second * USABLE
        for flows in self.connections:
            shape = jobs[flows.job].shape
            asked = shape.bytes_per_step * self.kind.gpus / self.kind.nics / max(1e-3, shape.collective_seconds)
            self.linked[flows.ring], self.volume[flows.ring] = True, min(1.0, link / max(1.0, asked))
        if not self.sprayed:
            self._share_paths()
            for pairs in self._forced.values():
                for place in pairs:
                    self.sharing[place] = max(2.0, self.sharing[place])
        self._shared = np.asarray((self.sharing > 1.0).any(axis=1))

    def _share_paths(self) -> None:
        """Counts the flows on each up-link and down-link (leaf, path): a queue pair carries its part of a flow, and a node
        exchanges with one partner at a time."""
        size, leaf = len(self.topology.switches) * PATHS, self.topology.leaf_of
        ups, downs, weights = [], [], []
        for flows in self.connections:
            ups.append(np.where(flows.crosses, leaf[flows.ring][:, :, None] * PATHS + flows.path, -1))
            downs.append(np.where(flows.crosses, leaf[flows.to].transpose(0, 2, 1) * PATHS + flows.path, -1))
            weights.append(np.full(flows.path.shape, 1.0 / flows.path.shape[2]))
        if not ups:
            return
        weight = np.concatenate([w.ravel() for w in weights])
        load = []
        for links in (ups, downs):
            keys = np.concatenate([k.ravel() for k in links])
            load.append(np.bincount(keys[keys >= 0], weight[keys >= 0], minlength=size))
        for flows, up, down in zip(self.connections, ups, downs, strict=True):
            shared = np.where(flows.crosses, np.maximum(load[0][up], load[1][down]), 1.0).max(axis=2)
            self.sharing[flows.ring] = np.maximum(1.0, shared)

    def collide(self, job: Running, first: tuple[int, int], second: tuple[int, int]) -> None:
        """Lets the flows that two ports (node, nic) of a job send share a path until the job connects anew. On a sprayed
        fabric it means nothing."""
        if self.sprayed or job.name not in self._made:
            return
        self._forced.setdefault(job.name, []).extend([first, second])
        for place in (first, second):
            self.sharing[place] = max(2.0, self.sharing[place])
            self._shared[place[0]] = True

    # --- time --------------------------------------------------------------------------------------------------------
    def step(self, jobs: Mapping[str, Running], seconds: int, job_knobs: Mapping[str, JobKnobs]) -> None:
        """Reads the knobs as they are turned now and moves on by `seconds`. A job whose transport gives up crashes."""
        self.connect(jobs)
        self._heal()
        ill = self._switches_ill()
        # Most nodes' ports are healthy most of the time: the others are reckoned, or all where a switch is ill.
        turned = self.nic.turned()
        self.quiet = not ill and not turned.any()
        odd = turned | self._shared
        if ill or odd.any():
            self._odd = np.arange(len(odd)) if ill else np.flatnonzero(odd)
            self._feel(self._odd, ill, seconds)
        self._break(seconds)
        for name, row in self.broken.items():
            if job_knobs[name].crash is None:
                job_knobs[name].crash, job_knobs[name].crash_rank = GAVE_UP, jobs[name].rank_of(row, 0)

    def _heal(self) -> None:
        """All ports are as new but for those that are looked at next."""
        rows, self._odd = self._odd, self._odd[:0]
        if not len(rows):
            return
        self.up[rows], self.stalled[rows] = True, False
        for values, healthy in ((self.share, 1.0), (self.endpoint, 1.0), (self.loss, 0.0), (self.congestion, 0.0), (self.detour, 0.0)):
            values[rows] = healthy

    def _feel(self, rows: Ints, ill: bool, seconds: int) -> None:
        """What the ports of these nodes meet, and the switches where some are ill (then `rows` are all nodes)."""
        nic, sharing = self.nic, self.sharing[rows]
        self.up[rows] = up = nic.up[rows] > 0
        self.share[rows] = share = np.minimum(nic.rate[rows], slot_share(nic.pcie_width[rows], self.kind.pcie_width)) / sharing
        self.loss[rows] = loss = nic.loss_per_million[rows]
        self.congestion[rows] = congestion = nic.congestion[rows]
        # Where a fault says how slow its port is, that stands for what its other knobs would cost.
        said = nic.slowness[rows] > 1.0
        endpoint = np.where(said, np.maximum(nic.slowness[rows], sharing), self._slower(share, loss, congestion, self.detour[rows]))
        if ill:
            self._pass_switches(seconds)
            up = self.up
            endpoint = np.maximum(endpoint, self._slower(
                np.where(said & (self.share >= share), 1.0, self.share), self.loss - np.where(said, loss, 0.0),
                np.where(said & (self.congestion <= congestion), 0.0, self.congestion), self.detour))
        endpoint = np.where(self.stalled[rows] | ~up, STALLED, endpoint)
        endpoint[~self.linked[rows]] = 1.0
        self.endpoint[rows] = endpoint

    def _slower(self, share: Floats, loss: Floats, congestion: Floats, detour: Floats) -> Floats:
        """The factor that share, loss and congestion make, each by itself the bottleneck."""
        share = np.minimum(share, 1.0 - CONGESTED * congestion**2) * (1.0 - detour)
        cost = COST_OF_SPRAYED_LOSS if self.sprayed else COST_OF_LOSS
        resent = 1.0 + cost * 1e-6 * np.maximum(0.0, loss - FREE_PER_MILLION)
        return np.maximum(1.0 / np.maximum(share, 1.0 / STALLED), resent)

    def _switches_ill(self) -> bool:
        return bool(self.switch.turned().any() or self._lost.any() or self._dips.any())

    def _pass_switches(self, seconds: int) -> None:
        """What the switches do to what passes them: the leaf to all its ports, leaves and spines to what crosses."""
        knobs, under = self.switch, self.topology.under
        self.up = self.up & (under(knobs.up) > 0)
        self.share = np.minimum(self.share, under(knobs.rate))
        self.loss = self.loss + under(knobs.loss_per_million)
        self.congestion = np.maximum(self.congestion, under(knobs.congestion))
        fresh = knobs.paths_lost > self._lost
        self._dips = np.where(fresh, DIP, self._dips * np.exp(-seconds / DIP_SECONDS))
        self._dips[self._dips < DIP / 100] = 0.0
        self._lost = knobs.paths_lost.copy()
        for flows in self.connections:
            self._cross(flows)

    def _cross(self, flows: Connections) -> None:
        knobs, ring, leaf = self.switch, flows.ring, self.topology.leaf_of
        here = np.broadcast_to(leaf[ring][:, :, None], flows.path.shape)
        spine, there = self.topology.spine_of(flows.path), leaf[flows.to].transpose(0, 2, 1)
        slots = flows.path.shape[2]
        nic = np.broadcast_to(np.arange(self.kind.nics)[None, :, None], flows.path.shape)
        target = (np.broadcast_to(flows.to[:, None, :], flows.path.shape), nic)
        # The arriving end sees what is lost or marked on the way; its own leaf counted already.
        lost = np.where(flows.crosses, knobs.loss_per_million[here] + knobs.loss_per_million[spine], 0.0)
        np.add.at(self.loss, target, lost / slots)
        marked = np.where(flows.crosses, np.maximum(knobs.congestion[here], knobs.congestion[spine]), 0.0)
        np.maximum.at(self.congestion, target, marked)
        alive = knobs.up[-self.topology.spines:] > 0
        left = float(alive.mean())
        # A dead spine is routed around: its share of the paths is missing, no flow stays on it.
        rate = np.where(flows.crosses, np.minimum(knobs.rate[spine], knobs.rate[there]) * max(left, 1.0 / STALLED), 1.0)
        self.share[ring] = np.minimum(self.share[ring], rate.min(axis=2))
        if self.sprayed:
            far = np.where(flows.crosses, np.maximum(self._dips[spine], self._dips[there]), 0.0)
            self.detour[ring] = np.maximum(self._dips[here], far).max(axis=2)
        elif knobs.paths_lost.any():
            dropped = self._dropped(here, flows.path) | (
                flows.crosses & (self._dropped(spine, flows.path) | self._dropped(there, flows.path)))
            self.stalled[ring] |= dropped.any(axis=2)

    def _dropped(self, switch: Ints, path: Ints) -> Bools:
        """Whether the switch drops what is hashed onto the path."""
        return np.asarray(self._order[switch, path] < np.ceil(self.switch.paths_lost[switch] * PATHS))

    def _break(self, seconds: int) -> None:
        """Counts how long each job has had a flow that stands still; `broken` names the jobs whose transport gave up, with
        the row of the node that says so."""
        self.broken = {}
        if self.quiet or (self.up.all() and not self.stalled.any()):
            for flows in self.connections:
                flows.broken_seconds = 0.0
            return
        for flows in self.connections:
            still = (self.stalled[flows.ring] | ~self.up[flows.ring]).any(axis=1)
            flows.broken_seconds = flows.broken_seconds + seconds if still.any() else 0.0
            if flows.broken_seconds >= GIVES_UP_SECONDS:
                self.broken[flows.job] = int(flows.ring[int(np.argmax(still))])

    # --- who tells whom ----------------------------------------------------------------------------------------------
    def to_senders(self, seen: Floats) -> Floats:
        """What the ports [..., node, nic] see of what arrives, as it falls to those that sent it: most to the neighbour in
        the ring, the rest to the others of the job on the same rail. Sums are kept, except of nodes without a job."""
        told = np.zeros_like(seen)
        for flows in self.connections:
            part = seen[..., flows.ring, :]
            n = len(flows.ring)
            after = seen[..., flows.next, :]
            if n == 2:
                told[..., flows.ring, :] = after
                continue
            others = part.sum(axis=-2, keepdims=True) - part - after
            told[..., flows.ring, :] = NEIGHBOUR_SHARE * after + (1 - NEIGHBOUR_SHARE) * others / (n - 2)
        return told

    def from_senders(self, sending: Floats) -> Floats:
        """The share of its traffic that reaches each port, where `sending` [node, nic] is what each port manages to send of
        its own; 1 for nodes without a job."""
        reaches = np.ones_like(sending)
        for flows in self.connections:
            part, n = sending[flows.ring], len(flows.ring)
            before = np.roll(part, 1, axis=0)
            others = (part.sum(axis=0, keepdims=True) - part - before) / max(1, n - 2)
            reaches[flows.ring] = before if n == 2 else NEIGHBOUR_SHARE * before + (1 - NEIGHBOUR_SHARE) * others
        return reaches

    # --- what faults need --------------------------------------------------------------------------------------------
    def loss_for(self, factor: float) -> float:
        """Packets lost per million at a port that make an endpoint slower by the factor."""
        cost = COST_OF_SPRAYED_LOSS if self.sprayed else COST_OF_LOSS
        return FREE_PER_MILLION + (max(1.0, factor) - 1.0) / (cost * 1e-6)

    @staticmethod
    def rate_for(factor: float) -> float:
        """The share of a port's or switch's rate at which an endpoint is slower by the factor."""
        return 1.0 / max(1.0, factor)

    @staticmethod
    def congestion_for(factor: float) -> float:
        """The congestion, 0-1, that makes an endpoint slower by the factor; 1 where it cannot be made as slow."""
        return float(min(1.0, np.sqrt((1.0 - 1.0 / max(1.0, factor)) / CONGESTED)))

    def share_that_hits(self, switch: int) -> float | None:
        """The least `paths_lost` of a switch (index into `Topology.switches`) with which a flow of a job stands still; None
        where no flow passes it."""
        ranks = [self._passing(switch, flows) for flows in self.connections]
        found = [int(self._order[switch, paths].min()) for paths in ranks if len(paths)]
        return (min(found) + 1) / PATHS if found else None

    def _passing(self, switch: int, flows: Connections) -> Ints:
        leaf = self.topology.leaf_of
        here = leaf[flows.ring][:, :, None] == switch
        away = (leaf[flows.to].transpose(0, 2, 1) == switch) | (self.topology.spine_of(flows.path) == switch)
        return np.unique(flows.path[here | (flows.crosses & away)])


def slot_share(lanes: Floats, full: int) -> Floats:
    """The share of a port's rate that its PCIe slot carries with so many of its lanes."""
    return np.minimum(1.0, lanes / full * PCIE_HEADROOM)


def slowness_for(world: World, severity: float, row: int | None = None) -> float:
    """The factor on an endpoint (`NicKnobs.slowness`) that makes the step of the job on the node `row` (of the first job
    where none is there) longer by the share `severity`."""
    job = world.job_on(row) if row is not None else None
    job = job or next(iter(world.jobs.values()))
    return job.impact.link(severity)
