"""A job's kernels draw more than the boards' limit for a while: all its GPUs run at the limit with a lower clock, as they should."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

# Above what full load takes of the room under the limit, at the mean load of a training step.
DEMAND, MEAN_LOAD = (1.06, 1.25), 0.9


def apply(world: World, planted: Planted) -> None:
    """Everybody's demand is higher alike."""
    if "demand" not in planted.memo:
        room = (world.kind.limit_watts - world.kind.idle_watts) / (MEAN_LOAD * world.kind.load_watts)
        planted.memo["demand"] = max(1.0, room) * float(planted.rng.uniform(*DEMAND))
    found = job_at(world, planted)
    if found is not None:
        world.knobs.gpu.demand[found[0].nodes] *= 1.0 + (planted.memo["demand"] - 1.0) * planted.level


PLUGIN = FaultPlugin(
    name="usual_power_cap", fault=None, scope="job", place="job", apply=apply, impact=HARMLESS, onsets=("step", "intermittent"), heals_seconds=1800.0,
    needs=("nvidia",),
)
