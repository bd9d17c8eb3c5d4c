"""Somebody clears the port counters of a node: all of them begin at nothing while the traffic goes on."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Once."""
    world.nics.reset(planted.place.rows[0])


def apply(world: World, planted: Planted) -> None:
    """Nothing goes on."""


PLUGIN = FaultPlugin(
    name="counter_reset", fault=None, scope="node", place="node", apply=apply, begin=begin, impact=HARMLESS,
)
