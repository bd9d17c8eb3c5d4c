"""What the scheduler knows and writes down: each job's runs, each node's state, slurmctld's log, and sacct's answer.

It learns of the world what a scheduler learns: when jobs begin and end, and how, which nodes answer, and who drains which.
Lines are written at the end of the sub-step in which something changed. Nothing here is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.clock import rfc3339
from fleet.hardware import Node
from fleet.joblog import ByteLog

if TYPE_CHECKING:
    from fleet.running import Running
    from fleet.world import World

CLUSTER, PARTITION, USER = "greylag", "gpu", "ml"
FIRST_JOB = 41_200
# How a job's end is called, by its state in the world: Slurm's state, and ExitCode as sacct prints it.
ENDS = {"done": ("COMPLETED", "0:0"), "stopped": ("COMPLETED", "0:0"), "failed": ("FAILED", "1:0"), "killed": ("CANCELLED", "0:9"),
        "queued": ("REQUEUED", "0:0")}
COLUMNS = ("JobID", "Cluster", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "JobName")
# A node that stops answering is called down a while later (SlurmdTimeout is 300 s unless the site says otherwise).
SILENT_MS = 300_000


@dataclass(slots=True)
class Run:
    """One run of a job. end None = it still runs. nodes: by name, in rank order."""

    job: str
    number: int
    start: int
    nodes: tuple[str, ...]
    end: int | None = None
    state: str = "RUNNING"
    code: str = "0:0"


class Scheduler:
    """A watcher of the world. log: slurmctld's. runs: all, in order of their start. states: of each node, as Slurm names them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.log = ByteLog()
        self.runs: list[Run] = []
        self._open: dict[str, Run] = {}
        self._run: dict[str, int] = {}
        self._silent: dict[int, int] = {}
        self._seen: object = None
        self.states = [self._state(node, world.now_ms) for node in world.nodes]
        self._held = [node.held_by for node in world.nodes]
        self._say(world.start_ms, f"slurmctld version 25.11.1 started on cluster {CLUSTER}")
        self.step(world.now_ms)

    # --- what it sees --------------------------------------------------------------------------------------------------
    def step(self, at: int) -> None:
        """Takes note of what changed by `at` (ms)."""
        seen = ([(node.state, node.held_by) for node in self._world.nodes],
                [(job.name, job.state, job.run, tuple(job.nodes)) for job in self._world.jobs.values()])
        if seen == self._seen and not self._silent:
            return
        self._seen = seen
        for index, job in enumerate(self._world.jobs.values()):
            self._job(job, FIRST_JOB + index, at)
        for node in self._world.nodes:
            self._node(node, at)

    def _job(self, job: Running, number: int, at: int) -> None:
        known = self._open.get(job.name)
        if known is not None and (not job.alive or job.run != self._run[job.name]):
            # A job that ended and began again within the sub-step was killed in between.
            self._ends(known, job.state if not job.alive else "killed", at)
            known = None
        if known is None and job.alive:
            nodes = tuple(self._world.nodes[i].name for i in job.nodes)
            run = Run(job.name, number, at, nodes)
            self.runs.append(run)
            self._open[job.name], self._run[job.name] = run, job.run
            cpus = len(nodes) * self._world.kind.vcpus
            self._say(at, f"sched: Allocate JobId={number} NodeList={hostlist(nodes)} #CPUs={cpus} Partition={PARTITION}")

    def _ends(self, run: Run, state: str, at: int) -> None:
        del self._open[run.job]
        run.end = max(at, run.start)
        run.state, run.code = ENDS.get(state, ENDS["killed"])
        status, signal = run.code.split(":")
        how = f"WTERMSIG {signal}" if signal != "0" else f"WEXITSTATUS {status}"
        self._say(at, f"_job_complete: JobId={run.number} {how}")
        self._say(at, f"_job_complete: JobId={run.number} done")

    def _node(self, node: Node, at: int) -> None:
        if node.up:
            if self._silent.pop(node.index, None) is not None:
                self._say(at, f"Node {node.name} now responding")
        elif node.index not in self._silent:
            self._silent[node.index] = at
            self._say(at, f"error: Nodes {node.name} not responding")
        if node.held_by != self._held[node.index]:
            self._held[node.index] = node.held_by
            if node.held_by is not None:
                self._say(at, f"update_node: node {node.name} reason set to: {node.held_by}")
        before, now = self.states[node.index], self._state(node, at)
        if now == before:
            return
        self.states[node.index] = now
        word = _ADMIN.get(now.rstrip("*")) or (_ADMIN["idle"] if before in ("drained", "draining", "down*") else None)
        if word is not None:
            self._say(at, f"update_node: node {node.name} state set to {word}" if "down" not in now else
                          f"error: Nodes {node.name} not responding, setting DOWN")

    def _state(self, node: Node, at: int) -> str:
        job = self._world.job_on(node.index)
        busy = job is not None and job.alive
        if not node.up:
            return "down*" if at - self._silent.get(node.index, at) >= SILENT_MS else f"{'mixed' if busy else 'idle'}*"
        if node.state in ("draining", "drained", "down", "provisioning"):
            return "draining" if busy else "drained"
        return "mixed" if busy else "idle"

    # --- what it writes --------------------------------------------------------------------------------------------------
    def _say(self, at: int, text: str) -> None:
        self.log.write(f"[{rfc3339(at)[:-1]}] {text}")

    def accounting(self) -> bytes:
        """What `sacct` prints of all runs so far, times in UTC (`collectors.history.sacct.COMMAND`)."""
        rows = ["|".join(COLUMNS)]
        for run in self.runs:
            end = "Unknown" if run.end is None else _second(run.end)
            rows.append("|".join((str(run.number), CLUSTER, run.state, run.code, _second(run.start), _second(run.start), end,
                                  hostlist(run.nodes), run.job)))
        return ("\n".join(rows) + "\n").encode()


# What an administrator sets, by the state that comes of it.
_ADMIN = {"draining": "DRAINING", "drained": "DRAINED", "down": "DOWN", "idle": "RESUME"}


def _second(at: int) -> str:
    return rfc3339(at)[:19]


def hostlist(names: tuple[str, ...]) -> str:
    """Names as Slurm writes them together: `n[01-03,07]` of n01, n02, n03, n07."""
    heads: dict[tuple[str, int], list[int]] = {}
    for name in names:
        digits = len(name) - len(name.rstrip("0123456789"))
        head = name[: len(name) - digits]
        heads.setdefault((head, digits), []).append(int(name[len(head):] or 0))
    return ",".join(_ranged(head, width, sorted(numbers)) for (head, width), numbers in heads.items())


def _ranged(head: str, width: int, numbers: list[int]) -> str:
    if width == 0:
        return head
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return f"{head}[{','.join(f'{a:0{width}d}' if a == b else f'{a:0{width}d}-{b:0{width}d}' for a, b in spans)}]"
