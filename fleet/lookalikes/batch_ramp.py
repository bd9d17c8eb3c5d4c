"""A job's batch grows step by step as planned: steps take longer, tokens a second do not fall."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.plants import Planted
from fleet.world import World

RAMP_SECONDS = 1200.0


def apply(world: World, planted: Planted) -> None:
    """More tokens a step, up to the severity more time."""
    found = job_at(world, planted)
    if found is not None:
        grown = min(1.0, planted.age_seconds(world.now_ms) / RAMP_SECONDS)
        found[1].tokens *= 1.0 + (found[0].impact.compute(planted.severity) - 1.0) * grown


PLUGIN = FaultPlugin(
    name="batch_ramp", fault=None, scope="job", place="job", apply=apply, impact=(0.1, 1.0), tier="B",
)
