"""Where all GPU time went: one account for each job and one for the fleet, in whole GPU-milliseconds, nothing left out.

Denominator: every GPU of the fleet from its first moment, spares, drained nodes, tests and repairs included. While a job's
processes exist the job says what they did (`Running.entries`); the rest of a node's time goes by the node's state, or to
its job's waiting. So the causes add up to GPUs times time, exactly, at any moment.

Causes: productive (new steps at healthy speed, requests served), slow (what steps took beyond that), warmup (compiling and
first steps), init (first loading), restart (loading again, and standing still until somebody starts it), queue_wait
(healthy nodes of a job that lacks others), checkpoint, eval, hung, lost_work (steps done before, and steps that never
ended), idle (nothing to do), and by node: spare, drained, diagnosing, rebooting, provisioning, repair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fleet.running import CAUSE_INDEX, CAUSES

if TYPE_CHECKING:
    from fleet.running import Running
    from fleet.world import World

Ints = NDArray[np.int64]

# A node's time by its state while no process of a job is on it; a job's node in service goes by its job instead.
BY_STATE = {
    "spare": "spare", "drained": "drained", "draining": "drained", "rebooting": "rebooting", "provisioning": "provisioning",
    "down": "repair", "in_service": "idle",
}
_STATE_CAUSE = {state: CAUSE_INDEX[cause] for state, cause in BY_STATE.items()}
# What a job has had of its nodes while its processes were not there.
_OFF = {"queued": "queue_wait", "done": "idle"}


class Goodput:
    """The accounts. nodes: int64[node, cause], ms of each node (times its GPUs for GPU time). jobs: by name int64[cause],
    node-ms. A watcher of the world: `step` books what has passed since the last one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.gpus = world.kind.gpus
        self.start_ms = self._at = world.now_ms
        self.nodes: Ints = np.zeros((len(world.nodes), len(CAUSES)), np.int64)
        self.jobs: dict[str, Ints] = {}
        self._seen: list[str] = []  # the nodes' states when they were last looked at, and what they stand for
        self._by_state: Ints = np.zeros(0, np.int64)

    def step(self, at: int) -> None:
        """Books the time up to `at` (ms)."""
        span = at - self._at
        if span <= 0:
            return
        world, spent = self._world, np.zeros_like(self.nodes)
        for job in world.jobs.values():
            account = self.jobs.setdefault(job.name, np.zeros(len(CAUSES), np.int64))
            for entry in job.take_entries():
                spent[entry.rows, entry.cause] += entry.ms  # a node stands once in an entry
                account[entry.cause] += entry.ms * len(entry.rows) if isinstance(entry.ms, int) else int(entry.ms.sum())
        rest, cause = span - spent.sum(axis=1), self._states()
        for job in world.jobs.values():
            self._off(job, rest, cause)
        spent[np.arange(len(cause)), cause] += rest
        self.nodes += spent
        self._at = at

    def _states(self) -> Ints:
        """The cause of each node's time beside its job's processes, int64[node]."""
        states = [node.state for node in self._world.nodes]
        if states != self._seen:
            self._seen, self._by_state = states, np.array([_STATE_CAUSE[state] for state in states], dtype=np.int64)
        found = self._by_state.copy()
        for node in self._world.testing:
            found[node] = CAUSE_INDEX["diagnosing"]
        return found

    def _off(self, job: Running, rest: Ints, cause: Ints) -> None:
        """A job's nodes while its processes are not there; its own account gets all of its nodes' time."""
        rows = job.rows
        idle = cause[rows] == CAUSE_INDEX["idle"]
        waits = "restart" if idle.all() else "queue_wait"
        cause[rows[idle]] = CAUSE_INDEX[_OFF.get(job.state, waits)]
        np.add.at(self.jobs[job.name], cause[rows], rest[rows])

    # --- what it says --------------------------------------------------------------------------------------------------
    def gpu_seconds(self, job: str | None = None) -> dict[str, float]:
        """GPU-seconds by cause, of a job or of the fleet. Raises KeyError for an unknown job."""
        spent = self.nodes.sum(axis=0) if job is None else self.jobs[job]
        return {name: int(ms) * self.gpus / 1000 for name, ms in zip(CAUSES, spent, strict=True)}

    def elapsed_gpu_seconds(self) -> float:
        """All GPUs times the time so far."""
        return len(self.nodes) * self.gpus * (self._at - self.start_ms) / 1000

    def ratio(self, job: str | None = None) -> float:
        """Productive share of the GPU time, 0–1; NaN before any has passed."""
        spent = self.nodes.sum(axis=0) if job is None else self.jobs.get(job, np.zeros(len(CAUSES), np.int64))
        total = int(spent.sum())
        return int(spent[CAUSE_INDEX["productive"]]) / total if total else math.nan

    def view(self) -> dict[str, Any]:
        """The accounts as JSON: gpu_seconds by cause (zeros left out), goodput_ratio, fleet and each job."""
        def one(job: str | None) -> dict[str, Any]:
            ratio = self.ratio(job)
            spent = {name: seconds for name, seconds in self.gpu_seconds(job).items() if seconds}
            return {"gpu_seconds": spent, "goodput_ratio": None if math.isnan(ratio) else ratio}
        return {"at_ms": self._at, "gpu_seconds_elapsed": self.elapsed_gpu_seconds(), "fleet": one(None),
                "jobs": {name: one(name) for name in self.jobs}}
