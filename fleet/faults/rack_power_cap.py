"""A rack's power budget is cut: all its nodes run at a lower power limit, below that of the other racks."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import power_share, working_gpus
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """One limit for the whole rack, at which its most hungry GPU makes the step as long as the severity wants it."""
    rows = list(planted.place.rows)
    if "share" not in planted.memo:
        planted.memo["share"] = min(1.0, max(power_share(world, gpu, planted.severity) for gpu in working_gpus(world, rows)))
    world.knobs.gpu.power_limit[rows] *= 1.0 + (planted.memo["share"] - 1.0) * planted.level


PLUGIN = FaultPlugin(
    name="rack_power_cap", fault="power_cap", scope="rack", place="rack", apply=apply, impact=(0.01, 0.6), onsets=("step", "ramp"),
    needs=("nvidia",),
)
