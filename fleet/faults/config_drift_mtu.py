"""A node's fabric ports run at a small MTU (a rebuilt network configuration): smaller packets, slower collectives."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    world.knobs.settings[row, "mtu"] = "1500"
    world.knobs.nic.slowness[row] *= exchange_factor(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="config_drift_mtu", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=(0.01, 0.4),
    tier="A", needs=("roce",),
)
