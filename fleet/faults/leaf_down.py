"""A leaf switch dies: all its ports lose their carrier in the same moment and the job stands still, then dies."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """All its links are down."""
    world.knobs.switch.up[planted.place.index] = 0.0


PLUGIN = FaultPlugin(
    name="leaf_down", fault="link_down", scope="switch", place="switch", apply=apply, impact=STANDS,
)
