"""The guards: each looks at one thing that may hold an attempt back, and names its reason, or None.

All are pure. `first_reason` asks them in order before an attempt starts; `before_command` asks again, over a view that
was re-read, just before each command on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from core.protocols import Checkpoint, NodeView
from core.types import Finding
from remediation.fabric import NO_FABRIC, Fabric, in_service, out_of_service
from remediation.kinds import HANDS
from remediation.ledger import DAY_MS, HOUR_MS, Ledger
from remediation.policy import Limits

WEEK_MS = 7 * DAY_MS
LONGEST_REST_MS = WEEK_MS  # the ledger counts so far back
OLD_TIMES = 2.0  # a checkpoint is old beyond so many of the intervals that the job's saves keep
FRESH_SECONDS = 120.0  # eight ticks: a finding that was not renewed for so long says nothing about now


@dataclass(frozen=True, slots=True)
class Ask:
    """What an attempt, or one command, would touch.

    stops: jobs that it stops. silenced: a person silenced the incident. approved: a
    person said yes to it. ours: its node was taken out by us, and has not been given back.
    """

    at: int
    incident: str
    part: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    kinds: frozenset[str]
    stops: tuple[str, ...] = ()
    silenced: bool = False
    approved: bool = False
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """Of a job: its newest complete checkpoint, and since when its loss has been no number (ms), None = it is one."""

    checkpoint: Checkpoint
    bad_since: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """What the guards know. busy_*: worked on by other attempts, or by commands whose end nobody knows.

    spares_promised: spares that other attempts have still to take. job_nodes: where each job runs. saves: by job; one that
    is not running has none. too_soon: after a freeze it is not this attempt's turn yet. unfit: spares that are not used, with the reason.
    """

    limits: Limits
    ledger: Ledger
    nodes: Mapping[str, NodeView]
    busy_nodes: frozenset[str] = frozenset()
    busy_jobs: frozenset[str] = frozenset()
    spares_promised: int = 0
    job_nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fabric: Fabric = NO_FABRIC
    saves: Mapping[str, Save] = field(default_factory=dict)
    too_soon: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)


def fresh_ids(at: int, findings: Sequence[Finding]) -> frozenset[str]:
    """Ids of the findings that are open and were renewed within FRESH_SECONDS: only these may start an attempt."""
    return frozenset(f.id for f in findings if f.ended_at is None and at - f.updated_at <= FRESH_SECONDS * 1000)


def silenced(ask: Ask, world: World) -> str | None:
    """A person said: leave this one to me."""
    return "silenced" if ask.silenced else None


def target_busy(ask: Ask, world: World) -> str | None:
    """One action for a target at a time, and one attempt for a node or job."""
    busy = not world.busy_nodes.isdisjoint(ask.nodes) or not world.busy_jobs.isdisjoint(ask.jobs)
    return "target_busy" if busy else None


def node_unknown(ask: Ask, world: World) -> str | None:
    """A node that the world does not name is none of ours."""
    return "node_unknown" if any(n not in world.nodes for n in ask.nodes) else None


def other_hand(ask: Ask, world: World) -> str | None:
    """A node that somebody else took out stays theirs, and so does a job that runs on one. One that we took out and that is
    in service again was given back by another hand."""
    names = {*ask.nodes, *(n for job in ask.jobs for n in world.job_nodes.get(job, ()))}
    views = [world.nodes[n] for n in names if n in world.nodes]
    if any(v.held_by not in (None, HANDS) for v in views):
        return "other_hand"
    back = any(v.node in ask.nodes and v.held_by is None and v.state in ("in_service", "spare") for v in views)
    return "other_hand" if ask.ours and "undrain" not in ask.kinds and back else None


def maintenance(ask: Ask, world: World) -> str | None:
    """A node in a reservation or a planned drain is left to whoever planned it."""
    planned = (world.nodes[n].maintenance for n in ask.nodes if n in world.nodes)
    return "maintenance" if any(name is not None for name in planned) else None


def in_transit(ask: Ask, world: World) -> str | None:
    """A node that boots, is being provisioned or drains by no hand of ours is in the middle of something."""
    for name in ask.nodes:
        view = world.nodes.get(name)
        if view is not None and (view.state in ("rebooting", "provisioning")
                                 or (view.state == "draining" and view.held_by != HANDS)):
            return "target_busy"
    return None


def paced(ask: Ask, world: World) -> str | None:
    """After a freeze attempts start one by one."""
    return "paced" if world.too_soon else None


def too_many_remediations(ask: Ask, world: World) -> str | None:
    """A node on which so much was tried goes to a person: one more try is no repair."""
    since, most = ask.at - WEEK_MS, world.limits.per_node_per_week
    worn = any(world.ledger.node_attempts_since(node, since) >= most for node in ask.nodes)
    return "too_many_remediations" if worn else None


def concurrent_nodes(ask: Ask, world: World) -> str | None:
    """Nodes that attempts work on at one time, this one included."""
    if not ask.nodes:
        return None
    return "limit_concurrent_nodes" if len(world.busy_nodes | set(ask.nodes)) > world.limits.concurrent_nodes else None


def pool(ask: Ask, world: World) -> str | None:
    """Nodes that Greylag holds out of service or works on, this one included; spares are no part of the pool."""
    if not ask.nodes:
        return None
    taken, allowed = pool_room(world)
    return "limit_pool" if len(taken | set(ask.nodes)) > allowed else None


def pool_room(world: World) -> tuple[frozenset[str], int]:
    """(nodes that count as taken out, how many may be)."""
    out = {v.node for v in world.nodes.values() if v.held_by == HANDS and v.state not in ("in_service", "spare")}
    size = sum(v.state != "spare" for v in world.nodes.values())
    return frozenset(out | world.busy_nodes), max(world.limits.pool_nodes, int(world.limits.pool_ratio * size))


def per_leaf(ask: Ask, world: World) -> str | None:
    """Nodes that are out behind one leaf switch, this one included; one that is out already is no further one."""
    for leaf in {name for node in ask.nodes for name in world.fabric.of_leaf.get(node, ())}:
        members = world.fabric.leaves[leaf]
        out = out_of_service(members, world.nodes, world.busy_nodes)
        more = (members & set(ask.nodes)) - out
        if len(members) > 1 and more and len(out | more) > world.limits.per_leaf:
            return "limit_per_leaf"
    return None


def last_of_rail(ask: Ask, world: World) -> str | None:
    """Of the nodes that share a rail one at least goes on working."""
    for rail in {name for node in ask.nodes for name in world.fabric.of_rail.get(node, ())}:
        members = world.fabric.rails[rail]
        left = in_service(members, world.nodes, world.busy_nodes)
        # Nodes that are out already leave nobody behind: only one that works can be the last. A spare works for nobody, so a
        # node beside spares alone is no group: it would never be repaired.
        working = {n for n in members if n not in world.nodes or world.nodes[n].state != "spare"}
        if len(working) > 1 and left & set(ask.nodes) and not left - set(ask.nodes):
            return "last_of_rail"
    return None


def per_hour(ask: Ask, world: World) -> str | None:
    """Attempts started within the last hour."""
    return "limit_per_hour" if world.ledger.started_since(ask.at - HOUR_MS) >= world.limits.per_hour else None


def per_job_per_day(ask: Ask, world: World) -> str | None:
    """Attempts that touched one of the jobs within the last day."""
    since, most = ask.at - DAY_MS, world.limits.per_job_per_day
    full = any(world.ledger.job_attempts_since(job, since) >= most for job in ask.jobs)
    return "limit_per_job_per_day" if full else None


def spares(ask: Ask, world: World) -> str | None:
    """A replacement takes a spare; `spare_floor` of them stay."""
    if "replace" not in ask.kinds:
        return None
    there, free = _spares(world), free_spares(world)
    if free < 1:  # where there is one that must not be used, its reason says more
        return next((world.unfit[n] for n in sorted(there) if world.unfit.get(n, "target_busy") != "target_busy"), "no_spare")
    return "spare_floor" if free - 1 < world.limits.spare_floor else None


def _spares(world: World) -> list[str]:
    return [v.node for v in world.nodes.values() if v.state == "spare" and v.held_by in (None, HANDS) and v.maintenance is None]


def free_spares(world: World) -> int:
    """Spares that may be used, those taken off that other attempts have still to take."""
    return sum(name not in world.unfit for name in _spares(world)) - world.spares_promised


def cooldown(ask: Ask, world: World) -> str | None:
    """A part rests after an attempt of another incident, the longer the more often it was acted on lately; the attempts of
    one incident follow each other."""
    times = world.ledger.times_on(ask.part, ask.incident)
    if not times:
        return None
    rested = ask.at - max(times)
    if rested < world.limits.cooldown_seconds * 1000:
        return "cooldown"
    return "damped" if rested < rest_ms(times, world.limits) else None


def rest_ms(times: Sequence[int], limits: Limits) -> int:
    """How long a part rests after its attempts at `times` (ms, at least one). It doubles with each of them; one counts half
    after the half-life, so a part that is quiet for long is as good as new. At most a week."""
    rest, half_life = limits.cooldown_seconds * 1000, limits.damping_half_life_seconds * 1000
    if half_life <= 0:
        return round(rest)
    before = sum(0.5 ** ((max(times) - t) / half_life) for t in times) - 1.0
    return round(max(rest, min(rest * 2.0 ** min(before, 40.0), LONGEST_REST_MS)))


def checkpoint_old(ask: Ask, world: World) -> str | None:
    """A job whose work of long is in no checkpoint is not stopped, unless a person says so."""
    if ask.approved:
        return None
    return "checkpoint_old" if any(is_old(world.saves[job], ask.at) for job in ask.stops if job in world.saves) else None


def is_old(save: Save, at: int) -> bool:
    """True where the work since the newest complete checkpoint is more than twice the usual interval: in time, and in steps
    where those are known, so that a slow job which saves each so many steps is not taken for one that saves no more. Work
    ends with the last step and with the last finite loss: what comes after is lost whatever is done. False where it is not
    known."""
    one = save.checkpoint
    if one.saved_at is None or one.interval_seconds is None:
        return False
    if one.steps_since is not None and one.interval_steps is not None and one.steps_since <= OLD_TIMES * one.interval_steps:
        return False
    until = min(t for t in (at, one.progress_at, save.bad_since) if t is not None)
    return until - one.saved_at > OLD_TIMES * one.interval_seconds * 1000


def not_ours(ask: Ask, world: World) -> str | None:
    """Only what we took out is given back."""
    views = (world.nodes[n] for n in ask.nodes if n in world.nodes)
    strange = "undrain" in ask.kinds and any(v.held_by != HANDS and v.state != "in_service" for v in views)
    return "other_hand" if strange else None


Guard = Callable[[Ask, World], str | None]
# Whose it is and whether anything may be done at all; then turns and budgets; last what needs a person's word.
BEFORE_ATTEMPT: tuple[Guard, ...] = (
    silenced, target_busy, node_unknown, maintenance, other_hand, in_transit, too_many_remediations, paced, cooldown,
    concurrent_nodes, pool, per_leaf, last_of_rail, per_hour, per_job_per_day, spares, checkpoint_old,
)
BEFORE_COMMAND: tuple[Guard, ...] = (node_unknown, other_hand, not_ours, maintenance, in_transit)
FOR_PEOPLE = frozenset({"too_many_remediations", "software_crash_loop", "reset_needs_all"})  # reasons that do not pass by themselves
NEEDS_APPROVAL = frozenset({"awaiting_approval", "checkpoint_old", "queue_wait"})


def first_reason(ask: Ask, world: World, guards: Sequence[Guard] = BEFORE_ATTEMPT) -> str | None:
    """The reason of the first guard that holds the attempt back, else None."""
    return next((reason for guard in guards if (reason := guard(ask, world)) is not None), None)
