"""A job's batch grows step by step as planned: steps take longer, tokens a second do not fall."""

from __future__ import annotations

import math

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.joblog import JobLog
from fleet.plants import Planted
from fleet.world import World

RAMP_SECONDS = 1200.0


def apply(world: World, planted: Planted) -> None:
    """More tokens a step, up to the severity more time, by whole samples: a log tells how many a step holds."""
    found = job_at(world, planted)
    if found is not None:
        job, knobs = found
        grown = min(1.0, planted.age_seconds(world.now_ms) / RAMP_SECONDS)
        usual = job.shape.tokens_per_rank
        samples = max(1, usual * job.ranks // JobLog.sequence_length)
        more = round(samples * (1.0 + (job.impact.compute(planted.severity) - 1.0) * grown)) / samples
        knobs.tokens *= math.ceil(usual * more) / usual


PLUGIN = FaultPlugin(
    name="batch_ramp", fault=None, scope="job", place="job", apply=apply, impact=(0.1, 1.0), tier="B",
)
