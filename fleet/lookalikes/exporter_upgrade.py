"""A new version of the GPU exporter goes over the whole fleet within minutes and renames its families on every node."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

ROLL_SECONDS = 300.0
DOWN_SECONDS = 15.0


def apply(world: World, planted: Planted) -> None:
    """Node after node is silent for a moment and then speaks the new names."""
    total, age = len(world.nodes), planted.age_seconds(world.now_ms)
    exporter = "dcgm" if "nvidia" in world.has else "node"
    for row in range(total):
        since = age - ROLL_SECONDS * row / total
        if since < 0:
            continue
        if since < DOWN_SECONDS:
            world.knobs.exporter.answers[row, exporter] = "down"
        else:
            world.knobs.exporter.renamed.add((row, exporter))


PLUGIN = FaultPlugin(
    name="exporter_upgrade", fault=None, scope="fleet", place="fleet", apply=apply, impact=HARMLESS,
)
