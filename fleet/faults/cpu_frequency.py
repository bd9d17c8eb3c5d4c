"""A node's CPU throttles itself (a loose heat sink): package throttle events, a low frequency, late host threads."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, say
from fleet.faults.sizes import frequency_share
from fleet.plants import Planted
from fleet.world import World

# The line in the log counts as many.
THROTTLES_PER_SECOND = 11.0


def apply(world: World, planted: Planted) -> None:
    """The clock of the CPU falls; its kernel says so now and then."""
    row = planted.place.index[0]
    world.knobs.host.frequency[row] *= frequency_share(world, planted.place, planted.severity * planted.level)
    world.knobs.host.throttles_per_second[row] += THROTTLES_PER_SECOND * planted.level
    if planted.level > 0 and every(world, planted, "line", 60.0, 300.0):
        say(world, row, f"mce: CPU{int(planted.rng.integers(0, 96))}: Package temperature above threshold, cpu clock throttled "
                        f"(total events = {int(planted.age_seconds(world.now_ms) * THROTTLES_PER_SECOND)})")


PLUGIN = FaultPlugin(
    name="cpu_frequency", fault="cpu_starved", scope="node", place="node", apply=apply, cured_by=("replace",), impact=(0.01, 1.0),
    onsets=("step", "ramp"),
)
