"""A job in half precision skips a step now and then because its loss scale was too high: one or two in a thousand are usual."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SHARE = 0.0025


def apply(world: World, planted: Planted) -> None:
    """Skips are a little more frequent."""
    found = job_at(world, planted)
    if found is not None:
        found[1].overflow_share = max(found[1].overflow_share, SHARE)


PLUGIN = FaultPlugin(
    name="amp_overflow", fault=None, scope="job", place="job", apply=apply, impact=HARMLESS, tier="B",
)
