"""A job gets slower on all ranks alike and stays so (a new library, a changed setting): no part is at fault.

Compute grows on every rank, waiting does not; clock, heat and network are normal.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """All steps take longer."""
    found = job_at(world, planted)
    if found is not None:
        found[1].pace *= 1.0 + planted.severity * planted.level


PLUGIN = FaultPlugin(
    name="throughput_drop", fault="throughput_drop", scope="job", place="job", apply=apply, impact=(0.03, 1.0),
    onsets=("step", "ramp"), tier="B",
)
