"""A NIC, its cable or its switch port loses packets that arrive: the rail is resent and slows the collective.

The port counts gaps, its peers count the NAKs for them; no congestion mark rises and the link stays up at its rate.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import WIDEST, exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """So much is lost that what is resent makes the collective as slow as the severity wants it."""
    factor = exchange_factor(world, planted.place, planted.severity)
    world.knobs.nic.loss_per_million[planted.place.index] += world.network.loss_for(factor) * planted.level


PLUGIN = FaultPlugin(
    name="packet_loss", fault="packet_loss", scope="device", place="nic", apply=apply, cured_by=("replace",),
    impact=WIDEST, onsets=("step", "ramp", "intermittent"), needs=("roce",),
)
