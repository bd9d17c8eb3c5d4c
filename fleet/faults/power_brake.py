"""A node's power supply fails and its hardware power brake halves the clocks of all GPUs, again and again.

Brake bit and hardware slowdown, clock at half or less, power far down; no heat. How often it brakes sets the size.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import now_and_then
from fleet.faults.sizes import brake_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The brake is on for a share of the sub-steps, all the time from the size that half the clock costs."""
    row = planted.place.index[0]
    if now_and_then(planted, brake_share(world, planted.place, planted.severity) * planted.level):
        world.knobs.gpu.brake[row] = 1.0


PLUGIN = FaultPlugin(
    name="power_brake", fault="power_brake", scope="node", place="node", apply=apply, cured_by=("replace",),
    impact=(0.01, 0.7), onsets=("step", "intermittent"),
    needs=("nvidia",), tier="C",
)
