"""A dead process leaves GPU memory held: it is used without a process, and the next run there dies for want of it.

A reset frees it; so does whoever finds the stuck process.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, job_at, strikes
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

SHARE = (0.2, 0.6)


def apply(world: World, planted: Planted) -> None:
    """Memory is held; a job that starts and needs it all dies in its first steps."""
    memo = planted.memo
    if "mib" not in memo:
        memo["mib"] = float(planted.rng.uniform(*SHARE)) * world.kind.memory_mib
    found = job_at(world, planted)
    running = memo.setdefault("run_then", 0 if found is None else found[0].run)
    world.knobs.gpu.leaked_mib[planted.place.index] += memo["mib"]
    hits = strikes(world, planted, ("warmup", "train"), (1.0, 10.0))
    if hits and found is not None and found[0].run != running:
        crash(world, planted, "oom")


PLUGIN = FaultPlugin(
    name="gpu_memory_leaked", fault="gpu_memory_leaked", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=HARMLESS,
    needs=("nvidia",),
)
