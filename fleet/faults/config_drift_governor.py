"""A node's CPU governor is set to save power: a low frequency, late kernel launches, slow loaders."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import frequency_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    world.knobs.settings[row, "governor"] = "powersave"
    world.knobs.host.frequency[row] *= frequency_share(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="config_drift_governor", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=(0.01, 0.15),
    tier="A",
)
