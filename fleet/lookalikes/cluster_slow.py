"""Everything is slower alike for a while (a site-wide network or power event): all jobs lose pace and no part stands out."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """All jobs."""
    for knobs in world.knobs.jobs.values():
        knobs.pace *= 1.0 + planted.severity * planted.level


PLUGIN = FaultPlugin(
    name="cluster_slow", fault=None, scope="fleet", place="fleet", apply=apply, impact=(0.02, 0.4), onsets=("step", "ramp"),
    heals_seconds=NETWORK_HEALS_SECONDS,
)
