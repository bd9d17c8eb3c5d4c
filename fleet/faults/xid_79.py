"""A GPU falls off the bus (XID 79): all its series end and the job dies. Only a power cycle brings it back."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """The driver's last word about it."""
    xid(world, planted, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


def apply(world: World, planted: Planted) -> None:
    """It is gone; a job that starts without it dies at once."""
    world.knobs.gpu.lost[planted.place.index] = 1.0
    if strikes(world, planted, ("init", "warmup", "train"), (5.0, 20.0)):
        crash(world, planted, "gpu_lost")


PLUGIN = FaultPlugin(
    name="xid_79", fault="gpu_lost", scope="device", place="gpu", apply=apply, begin=begin, cured_by=("reboot", "replace"),
    impact=STANDS, needs=("nvidia",),
)
