"""The air of the whole hall is some degrees warmer for hours: all nodes run hotter, none comes near its limit."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.plants import Planted
from fleet.world import World

DEGREES = (3.0, 6.0)
SWELL_SECONDS = 1800.0


def apply(world: World, planted: Planted) -> None:
    """Everybody's inlet rises slowly; jobs lose a percent or so."""
    if "degrees" not in planted.memo:
        planted.memo["degrees"] = float(planted.rng.uniform(*DEGREES))
    grown = min(1.0, planted.age_seconds(world.now_ms) / SWELL_SECONDS)
    world.knobs.host.inlet_celsius += planted.memo["degrees"] * grown
    for knobs in world.knobs.jobs.values():
        knobs.pace *= 1.0 + planted.severity * grown


PLUGIN = FaultPlugin(
    name="hot_day", fault=None, scope="fleet", place="fleet", apply=apply, impact=(0.01, 0.02), heals_seconds=14_400.0,
)
