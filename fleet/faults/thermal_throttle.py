"""A GPU's cooling degrades (paste, a blocked duct): it heats up over a minute or two and slows itself.

The culprit shows heat, thermal bits and a lower clock; its neighbours and the inlet air stay as they are.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import cooling_factor
from fleet.plants import Planted
from fleet.world import World

BUILD_UP_SECONDS = 80.0


def apply(world: World, planted: Planted) -> None:
    """Raises the thermal resistance towards the value at which the clock settles where the severity wants it."""
    grown = min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    world.knobs.gpu.cooling[planted.place.index] *= 1.0 + (cooling_factor(world, planted.place, planted.severity) - 1.0) * grown


PLUGIN = FaultPlugin(
    name="thermal_throttle", fault="thermal_throttle", scope="device", place="gpu", apply=apply, cured_by=("replace",),
    impact=(0.01, 1.3), onsets=("step", "ramp", "intermittent"),
    needs=("nvidia",),
)
