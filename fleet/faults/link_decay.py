"""A cable or its optics decay: bit errors that forward error correction hides at first, then lost packets.

Symbol errors climb long before packets are lost; the link keeps its rate.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import exchange_factor
from fleet.plants import Planted
from fleet.world import World

SYMBOL_ERRORS_PER_SECOND = 25.0
LOSS_FROM_LEVEL = 0.5


def apply(world: World, planted: Planted) -> None:
    """First only errors, in the second half of the way also loss and slowness."""
    place, lossy = planted.place.index, max(0.0, planted.level - LOSS_FROM_LEVEL) / (1 - LOSS_FROM_LEVEL)
    knobs = world.knobs.nic
    knobs.symbol_errors_per_second[place] += SYMBOL_ERRORS_PER_SECOND * planted.level**2
    knobs.loss_per_million[place] += world.network.loss_for(exchange_factor(world, planted.place, planted.severity)) * lossy


PLUGIN = FaultPlugin(
    name="link_decay", fault="packet_loss", scope="device", place="nic", apply=apply, cured_by=("replace",), impact=(0.01, 2.0),
    onsets=("ramp", "step"), needs=("roce",),
)
