"""A NIC, its cable or its switch port loses packets that arrive: the rail is resent and slows the collective.

The port counts gaps, its peers count the NAKs for them; no congestion mark rises and the link stays up at its rate.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from core.types import Target
from fleet.faults.places import nic_place
from fleet.world import World

# Lost packets per million: a loss that go-back-N still hides, and how it grows with the slow-down that it causes.
LEAST_PER_MILLION = 18.0
PER_MILLION_AT_DOUBLE = 420.0


def start(world: World, target: Target, severity: float, now_ms: int) -> None:
    """The loss is there from one moment to the next."""
    place = nic_place(world, target)
    healthy = world.shape.compute_seconds + world.shape.collective_seconds
    world.nics.loss[place] = LEAST_PER_MILLION + PER_MILLION_AT_DOUBLE * severity
    world.rail_slowness[place] = 1.0 + severity * healthy / world.shape.collective_seconds


def stop(world: World, target: Target) -> None:
    """The port is as new."""
    place = nic_place(world, target)
    world.nics.loss[place] = 0.0
    world.rail_slowness[place] = 1.0


PLUGIN = FaultPlugin(
    name="packet_loss", fault="packet_loss", scope="device", target_kind="nic", start=start, stop=stop,
    cured_by=("replace",),
)
