"""What several faults do: hitting a job, the line in the kernel's log, things that happen once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fleet.knobs import JobKnobs
from fleet.plants import Planted
from fleet.running import Running
from fleet.world import World


def job_at(world: World, planted: Planted) -> tuple[Running, JobKnobs] | None:
    """The job at the place and its knobs, None where no job is."""
    name = planted.culprit.job if planted.plugin.place == "job" else None
    job = world.jobs.get(name) if name is not None else None
    if job is None and planted.place.rows:
        job = next((j for row in planted.place.rows if (j := world.job_on(row)) is not None), None)
    return None if job is None else (job, world.knobs.jobs[job.name])


def ranks_on(world: World, job: Running, rows: tuple[int, ...]) -> NDArray[np.int64]:
    """The ranks of the job on these nodes."""
    found = [job.rank_of(row, gpu) for row in rows for gpu in range(world.kind.gpus)]
    return np.array([rank for rank in found if rank is not None], dtype=np.int64)


def rank_at(world: World, planted: Planted, job: Running) -> int | None:
    """The job's rank at the planted GPU or NIC, the first of the node for a place that is a node."""
    row = planted.place.rows[0]
    gpu = planted.place.index[1] % world.kind.gpus if len(planted.place.index) > 1 else 0
    return job.rank_of(row, gpu)


def crash(world: World, planted: Planted, why: str) -> None:
    """The processes of the job at the place die in this sub-step; the rank there says why."""
    found = job_at(world, planted)
    if found is not None and found[0].alive:
        job, knobs = found
        knobs.crash, knobs.crash_rank = why, rank_at(world, planted, job)


def xid(world: World, planted: Planted, code: int, detail: str) -> None:
    """The driver reports an XID for the GPU at the place."""
    node, gpu = planted.place.index
    world.kernel.xid(node, gpu, code, detail)


def say(world: World, row: int, message: str) -> None:
    """A line in a node's kernel log, now."""
    world.kernel.write(world.nodes[row], world.now_ms, message)


def once(world: World, planted: Planted, what: str, after_seconds: float = 0.0) -> bool:
    """True one single time, in the first sub-step in which the fault is that old."""
    if what in planted.memo or planted.age_seconds(world.now_ms) < after_seconds:
        return False
    planted.memo[what] = world.now_ms
    return True


def every(world: World, planted: Planted, what: str, low: float, high: float) -> bool:
    """True now and then: each time after a span that is drawn between `low` and `high` seconds."""
    due = planted.memo.get(what)
    if due is None or world.now_ms >= due:
        planted.memo[what] = world.now_ms + int(1000 * float(planted.rng.uniform(low, high)))
    return due is not None and world.now_ms >= due


def now_and_then(planted: Planted, share: float) -> bool:
    """True in this share of the sub-steps, as evenly as whole sub-steps allow."""
    owed = planted.memo.get("owed", 0.5) + share
    planted.memo["owed"] = owed - 1.0 if owed >= 1.0 else owed
    return bool(owed >= 1.0)


def strikes(world: World, planted: Planted, phases: tuple[str, ...] = ("train",), wait: tuple[float, float] = (20.0, 120.0)) -> bool:
    """Whether it hits in this sub-step: at once when it is new, and in each later run of the job at the place, once that
    run has been in one of the phases for a while."""
    found, memo = job_at(world, planted), planted.memo
    run = 0 if found is None else found[0].run
    if "run" not in memo:
        memo["run"] = run
        return True
    if found is None or not found[0].alive or run == memo["run"] or found[0].phase not in phases:
        return False
    if memo.get("seen") != run:
        memo["seen"], memo["due"] = run, world.now_ms + int(1000 * float(planted.rng.uniform(*wait)))
    if world.now_ms < memo["due"]:
        return False
    memo["run"] = run
    return True


def exporter_of(world: World, planted: Planted) -> str:
    """The exporter of the node that is ill: dcgm-exporter or node_exporter, drawn once."""
    if "exporter" not in planted.memo:
        known = ("dcgm", "node") if "nvidia" in world.has else ("node",)
        planted.memo["exporter"] = known[int(planted.rng.integers(0, len(known)))]
    return str(planted.memo["exporter"])


def systemd_says(unit: str, running: bool) -> Callable[[World, Planted], None]:
    """FaultPlugin.begin or end of a service: systemd's line about it on the fault's node."""

    def tell(world: World, planted: Planted) -> None:
        world.kernel.service(planted.place.rows[0], unit, running=running)

    return tell
