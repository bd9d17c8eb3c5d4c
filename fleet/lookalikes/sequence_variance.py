"""A job's batches differ in length: from step to step other ranks are the slow ones, and the step time is rough.

Lengths are drawn anew every five seconds: shorter steps within them share theirs.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

SIGMA = 0.35


def apply(world: World, planted: Planted) -> None:
    """Each replica draws its length anew; the longest makes the step longer, now more and now less than the severity."""
    found = job_at(world, planted)
    if found is None:
        return
    job, knobs = found
    groups = job.groups
    most = compute_factor(world, planted.place, planted.severity) - 1.0
    drawn = planted.rng.lognormal(0.0, SIGMA, groups.dp)
    # The longest of so many is usually about this long.
    lengths = drawn / np.exp(SIGMA * NormalDist().inv_cdf(groups.dp / (groups.dp + 1)))
    replica = np.arange(job.ranks) // groups.tp % groups.dp
    knobs.compute *= 1.0 + most * lengths[replica]


PLUGIN = FaultPlugin(
    name="sequence_variance", fault=None, scope="job", place="job", apply=apply, impact=(0.02, 0.4), tier="D", needs=("trainer",),
)
