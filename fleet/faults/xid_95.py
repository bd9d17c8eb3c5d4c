"""An uncontained memory error (XID 95): every process on the GPU dies and none can start there before a reset."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The job dies now, and again as soon as it tries to start."""
    if not strikes(world, planted, ("init", "warmup", "train"), (5.0, 30.0)):
        return
    place = planted.place.index
    xid(world, planted, 95, f"pid={int(planted.rng.integers(9_000, 900_000))}, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
    world.gpus.uncorrectable(*place)
    world.gpus.remapped(place[0], place[1], False)
    world.gpus.pending_row(*place)
    crash(world, planted, "ecc")


PLUGIN = FaultPlugin(
    name="xid_95", fault="ecc_uncorrectable", scope="device", place="gpu", apply=apply,
    cured_by=("reset_gpu", "reboot", "replace"), impact=STANDS, needs=("nvidia", "hbm"),
)
