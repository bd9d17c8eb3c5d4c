"""The whole fabric is slow (a wrong routing or congestion setting on all switches): every job's collectives take longer.

Marks and waiting on every port of every leaf; no leaf, port or node stands out. What costs less than a tenth is the
congestion of a busy day (a look-alike): the same marks, the same pace, and nothing to repair.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """All leaves alike."""
    knobs, size = world.knobs.switch, planted.severity * planted.level
    leaves = list(world.topology.leaves())
    factor = exchange_factor(world, planted.place, size)
    knobs.rate[leaves] *= world.network.rate_for(factor)
    knobs.congestion[leaves] = world.network.congestion_for(factor)


PLUGIN = FaultPlugin(
    name="network_slow_fleet", fault="link_slow", scope="fleet", place="fleet", apply=apply, impact=(0.1, 2.0), onsets=("step", "ramp"),
    heals_seconds=NETWORK_HEALS_SECONDS,
)
