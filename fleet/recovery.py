"""Ways back to training after a failure and what each costs; the queue for jobs that wait for freed nodes.

Costs are data: seconds of each stage of a start. They are drawn where a start names its way; one that names none takes
the job's own `load_seconds`, as the short operations of a demonstration do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.errors import BadInput
from fleet.checkpoints import SPREAD, Tier

if TYPE_CHECKING:
    from fleet.running import Running
    from fleet.world import World


@dataclass(frozen=True, slots=True)
class Way:
    """launch: seconds (least, most) for containers, imports and CUDA contexts. rendezvous: seconds for each doubling of the
    ranks, for the collectives to connect. loads: share of the bytes that has to be read. keeps: healthy ranks keep
    their processes and memory. from_peers: shards come from other nodes' memory, whatever the checkpoint's tier."""

    name: str
    launch: tuple[float, float]
    rendezvous: float
    loads: float
    keeps: bool
    from_peers: bool = False


# full: all processes anew. Imports and CUDA contexts of some thousand ranks take one to three minutes, connecting them
# took MegaScale (NSDI 2024) 5 s at 2,048 GPUs after tuning and far longer before. partial: only the nodes that were exchanged
# start processes, all connect anew. in_process: the processes stay and enter the training function again (NVIDIA's
# resiliency extension: seconds to tens of seconds). peers: as partial, but shards come out of peers' memory (Gemini, SOSP
# 2023, recovers in seconds to a minute). shrink and grow: as partial, with the shards dealt anew to all.
WAYS = {way.name: way for way in (
    Way("full", (60.0, 180.0), 2.5, 1.0, keeps=False),
    Way("partial", (25.0, 60.0), 1.5, 1.0, keeps=True),
    Way("in_process", (3.0, 12.0), 0.8, 1.0, keeps=True),
    Way("peers", (20.0, 45.0), 1.2, 1.0, keeps=True, from_peers=True),
    Way("shrink", (8.0, 20.0), 1.5, 1.3, keeps=True),
    Way("grow", (30.0, 70.0), 1.5, 1.3, keeps=True),
)}
PEER_READ = 2.5e10


def way_named(name: str) -> Way:
    """The way of that name. Raises BadInput for another."""
    found = WAYS.get(name)
    if found is None:
        raise BadInput("job", "mode", name, f"allowed are: {', '.join(WAYS)}")
    return found


def seconds(way: Way, ranks: int, bytes_per_node: float, tier: Tier | None, slowness: float, rng: np.random.Generator) -> float:
    """How long a start takes. tier: where the checkpoint lies, None = there is none; slowness: factor on reading it."""
    return sum(stages(way, ranks, bytes_per_node, tier, slowness, rng))


def stages(way: Way, ranks: int, bytes_per_node: float, tier: Tier | None, slowness: float, rng: np.random.Generator,
           ) -> tuple[float, float]:
    """Of `seconds`, what the processes take to be there and connected, then what reading the checkpoint takes."""
    launch, luck = float(rng.uniform(*way.launch)), float(rng.uniform(*SPREAD))
    connect = way.rendezvous * float(np.log2(max(2, ranks)))
    read = 0.0
    if tier is not None:
        rate = PEER_READ if way.from_peers else tier.read
        read = way.loads * bytes_per_node / rate * slowness * luck
    return launch + connect, read


@dataclass(slots=True)
class _Waiting:
    work: Running
    wanted: int
    least: int
    mode: str | None
    since: int


class Queue:
    """Jobs that wait for nodes, first come first served; a small one may not pass a large one that waits before it.

    Register it as a watcher of the world: `step` gives freed nodes (spares that nobody holds) to who waits.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[_Waiting] = []

    def wait(self, work: Running, nodes: int, at: int, mode: str | None = None, least: int | None = None) -> None:
        """The job waits for `nodes` nodes in all, those that it has included; with `least` it starts on fewer (elastic).

        Raises BadInput where it could never start.
        """
        if nodes < 1 or nodes > len(self._world.nodes) or not 1 <= (least or nodes) <= nodes:
            raise BadInput("queue", "nodes", (nodes, least), f"1 to {len(self._world.nodes)} nodes can be waited for")
        if work.alive:
            work.stop(at, clean=False)
        self.drop(work)
        work.state = "queued"
        self._waiting.append(_Waiting(work, nodes, least or nodes, mode, at))

    def drop(self, work: Running) -> None:
        """The job waits no longer."""
        self._waiting = [w for w in self._waiting if w.work is not work]

    @property
    def waiting(self) -> list[str]:
        """Names of the jobs that wait, in order."""
        return [w.work.name for w in self._waiting]

    def step(self, at: int) -> None:
        """Starts the first ones for which there are nodes."""
        while self._waiting and self._try(self._waiting[0], at):
            self._waiting.pop(0)

    def _try(self, waiting: _Waiting, at: int) -> bool:
        world, work = self._world, waiting.work
        if work.state != "queued":
            return True  # somebody else has started it
        own = [n for n in work.nodes if world.nodes[n].state == "in_service"]
        free = [n.index for n in world.nodes
                if n.state == "spare" and n.held_by is None and world.job_on(n.index) in (None, work)]
        nodes = (own + [n for n in free if n not in own])[: waiting.wanted]
        if len(nodes) < waiting.least:
            return False
        for index in nodes:
            if world.nodes[index].state != "in_service":
                world.nodes[index].state = "in_service"
                world.returned(index)
        if nodes != work.nodes:
            work.seat(nodes)
        work.start(at, mode=waiting.mode)
        return True
