"""One node's client of the shared file system is slow (its network to the storage): only that node waits.

Other clients of the same targets are as fast as ever; the node's ranks wait for data and its part of a save is late.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, WIDEST, mount_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The client's waits grow."""
    world.knobs.host.mount_slowness[planted.place.index] *= mount_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="mount_slow", fault="data_stall", scope="device", place="mount", apply=apply, cured_by=("reboot", "replace"), impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS, tier="C", needs=("lustre",),
)
