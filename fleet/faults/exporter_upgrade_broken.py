"""A new version of an exporter that was rolled out to a part of the fleet lost a part of its families.

Many nodes lose the same families together; what they share is the exporter's version.
"""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.exporter_partial import LOST
from fleet.faults.sizes import HARMLESS
from fleet.faults.waves import begin_wave, end_wave, wave
from fleet.plants import Planted
from fleet.world import World

KEY, VALUE = "dcgm_exporter", "4.8.2"


def apply(world: World, planted: Planted) -> None:
    """The families are absent there."""
    for row in planted.place.rows:
        world.knobs.exporter.missing[row, "dcgm"] = LOST["dcgm"]


PLUGIN = FaultPlugin(
    name="exporter_upgrade_broken", fault="exporter_partial", scope="fleet", place="label", apply=apply, begin=begin_wave,
    end=end_wave, locate=wave(KEY, VALUE, 0.5), impact=HARMLESS,
    needs=("nvidia",),
)
