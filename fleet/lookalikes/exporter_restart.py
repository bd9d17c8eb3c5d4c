"""An exporter is restarted: it is silent for some seconds and its own counters begin anew."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import exporter_of
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

DOWN_SECONDS = 25.0


def apply(world: World, planted: Planted) -> None:
    """Down, then up with new counters."""
    key = (planted.place.rows[0], exporter_of(world, planted))
    back = planted.at + int(1000 * DOWN_SECONDS)
    if world.now_ms < back:
        world.knobs.exporter.answers[key] = "down"
    else:
        world.knobs.exporter.restarted[key] = back


PLUGIN = FaultPlugin(
    name="exporter_restart", fault=None, scope="node", place="node", apply=apply, impact=HARMLESS,
)
