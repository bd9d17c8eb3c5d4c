"""An NVLink of the fifth generation reports a fatal event (XID 145): the line carries the link, the job dies.

Whether such an event is fatal stands in the line alone; DCGM's field has the number only.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The link's receive unit fails; each run that uses it dies."""
    world.knobs.gpu.nvlink_errors_per_second[planted.place.index] += 4.0
    if strikes(world, planted):
        link = int(planted.rng.integers(0, 18))
        xid(world, planted, 145, f"RLW_REMAP Fatal XC0 i0 Link {link:02d} (0x00000004 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)")
        crash(world, planted, "CUDA error: uncorrectable NVLink error detected during the execution")


PLUGIN = FaultPlugin(
    name="xid_145", fault="nvlink_errors", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=STANDS, tier="B", needs=("nvlink5",),
)
