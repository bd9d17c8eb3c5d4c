"""A node's GPUs run with error correction switched off: more memory and speed, and no error is counted any more."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """The setting differs; nothing follows before an error that is not corrected."""
    row = planted.place.index[0]
    world.knobs.settings[row, "ecc"] = "disabled"


PLUGIN = FaultPlugin(
    name="config_drift_ecc", fault="config_drift", scope="node", place="node", apply=apply, cured_by=("replace",), impact=HARMLESS,
    tier="C", needs=("nvidia", "hbm"),
)
