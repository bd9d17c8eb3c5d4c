"""What the engine would do now, said without doing it: the very same step, on a copy of the engine and of its state.

The copy decides in mode act, so that all guards are asked; what the policy's own mode makes of that is said with it. Nothing of
the engine changes, and the same state gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from core.errors import Unavailable
from core.protocols import NodeView, WorkFacts
from core.types import Incident, Target
from remediation.engine import Engine, Site
from remediation.guards import World, free_spares, pool_room
from remediation.ledger import DAY_MS, HOUR_MS
from remediation.matching import choose
from remediation.plan import Planned, jobs_of, make_plan
from remediation.policy import Policy, Rule
from remediation.track import Lingering, Track, left
from remediation.words import why
from remediation.worth import as_json

# would: what happens at the next tick.
WOULD = {
    "start": "starts the attempt", "propose": "asks a person", "simulate": "says what it would do (SIMULATED)", "hold": "waits",
    "go_on": "goes on with the attempt", "prove": "waits for the proof", "people": "hands it to people",
    "with_people": "is with people", "resolve": "is resolved", "nothing": "does nothing",
}
WAITING = ("confidence_too_low", "too_young")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """done: it was decided on already."""

    kind: str
    target: Target
    args: Mapping[str, object]
    done: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """One incident. would: a word of WOULD. reason: the named reason, in words as because. rule, attempt, of: the policy's rule
    and which of its attempts; None and 0 where none speaks. held_by: the guard's reason that holds the attempt back."""

    incident: Incident
    would: str
    reason: str
    because: str
    rule: str | None
    attempt: int
    of: int
    steps: tuple[PlannedStep, ...]
    held_by: str | None
    worth: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """name: the policy's key, with what it is about. used, limit: left is their difference, never below 0."""

    name: str
    used: float
    limit: float

    @property
    def left(self) -> float:
        """What may still be used."""
        return max(0.0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would happen at `at` (ms). mode: the policy's own. world: False where the backend did not answer."""

    at: int
    mode: str
    frozen: bool
    world: bool
    outlooks: tuple[Outlook, ...]
    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class Still:
    """The world as it was read, so that all of a rehearsal sees the same."""

    seen: Mapping[str, NodeView] | None = field(default_factory=dict)

    def nodes(self) -> Mapping[str, NodeView]:
        """Raises Unavailable where there was no answer."""
        if self.seen is None:
            raise Unavailable("the backend did not answer")
        return self.seen


def still(engine: Engine) -> Still:
    """The engine's world, read once."""
    try:
        return Still(dict(engine.view.nodes()))
    except Unavailable:
        return Still(None)


def rehearse(engine: Engine, at: int, incidents: Iterable[Incident], facts: WorkFacts, site: Site, world: Still,
             policy: Policy | None = None) -> Rehearsal:
    """What the engine would do at `at` (ms), under another policy where one is given."""
    chosen = policy or engine.policy
    twin = engine.twin(replace(chosen, mode="act"))
    twin.view = world
    live = tuple(incidents)
    # What was simulated once is decided on anew: in mode act nothing is simulated.
    before = {one.id: (track.state, track.index) for one in live if (track := twin.track(one.id)) is not None}
    step = twin.step(at, live, facts, site)
    changed = {one.id: one for one in step.incidents}
    outlooks = tuple(_outlook(twin, at, chosen.mode, one, changed.get(one.id, one), before.get(one.id, ("open", 0)))
                     for one in sorted(live, key=lambda i: (i.klass != "page", i.opened_at, i.id)))
    return Rehearsal(at, chosen.mode, twin.frozen, world.seen is not None, outlooks, budgets(engine, chosen, at, world, live))


# --- one incident -----------------------------------------------------------------------------------------------------
def _outlook(twin: Engine, at: int, mode: str, incident: Incident, after: Incident, before: tuple[str, int]) -> Outlook:
    track = twin.track(incident.id)
    assert track is not None  # the step has seen it
    rule = _rule(twin, at, incident, track)
    would, held = _would(mode, track, before[0])
    steps = _steps(track, rule, incident, would, before)
    reason = track.reason or after.reason
    number = track.rung + 1 if rule is not None and would not in ("nothing", "with_people") else 0
    of = len(rule.attempts) if rule is not None else 0
    return Outlook(incident, would, reason, why(reason), rule.name if rule is not None else None, min(number, of), of, steps, held,
                   as_json(twin.worth(incident.id)))


def _rule(twin: Engine, at: int, incident: Incident, track: Track) -> Rule | None:
    kept = twin.policy.rule(track.rule)
    if track.state in ("acting", "verifying") or (kept is not None and track.reason not in WAITING):
        return kept
    return choose(twin.policy, incident, at, twin.labels_of)[0]


def _would(mode: str, track: Track, before: str) -> tuple[str, str | None]:
    """(word, the guard's reason)."""
    if track.state in ("acting", "verifying") and before not in ("acting", "verifying"):
        return {"observe": "simulate", "propose": "propose"}.get(mode, "start") if track.approval is None else "start", None
    if track.state == "acting":
        return "go_on", track.reason if track.reason == "frozen" else None
    if track.state == "verifying":
        return "prove", None
    if track.state == "proposed":
        return ("simulate" if mode == "observe" else "propose"), track.reason
    if track.state == "holding":
        return "hold", track.reason
    if track.state == "escalated":
        return ("with_people" if before == "escalated" else "people"), None
    if track.state == "resolved":
        return "resolve", None
    return "nothing", None


def _steps(track: Track, rule: Rule | None, incident: Incident, would: str, before: tuple[str, int]) -> tuple[PlannedStep, ...]:
    if would in ("nothing", "with_people", "resolve", "people"):
        return ()
    if track.state in ("acting", "verifying"):
        done = before[1] if would == "go_on" else len(track.plan) if would == "prove" else 0
        return tuple(_shown(one, i < done) for i, one in enumerate(track.plan))
    if rule is None or track.rung >= len(rule.attempts):
        return ()
    return tuple(_shown(one, False) for one in make_plan(rule.attempts[track.rung], incident).steps)


def _shown(one: Planned, done: bool) -> PlannedStep:
    return PlannedStep(one.kind, one.target, dict(one.args), done)


# --- budgets ----------------------------------------------------------------------------------------------------------
def budgets(engine: Engine, policy: Policy, at: int, world: Still, incidents: Iterable[Incident]) -> tuple[Budget, ...]:
    """What the policy's limits leave now, counted as the guards count: of the site, of the jobs and nodes of the incidents."""
    memory, limits = engine.history, policy.limits
    ledger = memory.ledger
    working = [t for t in memory.tracks.values() if t.working]
    taken: list[Track | Lingering] = [*working, *memory.lingering.values()]
    busy = frozenset(n for one in taken for n in one.nodes)
    out = [Budget("per_hour", ledger.started_since(at - HOUR_MS), limits.per_hour),
           Budget("concurrent_nodes", len(busy), limits.concurrent_nodes)]
    if world.seen is not None:
        promised = sum(s.kind == "replace" for t in working for s in left(t))
        seen = World(limits, ledger, world.seen, busy, spares_promised=promised)
        out_of_service, allowed = pool_room(seen)
        out.append(Budget("pool (nodes out of service)", len(out_of_service), allowed))
        out.append(Budget("spares above spare_floor", 0, max(0, free_spares(seen) - limits.spare_floor)))
    live = tuple(incidents)
    out += [Budget(f"per_job_per_day of {job}", ledger.job_attempts_since(job, at - DAY_MS), limits.per_job_per_day)
            for job in sorted({job for one in live for job in jobs_of(one)})]
    out += [Budget(f"per_node_per_week of {node}", ledger.node_attempts_since(node, at - 7 * DAY_MS), limits.per_node_per_week)
            for node in sorted({one.culprit.node for one in live if one.culprit is not None and one.culprit.node})]
    return tuple(out)
