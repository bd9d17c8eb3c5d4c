"""A GPU computes slower than its peers and no counter says why (a weak memory stack, a marginal part).

Only its rank's longer compute and the waiting of all others show it; clock, heat and error counters are normal. Most
such spells end by themselves.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, compute_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Its kernels take longer."""
    world.knobs.gpu.compute[planted.place.index] *= compute_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="gpu_slow", fault="gpu_slow", scope="device", place="gpu", apply=apply, cured_by=("replace",),
    impact=(0.01, 3.0), onsets=("step", "ramp", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS, tier="D", needs=("trainer",),
)
