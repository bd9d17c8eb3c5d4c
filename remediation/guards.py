"""The guards: each looks at one thing that may hold an attempt back, and names its reason, or None.

All are pure. `first_reason` asks them in order before an attempt starts; `before_command` asks again, over a view that
was re-read, just before each command on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from core.protocols import NodeView
from core.types import Finding
from remediation.kinds import HANDS
from remediation.ledger import DAY_MS, HOUR_MS, Ledger
from remediation.policy import Limits

FRESH_SECONDS = 120.0  # eight ticks: a finding that was not renewed for so long says nothing about now


@dataclass(frozen=True, slots=True)
class Ask:
    """What an attempt would touch."""

    at: int
    incident: str
    part: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class World:
    """What the guards know. busy_*: worked on by other attempts, or by commands whose end nobody knows.

    spares_promised: spares that other attempts have still to take.
    """

    limits: Limits
    ledger: Ledger
    nodes: Mapping[str, NodeView]
    busy_nodes: frozenset[str] = frozenset()
    busy_jobs: frozenset[str] = frozenset()
    spares_promised: int = 0


def fresh_ids(at: int, findings: Sequence[Finding]) -> frozenset[str]:
    """Ids of the findings that are open and were renewed within FRESH_SECONDS: only these may start an attempt."""
    return frozenset(f.id for f in findings if f.ended_at is None and at - f.updated_at <= FRESH_SECONDS * 1000)


def target_busy(ask: Ask, world: World) -> str | None:
    """One action for a target at a time, and one attempt for a node or job."""
    busy = not world.busy_nodes.isdisjoint(ask.nodes) or not world.busy_jobs.isdisjoint(ask.jobs)
    return "target_busy" if busy else None


def node_unknown(ask: Ask, world: World) -> str | None:
    """A node that the world does not name is none of ours."""
    return "node_unknown" if any(n not in world.nodes for n in ask.nodes) else None


def other_hand(ask: Ask, world: World) -> str | None:
    """A node that somebody else took out stays theirs."""
    held = (world.nodes[n].held_by for n in ask.nodes if n in world.nodes)
    return "other_hand" if any(h not in (None, HANDS) for h in held) else None


def in_transit(ask: Ask, world: World) -> str | None:
    """A node that boots, is being provisioned or drains by no hand of ours is in the middle of something."""
    for name in ask.nodes:
        view = world.nodes.get(name)
        if view is not None and (view.state in ("rebooting", "provisioning")
                                 or (view.state == "draining" and view.held_by != HANDS)):
            return "target_busy"
    return None


def concurrent_nodes(ask: Ask, world: World) -> str | None:
    """Nodes that attempts work on at one time, this one included."""
    if not ask.nodes:
        return None
    return "limit_concurrent_nodes" if len(world.busy_nodes | set(ask.nodes)) > world.limits.concurrent_nodes else None


def pool(ask: Ask, world: World) -> str | None:
    """Nodes that Greylag holds out of service or works on, this one included; spares are no part of the pool."""
    if not ask.nodes:
        return None
    out = {v.node for v in world.nodes.values() if v.held_by == HANDS and v.state not in ("in_service", "spare")}
    size = sum(v.state != "spare" for v in world.nodes.values())
    allowed = max(world.limits.pool_nodes, int(world.limits.pool_ratio * size))
    return "limit_pool" if len(out | world.busy_nodes | set(ask.nodes)) > allowed else None


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
    free = sum(v.state == "spare" and v.held_by in (None, HANDS) for v in world.nodes.values()) - world.spares_promised
    if free < 1:
        return "no_spare"
    return "spare_floor" if free - 1 < world.limits.spare_floor else None


def cooldown(ask: Ask, world: World) -> str | None:
    """A part rests after an attempt of another incident; the attempts of one incident follow each other."""
    last = world.ledger.last_on(ask.part, ask.incident)
    resting = last is not None and ask.at - last < world.limits.cooldown_seconds * 1000
    return "cooldown" if resting else None


def not_ours(ask: Ask, world: World) -> str | None:
    """Only what we took out is given back."""
    views = (world.nodes[n] for n in ask.nodes if n in world.nodes)
    strange = "undrain" in ask.kinds and any(v.held_by != HANDS and v.state != "in_service" for v in views)
    return "other_hand" if strange else None


Guard = Callable[[Ask, World], str | None]
BEFORE_ATTEMPT: tuple[Guard, ...] = (
    target_busy, node_unknown, other_hand, in_transit, cooldown, concurrent_nodes, pool, per_hour, per_job_per_day, spares,
)
BEFORE_COMMAND: tuple[Guard, ...] = (node_unknown, other_hand, not_ours, in_transit)


def first_reason(ask: Ask, world: World, guards: Sequence[Guard] = BEFORE_ATTEMPT) -> str | None:
    """The reason of the first guard that holds the attempt back, else None."""
    return next((reason for guard in guards if (reason := guard(ask, world)) is not None), None)
