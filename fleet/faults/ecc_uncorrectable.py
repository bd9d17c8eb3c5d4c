"""A double-bit error in a GPU's on-chip memory, counted and with the job dead, but no line in a kernel log that one gets.

The counter of uncorrectable errors is the only trace (a log that is not collected, a driver that rate-limits itself).
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The counter steps, the job dies."""
    if strikes(world, planted):
        world.gpus.uncorrectable(*planted.place.index)
        crash(world, planted, "ecc")


PLUGIN = FaultPlugin(
    name="ecc_uncorrectable", fault="ecc_uncorrectable", scope="device", place="gpu", apply=apply,
    cured_by=("reset_gpu", "reboot", "replace"), impact=STANDS, tier="C", needs=("nvidia",),
)
