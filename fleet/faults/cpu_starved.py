"""Another process eats a node's CPU: its host threads wait, kernels start late and loaders fall behind.

Work waits for CPU and the load is high on that node; GPUs there idle in a saw-tooth without heat or error.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import COMPUTE_HEALS_SECONDS, WIDEST, cpu_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Less of the CPU is left."""
    world.knobs.host.cpu[planted.place.index] *= cpu_share(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="cpu_starved", fault="cpu_starved", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=WIDEST,
    onsets=("step", "ramp", "intermittent"), heals_seconds=COMPUTE_HEALS_SECONDS,
)
