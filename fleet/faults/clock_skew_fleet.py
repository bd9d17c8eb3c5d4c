"""The site's time source is gone: every node's clock drifts by its own crystal and none is synchronised."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

# Spread of ordinary crystals, seconds a second.
CRYSTALS = 3e-5


def apply(world: World, planted: Planted) -> None:
    """Each node drifts its own way."""
    if "drift" not in planted.memo:
        planted.memo["drift"] = CRYSTALS * planted.rng.normal(0, 1, len(world.nodes))
    world.knobs.host.synchronised[:] = 0.0
    world.knobs.host.clock_drift += planted.memo["drift"]


PLUGIN = FaultPlugin(
    name="clock_skew_fleet", fault="clock_skew", scope="fleet", place="fleet", apply=apply, impact=HARMLESS, heals_seconds=3600.0,
)
