"""What a policy allows but should not: dead ends, rules that no incident reaches, cordons without an exit, no bounds.

Each problem names file and line, the rule, what is wrong and what to change. An empty list is a clean policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import nearest
from core.faults import faults
from core.targets import SCOPES
from remediation.kinds import GIVES_BACK, KINDS, SHARED_SCOPES, TAKES_OUT, commands, on_node

if TYPE_CHECKING:
    from remediation.policy import Attempt, Match, Policy, Rule

# Above these a limit no longer limits: a third of a pool at one time, one attempt a minute, one an hour for a job.
POOL_RATIO_HIGH = 0.34
PER_HOUR_HIGH = 60
PER_JOB_PER_DAY_HIGH = 24
PER_NODE_PER_WEEK_HIGH = 14
APPROVAL_LOW, APPROVAL_HIGH = 300, 86_400
# Steps that a node has to be empty for: with a job on it they kill it without a checkpoint, or are refused (not_drained).
NEED_DRAINED = frozenset({"reset_gpu", "reboot", "diagnose", "undrain"})
# Whose part is never a GPU, so that a reset has no target.
NEVER_A_GPU = frozenset({
    "packet_loss", "link_flap", "link_down", "link_slow", "data_stall", "checkpoint_stale", "inference_slow", "cpu_starved",
    "memory_pressure", "clock_skew", "disk_slow", "disk_full", "config_drift", "service_down", "storage_slow", "cooling_fault",
})
# A monitor that is down is no fault of the node that it watched (facts: rules.md §4, rows 21 and 25).
TELEMETRY = frozenset({"exporter_stale", "exporter_partial", "target_down", "collector_starved"})
# A hung job writes no checkpoint, and what one with a NaN writes is worth nothing.
NO_CHECKPOINT = frozenset({"stalled_loss", "nonfinite_loss"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. where: `file:line`. rule: None where it is about the limits. change: what to do about it."""

    where: str
    rule: str | None
    what: str
    change: str

    def __str__(self) -> str:
        about = "" if self.rule is None else f"rule {self.rule!r} "
        return f"{self.where}: {about}{self.what}: {self.change}"


def lint(policy: Policy, kinds: Collection[str]) -> list[str]:
    """One sentence for each thing to mend, in the order of the file. kinds: what the backend can carry out."""
    return [str(problem) for problem in examine(policy, kinds)]


def examine(policy: Policy, kinds: Collection[str], backend: str = "the backend") -> list[Problem]:
    """As `lint`, in parts. backend: how it is named."""
    out = list(_limits(policy))
    for i in range(len(policy.rules)):
        out += _Rule(policy, i, backend).problems(kinds)
    return out


def uncovered(policy: Policy) -> list[str]:
    """Faults of which no rule speaks: their incidents are shown and nobody is told by the policy. In the closed list's order."""
    return [name for name, row in faults().items()
            if not any(_may_match(rule.match, name, row.klass, row.owner) for rule in policy.rules)]


# --- which incidents a match is about ---------------------------------------------------------------------------------
def _may_match(match: Match, fault: str, klass: str, owner: str) -> bool:
    return all(not allowed or value in allowed
               for allowed, value in ((match.fault, fault), (match.klass, klass), (match.owner, owner)))


def cells(match: Match) -> set[tuple[str, str]]:
    """The (fault, scope) pairs that a match can be about; a fault's class and owner are those of the closed list."""
    names = [n for n, row in faults().items() if _may_match(match, n, row.klass, row.owner)]
    return {(fault, scope) for fault in names for scope in (match.scope or SCOPES)}


def covers(wide: Match, narrow: Match) -> bool:
    """True where each incident that `narrow` matches, `wide` matches too, and not later."""
    return no_later(wide, narrow) and cells(narrow) <= cells(wide)


def no_later(wide: Match, narrow: Match) -> bool:
    """True where `wide` asks for nothing more than `narrow`, fault and scope aside."""
    return (wide.confidence_min <= narrow.confidence_min and wide.duration_seconds_min <= narrow.duration_seconds_min
            and all(narrow.labels.get(k) == v for k, v in wide.labels.items())
            and (not wide.job or "*" in wide.job or (bool(narrow.job) and set(narrow.job) <= set(wide.job))))


