"""The trainers collect garbage now and then, each rank at its own time: single steps are long, each time by another rank."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import every, job_at
from fleet.plants import Planted
from fleet.world import World

APART_SECONDS = (15.0, 45.0)


def apply(world: World, planted: Planted) -> None:
    """One rank pauses for so long that the mean step grows by the severity."""
    found = job_at(world, planted)
    if found is None:
        return
    job, knobs = found
    if every(world, planted, "pause", *APART_SECONDS):
        knobs.pause_seconds[int(planted.rng.integers(0, job.ranks))] += planted.severity * sum(APART_SECONDS) / 2


PLUGIN = FaultPlugin(
    name="gc_pauses", fault=None, scope="job", place="job", apply=apply, impact=(0.01, 0.08), tier="D", needs=("trainer",),
)
