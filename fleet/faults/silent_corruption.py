"""A GPU computes wrong now and then and counts nothing: gradients jump, the loss wanders, rarely a value is not finite.

No error counter and no log line; which GPU it is shows only where its rank's numbers are looked at.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SPELL_SECONDS = (60.0, 400.0)


def apply(world: World, planted: Planted) -> None:
    """Gradients are a little too large all the time; in spells the loss jumps."""
    found = job_at(world, planted)
    if found is None:
        return
    knobs, memo = found[1], planted.memo
    knobs.grad *= 1.0 + 0.25 * planted.level
    if every(world, planted, "spell", *SPELL_SECONDS):
        memo["until"] = world.now_ms + 20_000
        memo["nan"] = planted.rng.random() < 0.15
    if world.now_ms < memo.get("until", 0):
        knobs.grad *= 4.0
        knobs.loss_bump += 0.3
        knobs.nonfinite = knobs.nonfinite or bool(memo["nan"])


PLUGIN = FaultPlugin(
    name="silent_corruption", fault="silent_corruption", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=HARMLESS,
    tier="B",
)
