"""A node's persistence daemon has died: the driver unloads when no process holds it, and idle GPUs lose their settings."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import systemd_says
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

UNIT = "nvidia-persistenced.service"


def apply(world: World, planted: Planted) -> None:
    """The unit is down, with what follows from it."""
    row = planted.place.index[0]
    world.knobs.down_services.add((row, UNIT))
    world.knobs.settings[row, "persistence"] = "disabled"


PLUGIN = FaultPlugin(
    name="service_down_persistence", fault="service_down", scope="node", place="node", apply=apply,
    begin=systemd_says(UNIT, running=False), end=systemd_says(UNIT, running=True),
    cured_by=("restart_process", "reboot", "replace"),
    impact=HARMLESS, tier="B", needs=("nvidia",),
)
