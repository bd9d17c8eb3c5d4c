"""A cooling loop loses flow: all GPUs behind it heat up together and the hottest slow down.

Heat and thermal bits on many nodes of one loop, none outside it; the air at the inlet stays as it is.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import cooling_factor, working_gpus
from fleet.plants import Planted
from fleet.world import World

BUILD_UP_SECONDS = 240.0


def apply(world: World, planted: Planted) -> None:
    """One factor for all: the first GPU that reaches its limit sets the size."""
    rows = list(planted.place.rows)
    if "factor" not in planted.memo:
        planted.memo["factor"] = min(cooling_factor(world, gpu, planted.severity) for gpu in working_gpus(world, rows))
    grown = min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    world.knobs.gpu.cooling[rows] *= 1.0 + (planted.memo["factor"] - 1.0) * grown


PLUGIN = FaultPlugin(
    name="cooling_fault", fault="cooling_fault", scope="rack", place="cooling", apply=apply, impact=(0.01, 1.0), onsets=("step", "ramp"),
    needs=("nvidia",),
)
