"""A GPU's own processor stops answering (XID 119): each query waits seconds, the exporter hangs or repeats itself.

The job goes on until it next needs the driver, then it dies. A reset cures it.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, every, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World

DIES_AFTER_SECONDS = (120.0, 500.0)


def apply(world: World, planted: Planted) -> None:
    """The firmware is stuck; its timeouts repeat in the log, and the job dies some minutes later."""
    world.knobs.gpu.stuck[planted.place.index] = 1.0
    # DCGM waits for the one that does not answer and shows what it has of all of them.
    world.knobs.exporter.answers[planted.place.index[0], "dcgm"] = "frozen"
    fresh = strikes(world, planted, ("init", "warmup"), (20.0, 40.0))
    if fresh or every(world, planted, "timeout", 45.0, 90.0):
        _timeout(world, planted)
    if "dies" not in planted.memo:
        planted.memo["dies"] = world.now_ms + int(1000 * float(planted.rng.uniform(*DIES_AFTER_SECONDS)))
        return
    if fresh or 0 < planted.memo["dies"] <= world.now_ms:
        planted.memo["dies"] = 0
        crash(world, planted, "CUDA error: unknown error")


def _timeout(world: World, planted: Planted) -> None:
    gpu = planted.place.index[1]
    xid(world, planted, 119, f"pid={int(planted.rng.integers(2_000, 90_000))}, name=nv-hostengine, Timeout after 6s of waiting for "
                             f"RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a6a 0x98).")


PLUGIN = FaultPlugin(
    name="xid_119", fault="xid_fatal", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=STANDS, needs=("nvidia",), tier="B",
)
