"""An inference endpoint takes longer for the same work (a smaller batch limit, a slow kernel path): queues and latency grow."""

from __future__ import annotations

from core.errors import Refused
from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Only what serves can serve slowly."""
    found = job_at(world, planted)
    if found is None or not found[0].serves:
        raise Refused("not_supported", "only an inference endpoint can answer slowly")


def apply(world: World, planted: Planted) -> None:
    """Each request's work takes longer."""
    found = job_at(world, planted)
    if found is not None:
        found[1].service *= 1.0 + planted.severity * planted.level


PLUGIN = FaultPlugin(
    name="inference_slow", fault="inference_slow", scope="job", place="job", apply=apply, begin=begin, cured_by=("restart_process", "resume_job"),
    impact=(0.2, 5.0), onsets=("step", "ramp"), tier="D", needs=("inference",),
)
