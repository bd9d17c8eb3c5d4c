"""One rank's process is slower than its peers (a stray thread, a slow Python path): everybody waits for it.

Its compute is longer and its waiting least, while its GPU stands idle between kernels that come late: the GPU is sound, so
the slowness follows the process, and a new start ends it. Most such spells end by themselves.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at, rank_at
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, WIDEST, compute_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The rank's kernels come later."""
    found = job_at(world, planted)
    rank = None if found is None else rank_at(world, planted, found[0])
    if found is not None and rank is not None:
        found[1].late[rank] *= compute_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="straggler", fault="straggler", scope="device", place="rank", apply=apply, cured_by=("restart_process", "resume_job"),
    impact=WIDEST, onsets=("step", "ramp", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS, tier="D", needs=("trainer",),
)
