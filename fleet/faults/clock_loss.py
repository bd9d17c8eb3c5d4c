"""A GPU's clock stays low for no reason that it names: no heat, no cap, no brake (a stuck performance state).

Lower clock at lower power, in full work; all reason bits clear. A reset frees it.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import clock_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Caps the clock at the share that makes the step as long as the severity wants it."""
    share = clock_share(world, planted.place, planted.severity * planted.level)
    world.knobs.gpu.clock_cap[planted.place.index] *= share


PLUGIN = FaultPlugin(
    name="clock_loss", fault="clock_loss", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=(0.01, 1.8), onsets=("step", "intermittent"),
    needs=("nvidia",),
)
