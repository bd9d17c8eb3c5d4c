"""A job goes on step by step but learns nothing: its loss stays at one value (a zero learning rate, a lost gradient).

Steps, power and traffic are normal; only the reported loss no longer changes. A new start from an older state ends it.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The reported loss is frozen."""
    found = job_at(world, planted)
    if found is not None:
        found[1].loss_frozen = True


PLUGIN = FaultPlugin(
    name="stalled_frozen", fault="stalled_loss", scope="job", place="job", apply=apply, cured_by=("resume_job", "restart_process"),
    impact=STANDS, tier="B",
)
