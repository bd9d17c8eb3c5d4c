"""What an incident costs: GPU hours of the jobs that it holds up, tick by tick."""

from __future__ import annotations

import numpy as np

from core.types import Incident, JobState
from core.window import Window
from pipeline.facts import step_seconds

BEFORE_MS = 600_000      # the step time before the onset is the median of these ten minutes
NOW_SECONDS = 60.0       # ... and now, of this last minute, or of 4 steps where they are longer
STEPS_NOW = 4
USUAL_GPUS = 8           # of a node of which no GPU is monitored
PLANNED = ("checkpoint", "eval")
CLOCK_FAULTS = frozenset({"thermal_throttle", "power_brake", "power_cap", "clock_loss"})


def gpus_of(job: JobState, window: Window) -> int:
    """How many GPUs a job holds: by the inventory's ranks a node, else by monitored GPUs or ranks, else 8 a node."""
    if job.ranks_per_node is not None and job.nodes:
        return job.ranks_per_node * len(job.nodes)
    nodes = set(job.nodes)
    seen = sum(gpu.node in nodes for gpu in window.of_kind("gpu"))
    return max(seen, len(job.ranks)) or USUAL_GPUS * len(job.nodes)


def before(job: JobState, window: Window, onset_at: int) -> float | None:
    """The job's step time before the onset, None where unknown."""
    return step_seconds(window, job, onset_at - BEFORE_MS, onset_at)


def lost_now(job: JobState, window: Window, usual: float | None) -> float | None:
    """The share of the job's work that is being lost, 0–1; None where the trainer says nothing.

    usual: its step time before the incident.
    """
    if job.phase == "done" or job.silent or not job.ranks:
        return None if not job.ranks else 0.0
    if job.phase in PLANNED:
        return 0.0
    seconds = max(NOW_SECONDS, STEPS_NOW * (usual or 0.0))
    if "rank.step" not in window.blocks and "rank.step_seconds" not in window.blocks:
        return None
    if "rank.step" in window.blocks:
        steps = window.tail("rank.step", seconds + window.step_seconds)[:, np.array(job.ranks, np.int64)]
        known = steps[~np.isnan(steps)]
        if not len(known) or known.max() <= known.min():
            return 1.0  # nothing advances, or its ranks are gone while the job should run
    now = step_seconds(window, job, window.end - int(seconds * 1000), window.end)
    if now is None or usual is None or now <= 0:
        return 0.0
    return float(min(1.0, max(0.0, 1.0 - usual / now)))


def clock_lost(incident: Incident, window: Window) -> float:
    """The share of its clock that a slowed GPU lacks against all others, 0 where that is not known."""
    culprit = incident.culprit
    if incident.fault not in CLOCK_FAULTS or culprit is None or culprit.kind != "gpu":
        return 0.0
    clocks = window.last("gpu.sm_clock_hertz")
    for column, gpu in enumerate(window.of_kind("gpu")):
        if gpu.same_part(culprit) and not np.isnan(clocks[column]):
            others = np.delete(clocks, column)
            others = others[others > 0]
            if len(others):
                return float(min(1.0, max(0.0, 1.0 - clocks[column] / np.median(others))))
    return 0.0


def lost_gpu_hours(incident: Incident, window: Window, usual: dict[str, float]) -> dict[str, float]:
    """GPU hours lost in one tick, by job. usual: step time before, by job. Job `` where no job is known."""
    hours = window.step_seconds / 3600.0
    jobs = {job.id: job for job in window.jobs}
    out: dict[str, float] = {}
    for job_id in incident.jobs:
        job = jobs.get(job_id)
        if job is None:
            continue
        share = lost_now(job, window, usual.get(job_id))
        if share is not None:
            out[job_id] = gpus_of(job, window) * hours * share
        elif (slow := clock_lost(incident, window)) > 0:
            out[job_id] = hours * slow
    if not incident.jobs and (slow := clock_lost(incident, window)) > 0:
        out[""] = hours * slow
    return {job: lost for job, lost in out.items() if lost > 0}
