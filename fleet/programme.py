"""A scenario at work: its jobs on their nodes, each line of its schedule at its time, and the truth about all of it.

All that a scenario leaves open is drawn before it begins, each line from a stream of its own, so the truth can be told
without running it and one more line changes no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.clock import rfc3339
from core.errors import BadInput, Refused
from core.protocols import FaultPlugin
from core.types import Target
from fleet.operations import Operations
from fleet.plants import NEVER, Planted
from fleet.running import Running
from fleet.scenario import Entry, JobSpec, PlaceError, Scenario, seconds_of
from fleet.state import goodput, node_reports, truth_row
from fleet.world import World

# Streams of the scenario's seed.
SCHEDULE_STREAM, JOB_STREAM = 8101, 8102
# A fault that cannot be now (no rank trains) is tried again for so long.
PATIENCE_MS = 3_600_000


@dataclass(slots=True)
class _Line:
    """One line of the schedule. index: its place in the file. planted: what was drawn for it (None = a hand)."""

    index: int
    entry: Entry
    at: int
    until: int
    planted: Planted | None = None
    begun: bool = False
    over: bool = False


def target_of(entry: Entry, place: str) -> Target | None:
    """The place that a line names; None = it is to be drawn."""
    if (entry.node, entry.device, entry.job, entry.rank) == (None, None, None, None):
        return None
    kind = "gpu" if place == "rank" and entry.rank is None else place
    return Target(kind, entry.node, entry.device, job=entry.job, rank=entry.rank)


@dataclass(slots=True)
class Programme:
    """Watches the world and does what the schedule says. refused: lines that could not be, with the reason."""

    world: World
    operations: Operations
    scenario: Scenario
    lines: list[_Line] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    _restart: dict[str, int] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _open: list[_Line] = field(default_factory=list)
    _lacked: dict[str, int] = field(default_factory=dict)
    _next: int = 0

    def prepare(self) -> Programme:
        """Draws what the schedule leaves open. Raises PlaceError for a place that the fleet has not."""
        taken: set[int] = set()
        # What names its place comes first, so that what is drawn keeps away from it.
        order = sorted(range(len(self.scenario.schedule)),
                       key=lambda i: (self.scenario.schedule[i].node is None, i))
        lines: dict[int, _Line] = {}
        for index in order:
            line = self._line(index, self.scenario.schedule[index], taken)
            lines[index] = line
            if line.planted is not None and len(line.planted.place.rows) == 1:
                taken.update(line.planted.place.rows)
        self.lines = sorted(lines.values(), key=lambda line: (line.at, line.index))
        return self

    def _line(self, index: int, entry: Entry, taken: set[int]) -> _Line:
        world, at = self.world, self.scenario.start_ms + int(seconds_of(entry.at) * 1000)
        until = NEVER if entry.for_ is None else at + int(seconds_of(entry.for_) * 1000)
        line = _Line(index, entry, at, until)
        if entry.hand is not None:
            return line
        plugin = world.plants.plugins[entry.name]
        seed = entry.seed
        if seed is None:
            seed = int(np.random.default_rng([self.scenario.seed, SCHEDULE_STREAM, index]).integers(1 << 31))
        try:
            planted = world.plants.prepare(world, entry.name, target_of(entry, plugin.place), entry.severity, entry.onset,
                                           seed, at, taken)
        except BadInput as error:
            key = error.key.removeprefix("target.")
            raise PlaceError(("schedule", index, key if hasattr(entry, key) else "fault"), error) from None
        if entry.for_ is not None:
            planted.heals_at = until
        line.planted = planted
        return line

    @property
    def waiting(self) -> bool:
        """Whether a job waits for its nodes to be provisioned."""
        return bool(self._waiting)

    # --- time --------------------------------------------------------------------------------------------------------
    def begin(self, cold: bool) -> None:
        """Before the first sub-step. cold: the nodes are provisioned first, the jobs start when theirs are there."""
        if cold:
            self._waiting = set(self.world.jobs)
            for node in self.world.nodes:
                self.operations.life.provision(node, self.world.now_ms)

    def step(self, at: int) -> None:
        """What is due at `at` (ms)."""
        while self._next < len(self.lines) and self.lines[self._next].at <= at:
            self._open.append(self.lines[self._next])
            self._next += 1
        for line in self._open:
            if not line.begun:
                self._begin(line, at)
            elif line.entry.hand is not None and not line.over and at >= line.until:
                line.over = True
                self.world.other_hand(line.entry.node or "", None)
        self._open = [line for line in self._open if not line.begun or (line.entry.hand is not None and not line.over)]
        if self._waiting:
            self._start_waiting(at)
        for spec in self.scenario.jobs:
            if spec.restart is not None:
                self._restart_failed(spec, seconds_of(spec.restart), at)

    def _begin(self, line: _Line, at: int) -> None:
        if line.planted is None:
            line.begun = True
            self.world.other_hand(line.entry.node or "", line.entry.hand)
            return
        try:
            self.world.plants.put(self.world, line.planted)
            line.begun = True
        except Refused as error:
            if at - line.at >= PATIENCE_MS:
                line.begun = line.over = True
                self.refused.append((line.index, error.reason))
        self.world.revision += 1

    def _start_waiting(self, at: int) -> None:
        for name in sorted(self._waiting):
            job = self.world.jobs[name]
            if all(self.world.nodes[n].state == "in_service" for n in job.nodes):
                self._waiting.discard(name)
                job.start(at)

    def _restart_failed(self, spec: JobSpec, seconds: float, at: int) -> None:
        """Somebody starts a job again that failed or was killed, once nobody has been at it or its nodes for that long."""
        job = self.world.jobs.get(spec.name)
        busy = {key for op in self.operations.running() for key in op.busy}
        idle = job is not None and job.state in ("failed", "killed") and spec.name not in busy and self._whole(job, busy)
        if job is None or not idle:
            self._restart.pop(spec.name, None)
            return
        if at >= self._restart.setdefault(spec.name, at + int(seconds * 1000)):
            self._restart.pop(spec.name)
            job.start(at)
            self.world.cure("resume_job", job=job)
            self.world.cure("restart_process", job=job)

    def _whole(self, job: Running, busy: set[str]) -> bool:
        """Whether all nodes of the job are in service and nobody is at one. The one that was not last time is asked first."""
        nodes = [self.world.nodes[i] for i in job.nodes]
        last = min(self._lacked.get(job.name, 0), len(nodes) - 1)
        for place in (last, *range(len(nodes))):
            if nodes[place].state != "in_service" or nodes[place].name in busy:
                self._lacked[job.name] = place
                return False
        return True

    def next_ms(self, now: int) -> int:
        """When the schedule next has something to do."""
        times = [line.until if line.begun else line.at for line in self._open]
        times += [line.at for line in self.lines[self._next:self._next + 1]]
        return min((max(t, now + 1) for t in (*times, *self._restart.values())), default=NEVER)

    # --- truth -------------------------------------------------------------------------------------------------------
    def truth(self) -> list[dict[str, Any]]:
        """The truth about every line of the schedule, those to come included, in order of time."""
        return [{**truth_row(self.world, line.planted), "line": line.index} for line in self.lines if line.planted is not None]

    def hands(self) -> list[dict[str, Any]]:
        """What other hands do: who, which node, from when to when."""
        return [{"hand": line.entry.hand, "node": line.entry.node, "at": rfc3339(line.at),
                 "until": None if line.until >= NEVER else rfc3339(line.until)}
                for line in self.lines if line.entry.hand is not None]


def plan(scenario: Scenario, world: World, operations: Operations) -> Programme:
    """The programme of the scenario on its world, prepared."""
    return Programme(world, operations, scenario).prepare()


Plugins = Mapping[str, FaultPlugin]


def records(world: World, operations: Operations, programme: Programme) -> Iterator[dict[str, Any]]:
    """What a run leaves: truth of all that was planted, hands, health checks, goodput, and a summary; no wall time in it."""
    for planted in world.faults:
        yield {"type": "truth", **truth_row(world, planted)}
    yield from ({"type": "hand", **row} for row in programme.hands())
    yield from ({"type": "check", **row} for row in node_reports(world, operations.life))
    yield from ({"type": "node", "at": rfc3339(at), "node": node, "what": what} for at, node, what in operations.life.history)
    for index, reason in programme.refused:
        yield {"type": "refused", "line": index, "reason": reason}
    yield {"type": "goodput", **goodput(world)}
    yield {"type": "summary", "name": programme.scenario.name, "seed": programme.scenario.seed,
           "started_at": rfc3339(programme.scenario.start_ms), "ended_at": rfc3339(world.now_ms),
           "planted": len(world.faults), "present": sum(p.present for p in world.faults),
           "jobs": {j.name: {"state": j.state, "step": j.step, "runs": j.run} for j in world.jobs.values()}}
