"""Rules over a trainer's log in the YAML of the HyperPod training operator, as its users have them (`logMonitoringConfiguration`).

A rule names lines by a pattern and says by when the first one is due (`expectedStartCutOffInSeconds`), how long two of them may
be apart (`expectedRecurringFrequencyInSeconds`), and which values of the pattern's first group are bad after how many in a row
(`metricThreshold`, `operator`, `metricEvaluationDataPoints`); `faultOnMatch` makes each such line a fault by itself (a key of the
operator's elastic agent); `stopPattern` ends it. Read strictly: what could find nothing, and keys that nobody documents, are refused. Patterns are RE2's and match from the beginning of the line, with or without what
stands before the message (time, node, rank).

A `RuleWatch` reads one log. It says what changed, as events `log_rule`; whether that is a fault is judged by detectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.loglines import LONGEST_QUOTED, head, number, plain
from collectors.re2 import BadPattern, Pattern
from core.errors import ConfigError, nearest
from core.types import Event, Target
from core.yamlfile import Node, read_yaml

SECTION = "logMonitoringConfiguration"
KEYS = ("name", "logPattern", "expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds", "metricThreshold", "operator",
        "metricEvaluationDataPoints", "stopPattern", "faultOnMatch")
OPERATORS = ("gt", "gteq", "lt", "lteq", "eq")
MOST_RULES = 64
FAULT_GAP_MS = 60_000
MATCHING, OVERDUE, SLOW, STOPPED, FAULT = "matching", "overdue", "slow", "stopped", "fault"


@dataclass(frozen=True, slots=True)
class LogRule:
    """One rule, under the operator's own names in snake case; None = not given."""

    name: str
    pattern: Pattern
    start_seconds: float | None = None
    every_seconds: float | None = None
    threshold: float | None = None
    operator: str | None = None
    points: int = 1
    stop: Pattern | None = None
    fault: bool = False

    def bad(self, value: float) -> bool:
        """Whether a value lies on the bad side of the threshold."""
        at = self.threshold
        if at is None:
            return False
        return {"gt": value > at, "gteq": value >= at, "lt": value < at, "lteq": value <= at, "eq": value == at}[self.operator or ""]


# --- reading the file -------------------------------------------------------------------------------------------------
def read_rules(path: str | Path) -> tuple[LogRule, ...]:
    """The rules of a file: a job's manifest, its section alone, or the list itself. Raises ConfigError."""
    data = read_yaml(path)
    where, rows = str(path), _section(data)
    if not isinstance(rows, list) or not rows:
        raise ConfigError(where, SECTION, "no list of rules", f"a manifest with spec.runPolicy.{SECTION}, or that section, is needed")
    if len(rows) > MOST_RULES:
        raise ConfigError(where, SECTION, f"{len(rows)} rules", f"at most {MOST_RULES} are allowed")
    rules = [_rule(row, where, f"{SECTION}[{i}]") for i, row in enumerate(rows)]
    names = [rule.name for rule in rules]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(where, f"{SECTION}[{i}].name", name, "each name is allowed once")
    return tuple(rules)


