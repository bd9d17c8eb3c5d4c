"""Something takes a node's memory: it stalls on reclaim, and in the end the kernel kills a rank.

Available memory falls, stalls for memory and major faults rise; then one line of the killer, and the job dies.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, say, strikes
from fleet.faults.sizes import memory_stall
from fleet.plants import Planted
from fleet.world import World

KILLS_FROM = 0.93
HELD = 0.66


def apply(world: World, planted: Planted) -> None:
    """Memory is held by others; beyond a point the kernel kills."""
    row, knobs = planted.place.index[0], world.knobs.host
    knobs.memory_held[row] = max(float(knobs.memory_held[row]), HELD * planted.level)
    stall = memory_stall(world, planted.place, planted.severity * planted.level)
    knobs.memory_pressure[row] = max(float(knobs.memory_pressure[row]), stall)
    full = stall > 0.2 and planted.level > KILLS_FROM and planted.age_seconds(world.now_ms) > 90.0
    if full and strikes(world, planted, ("train",), (90.0, 300.0)):
        pid = int(planted.rng.integers(9_000, 900_000))
        say(world, row, f"Out of memory: Killed process {pid} (python3) total-vm:912345678kB, anon-rss:187654321kB, "
                        "file-rss:0kB, shmem-rss:81234kB, UID:1000 pgtables:402345kB oom_score_adj:0")
        world.hosts.oom_kill(row)
        crash(world, planted, "host_oom")


PLUGIN = FaultPlugin(
    name="memory_pressure", fault="memory_pressure", scope="node", place="node", apply=apply, cured_by=("reboot", "replace"), impact=(0.05, 3.0),
    onsets=("ramp", "step"),
)
