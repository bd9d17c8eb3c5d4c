"""A job dies at the same step again and again, whatever nodes it runs on (a poisoned batch, a bug): software."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World

STEPS_AHEAD = (3, 20)


def apply(world: World, planted: Planted) -> None:
    """It dies as it comes to the step that it cannot take."""
    found, memo = job_at(world, planted), planted.memo
    if found is None:
        return
    job, knobs = found
    if "step" not in memo:
        memo["step"] = job.step + int(planted.rng.integers(*STEPS_AHEAD))
    if job.alive and job.phase in ("warmup", "train") and job.step >= memo["step"]:
        knobs.crash, knobs.crash_rank = f"index out of range in batch at iteration {memo['step']}", 0


PLUGIN = FaultPlugin(
    name="job_crash_loop", fault="job_crash_loop", scope="job", place="job", apply=apply, impact=STANDS, tier="B",
)
