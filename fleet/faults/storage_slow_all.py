"""The whole shared file system is slow (its metadata server, its network): every target, every client, saves most of all."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, WIDEST, target_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """All targets alike."""
    world.knobs.storage.slowness *= target_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="storage_slow_all", fault="storage_slow", scope="storage", place="storage", apply=apply, impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=NETWORK_HEALS_SECONDS, tier="C", needs=("lustre",),
)