# --- limits -----------------------------------------------------------------------------------------------------------
def _limits(policy: Policy) -> Iterator[Problem]:
    limits = policy.limits
    used = {s.kind for r in policy.rules for a in r.attempts for s in a.do}
    nodes, any_command = any(map(on_node, used)), any(map(commands, used))

    def problem(key: str, what: str, change: str) -> Problem:
        line = policy.lines.get(f"limits.{key}", policy.lines.get("limits", 1))
        return Problem(f"{policy.file or 'policy'}:{line}", None, f"limits.{what}", change)

    if nodes and limits.concurrent_nodes == 0:
        yield problem("concurrent_nodes", "concurrent_nodes is 0", "no step on a node can ever run, allow at least 1")
    if nodes and limits.pool_ratio == 0 and limits.pool_nodes == 0:
        yield problem("pool_nodes", "pool_ratio and limits.pool_nodes are both 0",
                      "no node can ever be taken out, allow at least pool_nodes: 1")
    if any_command and limits.per_hour == 0:
        yield problem("per_hour", "per_hour is 0", "no attempt can ever start, allow at least 1")
    if nodes and limits.per_leaf == 0:
        yield problem("per_leaf", "per_leaf is 0", "no node behind a leaf switch can ever be taken out, allow at least 1")
    if nodes and limits.per_node_per_week == 0:
        yield problem("per_node_per_week", "per_node_per_week is 0", "no step on a node can ever run, allow at least 1")
    if policy.mode == "propose" and any_command and limits.approval_seconds < APPROVAL_LOW:
        yield problem("approval_seconds", f"approval_seconds {limits.approval_seconds:g} is too short for a person to answer",
                      f"proposals would run out unread, at least {APPROVAL_LOW} is sound")
    if any_command and limits.approval_seconds > APPROVAL_HIGH:
        yield problem("approval_seconds", f"approval_seconds {limits.approval_seconds:g} lets a yes of yesterday act today",
                      f"unbounded action, at most {APPROVAL_HIGH} is sound")
    if any_command and limits.release_seconds == 0:
        yield problem("release_seconds", "release_seconds is 0, after a freeze all that waited starts at once",
                      "unbounded action, some seconds at least between two starts")
    if nodes and limits.per_node_per_week > PER_NODE_PER_WEEK_HIGH:
        yield problem("per_node_per_week", f"per_node_per_week {limits.per_node_per_week} repairs one node more than twice a day",
                      f"unbounded action, at most {PER_NODE_PER_WEEK_HIGH} is sound")
    if nodes and limits.pool_ratio > POOL_RATIO_HIGH:
        yield problem("pool_ratio", f"pool_ratio {limits.pool_ratio:g} lets more than a third of the pool be taken out",
                      f"unbounded action, at most {POOL_RATIO_HIGH:g} is sound")
    if any_command and limits.per_hour > PER_HOUR_HIGH:
        yield problem("per_hour", f"per_hour {limits.per_hour} is more than one attempt a minute",
                      f"unbounded action, at most {PER_HOUR_HIGH} is sound")
    if any_command and limits.per_job_per_day > PER_JOB_PER_DAY_HIGH:
        yield problem("per_job_per_day", f"per_job_per_day {limits.per_job_per_day} is more than one attempt an hour for a job",
                      f"unbounded action, at most {PER_JOB_PER_DAY_HIGH} is sound")
    if any_command and limits.cooldown_seconds == 0:
        yield problem("cooldown_seconds", "cooldown_seconds is 0, a part may be acted on again and again",
                      "unbounded action, let it rest for some minutes at least")


