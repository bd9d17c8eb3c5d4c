"""A job's checkpoints fail (a writer that has broken): training goes on and its last save grows old."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Every save fails."""
    found = job_at(world, planted)
    if found is not None:
        found[1].saves_fail = True


PLUGIN = FaultPlugin(
    name="checkpoint_stale", fault="checkpoint_stale", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=HARMLESS, tier="B",
)
