"""A link goes down for seconds and comes back, again and again: each time the job's step stands still.

Carrier changes and downed counters step at both ends, the state falls and returns; no loss in between.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every
from fleet.plants import Planted
from fleet.world import World

DOWN_SECONDS = (5.0, 25.0)
# What the job loses by one: the step that meets it waits for its transport's timers.
COST_SECONDS = 20.0


def apply(world: World, planted: Planted) -> None:
    """How often it is down sets how much longer the steps are on average."""
    memo, rng = planted.memo, planted.rng
    between = COST_SECONDS * (1 + 1 / max(planted.severity, 0.01))
    if "until" not in memo or every(world, planted, "flap", 0.5 * between, 1.5 * between):
        memo["until"] = world.now_ms + int(1000 * float(rng.uniform(*DOWN_SECONDS)))
    if world.now_ms < memo["until"] and planted.level > 0:
        world.knobs.nic.up[planted.place.index] = 0.0


PLUGIN = FaultPlugin(
    name="link_flap", fault="link_flap", scope="device", place="nic", apply=apply, cured_by=("replace",), impact=(0.01, 0.3),
    onsets=("step", "intermittent"),
)
