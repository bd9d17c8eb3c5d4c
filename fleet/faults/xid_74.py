"""An NVLink of a GPU fails for good (XID 74): the GPU counts errors, then the job dies of the lost link.

A reset retrains the link; a bad bridge or board fails again.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Errors go on while the link is bad; each run that uses it dies."""
    row, gpu = planted.place.index
    world.knobs.gpu.nvlink_errors_per_second[row, gpu] += 8.0
    world.knobs.gpu.nvlink[row, gpu] *= 0.5
    if strikes(world, planted):
        link = int(planted.rng.integers(0, 18))
        xid(world, planted, 74, f"pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {link}"
                                "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")
        crash(world, planted, "CUDA error: uncorrectable NVLink error detected during the execution")


PLUGIN = FaultPlugin(
    name="xid_74", fault="nvlink_errors", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=STANDS, needs=("nvlink", "nvidia"),
)
