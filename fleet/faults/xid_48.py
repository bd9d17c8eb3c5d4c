"""A double-bit memory error (XID 48): the job dies and the row is marked for remapping (XID 63).

Until a reset activates the remapping, the next run on the GPU meets the bad row again.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Each run on the bad row ends with an uncorrectable error."""
    if not strikes(world, planted):
        return
    place, row = planted.place.index, int(planted.rng.integers(1 << 24))
    xid(world, planted, 48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 1.")
    world.gpus.uncorrectable(*place)
    world.gpus.remapped(place[0], place[1], False)
    world.gpus.pending_row(*place)
    xid(world, planted, 63, f"Row Remapper: New row (0x{row:016x}) marked for remapping, reset gpu to activate.")
    crash(world, planted, "ecc")


PLUGIN = FaultPlugin(
    name="xid_48", fault="ecc_uncorrectable", scope="device", place="gpu", apply=apply,
    cured_by=("reset_gpu", "reboot", "replace"), impact=STANDS, needs=("nvidia", "hbm"),
)
