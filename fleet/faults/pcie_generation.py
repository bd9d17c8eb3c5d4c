"""A GPU's PCIe link stays at a low generation in full work: copies from the host slow the rank.

A lower generation under load; at rest every link is at the first, which means nothing.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The third generation, or the first for a large one."""
    place, size = planted.place.index, planted.severity * planted.level
    world.knobs.gpu.pcie_gen[place] = 3.0 if size < 0.3 else 1.0
    world.knobs.gpu.compute[place] *= compute_factor(world, planted.place, size)


PLUGIN = FaultPlugin(
    name="pcie_generation", fault="pcie_degraded", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=(0.01, 0.9), tier="C",
    needs=("nvidia",),
)
