"""A NIC of a sprayed fabric (EFA) loses packets: its peers send again and count timeouts, its own share falls.

The device claims to be active; resent packets and impaired connections on the peers tell.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """What spraying cannot hide slows the device's share of each collective."""
    factor = exchange_factor(world, planted.place, planted.severity)
    world.knobs.nic.loss_per_million[planted.place.index] += world.network.loss_for(factor) * planted.level


PLUGIN = FaultPlugin(
    name="srd_loss", fault="packet_loss", scope="device", place="nic", apply=apply, cured_by=("replace",), impact=(0.01, 3.0),
    onsets=("step", "ramp", "intermittent"), needs=("efa",),
)
