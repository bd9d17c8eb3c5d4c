"""A rack's air is hot (a failed fan wall, a blocked tile): the inlets of all its nodes rise and their hottest GPUs slow down."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import air_degrees, working_gpus
from fleet.plants import Planted
from fleet.world import World

BUILD_UP_SECONDS = 300.0


def apply(world: World, planted: Planted) -> None:
    """Degrees for all: the first GPU that reaches its limit sets the size."""
    rows = list(planted.place.rows)
    if "degrees" not in planted.memo:
        planted.memo["degrees"] = min(air_degrees(world, gpu, planted.severity) for gpu in working_gpus(world, rows))
    grown = min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    world.knobs.host.inlet_celsius[rows] += planted.memo["degrees"] * grown


PLUGIN = FaultPlugin(
    name="hot_rack", fault="cooling_fault", scope="rack", place="rack", apply=apply, impact=(0.01, 0.6), onsets=("step", "ramp"),
    needs=("nvidia",),
)
