"""A job ends and its nodes are idle for long: every GPU's PCIe link falls to the first generation, as it should."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

AWAY_SECONDS = (900.0, 1800.0)


def begin(world: World, planted: Planted) -> None:
    """It ends after a last word."""
    stop_now(world, planted, clean=True)


def apply(world: World, planted: Planted) -> None:
    """It starts again after a long while."""
    restart_later(world, planted, AWAY_SECONDS)


PLUGIN = FaultPlugin(
    name="pcie_gen1_idle", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=HARMLESS,
    needs=("nvidia",),
)
