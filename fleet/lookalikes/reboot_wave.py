"""A rack's nodes are rebooted one after the other in a maintenance window; their job ends in order before and starts after.

Exporters are silent for minutes, counters begin anew, boot times change: many nodes, one cause, nothing broken.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lifecycle import booted
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

APART_SECONDS, BOOT_SECONDS = 30.0, 300.0
WHO = "maintenance"


def begin(world: World, planted: Planted) -> None:
    """The job ends and the rack is taken."""
    stop_now(world, planted, clean=True)
    for row in planted.place.rows:
        world.other_hand(world.nodes[row].name, WHO)


def end(world: World, planted: Planted) -> None:
    """What is still held is given back."""
    for row in planted.place.rows:
        _back(world, row)


def apply(world: World, planted: Planted) -> None:
    """Each node in its turn: down, up, given back; then the job starts."""
    age = planted.age_seconds(world.now_ms)
    rows = planted.place.rows
    for place, row in enumerate(rows):
        node, down = world.nodes[row], 60.0 + APART_SECONDS * place
        if down <= age < down + BOOT_SECONDS and node.held_by == WHO and node.state == "drained":
            node.state = "rebooting"
        elif age >= down + BOOT_SECONDS:
            _back(world, row)
    last = 60.0 + APART_SECONDS * len(rows) + BOOT_SECONDS
    restart_later(world, planted, (last + 30.0, last + 90.0))


def _back(world: World, row: int) -> None:
    node = world.nodes[row]
    if node.held_by != WHO:
        return
    if node.state == "rebooting":
        booted(world, node, world.now_ms)
    world.other_hand(node.name, None)


PLUGIN = FaultPlugin(
    name="reboot_wave", fault=None, scope="rack", place="rack", apply=apply, begin=begin, end=end, impact=HARMLESS,
)
