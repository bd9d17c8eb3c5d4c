"""A job's kernels draw more than the boards' limit for a while: all its GPUs run at the limit with a lower clock, as they should.

They draw more because they do more in a cycle: what the clock loses the kernels make good, and steps take as long as before.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.gpus import POWER_EXPONENT
from fleet.plants import Planted
from fleet.shape import CLOCK_EXPONENT
from fleet.world import World

# Above what full load takes of the room under the limit, at the mean load of a training step.
DEMAND, MEAN_LOAD = (1.06, 1.25), 0.9


def apply(world: World, planted: Planted) -> None:
    """Everybody's demand is higher alike."""
    room = (world.kind.limit_watts - world.kind.idle_watts) / (MEAN_LOAD * world.kind.load_watts)
    if "demand" not in planted.memo:
        planted.memo["demand"] = max(1.0, room) * float(planted.rng.uniform(*DEMAND))
    found = job_at(world, planted)
    if found is not None:
        job, knobs = found
        demand = 1.0 + (planted.memo["demand"] - 1.0) * planted.level
        world.knobs.gpu.demand[job.nodes] *= demand
        clock = min(1.0, (room / demand) ** (1 / POWER_EXPONENT))
        compute, step = job.impact.shape.compute_seconds, job.impact.step_seconds
        knobs.pace /= (step - compute + compute / clock**CLOCK_EXPONENT) / step


PLUGIN = FaultPlugin(
    name="usual_power_cap", fault=None, scope="job", place="job", apply=apply, impact=HARMLESS, onsets=("step", "intermittent"), heals_seconds=1800.0,
    needs=("nvidia",),
)
