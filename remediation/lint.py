"""What a policy allows but should not: dead ends, rules that no incident reaches, cordons without an exit, no bounds.

Each sentence names the rule and what to change. An empty list is a clean policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from core.faults import faults
from core.targets import SCOPES
from remediation.kinds import GIVES_BACK, KINDS, SHARED_SCOPES, TAKES_OUT, commands, on_node

if TYPE_CHECKING:
    from remediation.policy import Attempt, Match, Policy, Rule

# Above these a limit no longer limits: a third of a pool at one time, one attempt a minute, one an hour for a job.
POOL_RATIO_HIGH = 0.34
PER_HOUR_HIGH = 60
PER_JOB_PER_DAY_HIGH = 24


def lint(policy: Policy, kinds: Collection[str]) -> list[str]:
    """One sentence for each thing to mend, in the order of the file. kinds: what the backend can carry out."""
    out = list(_limits(policy))
    for i, rule in enumerate(policy.rules):
        out += _rule(rule, kinds)
        for earlier in policy.rules[:i]:
            if covers(earlier.match, rule.match):
                out.append(f"rule {rule.name!r} is never reached: rule {earlier.name!r} before it matches all that it matches")
                break
    return out


def covers(wide: Match, narrow: Match) -> bool:
    """True where each incident that `narrow` matches, `wide` matches too, and not later."""
    lists = ((wide.fault, narrow.fault, tuple(faults())), (wide.scope, narrow.scope, SCOPES),
             (wide.klass, narrow.klass, ("page", "ticket", "log")), (wide.owner, narrow.owner, ()))
    for allowed, wanted, everything in lists:
        if allowed and not set(wanted or everything or {"any"}) <= set(allowed):
            return False
    return (wide.confidence_min <= narrow.confidence_min and wide.duration_seconds_min <= narrow.duration_seconds_min
            and all(narrow.labels.get(k) == v for k, v in wide.labels.items()))


def _limits(policy: Policy) -> Iterator[str]:
    limits = policy.limits
    used = {s.kind for r in policy.rules for a in r.attempts for s in a.do}
    nodes, any_command = any(map(on_node, used)), any(map(commands, used))
    if nodes and limits.concurrent_nodes == 0:
        yield "limits.concurrent_nodes is 0: no step on a node can ever run"
    if nodes and limits.pool_ratio == 0 and limits.pool_nodes == 0:
        yield "limits.pool_ratio and limits.pool_nodes are both 0: no node can ever be taken out"
    if any_command and limits.per_hour == 0:
        yield "limits.per_hour is 0: no attempt can ever start"
    if nodes and limits.pool_ratio > POOL_RATIO_HIGH:
        yield f"limits.pool_ratio {limits.pool_ratio:g} lets more than a third of the pool be taken out: unbounded action"
    if any_command and limits.per_hour > PER_HOUR_HIGH:
        yield f"limits.per_hour {limits.per_hour} is more than one attempt a minute: unbounded action"
    if any_command and limits.per_job_per_day > PER_JOB_PER_DAY_HIGH:
        yield f"limits.per_job_per_day {limits.per_job_per_day} is more than one attempt an hour for a job: unbounded action"
    if any_command and limits.cooldown_seconds == 0:
        yield "limits.cooldown_seconds is 0: a part may be acted on again and again: unbounded action"


def _rule(rule: Rule, kinds: Collection[str]) -> Iterator[str]:
    name = f"rule {rule.name!r}"
    if rule.finally_ is None:
        yield f"{name} has no `finally`: when its attempts fail nobody is told (dead end)"
    for fault in rule.match.fault:
        if fault not in faults():
            yield f"{name} matches the unknown fault {fault!r}: it is never reached"
    used = {s.kind for a in rule.attempts for s in a.do}
    for kind in sorted(k for k in used if commands(k) and k not in kinds):
        yield f"{name} uses {kind}, which the backend cannot carry out"
    shared = sorted(set(rule.match.scope) & SHARED_SCOPES)
    if shared and any(map(commands, used)):
        yield f"{name} commands parts for the scope {', '.join(shared)}: the cause is shared, so it will never act there"
    if set(rule.match.scope) == {"job"} and any(map(on_node, used)):
        yield f"{name} uses a step on a node for the scope job: it waits wherever no culprit is known"
    if any(map(commands, used)) and rule.verify.deadline_seconds <= rule.verify.quiet_seconds:
        yield f"{name} can never be verified: verify.deadline_seconds is not above verify.quiet_seconds"
    for i, attempt in enumerate(rule.attempts):
        yield from _attempt(f"{name}, attempt {i + 1},", attempt)


def _attempt(name: str, attempt: Attempt) -> Iterator[str]:
    out_of_service, checked, stops = None, False, None
    for step in attempt.do:
        if step.kind in TAKES_OUT:
            out_of_service = step.kind
        if step.kind == "diagnose":
            checked = True
        if step.kind == "undrain" and not checked:
            yield f"{name} returns a node with undrain but no diagnose passed before it"
        if step.kind in GIVES_BACK or step.kind == "escalate":
            out_of_service = None
        if step.kind in TAKES_OUT | {"reboot", "replace", "reset_gpu"}:
            stops = step.kind
        if KINDS[step.kind].subject == "job":
            stops = None
    if out_of_service is not None:
        yield f"{name} takes a node out with {out_of_service} and never gives it back (undrain, replace or escalate)"
    if stops is not None:
        yield f"{name} stops the job's node with {stops} but no step brings the job back (resume_job, shrink_job, restart_process)"
