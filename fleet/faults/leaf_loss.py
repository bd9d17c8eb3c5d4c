"""A leaf switch drops packets on all its ports (a bad line card): many nodes' NICs lose at once.

Loss counters rise on the nodes of one leaf together and on no others; no node is at fault.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import WIDEST, exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Everything that passes the switch loses."""
    factor = exchange_factor(world, planted.place, planted.severity)
    world.knobs.switch.loss_per_million[planted.place.index] += world.network.loss_for(factor) * planted.level


PLUGIN = FaultPlugin(
    name="leaf_loss", fault="packet_loss", scope="switch", place="switch", apply=apply, impact=WIDEST,
    onsets=("step", "ramp", "intermittent"),
)
