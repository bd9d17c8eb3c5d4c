"""Two flows of a job fall on the same path and share it: two sound ports are slow until the job connects anew."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World


def begin(world: World, planted: Planted) -> None:
    """Two ports of one rail on two nodes."""
    found = job_at(world, planted)
    if found is None or len(found[0].nodes) < 2:
        return
    first, second = (int(n) for n in planted.rng.permutation(found[0].nodes)[:2])
    nic = int(planted.rng.integers(0, world.kind.nics))
    planted.memo["ports"], planted.memo["run"] = ((first, nic), (second, nic)), found[0].run
    world.network.collide(found[0], (first, nic), (second, nic))


def apply(world: World, planted: Planted) -> None:
    """The network holds it until the next connection."""


PLUGIN = FaultPlugin(
    name="hash_collision", fault=None, scope="job", place="job", apply=apply, begin=begin, impact=HARMLESS, needs=("roce",),
)