def _section(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    if SECTION in data:
        return data[SECTION]
    for key in ("spec", "runPolicy", SECTION):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _rule(row: Any, file: str, path: str) -> LogRule:
    where = row.where() if isinstance(row, Node) else file
    if not isinstance(row, Mapping):
        raise ConfigError(where, path, row, "a mapping is needed")
    for key in row:
        if key not in KEYS:
            at = row.where(key) if isinstance(row, Node) else where
            raise ConfigError(at, f"{path}.{key}", "an unknown key", f"allowed are: {', '.join(KEYS)}{nearest(str(key), KEYS)}")
    reader = _Reader(row, where, path)
    pattern, groups = reader.pattern("logPattern", required=True)
    assert pattern is not None
    points = reader.number("metricEvaluationDataPoints", 1, whole=True)
    rule = LogRule(reader.text("name"), pattern, reader.number("expectedStartCutOffInSeconds", 1),
                   reader.number("expectedRecurringFrequencyInSeconds", 1), reader.number("metricThreshold"), row.get("operator"),
                   int(points or 1), reader.pattern("stopPattern")[0], reader.flag("faultOnMatch"))
    _sense(rule, row, groups, reader)
    return rule


def _sense(rule: LogRule, row: Mapping[str, Any], groups: int, at: _Reader) -> None:
    """Raises ConfigError for a rule that could find nothing, or whose keys do not belong together."""
    if rule.operator is not None and rule.operator not in OPERATORS:
        raise at.error("operator", rule.operator, f"allowed are: {', '.join(OPERATORS)}")
    if (rule.threshold is None) != (rule.operator is None):
        raise at.error("operator" if rule.operator is None else "metricThreshold", "nothing", "metricThreshold and operator go together")
    if rule.threshold is not None and not groups:
        raise at.error("logPattern", row["logPattern"], "a group in parentheses is needed, whose number metricThreshold is compared with")
    if rule.threshold is None and "metricEvaluationDataPoints" in row:
        raise at.error("metricEvaluationDataPoints", row["metricEvaluationDataPoints"], "it needs a metricThreshold")
    if rule.threshold is None and rule.start_seconds is None and rule.every_seconds is None and not rule.fault:
        raise at.error("", "a rule that can find nothing", "expectedStartCutOffInSeconds, expectedRecurringFrequencyInSeconds, "
                       "metricThreshold or faultOnMatch is needed")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Values of one rule, each of the right type or a ConfigError."""

    row: Mapping[str, Any]
    where: str
    path: str

    def error(self, key: str, given: object, allowed: str) -> ConfigError:
        at = self.row.where(key) if key and isinstance(self.row, Node) else self.where
        return ConfigError(at, f"{self.path}.{key}" if key else self.path, given, allowed)

    def text(self, key: str) -> str:
        value = self.row.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, value if key in self.row else "nothing", "text is needed")
        return value

    def number(self, key: str, least: float | None = None, whole: bool = False) -> float | None:
        value = self.row.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(key, value, "a number is needed")
        if (least is not None and value < least) or (whole and value != int(value)):
            raise self.error(key, value, f"a {'whole ' if whole else ''}number of at least {least:g} is needed")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.row.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false is needed")
        return value

    def pattern(self, key: str, required: bool = False) -> tuple[Pattern | None, int]:
        """(the pattern, how many groups it has)."""
        if key not in self.row and not required:
            return None, 0
        text = self.text(key)
        try:
            Pattern(text)  # by itself first: what is added must not make a wrong one right
            found = Pattern(f"(?:{text})(?s:.*)")
        except BadPattern as error:
            raise self.error(key, text, f"a pattern that RE2 knows is needed ({error})") from None
        return found, len(found.names)


# --- watching a log ---------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Watched:
    """One rule over one log. last: ms of the newest match."""

    rule: LogRule
    state: str = ""
    last: int | None = None
    bad: int = 0
    value: float | None = None


@dataclass(slots=True)
class RuleWatch:
    """All rules over one log. whole: it is read from its beginning, so that a start can be late; a log that is taken up in its
    middle had its start before. Times go forward: a line that is older than the newest counts as of the newest."""

    rules: Sequence[LogRule]
    job: str
    whole: bool = True
    _watched: list[_Watched] = field(default_factory=list)
    _start: int | None = None
    _now: int | None = None

    def __post_init__(self) -> None:
        self._watched = [_Watched(rule) for rule in self.rules]

    def line(self, text: str, at: int) -> list[Event]:
        """What a line changed; at: its time (ms)."""
        at = at if self._now is None else max(at, self._now)
        out = self.clock(at)
        shown = plain(text)
        for one in self._watched:
            if one.state == STOPPED:
                continue
            found = _match(one.rule.pattern, shown)
            if found is not None:
                out += self._matched(one, found, at, shown)
            if one.rule.stop is not None and _match(one.rule.stop, shown) is not None:
                out.append(self._to(one, STOPPED, at, shown))
        return out

    def clock(self, at: int) -> list[Event]:
        """What the time alone changed up to `at` (ms); each event is of the moment when it was due."""
        if self._start is None:
            self._start = at
        self._now = at if self._now is None else max(at, self._now)
        due = [(when, one) for one in self._watched if (when := self._due(one)) is not None and when <= self._now]
        return [self._to(one, OVERDUE, when, None) for when, one in sorted(due, key=lambda pair: pair[0])]

    def rest(self) -> list[Event]:
        """What will be overdue when nothing more comes; for a log that has been read to its end. The watch is used up."""
        due = [(when, one) for one in self._watched if (when := self._due(one)) is not None]
        return [self._to(one, OVERDUE, when, None) for when, one in sorted(due, key=lambda pair: pair[0])]

    def _due(self, one: _Watched) -> int | None:
        """When the rule will be overdue, None where it cannot be (any more)."""
        if one.state in (OVERDUE, STOPPED) or self._start is None:
            return None
        if one.last is None:
            late = one.rule.start_seconds
            return None if late is None or not self.whole else self._start + round(late * 1000) + 1
        return None if one.rule.every_seconds is None else one.last + round(one.rule.every_seconds * 1000) + 1

    def _matched(self, one: _Watched, found: tuple[str, ...], at: int, line: str) -> list[Event]:
        before, one.last = one.last, at
        if one.rule.fault:  # a trace of a hundred such lines is one
            again = one.state == FAULT and before is not None and at - before < FAULT_GAP_MS
            return [] if again else [self._to(one, FAULT, at, line)]
        state = MATCHING
        if one.rule.threshold is not None and len(found) > 1:
            value = number(found[1])
            if value is None or not math.isfinite(value):  # what is no number says nothing of the metric
                return [] if one.state in (MATCHING, SLOW) else [self._to(one, MATCHING, at, line)]
            one.value = value
            one.bad = min(one.bad + 1, one.rule.points) if one.rule.bad(one.value) else 0
            state = SLOW if one.bad >= one.rule.points else MATCHING
        return [] if state == one.state else [self._to(one, state, at, line)]

    def _to(self, one: _Watched, state: str, at: int, line: str | None) -> Event:
        one.state = state
        rule = one.rule
        limit = rule.start_seconds if one.last is None else rule.every_seconds
        fields: dict[str, object] = {"rule": rule.name, "state": state}
        if state == OVERDUE:
            fields |= {"what": "start" if one.last is None else "recurring", "limit_seconds": limit}
        if rule.threshold is not None and one.value is not None and state != OVERDUE:
            fields |= {"value": one.value, "threshold": rule.threshold, "operator": rule.operator, "points": rule.points}
        return Event(at, Target("job", job=self.job), "log_rule", fields, line[:LONGEST_QUOTED] if line is not None else None)


def _match(pattern: Pattern, line: str) -> tuple[str, ...] | None:
    found = pattern.groups(line)
    if found is None:
        text = head(line).text
        found = pattern.groups(text) if text != line else None
    return found
