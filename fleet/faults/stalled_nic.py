"""A NIC's firmware serves one of its queues no more: the rank behind it never completes its collective.

All ranks stand still; the one on that rail is behind, and the port sends nothing while its link is up.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at, rank_at
from fleet.faults.sizes import STANDS
from fleet.places import training
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Only a job that trains can hang."""
    training(world, planted.place)


def apply(world: World, planted: Planted) -> None:
    """The rank on the NIC's rail enters no collective."""
    found = job_at(world, planted)
    rank = None if found is None else rank_at(world, planted, found[0])
    if found is not None and rank is not None:
        found[1].hung[rank] = True


PLUGIN = FaultPlugin(
    name="stalled_nic", fault="stalled_loss", scope="device", place="nic", apply=apply, begin=begin,
    cured_by=("reboot", "replace"), impact=STANDS, tier="B",
)
