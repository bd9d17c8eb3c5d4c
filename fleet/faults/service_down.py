"""A node's fabric manager has died: what runs goes on, but no new process there can use its GPUs together.

The unit is down while every GPU counter is green; a job that starts on the node dies in its first moments.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, job_at, strikes, systemd_says
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

UNIT = "nvidia-fabricmanager.service"


def apply(world: World, planted: Planted) -> None:
    """The unit is down, with what follows from it."""
    row = planted.place.index[0]
    world.knobs.down_services.add((row, UNIT))
    found = job_at(world, planted)
    if found is not None:
        planted.memo.setdefault("first", found[0].run)
        if found[0].run != planted.memo["first"] and strikes(world, planted, ("init", "warmup"), (5.0, 20.0)):
            crash(world, planted, "CUDA error: system not yet initialized (802)")


PLUGIN = FaultPlugin(
    name="service_down", fault="service_down", scope="node", place="node", apply=apply,
    begin=systemd_says(UNIT, running=False), end=systemd_says(UNIT, running=True),
    cured_by=("restart_process", "reboot", "replace"),
    impact=HARMLESS, tier="B", needs=("nvlink", "nvidia"),
)
