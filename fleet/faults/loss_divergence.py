"""A job's training diverges: the loss climbs step by step and does not come back until it starts from an older state.

Step time and hardware are normal; the gradient norm grows with the loss.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SLOPE = (0.002, 0.02)


def apply(world: World, planted: Planted) -> None:
    """Each step adds a little."""
    found, memo = job_at(world, planted), planted.memo
    if found is None:
        return
    if "slope" not in memo:
        memo["slope"] = float(planted.rng.uniform(*SLOPE))
    found[1].loss_slope += memo["slope"] * planted.level
    found[1].grad *= 1.0 + 3.0 * planted.level


PLUGIN = FaultPlugin(
    name="loss_divergence", fault="loss_spike", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=HARMLESS, onsets=("step", "ramp"), tier="B",
)
