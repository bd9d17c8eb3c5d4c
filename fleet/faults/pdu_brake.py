"""A rack's PDU loses a feed: the GPUs on it brake together, again and again.

Brake bits and half clocks on all nodes of one PDU at the same moments; no heat, and no node is at fault.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import now_and_then
from fleet.faults.sizes import brake_share
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """One brake for all that hangs on it."""
    rows = list(planted.place.rows)
    if now_and_then(planted, brake_share(world, planted.place, planted.severity) * planted.level):
        world.knobs.gpu.brake[rows] = 1.0


PLUGIN = FaultPlugin(
    name="pdu_brake", fault="power_brake", scope="rack", place="pdu", apply=apply, impact=(0.01, 0.7), onsets=("step", "intermittent"),
    needs=("nvidia",), tier="C",
)
