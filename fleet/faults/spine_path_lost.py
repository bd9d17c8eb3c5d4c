"""Some of the equal-cost paths over a spine drop what is hashed onto them: a few flows stand still, most are well.

A job with such a flow stalls and its transport gives up; a new start hashes anew and may be lucky. A sprayed fabric dips
for a minute and goes on over the other paths.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, STANDS
from fleet.plants import Planted
from fleet.world import World

# Share of a spine's paths that one bad line card takes with it.
LINE_CARD = 0.125


def apply(world: World, planted: Planted) -> None:
    """So many paths are black that at planting one flow at least was on them."""
    knobs, at, memo = world.knobs.switch, planted.place.index[0], planted.memo
    if "share" not in memo:
        memo["share"] = max(LINE_CARD, world.network.share_that_hits(at) or 0.0)
    if planted.level > 0:
        knobs.paths_lost[at] = max(float(knobs.paths_lost[at]), memo["share"])


PLUGIN = FaultPlugin(
    name="spine_path_lost", fault="packet_loss", scope="switch", place="spine", apply=apply, impact=STANDS,
    onsets=("step", "intermittent"), heals_seconds=NETWORK_HEALS_SECONDS,
)
