"""The life of a node outside its service: provisioning, health checks, tickets, repairs, retirement, other hands.

A node that was replaced waits for hands, is repaired, checked and joins the spares; some repaired parts fail again, and a
node that was repaired too often is retired. Nothing here knows a fault by name: it cures what is on the node's own parts,
and leaves a switch, a rack or a job alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fleet import health
from fleet.times import Times

if TYPE_CHECKING:
    from fleet.hardware import Node
    from fleet.plants import Planted
    from fleet.world import World

US = "greylag"
REPAIR = "repair"
RETIRED = "retired"
# A stream of its own, whatever else draws from the fleet's seed.
STREAM = 7001


@dataclass(order=True, slots=True)
class _Task:
    due: int
    order: int
    what: str = field(compare=False)
    node: int = field(compare=False)
    data: Any = field(compare=False, default=None)


class Lifecycle:
    """What happens to nodes by time alone. step(at) carries out what is due.

    reports: (time, node, results) of every health check, in order. history: (time, node, what) of every change.
    """

    def __init__(self, world: World, times: Times) -> None:
        self.world, self.times = world, times
        self.rng = np.random.default_rng([world.seed, STREAM])
        self.reports: list[tuple[int, str, tuple[health.TestResult, ...]]] = []
        self.history: list[tuple[int, str, str]] = []
        self._repairs: dict[int, int] = {}
        self._tasks: list[_Task] = []
        self._count = 0

    # --- what operations ask for ---------------------------------------------------------------------------------------
    def check(self, node: Node, at: int, level: int = health.DEEP) -> tuple[health.TestResult, ...]:
        """Tests the node. The results are kept, and when it passed all of them."""
        results = health.check(self.world, node.index, level)
        self.reports.append((at, node.name, results))
        if not health.failed(results):
            self.world.checked[node.index] = at
        return results

    def provision(self, node: Node, at: int, seconds: float | None = None) -> None:
        """The node comes into the fleet: it is set up and checked, then it joins the spares or stays drained."""
        node.state, node.held_by = "provisioning", None
        took = self.times.draw("provision", self.rng) if seconds is None else seconds
        self._say(at, node, "provisioning")
        self._later(at, took, "provisioned", node.index)

    def send_to_repair(self, node: Node, at: int) -> None:
        """A node that was taken out for good waits for somebody to repair it."""
        if any(t.node == node.index and t.what in ("ticket", "repaired") for t in self._tasks):
            return
        self._say(at, node, "ticket")
        self._later(at, self.times.draw("ticket", self.rng), "ticket", node.index)

    def hand(self, at: int, node: int, by: str | None) -> None:
        """At `at` another hand takes the node out (by: who), or gives it back (None)."""
        self._push(at, "hand", node, by)

    # --- time ----------------------------------------------------------------------------------------------------------
    @property
    def next_ms(self) -> int | None:
        """When the next thing is due; None = nothing is."""
        return self._tasks[0].due if self._tasks else None

    def step(self, at: int) -> None:
        """Carries out what is due at `at` (ms)."""
        while self._tasks and self._tasks[0].due <= at:
            task = heapq.heappop(self._tasks)
            getattr(self, f"_{task.what}")(self.world.nodes[task.node], at, task.data)

    def _later(self, at: int, seconds: float, what: str, node: int, data: Any = None) -> None:
        self._push(at + int(seconds * 1000), what, node, data)

    def _push(self, due: int, what: str, node: int, data: Any) -> None:
        self._count += 1
        heapq.heappush(self._tasks, _Task(due, self._count, what, node, data))

    def _say(self, at: int, node: Node, what: str) -> None:
        self.history.append((at, node.name, what))
        self.world.revision += 1

    # --- what is due -----------------------------------------------------------------------------------------------------
    def _provisioned(self, node: Node, at: int, data: Any) -> None:
        if node.state != "provisioning":
            return
        if not health.failed(self.check(node, at)):
            job = self.world.job_on(node.index)
            node.state, node.held_by, node.retired = ("spare" if job is None else "in_service"), None, False
            self.world.returned(node.index)
            self._say(at, node, node.state)
            return
        node.state, node.held_by = "drained", US
        self._say(at, node, "check_failed")
        self.send_to_repair(node, at)

    def _ticket(self, node: Node, at: int, data: Any) -> None:
        """Somebody comes. What is back in service by then, or held by others, is let alone."""
        if node.state not in ("drained", "down") or node.held_by not in (None, US):
            return
        if self._repairs.get(node.index, 0) >= self.times.repairs_at_most:
            node.state, node.held_by = "down", RETIRED
            self._say(at, node, RETIRED)
            return
        node.state, node.held_by = "down", REPAIR
        self._say(at, node, REPAIR)
        self._later(at, self.times.draw("repair", self.rng), "repaired", node.index)

    def _repaired(self, node: Node, at: int, data: Any) -> None:
        self._repairs[node.index] = self._repairs.get(node.index, 0) + 1
        for planted in self.world.defects(node.index):
            self.world.plants.end(self.world, planted, at, REPAIR)
            # Drawn for each, so that what comes later does not hang on whether this one recurs.
            recurs, seconds = self.rng.random() < self.times.recurs, self.times.draw("recur", self.rng)
            if recurs:
                # Reseated, tested, found well and given back: the same part, which fails again.
                self._later(at, seconds, "recur", node.index, planted)
            else:
                self._exchange(node, planted)
        self.restart(node, at)
        self.provision(node, at)

    def _exchange(self, node: Node, planted: Planted) -> None:
        """The part that was broken is another one now, with an identity and a past of its own."""
        place, index = planted.plugin.place, planted.place.index
        mark = self.rng.bytes(16).hex()
        if place == "gpu":
            gpu = index[1]
            node.uuids = _with(node.uuids, gpu, f"GPU-{mark[:8]}-{mark[8:12]}-{mark[12:16]}-{mark[16:20]}-{mark[20:]}")
            node.serials = _with(node.serials, gpu, str(165_000_0000000 + int(mark[:12], 16) % 10_000_000_000))
            self.world.gpus.new_board(node.index, gpu)
        elif place == "nic" and node.nic_guids:
            node.nic_guids = _with(node.nic_guids, index[1], mark[:16])
        elif place == "disk" and node.disk_serials:
            node.disk_serials = _with(node.disk_serials, len(node.disk_serials) - 1, f"S{mark[:13].upper()}")

    def _recur(self, node: Node, at: int, planted: Planted) -> None:
        """The repaired part fails again, as it did before."""
        self.world.inject(planted.plugin.name, planted.culprit, planted.severity, int(self.rng.integers(1 << 31)))
        self._say(at, node, "failed_again")

    def _hand(self, node: Node, at: int, by: str | None) -> None:
        self.world.other_hand(node.name, by)
        self._say(at, node, f"hand {by}" if by else "hand gave it back")

    def restart(self, node: Node, at: int) -> None:
        """A boot: the kernel's and the driver's counters begin anew and the kernel log says so."""
        booted(self.world, node, at)


def _with(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1:])


# From the kernel's start to the exporters' first answer.
BOOT_MS = 40_000


def booted(world: World, node: Node, at: int) -> None:
    """What a boot leaves that was over at `at`: counters of the kernel and the driver begin anew, and the kernel log says so."""
    node.boot_ms = at - BOOT_MS
    world.gpus.reset(node.index)
    world.nics.reset(node.index)
    world.hosts.reset(node.index)
    world.storage.reset(node.index)
    world.kernel.boot(node, node.boot_ms)
