"""A mixture-of-experts job sends more tokens to some experts, to others after some minutes: the slow ranks wander."""

from __future__ import annotations

import numpy as np

from core.protocols import FaultPlugin
from fleet.faults.acts import every, job_at
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

STAY_SECONDS = (90.0, 400.0)
SHARE = 0.06


def apply(world: World, planted: Planted) -> None:
    """A few ranks have more to compute until the routing shifts."""
    found, memo = job_at(world, planted), planted.memo
    if found is None:
        return
    job, knobs = found
    if every(world, planted, "shift", *STAY_SECONDS) or "ranks" not in memo:
        memo["ranks"] = planted.rng.permutation(job.ranks)[: max(1, round(SHARE * job.ranks))]
    ranks = np.asarray(memo["ranks"])
    knobs.compute[ranks[ranks < job.ranks]] *= compute_factor(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="hot_experts", fault=None, scope="job", place="job", apply=apply, impact=(0.02, 0.3), tier="D", needs=("trainer",),
)
