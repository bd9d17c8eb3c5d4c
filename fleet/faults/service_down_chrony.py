"""A node's time daemon has died: nothing corrects its clock any more, which drifts by its own crystal."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import systemd_says
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

UNIT = "chrony.service"
# Seconds a second: an ordinary crystal.
CRYSTAL = 1.2e-5


def apply(world: World, planted: Planted) -> None:
    """The unit is down, with what follows from it."""
    row = planted.place.index[0]
    world.knobs.down_services.add((row, UNIT))
    world.knobs.host.synchronised[row] = 0.0
    world.knobs.host.clock_drift[row] += CRYSTAL


PLUGIN = FaultPlugin(
    name="service_down_chrony", fault="service_down", scope="node", place="node", apply=apply,
    begin=systemd_says(UNIT, running=False), end=systemd_says(UNIT, running=True),
    cured_by=("restart_process", "reboot", "replace"),
    impact=HARMLESS, tier="B",
)
