"""A node's scratch disk is slow at the load of its peers (a worn or throttled drive): loaders and saves there wait.

Its service time is many times its peers' and its busy time full at little throughput; other disks are as before.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, say
from fleet.faults.sizes import WIDEST, disk_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Each operation takes longer; the driver complains when it is bad."""
    row = planted.place.index[0]
    factor = disk_factor(world, planted.place, planted.severity * planted.level)
    world.knobs.host.disk_slowness[row] *= factor
    if planted.severity > 0.5 and planted.level > 0 and every(world, planted, "line", 120.0, 600.0):
        say(world, row, f"nvme nvme1: I/O {int(planted.rng.integers(1, 1000))} QID {int(planted.rng.integers(1, 64))} timeout, completion polled")


PLUGIN = FaultPlugin(
    name="disk_slow", fault="disk_slow", scope="device", place="disk", apply=apply, cured_by=("replace",), impact=WIDEST,
    onsets=("step", "ramp", "intermittent"),
)
