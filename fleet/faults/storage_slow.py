"""One target of the shared file system is slow: many nodes wait on it at once, in reading and in saving.

Waits grow on one target for every client; each client's own link and disk are as before.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, WIDEST, target_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The target's service time grows."""
    at = planted.place.index
    world.knobs.storage.slowness[at] *= target_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="storage_slow", fault="storage_slow", scope="storage", place="storage", apply=apply, impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=NETWORK_HEALS_SECONDS, tier="C", needs=("lustre",),
)
