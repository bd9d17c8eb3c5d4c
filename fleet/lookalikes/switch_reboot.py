"""A leaf switch is rebooted in a maintenance window: all its ports lose their carrier together while no job uses them."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

DOWN_FROM, DOWN_UNTIL = 60.0, 240.0


def begin(world: World, planted: Planted) -> None:
    """The job ends first."""
    stop_now(world, planted, clean=True)


def apply(world: World, planted: Planted) -> None:
    """Down for minutes, then the job starts again."""
    if DOWN_FROM <= planted.age_seconds(world.now_ms) < DOWN_UNTIL:
        world.knobs.switch.up[planted.place.index] = 0.0
    restart_later(world, planted, (DOWN_UNTIL + 30.0, DOWN_UNTIL + 120.0))


PLUGIN = FaultPlugin(
    name="switch_reboot", fault=None, scope="switch", place="switch", apply=apply, begin=begin, impact=HARMLESS,
)
