"""Loader processes of one node have died and the few that are left cannot keep up: its ranks wait for data.

Only that node's ranks wait for data, all others wait for them; its CPU is no busier than its peers'.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at, ranks_on
from fleet.faults.sizes import WIDEST, wait_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The node's ranks wait."""
    found = job_at(world, planted)
    if found is not None:
        job, knobs = found
        ranks = ranks_on(world, job, planted.place.rows)
        knobs.data[ranks] *= wait_factor(world, planted.place, planted.severity * planted.level, max(1, len(ranks)))


PLUGIN = FaultPlugin(
    name="data_stall_cpu", fault="data_stall", scope="node", place="node", apply=apply, cured_by=("restart_process", "resume_job", "reboot", "replace"),
    impact=WIDEST, onsets=("step", "ramp"), tier="D", needs=("trainer",),
)
