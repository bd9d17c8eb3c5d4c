"""A job's loss becomes NaN (a bad batch, a bug in a kernel, a learning rate too high) and stays so until it starts again.

Hardware is quiet; the loss, the gradient norm and the counters of skipped and NaN steps tell.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Loss and gradients are NaN."""
    found = job_at(world, planted)
    if found is not None:
        found[1].nonfinite = True


PLUGIN = FaultPlugin(
    name="nonfinite_loss", fault="nonfinite_loss", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=STANDS, tier="B",
)
