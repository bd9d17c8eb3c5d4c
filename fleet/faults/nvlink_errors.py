"""An NVLink of a GPU goes bad: both its ends count errors and replays, and collectives inside the node slow down.

CRC, replay and recovery counters move on two GPUs; the network between nodes is quiet.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import once
from fleet.faults.sizes import nvlink_factor
from fleet.plants import Planted
from fleet.world import World

# Errors a second at both ends: smallest and greatest.
PER_SECOND = (0.2, 60.0)


def apply(world: World, planted: Planted) -> None:
    """The link's two ends are the GPU and one of its neighbours."""
    row, gpu = planted.place.index
    memo, ends = planted.memo, [gpu, (gpu + 1) % world.kind.gpus]
    if once(world, planted, "first"):
        low, high = PER_SECOND
        memo["rate"] = low * (high / low) ** float(planted.rng.random())
    world.knobs.gpu.nvlink_errors_per_second[row, ends] += memo["rate"] * planted.level
    world.knobs.gpu.nvlink[row, gpu] /= nvlink_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="nvlink_errors", fault="nvlink_errors", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=(0.01, 2.0),
    onsets=("step", "ramp", "intermittent"), tier="C", needs=("nvlink",),
)
