"""A user's program made an error on a GPU (XID 13, 31 or 43) and has long been corrected: the number stays in the gauge."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

CODES = (13, 31, 43)


def begin(world: World, planted: Planted) -> None:
    """One line; the gauge keeps the number."""
    world.kernel.xid(planted.place.index[0], planted.place.index[1], int(planted.rng.choice(CODES)))


def apply(world: World, planted: Planted) -> None:
    """Nothing goes on."""


PLUGIN = FaultPlugin(
    name="sticky_xid", fault=None, scope="device", place="gpu", apply=apply, begin=begin, impact=HARMLESS, needs=("nvidia",),
)
