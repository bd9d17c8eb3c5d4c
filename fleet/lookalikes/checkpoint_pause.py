"""A job saves a checkpoint out of turn: all its ranks pause, power falls, the storage is written to, then it goes on."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.places import training
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Only a job that trains goes into it."""
    training(world, planted.place)


def apply(world: World, planted: Planted) -> None:
    """Asks for it once; the job then takes its own time."""
    found, memo = job_at(world, planted), planted.memo
    if found is None or memo.get("done"):
        return
    if found[0].phase == "checkpoint":
        memo["done"] = True
    else:
        found[1].ask = "checkpoint"


PLUGIN = FaultPlugin(
    name="checkpoint_pause", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=HARMLESS, heals_seconds=300.0,
)