# --- one rule ---------------------------------------------------------------------------------------------------------
class _Rule:
    """The problems of one rule."""

    def __init__(self, policy: Policy, index: int, backend: str) -> None:
        self.policy, self.index, self.backend = policy, index, backend
        self.rule: Rule = policy.rules[index]
        self.used = {s.kind for a in self.rule.attempts for s in a.do}
        self.acts = any(map(commands, self.used))

    def _problem(self, what: str, change: str, key: str = "", attempt: int | None = None) -> Problem:
        lines, base = self.policy.lines, f"rules[{self.index}]"
        line = lines.get(base, 1)
        if key:
            line = lines.get(f"{base}.{key}", line)
        if attempt is not None:
            line = lines.get(f"{base}.attempts[{attempt}]", line)
        return Problem(f"{self.policy.file or 'policy'}:{line}", self.rule.name, what, change)

    def problems(self, kinds: Collection[str]) -> Iterator[Problem]:
        """In the order of the keys of a rule."""
        yield from self._reach()
        yield from self._sense(kinds)
        seen: set[int] = set()
        for attempt in self.rule.attempts:
            if attempt.place not in seen:
                yield from self._attempt(attempt)
            seen.add(attempt.place)
        yield from self._ends()

    # --- whether anything reaches it ----------------------------------------------------------------------------------
    def _reach(self) -> Iterator[Problem]:
        for fault in self.rule.match.fault:
            if fault not in faults():
                yield self._problem(f"matches the unknown fault {fault!r}",
                                    f"it is never reached, use a fault of core/faults.yaml{nearest(fault, faults())}", "match")
        mine = cells(self.rule.match)
        if not mine and all(f in faults() for f in self.rule.match.fault):
            yield self._problem("is never reached: no fault has that class and owner", "correct class, owner or fault", "match")
            return
        before = [r for r in self.policy.rules[:self.index] if no_later(r.match, self.rule.match)]
        taken: set[tuple[str, str]] = set()
        for earlier in before:
            if mine and mine <= cells(earlier.match):
                yield self._problem(f"is never reached: rule {earlier.name!r} before it matches all that it matches",
                                    "put it before that one, or take it out")
                return
            taken |= cells(earlier.match)
        if mine and mine <= taken:
            names = ", ".join(repr(r.name) for r in before if cells(r.match) & mine)
            yield self._problem(f"is never reached: the rules {names} before it match all that it matches",
                                "put it before them, or take it out")

    # --- whether it can do what it says -------------------------------------------------------------------------------
    def _sense(self, kinds: Collection[str]) -> Iterator[Problem]:
        rule, match = self.rule, self.rule.match
        for kind in sorted(k for k in self.used if commands(k) and k not in kinds):
            attempt = next(a.place for a in rule.attempts if any(s.kind == kind for s in a.do))
            yield self._problem(f"uses {kind}, which {self.backend} cannot carry out",
                                "use another step, or leave the fault to people (attempts: [])", attempt=attempt)
        shared = sorted(set(match.scope) & SHARED_SCOPES)
        if shared and self.acts:
            yield self._problem(f"commands parts for the scope {', '.join(shared)}: the cause is shared, so it will never act there",
                                "leave these scopes to a rule with attempts: []", "match")
        if set(match.scope) == {"job"} and any(map(on_node, self.used)):
            yield self._problem("uses a step on a node for the scope job: it waits wherever no culprit is known",
                                "use resume_job or restart_process alone", "match")
        yield from self._faults()
        if self.acts and rule.verify.deadline_seconds <= rule.verify.quiet_seconds:
            yield self._problem("can never be verified", "verify.deadline_seconds has to be above verify.quiet_seconds", "verify")
        most = self.policy.limits.per_job_per_day
        touching = sum(any(KINDS[s.kind].subject == "job" for s in a.do) for a in rule.attempts)
        if touching > most > 0:
            yield self._problem(f"has {touching} attempts that touch a job, and limits.per_job_per_day is {most}",
                                f"attempt {most + 1} would wait for a day, raise the limit or shorten the ladder", "attempts")

    def _faults(self) -> Iterator[Problem]:
        """What does not go with the faults that the rule names."""
        match = self.rule.match
        blind = sorted(set(match.fault) & TELEMETRY)
        if blind and self.acts:
            yield self._problem(f"acts because something is not seen ({', '.join(blind)})",
                                "a monitor that is down is no node's fault, leave it to people (attempts: [])", "match")
        if "reset_gpu" in self.used:
            others = sorted(set(match.fault) & NEVER_A_GPU)
            wide = [scope for scope in match.scope if scope not in ("device", *SHARED_SCOPES)]
            where = f"the fault {', '.join(others)}" if others else f"the scope {', '.join(wide)}" if wide else ""
            if where:
                yield self._problem(f"resets a GPU for {where}, whose culprit is none: it waits there for ever",
                                    "use reboot or replace, or match scope: [device] and a GPU's faults", "match")
        if "job_crash_loop" in match.fault and self.acts and not (match.scope and set(match.scope) <= {"device", "node"}):
            yield self._problem("retries a crash loop of which no part is the culprit: it burns the whole allocation again",
                                "match scope: [device, node], and leave the rest to people", "match")
        hung = sorted(set(match.fault) & NO_CHECKPOINT)
        waits = next((a.place for a in self.rule.attempts for s in a.do if s.args.get("wait_for") == "checkpoint"), None)
        if hung and waits is not None:
            yield self._problem(f"waits for a checkpoint with {', '.join(hung)}, where no good one comes",
                                "drain at once", attempt=waits)

    # --- one attempt --------------------------------------------------------------------------------------------------
    def _attempt(self, attempt: Attempt) -> Iterator[Problem]:
        name, out_of_service, drained, checked, stops = f"in attempt {attempt.place + 1}", None, False, False, None
        ended = False
        for step in attempt.do:
            if ended:
                yield self._problem(f"{name} has {step.kind} after escalate", "nothing runs after escalate, take it out",
                                    attempt=attempt.place)
                continue
            if step.kind in NEED_DRAINED and not drained:
                yield self._problem(f"{name} uses {step.kind} on a node that was not drained",
                                    "put drain before it: a job there would die without a checkpoint", attempt=attempt.place)
                drained = True
            drained = drained or step.kind in TAKES_OUT or step.kind == "replace"
            if step.kind in TAKES_OUT:
                out_of_service = step.kind
            checked = checked or step.kind == "diagnose"
            if step.kind == "undrain" and not checked:
                yield self._problem(f"{name} returns a node with undrain but no diagnose passed before it",
                                    "put diagnose before it", attempt=attempt.place)
            if step.kind in GIVES_BACK or step.kind == "escalate":
                out_of_service = None
            if step.kind in TAKES_OUT | {"reboot", "replace", "reset_gpu"}:
                stops = step.kind
            if KINDS[step.kind].subject == "job":
                stops = None
            ended = step.kind == "escalate"
        if out_of_service is not None:
            yield self._problem(f"{name} takes a node out with {out_of_service} and never gives it back",
                                "end it with undrain (after diagnose), replace or escalate", attempt=attempt.place)
        if stops is not None and not ended:
            yield self._problem(f"{name} stops the job's node with {stops} but no step brings the job back",
                                "add resume_job, shrink_job or restart_process", attempt=attempt.place)

    def _ends(self) -> Iterator[Problem]:
        if self.rule.finally_ is None:
            yield self._problem("has no `finally`", "when its attempts fail nobody is told (dead end), add finally: escalate")
