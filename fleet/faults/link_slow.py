"""A link trains at a lower rate than it should: its rail is slow, nothing is lost, no error is counted.

The port's rate is a half or a quarter of its peers'.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import exchange_factor
from fleet.plants import Planted
from fleet.world import World

SHARES = (0.5, 0.25, 0.125)


def apply(world: World, planted: Planted) -> None:
    """The rate that fits the size; what a lower rate alone does not explain is added as slowness."""
    place, knobs = planted.place.index, world.knobs.nic
    factor = exchange_factor(world, planted.place, planted.severity * planted.level)
    share = next((s for s in SHARES if 1 / s >= factor), SHARES[-1]) if planted.level > 0 else 1.0
    knobs.rate[place] = min(float(knobs.rate[place]), share)
    knobs.slowness[place] *= factor


PLUGIN = FaultPlugin(
    name="link_slow", fault="link_slow", scope="device", place="nic", apply=apply, cured_by=("replace",), impact=(0.05, 2.0),
    onsets=("step", "intermittent"),
)
