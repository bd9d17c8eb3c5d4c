"""A GPU has no spare row left for a bad one (XID 64): remapping failed, and every run on it dies of the same row.

No reset helps; the board has to go.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The failure flag stays, whatever is restarted."""
    place = planted.place.index
    world.knobs.gpu.remap_failed[place] = 1.0
    if not strikes(world, planted):
        return
    world.gpus.uncorrectable(*place)
    xid(world, planted, 64, "Row Remapper: Failed to remap row, no spare row is left in the bank")
    crash(world, planted, "ecc")


PLUGIN = FaultPlugin(
    name="xid_64", fault="row_remap_failure", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=STANDS,
    needs=("nvidia", "hbm"),
)
