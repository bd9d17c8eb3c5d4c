"""A job goes over to another mix of data: its loss is higher from one step to the next, the gradient norm is as before."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

HEIGHT = (0.12, 0.6)


def apply(world: World, planted: Planted) -> None:
    """The level of the loss is another one."""
    if "height" not in planted.memo:
        planted.memo["height"] = float(planted.rng.uniform(*HEIGHT))
    found = job_at(world, planted)
    if found is not None:
        found[1].loss_bump += planted.memo["height"]


PLUGIN = FaultPlugin(
    name="data_mix_jump", fault=None, scope="job", place="job", apply=apply, impact=HARMLESS, tier="B",
)
