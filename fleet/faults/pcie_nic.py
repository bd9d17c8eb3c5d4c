"""The PCIe slot of a NIC trains down to fewer lanes: the port cannot take what the link brings, its rail waits.

The adapter's lanes are few while its link shows the full rate; no packet is lost on the wire.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import exchange_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Lanes by what the slow-down needs: the slot's rate is in proportion to them."""
    place, knobs = planted.place.index, world.knobs.nic
    factor = exchange_factor(world, planted.place, planted.severity * planted.level)
    full = lanes = float(world.kind.pcie_width)
    while lanes > 1.0 and full / lanes < factor:
        lanes /= 2
    knobs.pcie_width[place] = min(float(knobs.pcie_width[place]), lanes)
    knobs.slowness[place] *= factor


PLUGIN = FaultPlugin(
    name="pcie_nic", fault="pcie_degraded", scope="device", place="nic", apply=apply, cured_by=("reboot", "replace"), impact=(0.01, 2.0),
    tier="C",
)
