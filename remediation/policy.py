"""The policy: what may be done about which fault, in which order, within which limits.

`read_policy` refuses what breaks the schema, in one sentence with file, line, key, what was given and what is allowed.
`remediation.lint` says what is allowed but unwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ConfigError, nearest
from core.faults import faults
from core.targets import ACTION_KINDS, MODES, SCOPES
from core.yamlfile import Node, build, parse_yaml, read_yaml
from remediation.kinds import KINDS
from remediation.lint import lint

__all__ = ["Attempt", "Limits", "Match", "Policy", "Rule", "SpareRules", "Step", "Verify", "lint", "parse_policy", "read_policy"]

OWNERS = ("infra", "network", "storage", "facilities", "job owner")
CLASSES = ("page", "ticket", "log")
FINALLY = ("escalate",)
MOST = 1e9
LONGEST_PERIOD = 7 * 86_400.0  # as far back as the ledger surely counts
DRAIN_WAITS = ("checkpoint", "cheapest", "nothing")
WHENS = ("no_spare",)
MOST_TIMES = 50  # HyperPod's own default of retries (jobMaxRetryCount)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets, all of them checked before an attempt starts.

    concurrent_nodes: nodes that attempts work on at one time. pool_ratio, pool_nodes: nodes that Greylag may hold out of
    service, the larger of the share (rounded down) and the number; 0 forbids. per_hour: attempts started in an hour.
    per_job_per_day: attempts that touch one job in 24 h. spare_floor: spares that stay untouched. cooldown_seconds: rest
    of a part after an attempt of another incident. damping_half_life_seconds: the rest doubles with each attempt on the
    part, an attempt counting half after so long; 0 = it does not grow. per_node_per_week: attempts on one node in 7 days,
    then a person looks at it. per_leaf: nodes behind one leaf switch that may be out at one time, whoever took them out; 0
    forbids. release_seconds: after a freeze attempts start so far apart. approval_seconds: how long a proposal, and the
    approval of one, hold.
    """

    concurrent_nodes: int = 2
    pool_ratio: float = 0.05
    pool_nodes: int = 1
    per_hour: int = 4
    per_job_per_day: int = 3
    spare_floor: int = 1
    cooldown_seconds: float = 3600.0
    damping_half_life_seconds: float = 86_400.0
    per_node_per_week: int = 5
    per_leaf: int = 2
    release_seconds: float = 60.0
    approval_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class SpareRules:
    """How spares are looked after. diagnose_every_seconds: each is tested so often; 0 = never. unchecked_max_seconds: one
    whose last passed test is longer ago is neither counted nor used; 0 = its age does not count. level: of the tests."""

    diagnose_every_seconds: float = 0.0
    unchecked_max_seconds: float = 0.0
    level: int = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule is about; an empty list is any. duration_seconds_min: since the onset.

    labels: the inventory's labels of the culprit's node, all equal. job: names, or patterns with `*`, of which the
    incident slows one.
    """

    fault: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    confidence_min: float = 0.0
    duration_seconds_min: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    klass: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    job: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verify:
    """When an attempt has worked: the detectors quiet for quiet_seconds, and step time now / before within the ratio.

    deadline_seconds: how long after the last step that may take.
    """

    quiet_seconds: float = 300.0
    step_time_ratio_max: float = 1.05
    deadline_seconds: float = 1200.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command: kind, its arguments (JSON scalars) and its deadline."""

    kind: str
    args: Mapping[str, object] = field(default_factory=dict)
    deadline_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Steps, one after another; the next only when the previous is DONE. place: its index in the file's list; an attempt
    with `times: 3` stands three times in the rule's. when: `no_spare` = only while no spare may be used; None = always."""

    do: tuple[Step, ...]
    place: int = field(default=0, compare=False)
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A match and what follows from it. finally_ (`finally`): escalate, or None.

    weigh: False = an attempt starts as soon as the rule matches, whatever waiting would cost.
    period_seconds: above 0, the ladder of attempts is the job's and not the incident's: all attempts of the rule for one
    job within a period of so long count as steps down one ladder, and a new period begins with the first after it.
    """

    name: str
    match: Match = Match()
    attempts: tuple[Attempt, ...] = ()
    verify: Verify = Verify()
    finally_: str | None = None
    period_seconds: float = 0.0
    weigh: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """The file. The first rule that matches wins. mode: observe | propose | act.

    lines: where what is said about the policy stands in the file, by `rules[0]`, `rules[0].attempts[1]`, `limits.per_hour`.
    """

    version: int
    mode: str = "observe"
    limits: Limits = Limits()
    rules: tuple[Rule, ...] = ()
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    spares: SpareRules = SpareRules()

    def rule(self, name: str | None) -> Rule | None:
        """The rule of that name, None where there is none."""
        return next((r for r in self.rules if r.name == name), None)


@dataclass(frozen=True, slots=True)
class _AttemptFile:
    do: tuple[Any, ...]
    times: int = 1
    when: str | None = None


@dataclass(frozen=True, slots=True)
class _RuleFile:
    name: str
    match: Match = Match()
    attempts: tuple[_AttemptFile, ...] = ()
    verify: Verify = Verify()
    finally_: str | None = None
    period_seconds: float = 0.0
    weigh: bool = True


@dataclass(frozen=True, slots=True)
class _PolicyFile:
    version: int
    mode: str = "observe"
    limits: Limits = Limits()
    spares: SpareRules = SpareRules()
    rules: tuple[_RuleFile, ...] = ()


def read_policy(path: str | Path) -> Policy:
    """The policy in the file. Raises ConfigError."""
    return _policy(read_yaml(path), str(path))


def parse_policy(text: str, file: str = "policy") -> Policy:
    """The policy in YAML text. Raises ConfigError."""
    return _policy(parse_yaml(text, file), file)


def _policy(data: Any, file: str) -> Policy:
    raw = build(_PolicyFile, data, file)
    _need(raw.version == 1, _at(data, "version", file), "version", raw.version, "allowed is: 1")
    _one_of(MODES, _at(data, "mode", file), "mode", raw.mode)
    _check_limits(raw.limits, data.get("limits"), file)
    _check_spares(raw.spares, data.get("spares"), file)
    nodes = data.get("rules") or []
    rules: list[Rule] = []
    for i, (rule, node) in enumerate(zip(raw.rules, nodes, strict=True)):
        path = f"rules[{i}]"
        taken = rule.name in {r.name for r in rules}
        _need(bool(rule.name.strip()) and not taken, _at(node, "name", file), f"{path}.name", rule.name,
              "a name that no other rule has is needed")
        rules.append(_rule(rule, node, file, path))
    return Policy(raw.version, raw.mode, raw.limits, tuple(rules), file, _lines(data), raw.spares)


def _rule(raw: _RuleFile, node: Any, file: str, path: str) -> Rule:
    _check_match(raw.match, node.get("match"), file, f"{path}.match")
    _check_verify(raw.verify, node.get("verify"), file, f"{path}.verify")
    if raw.finally_ is not None:
        _one_of(FINALLY, _at(node, "finally", file), f"{path}.finally", raw.finally_)
    _number(raw.period_seconds, 0, LONGEST_PERIOD, _at(node, "period_seconds", file), f"{path}.period_seconds")
    attempts: list[Attempt] = []
    for i, (one, at) in enumerate(zip(raw.attempts, node.get("attempts") or [], strict=True)):
        where, key = _at(at, "do", file), f"{path}.attempts[{i}].do"
        _need(bool(one.do), where, key, [], "at least one step is needed")
        _number(one.times, 1, MOST_TIMES, _at(at, "times", file), f"{path}.attempts[{i}].times")
        if one.when is not None:
            _one_of(WHENS, _at(at, "when", file), f"{path}.attempts[{i}].when", one.when)
        attempts += [Attempt(tuple(_step(s, where, f"{key}[{j}]") for j, s in enumerate(one.do)), i, one.when)] * one.times
    return Rule(raw.name, raw.match, tuple(attempts), raw.verify, raw.finally_, raw.period_seconds, raw.weigh)


def _lines(data: Any) -> dict[str, int]:
    """The line of each limit, rule and attempt of a policy that was read."""
    out: dict[str, int] = {}
    limits = data.get("limits")
    if isinstance(limits, Node):
        out |= {f"limits.{key}": line for key, line in limits.lines.items()} | {"limits": limits.line}
    for i, rule in enumerate(data.get("rules") or []):
        if isinstance(rule, Node):
            out |= {f"rules[{i}].{key}": line for key, line in rule.lines.items()} | {f"rules[{i}]": rule.line}
        attempts = rule.get("attempts") or []
        out |= {f"rules[{i}].attempts[{j}]": one.line for j, one in enumerate(attempts) if isinstance(one, Node)}
    return out


def _step(raw: Any, where: str, path: str) -> Step:
    """A step: the bare kind, or a mapping of the kind to its arguments."""
    args: Any = {}
    kind = raw
    if isinstance(raw, Mapping):
        where = raw.where() if isinstance(raw, Node) else where
        _need(len(raw) == 1, where, path, list(raw), "one kind with its arguments is needed, as {drain: {wait_for: checkpoint}}")
        kind, args = next(iter(raw.items()))
        args = {} if args is None else args
    _one_of(ACTION_KINDS, where, path, kind)
    _need(isinstance(args, Mapping), where, f"{path}.{kind}", args, "a mapping of arguments is needed")
    deadline = KINDS[kind].deadline_seconds
    plain: dict[str, object] = {}
    for name, value in args.items():
        key = f"{path}.{kind}.{name}"
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "deadline_seconds":
            _need(number and _finite(value) and value > 0, where, key, value, "a number above 0 is needed")
            deadline = float(value)
            continue
        scalar = value is None or isinstance(value, (str, bool)) or (number and _finite(value))
        _need(scalar, where, key, value, "text, a finite number, true, false or null is needed")
        if (kind, name) == ("drain", "wait_for"):
            _one_of(DRAIN_WAITS, where, key, value)
        plain[name] = value
    return Step(kind, plain, deadline)


def _check_limits(limits: Limits, node: Any, file: str) -> None:
    for name in ("concurrent_nodes", "pool_nodes", "per_hour", "per_job_per_day", "spare_floor", "cooldown_seconds",
                 "damping_half_life_seconds", "per_node_per_week", "per_leaf", "release_seconds"):
        _number(getattr(limits, name), 0, MOST, _at(node, name, file), f"limits.{name}")
    # An approval that holds for no whole tick can never be given.
    _number(limits.approval_seconds, 60, MOST, _at(node, "approval_seconds", file), "limits.approval_seconds")
    _number(limits.pool_ratio, 0, 1, _at(node, "pool_ratio", file), "limits.pool_ratio")


def _check_spares(spares: SpareRules, node: Any, file: str) -> None:
    for name in ("diagnose_every_seconds", "unchecked_max_seconds"):
        _number(getattr(spares, name), 0, MOST, _at(node, name, file), f"spares.{name}")
    _number(spares.level, 1, 4, _at(node, "level", file), "spares.level")
    if spares.unchecked_max_seconds > 0:
        _number(spares.diagnose_every_seconds, 0, spares.unchecked_max_seconds, _at(node, "diagnose_every_seconds", file),
                "spares.diagnose_every_seconds")


def _check_match(match: Match, node: Any, file: str, path: str) -> None:
    for name, allowed in (("fault", tuple(faults())), ("scope", SCOPES), ("class", CLASSES), ("owner", OWNERS)):
        for value in getattr(match, "klass" if name == "class" else name):
            _one_of(allowed, _at(node, name, file), f"{path}.{name}", value)
    _number(match.confidence_min, 0, 1, _at(node, "confidence_min", file), f"{path}.confidence_min")
    _number(match.duration_seconds_min, 0, MOST, _at(node, "duration_seconds_min", file), f"{path}.duration_seconds_min")


def _check_verify(verify: Verify, node: Any, file: str, path: str) -> None:
    _number(verify.quiet_seconds, 0, MOST, _at(node, "quiet_seconds", file), f"{path}.quiet_seconds")
    _number(verify.step_time_ratio_max, 1, MOST, _at(node, "step_time_ratio_max", file), f"{path}.step_time_ratio_max")
    _number(verify.deadline_seconds, 0, MOST, _at(node, "deadline_seconds", file), f"{path}.deadline_seconds")


def _at(node: Any, key: str, file: str) -> str:
    """`file:line` of a key of the mapping; of the mapping where it lacks the key; of the file where there is none."""
    return node.where(key) if isinstance(node, Node) else file


def _need(ok: bool, where: str, key: str, given: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(where, key, given, allowed)


def _one_of(allowed: tuple[str, ...], where: str, key: str, given: Any) -> None:
    hint = nearest(given, allowed) if isinstance(given, str) else ""
    _need(isinstance(given, str) and given in allowed, where, key, given, f"allowed are: {', '.join(allowed)}{hint}")


def _number(value: float, low: float, high: float, where: str, key: str) -> None:
    """Within the bounds, both included: a wait or budget without an end is none."""
    _need(low <= value <= high, where, key, value, f"a number from {low:g} to {high:g} is needed")


def _finite(value: float) -> bool:
    return -MOST <= value <= MOST
