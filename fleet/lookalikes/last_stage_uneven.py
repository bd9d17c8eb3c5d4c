"""A pipeline's last stage has more to compute (the head and the loss): its ranks are the slowest on whatever nodes they run."""

from __future__ import annotations

import numpy as np

from core.errors import Refused
from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Only a pipeline has a last stage."""
    found = job_at(world, planted)
    if found is None or found[0].groups.pp < 2:
        raise Refused("not_supported", "the job has no pipeline stages")


def apply(world: World, planted: Planted) -> None:
    """All ranks of the stage alike."""
    found = job_at(world, planted)
    if found is not None and found[0].groups.pp > 1:
        ranks = np.asarray(found[0].groups.stage_ranks(-1))
        found[1].compute[ranks] *= compute_factor(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="last_stage_uneven", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=(0.01, 0.15), tier="D", needs=("trainer",),
)
