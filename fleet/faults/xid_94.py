"""A contained memory error (XID 94): the process that used the page dies, the page is set aside and the row remapped.

A new start of the process is enough; the row's remapping stays pending until the next reset.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, strikes, xid
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """One process is hit, and with it the job."""
    if not strikes(world, planted, phases=()):
        return
    place = planted.place.index
    xid(world, planted, 63, f"Row Remapper: New row (0x{int(planted.rng.integers(1 << 24)):016x}) marked for remapping, reset gpu to activate.")
    xid(world, planted, 94, f"pid={int(planted.rng.integers(9_000, 900_000))}, name=python3, Contained: CE User Channel (0x9). "
                            "RST: No, D-RST: No")
    world.gpus.uncorrectable(*place)
    world.gpus.remapped(place[0], place[1], False)
    world.gpus.pending_row(*place)
    crash(world, planted, "ecc")


PLUGIN = FaultPlugin(
    name="xid_94", fault="ecc_uncorrectable", scope="device", place="gpu", apply=apply,
    cured_by=("restart_process", "resume_job", "reset_gpu", "reboot", "replace"), impact=STANDS, needs=("nvidia", "hbm"),
)
