"""Something else reads a node's scratch disk to its limit (a staging copy): the loaders there wait for their cache.

The disk is busy all the time at high throughput, not slow for its load; only that node's ranks wait for data.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, WIDEST, disk_load
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The disk's time goes to others."""
    row = planted.place.index[0]
    load = disk_load(world, planted.place, planted.severity * planted.level)
    world.knobs.host.disk_load[row] = max(float(world.knobs.host.disk_load[row]), load)


PLUGIN = FaultPlugin(
    name="data_stall_disk", fault="data_stall", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS, tier="D", needs=("trainer",),
)
