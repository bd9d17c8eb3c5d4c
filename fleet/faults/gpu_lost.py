"""A GPU falls off the bus and the driver says so without a number: its series end, the job dies.

Newer drivers write several lines that name no XID; the missing series are the signal.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, say, strikes
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """The lines that a newer driver writes."""
    row, gpu = planted.place.index
    address = world.nodes[row].pci(gpu)
    say(world, row, f"NVRM: GPU at PCI:{address[:-2]}: {world.nodes[row].uuids[gpu]}")
    say(world, row, f"NVRM: GPU {address}: GPU has fallen off the bus.")
    say(world, row, f"NVRM: GPU {address}: GPU serial number is {world.nodes[row].serials[gpu]}.")


def apply(world: World, planted: Planted) -> None:
    """It is gone; a job that starts without it dies at once."""
    world.knobs.gpu.lost[planted.place.index] = 1.0
    if strikes(world, planted, ("init", "warmup", "train"), (5.0, 20.0)):
        crash(world, planted, "gpu_lost")


PLUGIN = FaultPlugin(
    name="gpu_lost", fault="gpu_lost", scope="device", place="gpu", apply=apply, begin=begin, cured_by=("reboot", "replace"),
    impact=STANDS, needs=("nvidia",),
)
