"""One node's client of the shared file system hangs: every call on the mount waits for ever, and the job with it.

Loaders there stand in an uninterruptible wait, the kernel reports blocked tasks; all ranks stand still and that node's
are behind.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, job_at, ranks_on, say
from fleet.faults.sizes import STANDS
from fleet.places import training
from fleet.plants import Planted
from fleet.world import World

BLOCKED_SECONDS = 122.0


def begin(world: World, planted: Planted) -> None:
    """Only a job that trains can hang on it."""
    training(world, planted.place)


def apply(world: World, planted: Planted) -> None:
    """Calls never return; once a loader's queue is empty its rank enters no collective any more."""
    row, found = planted.place.index[0], job_at(world, planted)
    world.knobs.host.mount_hung[row] = 1.0
    if found is not None:
        found[1].hung[ranks_on(world, found[0], (row,))] = True
    if every(world, planted, "blocked", BLOCKED_SECONDS, BLOCKED_SECONDS + 4.0):
        say(world, row, f"INFO: task pt_data_worker:{int(planted.rng.integers(9_000, 900_000))} blocked for more than 122 seconds.")


PLUGIN = FaultPlugin(
    name="mount_hung", fault="stalled_loss", scope="device", place="mount", apply=apply, begin=begin, cured_by=("reboot", "replace"),
    impact=STANDS, tier="B", needs=("lustre",),
)
