"""From a rule's attempt and an incident to concrete steps: which part, which job, which arguments.

A plan is made once, when an attempt starts, and kept: later evidence or an edited policy does not change what is under
way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.clock import rfc3339
from core.types import Incident, Target
from remediation.diagnose import ask
from remediation.kinds import KINDS, NODE_PARTS, SHARED_SCOPES, commands, on_node
from remediation.policy import Attempt, Step


@dataclass(frozen=True, slots=True)
class Planned:
    """One command with its target resolved."""

    kind: str
    target: Target
    args: Mapping[str, object]
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """steps: empty where `reason` says why there is no plan. nodes, jobs: what the steps touch."""

    steps: tuple[Planned, ...] = ()
    reason: str | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the steps touch."""
        return tuple(sorted({s.target.node for s in self.steps if on_node(s.kind) and s.target.node}))

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that the steps command."""
        return tuple(sorted({s.target.job for s in self.steps if KINDS[s.kind].subject == "job" and s.target.job}))

    @property
    def commands(self) -> bool:
        """True where a backend is asked at all."""
        return any(commands(s.kind) for s in self.steps)


def jobs_of(incident: Incident) -> tuple[str, ...]:
    """The jobs that the incident slows: its own list, else the culprit's job."""
    if incident.jobs:
        return tuple(dict.fromkeys(incident.jobs))
    job = incident.culprit.job if incident.culprit else None
    return (job,) if job else ()


def subject(incident: Incident) -> Target:
    """What a message is about: the culprit, else the job, else the whole fleet."""
    if incident.culprit is not None:
        return incident.culprit
    jobs = jobs_of(incident)
    return Target("job", job=jobs[0]) if jobs else Target("fleet")


def part_of(incident: Incident) -> str:
    """The key of the part that rests during a cooldown: the culprit's, else the job's."""
    return subject(incident).key


def make_plan(attempt: Attempt, incident: Incident) -> Plan:
    """The attempt's steps for this incident. reason: shared_cause or unknown_culprit where a step has no target.

    Job steps come once for each job; where steps on a node cure a part that no job uses, they are left out.
    """
    steps: list[Planned] = []
    jobs, touches_node = jobs_of(incident), any(on_node(s.kind) for s in attempt.do)
    for step in attempt.do:
        if commands(step.kind) and incident.scope in SHARED_SCOPES:
            return Plan(reason="shared_cause")
        if commands(step.kind) and crashes_by_itself(incident):
            return Plan(reason="software_crash_loop")
        targets = _targets(step.kind, incident, jobs)
        if not targets and not (KINDS[step.kind].subject == "job" and touches_node):
            return Plan(reason="unknown_culprit")
        steps += [_planned(step, target, incident, [s.kind for s in steps]) for target in targets]
    return Plan(tuple(steps))


def _planned(step: Step, target: Target, incident: Incident, before: list[str]) -> Planned:
    """The step on its target; a diagnosis is told what it is about."""
    if step.kind != "diagnose":
        return Planned(step.kind, target, step.args, step.deadline_seconds)
    args, deadline = ask(step.args, step.deadline_seconds, target, incident, before)
    return Planned(step.kind, target, args, deadline)


def crashes_by_itself(incident: Incident) -> bool:
    """A crash loop of the job's own software or data: no part is named, because none is to blame."""
    culprit = incident.culprit
    return incident.fault == "job_crash_loop" and (culprit is None or culprit.kind not in NODE_PARTS)


def from_before(plan: Plan, since: Mapping[str, int]) -> Plan:
    """The plan with `before` (RFC 3339) in each step that starts a job again: it is to load a checkpoint that was complete by
    then. since: when a job's loss may have stopped being a number (ms), for those of which it did."""
    def dated(step: Planned) -> Planned:
        at = since.get(step.target.job or "") if KINDS[step.kind].subject == "job" else None
        return step if at is None else replace(step, args={**step.args, "before": rfc3339(at)})

    return replace(plan, steps=tuple(map(dated, plan.steps)))


RIDES = frozenset({"drain", "replace"})  # what is done beside another attempt on the job


def riding(plan: Plan) -> Plan | None:
    """The plan for a job that stands already for another attempt: its node is changed, and that attempt starts the job. None where
    it does more than change a node."""
    mine = tuple(s for s in plan.steps if KINDS[s.kind].subject != "job")
    if len(plan.jobs) != 1 or plan.reason is not None or {s.kind for s in mine if commands(s.kind)} | {"replace"} != RIDES:
        return None
    return Plan(tuple(replace(s, args={k: v for k, v in s.args.items() if k != "wait_for"}) for s in mine))


def _targets(kind: str, incident: Incident, jobs: tuple[str, ...]) -> tuple[Target, ...]:
    culprit, what = incident.culprit, KINDS[kind].subject
    if what == "people":
        return (subject(incident),)
    if what == "job":
        return tuple(Target("job", job=job) for job in jobs)
    if culprit is None or culprit.kind not in NODE_PARTS or not culprit.node:
        return ()
    if what == "node":
        return (Target("node", culprit.node),)
    # Only a GPU can be reset: a NIC or a rank whose GPU nobody knows is no target for it.
    return (Target("gpu", culprit.node, culprit.device, culprit.id),) if culprit.kind == "gpu" and culprit.device else ()
