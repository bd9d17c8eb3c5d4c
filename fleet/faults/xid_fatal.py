"""A context switch on a GPU times out (XID 109): the job dies, and dies again until the GPU is reset."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The driver gives up on a channel of the job."""
    if strikes(world, planted):
        xid(world, planted, 109, f"pid={int(planted.rng.integers(9_000, 900_000))}, name=python3, Ch 0000000b, errorString CTX SWITCH "
                                 "TIMEOUT, Info 0x5c00b")
        crash(world, planted, "gpu_lost")


PLUGIN = FaultPlugin(
    name="xid_fatal", fault="xid_fatal", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=STANDS, needs=("nvidia",),
)
