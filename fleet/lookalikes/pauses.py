"""Jobs that stop and start again for good reason, and nodes that somebody takes out meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from fleet.faults.acts import job_at
from fleet.places import training
from fleet.plants import Planted
from fleet.world import World


def stop_now(world: World, planted: Planted, clean: bool) -> None:
    """The job at the place ends, if it runs."""
    found = job_at(world, planted)
    planted.memo["stopped"] = found is not None and found[0].alive
    if found is not None and found[0].alive:
        found[0].stop(world.now_ms, clean)


def restart_later(world: World, planted: Planted, away: tuple[float, float]) -> bool:
    """Starts the job again once it has been away for a time that is drawn from `away`, if nobody else has; True then."""
    memo, found = planted.memo, job_at(world, planted)
    if "back" not in memo:
        memo["back"] = world.now_ms + int(1000 * float(planted.rng.uniform(*away)))
    if memo.get("started") or world.now_ms < memo["back"]:
        return False
    memo["started"] = True
    if found is not None and memo["stopped"] and not found[0].alive \
            and all(world.nodes[n].state == "in_service" for n in found[0].nodes):
        found[0].start(world.now_ms)
    return True


def while_training(world: World, planted: Planted) -> None:
    """Only a job that trains goes into a pause. Raises Refused `not_training`."""
    training(world, planted.place)


def asks_for(what: str, phase: str) -> Callable[[World, Planted], None]:
    """FaultPlugin.apply of a look-alike that asks its job for `what` once; the job then takes its own time in `phase`."""

    def apply(world: World, planted: Planted) -> None:
        found, memo = job_at(world, planted), planted.memo
        if found is None or memo.get("done"):
            return
        if found[0].phase == phase:
            memo["done"] = True
        else:
            found[1].ask = what

    return apply
