"""A GPU's PCIe link trains down to fewer lanes: copies from the host slow the rank and replays rise.

Width below 16 in full work; the GPU's own clock and heat are normal. A reset retrains the link if the slot is sound.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

LANES = (8, 4, 1)
REPLAYS_PER_SECOND = 0.4


def apply(world: World, planted: Planted) -> None:
    """Fewer lanes the larger it is; what the copies cost shows as the rank's compute."""
    place, size = planted.place.index, planted.severity * planted.level
    lanes = LANES[0] if size < 0.1 else LANES[1] if size < 0.5 else LANES[2]
    world.knobs.gpu.pcie_width[place] = min(world.knobs.gpu.pcie_width[place], lanes)
    world.knobs.gpu.pcie_replays_per_second[place] += REPLAYS_PER_SECOND
    world.knobs.gpu.compute[place] *= compute_factor(world, planted.place, size)


PLUGIN = FaultPlugin(
    name="pcie_degraded", fault="pcie_degraded", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=(0.01, 1.5),
    tier="C",
    needs=("nvidia",),
)
