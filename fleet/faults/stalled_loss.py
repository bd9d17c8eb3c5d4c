"""A rank hangs (a dead-locked loader thread, a stuck kernel): it enters no collective, so no rank finishes its step.

All GPUs stay at full utilisation with little power; only the collective sequence number tells who is behind. The fault
sits in the process: any new start of it ends it.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import STANDS
from fleet.places import training
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Only a rank that trains can hang."""
    training(world, planted.place)


def apply(world: World, planted: Planted) -> None:
    """The rank on the GPU stands still; severity has no meaning for a hang."""
    node, gpu = planted.place.index
    job = world.job_on(node)
    rank = None if job is None else job.rank_of(node, gpu)
    if job is not None and rank is not None:
        world.knobs.jobs[job.name].hung[rank] = True


PLUGIN = FaultPlugin(
    name="stalled_loss", fault="stalled_loss", scope="device", place="rank", apply=apply, begin=begin,
    cured_by=("resume_job", "restart_process", "reset_gpu", "reboot", "replace"), impact=STANDS, tier="B",
)
