"""A node runs another driver than its group (a failed roll-out): its kernels are a little slower there."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

OTHER_DRIVER = "550.54.15"


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    world.knobs.settings[row, "driver"] = OTHER_DRIVER
    world.knobs.gpu.compute[row] *= compute_factor(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="config_drift", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("replace",), impact=(0.01, 0.2),
    tier="A", needs=("nvidia",),
)
