"""The hypervisor takes a node's CPU time away: steal grows and its host threads run late."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, steal_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """A share of the time is stolen."""
    knobs, row = world.knobs.host, planted.place.index[0]
    knobs.steal[row] = max(float(knobs.steal[row]), steal_share(world, planted.place, planted.severity * planted.level))


PLUGIN = FaultPlugin(
    name="cpu_steal", fault="cpu_starved", scope="node", place="node", apply=apply, cured_by=("replace",), impact=(0.01, 2.0),
    onsets=("step", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS,
)
