"""A node's scratch file system fills up (old checkpoints, logs): room falls to nothing and saves that need it fail."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

FILLS_IN_SECONDS = (120.0, 1800.0)


def apply(world: World, planted: Planted) -> None:
    """It fills at a rate that is drawn once."""
    row, memo = planted.place.index[0], planted.memo
    if "seconds" not in memo:
        memo["seconds"] = float(planted.rng.uniform(*FILLS_IN_SECONDS))
    share = min(1.0, 0.5 + 0.5 * planted.age_seconds(world.now_ms) / memo["seconds"])
    world.knobs.host.disk_fill[row] = max(float(world.knobs.host.disk_fill[row]), share)
    found = job_at(world, planted)
    if share >= 1.0 and found is not None:
        found[1].saves_fail = True


PLUGIN = FaultPlugin(
    name="disk_full", fault="disk_full", scope="device", place="disk", apply=apply, cured_by=("replace",), impact=HARMLESS,
)
