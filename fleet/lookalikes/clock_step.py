"""The time daemon of a node finds its clock some tenths of a second off and steps it, once: it is right again."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import SUBSTEP_SECONDS, World

SECONDS = (0.06, 0.9)
SEEN_SECONDS = 15.0
# Too little to be a drift: the clock stays where it is until it is stepped.
STAYS = 1e-9


def apply(world: World, planted: Planted) -> None:
    """Off from one moment to the next, seen by one scrape or none, then corrected."""
    row, memo, drift = planted.place.rows[0], planted.memo, world.knobs.host.clock_drift
    if "size" not in memo:
        memo["size"] = float(planted.rng.uniform(*SECONDS)) * (1 if planted.rng.random() < 0.5 else -1)
        drift[row] += memo["size"] / SUBSTEP_SECONDS
    elif planted.age_seconds(world.now_ms) < SEEN_SECONDS:
        drift[row] += STAYS


PLUGIN = FaultPlugin(
    name="clock_step", fault=None, scope="node", place="node", apply=apply, impact=HARMLESS,
)
