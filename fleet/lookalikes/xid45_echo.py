"""A user kills his job: the driver writes an XID 45 for each GPU as it clears up, and nothing is broken."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

AWAY_SECONDS = (60.0, 300.0)


def begin(world: World, planted: Planted) -> None:
    """The processes are killed; each leaves its line."""
    found = job_at(world, planted)
    alive = found is not None and found[0].alive
    stop_now(world, planted, clean=False)
    if not alive or found is None:
        return
    for row in found[0].nodes:
        for gpu in range(world.kind.gpus):
            world.kernel.xid(row, gpu, 45, f"pid={20_000 + 8 * row + gpu}, name=python3, Ch 00000008")


def apply(world: World, planted: Planted) -> None:
    """It starts again after its time."""
    restart_later(world, planted, AWAY_SECONDS)


PLUGIN = FaultPlugin(
    name="xid45_echo", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=HARMLESS, needs=("nvidia",),
)
