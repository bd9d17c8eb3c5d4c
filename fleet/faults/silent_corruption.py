"""A GPU computes wrong now and then and counts nothing: gradients jump, the loss wanders, its rank alone finds NaN in its results.

No error counter, no line of a kernel, no diagnosis tells. What is wrong passes through the exchange, after which all ranks
have the same numbers: a loss that jumps and a gradient norm that is too large are the job's, at every tier. Who it is shows
only where the trainer checks each rank's own results before the exchange and says so in its log (Megatron-LM does).
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, job_at, rank_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SPELL_SECONDS, NAN_SECONDS = (60.0, 400.0), (360.0, 780.0)


def apply(world: World, planted: Planted) -> None:
    """Gradients are a little too large all the time; in spells the loss jumps; now and then its own result is NaN."""
    found = job_at(world, planted)
    if found is None:
        return
    (job, knobs), memo = found, planted.memo
    knobs.grad *= 1.0 + 0.25 * planted.level
    if every(world, planted, "spell", *SPELL_SECONDS):
        memo["until"] = world.now_ms + 20_000
    if world.now_ms < memo.get("until", 0):
        knobs.grad *= 4.0
        knobs.loss_bump += 0.3
    if every(world, planted, "nan", *NAN_SECONDS) and job.phase == "train":
        knobs.nan_rank = rank_at(world, planted, job)


PLUGIN = FaultPlugin(
    name="silent_corruption", fault="silent_corruption", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=HARMLESS,
    tier="B",
)
