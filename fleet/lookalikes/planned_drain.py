"""Somebody drains a node for maintenance, after its job has ended in order, and gives it back later."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

AWAY_SECONDS = (300.0, 1500.0)
WHO = "maintenance"


def begin(world: World, planted: Planted) -> None:
    """The job ends first, then the node is taken."""
    stop_now(world, planted, clean=True)
    world.other_hand(str(planted.culprit.node), WHO)


def end(world: World, planted: Planted) -> None:
    """The node is given back."""
    node = world.nodes[planted.place.rows[0]]
    if node.held_by == WHO:
        world.other_hand(node.name, None)


def apply(world: World, planted: Planted) -> None:
    """The node comes back, the job starts again."""
    if "back" in planted.memo and world.now_ms >= planted.memo["back"]:
        end(world, planted)
    restart_later(world, planted, AWAY_SECONDS)


PLUGIN = FaultPlugin(
    name="planned_drain", fault=None, scope="node", place="node", apply=apply, begin=begin, end=end, impact=HARMLESS,
)
