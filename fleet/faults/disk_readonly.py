"""A node's scratch file system meets an error and is mounted read-only: every save there fails."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at, say
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """The kernel's lines about it."""
    row = planted.place.index[0]
    say(world, row, "EXT4-fs error (device nvme1n1): ext4_journal_check_start:83: comm python3: Detected aborted journal")
    say(world, row, "EXT4-fs (nvme1n1): Remounting filesystem read-only")


def apply(world: World, planted: Planted) -> None:
    """Nothing can be written."""
    world.knobs.host.read_only[planted.place.index] = 1.0
    found = job_at(world, planted)
    if found is not None:
        found[1].saves_fail = True


PLUGIN = FaultPlugin(
    name="disk_readonly", fault="disk_full", scope="device", place="disk", apply=apply, begin=begin, cured_by=("reboot", "replace"),
    impact=HARMLESS,
)
