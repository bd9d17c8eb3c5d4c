"""An NVLink of a GPU goes bad: the GPU counts errors and replays, and collectives inside the node slow down.

All boards of the catalogue have switches between their GPUs, so the other end of each link is a switch, which counts in
fields of its own (DCGM's NVSwitch module) that no tier shows. The network between nodes is quiet.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import once
from fleet.faults.sizes import nvlink_factor
from fleet.plants import Planted
from fleet.world import World

# Errors a second at the GPU's end: smallest and greatest.
PER_SECOND = (0.2, 60.0)


def apply(world: World, planted: Planted) -> None:
    """Errors at the GPU, and a part of its bandwidth gone."""
    row, gpu = planted.place.index
    memo = planted.memo
    if once(world, planted, "first"):
        low, high = PER_SECOND
        memo["rate"] = low * (high / low) ** float(planted.rng.random())
    world.knobs.gpu.nvlink_errors_per_second[row, gpu] += memo["rate"] * planted.level
    world.knobs.gpu.nvlink[row, gpu] /= nvlink_factor(world, planted.place, planted.severity * planted.level)


PLUGIN = FaultPlugin(
    name="nvlink_errors", fault="nvlink_errors", scope="device", place="gpu", apply=apply, cured_by=("replace",), impact=(0.01, 2.0),
    onsets=("step", "ramp", "intermittent"), tier="C", needs=("nvlink",),
)
