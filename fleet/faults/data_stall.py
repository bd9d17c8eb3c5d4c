"""The dataset's own service (many small files, a slow index) cannot feed a job: all its ranks wait for data.

Waiting for data grows on every rank alike, GPUs idle in a saw-tooth; no node, disk or storage target stands out.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, WIDEST, wait_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Every rank waits."""
    found = job_at(world, planted)
    if found is not None:
        found[1].data *= wait_factor(world, planted.place, planted.severity * planted.level, found[0].ranks)


PLUGIN = FaultPlugin(
    name="data_stall", fault="data_stall", scope="job", place="job", apply=apply, impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=NETWORK_HEALS_SECONDS, tier="D", needs=("trainer",),
)
