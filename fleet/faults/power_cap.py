"""A GPU is held at a lower power limit than its peers (a wrong setting, a limit left over from a test).

Power pinned at the lower limit, power-cap bit and violation time, a lower clock; no thermal bits. The limit is the
driver's: a reload sets it back.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import power_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Lowers the limit to where the clock gives way as far as the severity wants it."""
    share = min(1.0, power_share(world, planted.place, planted.severity))
    world.knobs.gpu.power_limit[planted.place.index] *= 1.0 + (share - 1.0) * planted.level


PLUGIN = FaultPlugin(
    name="power_cap", fault="power_cap", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=(0.01, 0.6),
    needs=("nvidia",),
)
