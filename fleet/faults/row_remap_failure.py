"""A GPU's failure flag for row remapping rises while it works (found at a driver's scan), with no line in the log.

The job goes on for now; wrong or lost memory is a matter of time, so the board has to go.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The flag is up."""
    world.knobs.gpu.remap_failed[planted.place.index] = 1.0


PLUGIN = FaultPlugin(
    name="row_remap_failure", fault="row_remap_failure", scope="device", place="gpu", apply=apply,
    cured_by=("replace",), impact=HARMLESS, needs=("nvidia", "hbm"),
)
