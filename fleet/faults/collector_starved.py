"""An exporter's number of series explodes on all nodes (a label with a value of its own for each request).

Scrapes grow a hundredfold within minutes; what collects them falls behind unless it sheds.
"""

from __future__ import annotations

import numpy as np

from core.protocols import FaultPlugin
from core.types import Target
from fleet.faults.sizes import HARMLESS
from fleet.places import Place
from fleet.plants import Planted
from fleet.world import World

SERIES = (20_000, 200_000)
GROWS_IN_SECONDS = 300.0


def locate(world: World, target: Target | None, rng: np.random.Generator) -> Place:
    """Who suffers is whoever collects; the fleet does not know its name."""
    return Place(Target("collector"), (), tuple(range(len(world.nodes))))


def apply(world: World, planted: Planted) -> None:
    """More and more series on node_exporter's page."""
    if "series" not in planted.memo:
        low, high = SERIES
        planted.memo["series"] = low * (high / low) ** float(planted.rng.random())
    grown = min(1.0, planted.age_seconds(world.now_ms) / GROWS_IN_SECONDS)
    for row in planted.place.rows:
        world.knobs.exporter.extra_series[row, "node"] = int(planted.memo["series"] * grown)


PLUGIN = FaultPlugin(
    name="collector_starved", fault="collector_starved", scope="collector", place="fleet", apply=apply, locate=locate, impact=HARMLESS,
)
