"""A job's loss jumps far beyond its noise and comes back only slowly, with the gradient norm ahead of it.

Step time and hardware are normal. Many spikes recover by themselves after tens to hundreds of steps.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

HEIGHT = (0.8, 4.0)
DECAY_SECONDS = 900.0


def apply(world: World, planted: Planted) -> None:
    """A jump that decays; the gradient norm leads."""
    found, memo = job_at(world, planted), planted.memo
    if found is None:
        return
    if "height" not in memo:
        memo["height"] = float(planted.rng.uniform(*HEIGHT))
    age = planted.age_seconds(world.now_ms)
    found[1].loss_bump += memo["height"] * 0.5 ** (age / DECAY_SECONDS)
    found[1].grad *= 1.0 + 5.0 * 0.5 ** (age / (0.3 * DECAY_SECONDS))


PLUGIN = FaultPlugin(
    name="loss_spike", fault="loss_spike", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=HARMLESS, heals_seconds=1800.0, tier="B",
)
