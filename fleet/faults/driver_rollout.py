"""A new driver that was rolled out to a part of the fleet keeps the clocks of its GPUs low, for no reason that they name.

Low clocks on nodes of many racks; what they share is the driver's version.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import clock_share
from fleet.faults.waves import begin_wave, end_wave, wave
from fleet.plants import Planted
from fleet.world import World

KEY, VALUE = "driver", "590.44.01"


def apply(world: World, planted: Planted) -> None:
    """One share of the clock for all of them."""
    rows = list(planted.place.rows)
    world.knobs.gpu.clock_cap[rows] *= clock_share(world, planted.place, planted.severity * planted.level)
    for row in rows:
        world.knobs.settings[row, "driver"] = VALUE


PLUGIN = FaultPlugin(
    name="driver_rollout", fault="clock_loss", scope="fleet", place="label", apply=apply, begin=begin_wave,
    end=end_wave, locate=wave(KEY, VALUE, 0.33), impact=(0.01, 0.6), needs=("nvidia",),
)
