"""Most node_exporters of the site answer late at once (a shared proxy, a name server): scrapes run into their time-outs everywhere.

What is seen is targets that do not answer, so that is its name; the culprit is what asks them or what they share, and no node.
A collector of Greylag's own keeps its times: each target that waits holds its own reading only.
"""

from __future__ import annotations

import numpy as np

from core.protocols import FaultPlugin
from core.types import Target
from fleet.faults.sizes import HARMLESS
from fleet.places import Place
from fleet.plants import Planted
from fleet.world import World

SHARE = 0.7


def locate(world: World, target: Target | None, rng: np.random.Generator) -> Place:
    """Who suffers is whoever collects; the fleet does not know its name."""
    return Place(Target("collector"), (), tuple(range(len(world.nodes))))


def apply(world: World, planted: Planted) -> None:
    """They hang."""
    if "rows" not in planted.memo:
        total = len(world.nodes)
        planted.memo["rows"] = sorted(int(r) for r in planted.rng.permutation(total)[: max(1, round(SHARE * total))])
    for row in planted.memo["rows"]:
        world.knobs.exporter.answers[row, "node"] = "hung"


PLUGIN = FaultPlugin(
    name="collector_slow_targets", fault="target_down", scope="collector", place="fleet", apply=apply, locate=locate, impact=HARMLESS, heals_seconds=1800.0,
)
