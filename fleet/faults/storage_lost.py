"""One target of the shared file system is gone: calls that need it wait until it is back, on every client."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import say
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Each client says so."""
    target = world.topology.targets[planted.place.index[0]]
    for row in planted.place.rows:
        say(world, row, f"Lustre: {target}-osc-ffff9c0a1b2c3000: Connection to {target} (at 10.10.8.{20 + planted.place.index[0]}@o2ib) was lost; "
                        "in progress operations using this service will wait for recovery to complete")


def apply(world: World, planted: Planted) -> None:
    """It is gone."""
    world.knobs.storage.up[planted.place.index] = 0.0


PLUGIN = FaultPlugin(
    name="storage_lost", fault="storage_slow", scope="storage", place="storage", apply=apply, begin=begin, impact=STANDS, heals_seconds=600.0,
    tier="B", needs=("lustre",),
)
