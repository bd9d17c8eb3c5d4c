"""A GPU's memory throws correctable errors by the thousand: counters race, rows are remapped, kernels slow a little.

The driver warns (XID 92) and remaps rows until a reset makes that good; a storm that goes on needs another board.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, once, xid
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

# Errors a second: smallest, and the rate that a real board reached under load.
PER_SECOND = (3.0, 17_000.0)


def apply(world: World, planted: Planted) -> None:
    """Errors come in proportion to the work; a row is remapped every few minutes."""
    place, memo = planted.place.index, planted.memo
    if "rate" not in memo:
        low, high = PER_SECOND
        memo["rate"] = low * (high / low) ** float(planted.rng.random())
    world.knobs.gpu.correctable_per_second[place] += memo["rate"] * planted.level
    world.knobs.gpu.compute[place] *= compute_factor(world, planted.place, planted.severity * planted.level)
    if once(world, planted, "warned", 60.0):
        xid(world, planted, 92, "High single-bit ECC error rate")
    if every(world, planted, "remap", 240.0, 900.0):
        world.gpus.remapped(place[0], place[1], True)
        world.gpus.pending_row(*place)
        xid(world, planted, 63, f"Row Remapper: New row (0x{int(planted.rng.integers(1 << 24)):016x}) marked for remapping, "
                                "reset gpu to activate.")


PLUGIN = FaultPlugin(
    name="ecc_correctable_storm", fault="ecc_correctable_storm", scope="device", place="gpu", apply=apply,
    cured_by=("replace",), impact=(0.01, 0.08), onsets=("step", "ramp", "intermittent"), tier="C", needs=("nvidia", "hbm"),
)
