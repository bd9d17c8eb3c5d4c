"""A GPU makes every run on it die within minutes, each time at another step, with no line in the kernel's log.

The crash stays with the part: on other nodes the job goes on.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Each run dies some time after it trains."""
    if strikes(world, planted, ("train",), (30.0, 300.0)):
        crash(world, planted, "illegal_access")


PLUGIN = FaultPlugin(
    name="crash_loop_hardware", fault="job_crash_loop", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=STANDS, tier="B",
)
