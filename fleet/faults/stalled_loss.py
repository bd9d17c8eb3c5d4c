"""A rank hangs (a dead-locked loader thread, a stuck kernel): it enters no collective, so no rank finishes its step.

All GPUs stay at full utilisation with little power; only the collective sequence number tells who is behind. The fault
sits in the process: any new start of it ends it.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from core.types import Target
from fleet.faults.places import gpu_place
from fleet.world import World


def start(world: World, target: Target, severity: float, now_ms: int) -> None:
    """The rank on the GPU stops; severity has no meaning for a hang."""
    node, gpu = gpu_place(world, target)
    job = world.job_on(node)
    rank = None if job is None else job.rank_of(node, gpu)
    if job is not None and rank is not None and job.alive:
        job.hang(rank, now_ms)


def stop(world: World, target: Target) -> None:
    """The rank goes on."""
    job = world.job_on(gpu_place(world, target)[0])
    if job is not None and job.alive:
        job.release(world.now_ms)


PLUGIN = FaultPlugin(
    name="stalled_loss", fault="stalled_loss", scope="device", target_kind="gpu", start=start, stop=stop,
    cured_by=("resume_job", "restart_process", "reset_gpu", "reboot", "replace"),
)
