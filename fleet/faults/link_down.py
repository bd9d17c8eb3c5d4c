"""A link goes down and stays down: no carrier, no traffic, and the job dies when its transport gives up.

State and physical state change once; runs that start with the port down die at their first collectives.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Down; what hangs on the link stands still until its transport's retries are used up."""
    world.knobs.nic.up[planted.place.index] = 0.0


PLUGIN = FaultPlugin(
    name="link_down", fault="link_down", scope="device", place="nic", apply=apply, cured_by=("replace",), impact=STANDS,
)
