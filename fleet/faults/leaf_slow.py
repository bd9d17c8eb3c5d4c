"""A leaf switch runs at a part of its capacity (up-links down-trained): its nodes' collectives wait for it.

Congestion and waiting on the ports of one leaf; nothing is lost and every port keeps its rate.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Less capacity, marked packets."""
    knobs, at = world.knobs.switch, planted.place.index
    factor = exchange_factor(world, planted.place, planted.severity * planted.level)
    knobs.rate[at] *= world.network.rate_for(factor)
    knobs.congestion[at] = max(float(knobs.congestion[at]), world.network.congestion_for(factor))


PLUGIN = FaultPlugin(
    name="leaf_slow", fault="link_slow", scope="switch", place="switch", apply=apply, impact=(0.01, 2.0),
    onsets=("step", "ramp", "intermittent"), heals_seconds=NETWORK_HEALS_SECONDS,
)
