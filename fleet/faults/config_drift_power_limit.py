"""All GPUs of a node have a lower power limit than their group (left over from a power test)."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import gpus_of, power_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The setting differs, and with it what follows from it."""
    row = planted.place.index[0]
    share = min(1.0, max(power_share(world, gpu, planted.severity) for gpu in gpus_of(world, row)))
    world.knobs.settings[row, "power_limit_watts"] = f"{world.kind.limit_watts * share:.0f}"
    world.knobs.gpu.power_limit[row] *= share


PLUGIN = FaultPlugin(
    name="config_drift_power_limit", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=(0.01, 0.6),
    tier="C", needs=("nvidia",),
)
