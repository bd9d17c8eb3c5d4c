"""A node's time daemon loses its source and the clock drifts away; the kernel says that it is not synchronised.

Offset and error bound grow without end on that node, its own time stamps shift against everybody's.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SECONDS_A_SECOND = (2e-5, 4e-4)


def apply(world: World, planted: Planted) -> None:
    """The drift is drawn once."""
    row, memo = planted.place.index[0], planted.memo
    if "drift" not in memo:
        low, high = SECONDS_A_SECOND
        memo["drift"] = low * (high / low) ** float(planted.rng.random()) * (1 if planted.rng.random() < 0.5 else -1)
    world.knobs.host.synchronised[row] = 0.0
    world.knobs.host.clock_drift[row] += memo["drift"]


PLUGIN = FaultPlugin(
    name="clock_skew", fault="clock_skew", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=HARMLESS,
)
