"""A BMC firmware that was rolled out to a part of the fleet runs the fans too slowly: those nodes' GPUs heat up and slow down.

Heat on nodes of many racks at once; what they share is the firmware, and no node is at fault.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import cooling_factor, working_gpus
from fleet.faults.waves import begin_wave, end_wave, wave
from fleet.plants import Planted
from fleet.world import World

KEY, VALUE = "bmc_firmware", "24.09"
BUILD_UP_SECONDS = 180.0


def apply(world: World, planted: Planted) -> None:
    """One factor for all of them: the first GPU that reaches its limit sets the size."""
    rows = list(planted.place.rows)
    if "factor" not in planted.memo:
        planted.memo["factor"] = min(cooling_factor(world, gpu, planted.severity) for gpu in working_gpus(world, rows))
    factor = 1.0 + (planted.memo["factor"] - 1.0) * min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    world.knobs.gpu.cooling[rows] *= factor
    world.knobs.host.airflow[rows] /= factor


PLUGIN = FaultPlugin(
    name="firmware_wave", fault="thermal_throttle", scope="fleet", place="label", apply=apply, begin=begin_wave,
    end=end_wave, locate=wave(KEY, VALUE, 0.5), impact=(0.01, 0.8),
    needs=("nvidia",),
)
