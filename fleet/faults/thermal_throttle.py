"""A GPU's cooling degrades (paste, a blocked duct, a dying fan): it heats up over a minute or two and slows itself.

The culprit shows heat, thermal bits and a lower clock; its neighbours and the inlet air stay as they are.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.gpus import CLOCK_PER_DEGREE, POWER_EXPONENT
from fleet.job import CLOCK_EXPONENT, COMPUTE, EXCHANGE
from fleet.plants import Planted
from fleet.world import World

BUILD_UP_SECONDS = 80.0


def apply(world: World, planted: Planted) -> None:
    """Raises the thermal resistance towards the value at which the clock settles where the severity wants it."""
    place = planted.place.index
    grown = min(1.0, planted.age_seconds(world.now_ms) / BUILD_UP_SECONDS) * planted.level
    world.knobs.gpu.cooling[place] *= 1.0 + (final_cooling(world, place, planted.severity) - 1.0) * grown


def final_cooling(world: World, place: tuple[int, ...], severity: float) -> float:
    """The factor on thermal resistance that makes the job's step longer by the share `severity`."""
    bank, kind, shape = world.gpus, world.kind, world.shape
    healthy = shape.compute_seconds + shape.collective_seconds
    clock = (shape.compute_seconds / (shape.compute_seconds + severity * healthy)) ** (1 / CLOCK_EXPONENT)
    slowed = shape.compute_seconds / clock**CLOCK_EXPONENT
    load = (COMPUTE * slowed + EXCHANGE * shape.collective_seconds) / (slowed + shape.collective_seconds)
    watts = kind.idle_watts + kind.load_watts * load * float(bank.silicon[place]) * clock**POWER_EXPONENT
    beyond = (1 - clock) / CLOCK_PER_DEGREE
    limit = min(kind.core_limit, kind.hbm_limit - float(bank.hbm_offset[place]))
    air = float(world.hosts.inlet[place[0]] + bank.offset[place])
    return max(1.0, (limit + beyond - air) / (kind.resistance * watts))


PLUGIN = FaultPlugin(
    name="thermal_throttle", fault="thermal_throttle", scope="device", place="gpu", apply=apply, cured_by=("replace",),
    onsets=("step", "ramp", "intermittent"),
)
