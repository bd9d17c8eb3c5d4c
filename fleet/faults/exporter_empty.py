"""An exporter answers 200 without a body, as dcgm-exporter does while it reloads for ever."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import exporter_of
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The exporter is drawn once."""
    key = (planted.place.index[0], exporter_of(world, planted))
    world.knobs.exporter.answers[key] = "empty"


PLUGIN = FaultPlugin(
    name="exporter_empty", fault="exporter_partial", scope="node", place="node", apply=apply, cured_by=("restart_process", "reboot"), impact=HARMLESS,
)
