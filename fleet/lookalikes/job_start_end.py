"""A job ends in order and, after a while, starts again: memory empties, power falls to rest, then loading and warm-up."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import restart_later, stop_now
from fleet.plants import Planted
from fleet.world import World

AWAY_SECONDS = (120.0, 600.0)


def begin(world: World, planted: Planted) -> None:
    """It ends after a last word."""
    stop_now(world, planted, clean=True)


def apply(world: World, planted: Planted) -> None:
    """It starts again after its time."""
    restart_later(world, planted, AWAY_SECONDS)


PLUGIN = FaultPlugin(
    name="job_start_end", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=HARMLESS,
)
