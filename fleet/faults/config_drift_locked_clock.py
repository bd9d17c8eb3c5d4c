"""All GPUs of a node have their clock locked below the top (left over from a benchmark)."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import clock_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    share = clock_share(world, planted.place, planted.severity)
    world.knobs.settings[row, "locked_clock_mhz"] = f"{world.kind.max_clock_mhz * share:.0f}"
    world.knobs.gpu.clock_cap[row] *= share


PLUGIN = FaultPlugin(
    name="config_drift_locked_clock", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=(0.01, 0.8),
    tier="C", needs=("nvidia",),
)
