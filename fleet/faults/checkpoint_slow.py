"""A job's checkpoints take many times as long as they did (a writer that lost its parallelism): each pause grows.

Other users of the same storage are not slow; between saves the job is as fast as ever.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

FACTOR = (6.0, 30.0)


def apply(world: World, planted: Planted) -> None:
    """Saves are slow by a factor that is drawn once."""
    found, memo = job_at(world, planted), planted.memo
    if "factor" not in memo:
        memo["factor"] = float(planted.rng.uniform(*FACTOR))
    if found is not None:
        found[1].save_slowness *= 1.0 + (memo["factor"] - 1.0) * planted.level


PLUGIN = FaultPlugin(
    name="checkpoint_slow", fault="checkpoint_stale", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=HARMLESS, tier="B",
)
