"""Much traffic meets on the fabric for some minutes: marks rise on many ports in one direction, nothing is lost."""

from __future__ import annotations

import numpy as np

from core.protocols import FaultPlugin
from fleet.faults.sizes import NETWORK_HEALS_SECONDS, exchange_factor
from fleet.plants import Planted
from fleet.world import World

CROWDED = 0.3


def apply(world: World, planted: Planted) -> None:
    """All leaves mark, some ports most of all (many send to them at once); collectives take a little longer."""
    factor = exchange_factor(world, planted.place, planted.severity * planted.level)
    leaves = list(world.topology.leaves())
    knobs, ports = world.knobs.switch, world.knobs.nic.congestion
    if "ports" not in planted.memo:
        planted.memo["ports"] = planted.rng.random(ports.shape) < CROWDED
    crowded = planted.memo["ports"]
    ports[crowded] = np.maximum(ports[crowded], world.network.congestion_for(factor))
    knobs.congestion[leaves] = [max(float(knobs.congestion[at]), world.network.congestion_for(factor)) for at in leaves]


PLUGIN = FaultPlugin(
    name="congestion", fault=None, scope="fleet", place="fleet", apply=apply, impact=(0.01, 0.08), onsets=("step", "ramp", "intermittent"),
    heals_seconds=NETWORK_HEALS_SECONDS,
)
