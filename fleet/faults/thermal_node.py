"""The fans of a chassis fail: all its GPUs heat up together and the hottest of them slow down.

The exhaust gets hotter, the inlet does not; other nodes of the rack stay as they are.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import cooling_factor, gpus_of
from fleet.plants import Planted
from fleet.world import World

BUILD_UP_SECONDS = 120.0


def apply(world: World, planted: Planted) -> None:
    """One factor for all GPUs: the first that reaches its limit sets the size."""
    row = planted.place.index[0]
    wanted = min(cooling_factor(world, gpu, planted.severity) for gpu in gpus_of(world, row))
    grown = min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    factor = 1.0 + (wanted - 1.0) * grown
    world.knobs.gpu.cooling[row] *= factor
    world.knobs.host.airflow[row] /= factor


PLUGIN = FaultPlugin(
    name="thermal_node", fault="thermal_throttle", scope="node", place="node", apply=apply, cured_by=("replace",),
    impact=(0.01, 1.0), onsets=("step", "ramp"),
    needs=("nvidia",),
)
