"""A node's GPUs have another VBIOS than their group (boards from stock): a lower top clock."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import clock_share
from fleet.plants import Planted
from fleet.world import World

OTHER_VBIOS = "96.00.74.00.01"


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    world.knobs.settings[row, "vbios"] = OTHER_VBIOS
    world.knobs.gpu.clock_cap[row] *= clock_share(world, planted.place, planted.severity)


PLUGIN = FaultPlugin(
    name="config_drift_vbios", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("replace",), impact=(0.01, 0.2),
    tier="C", needs=("nvidia",),
)
