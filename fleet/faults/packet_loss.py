"""A NIC, its cable or its switch port loses packets that arrive: the rail is resent and slows the collective.

The port counts gaps, its peers count the NAKs for them; no congestion mark rises and the link stays up at its rate.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.plants import Planted
from fleet.world import World

# Lost packets per million: a loss that go-back-N still hides, and how it grows with the slow-down that it causes.
LEAST_PER_MILLION = 18.0
PER_MILLION_AT_DOUBLE = 420.0


def apply(world: World, planted: Planted) -> None:
    """The loss is there from one moment to the next."""
    place, size, shape = planted.place.index, planted.severity * planted.level, world.shape
    healthy = shape.compute_seconds + shape.collective_seconds
    world.knobs.nic.loss_per_million[place] += (LEAST_PER_MILLION + PER_MILLION_AT_DOUBLE * planted.severity) * planted.level
    world.knobs.nic.slowness[place] *= 1.0 + size * healthy / shape.collective_seconds


PLUGIN = FaultPlugin(
    name="packet_loss", fault="packet_loss", scope="device", place="nic", apply=apply, cured_by=("replace",),
    onsets=("step", "ramp", "intermittent"), needs=("roce",),
)
