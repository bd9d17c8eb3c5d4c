"""All series that were pushed lately, each with a number, the target that it belongs to and its newest time.

A target is (job, instance) where a series has both labels, else what names its node or, last, the sender
(`collectors.recording.series.instance_of`, so that a push and a recording of it group alike). Bounded: a target may
have as many series as its budget says, and series that nobody sent for `FORGET_MS` are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collectors.meaning import host_of
from collectors.push.parts import Ints, PushRefused, bad
from collectors.recording.series import InstanceKey, instance_of
from core.config import TargetBudget
from core.errors import quote
from core.types import Series

Labels = tuple[tuple[str, str], ...]
FORGET_MS = 30 * 60_000  # a window: after it nothing in the owner remembers the series' layout either
NEVER = -(2**62)
MOST_TARGETS = 100_000
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(slots=True, eq=False)
class PushTarget:
    """Who the series are of. node: what the push itself says (OTLP resource), else None. size: its living series."""

    number: int
    key: InstanceKey
    id: str
    node: str | None
    size: int = 0

    @property
    def labels(self) -> dict[str, str]:
        """job and instance, as far as they are known."""
        return {name: value for name, value in (("job", self.key.job), ("instance", self.key.instance)) if value}

    @property
    def host(self) -> str | None:
        """The node where no series' own label names it."""
        return self.node or self.key.host or host_of(self.key.instance)  # a sender's address is no node's name


@dataclass(slots=True)
class SeriesBook:
    """Series by number. owner: int64[n] target numbers. newest: int64[n] ms of the newest sample. heard: int64[n] ms at
    which it was last sent. types: of metric families, as senders tell them in their metadata."""

    budget: TargetBudget = field(default_factory=TargetBudget)
    series: list[Series | None] = field(default_factory=list)
    targets: dict[int, PushTarget] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    owner: Ints = field(default_factory=lambda: np.full(1024, -1, np.int64))
    newest: Ints = field(default_factory=lambda: np.full(1024, NEVER, np.int64))
    heard: Ints = field(default_factory=lambda: np.full(1024, NEVER, np.int64))
    generation: int = 0
    _numbers: dict[tuple[str, Labels, str], int] = field(default_factory=dict)
    _targets: dict[tuple[InstanceKey, str | None], PushTarget] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _next_target: int = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: str, labels: Labels, stem: str, kind: str | None = None, node: str | None = None) -> int:
        """The number of a series; new ones get the next free one. labels: sorted, without empty values and `__name__`.

        stem: names the sender. kind: the series' type where the sender tells it. Raises PushRefused(`too_many_series`).
        """
        key = instance_of(name, dict(labels), stem)
        place = (name, labels, key.stem)
        found = self._numbers.get(place)
        if found is None:
            target = self._target(key, node)
            if self.budget.series and target.size >= self.budget.series:
                raise bad("too_many_series", f"the target {target.id} has {target.size} series, no more are taken of it.")
            found = self._numbers[place] = self._place(Series(name, labels, kind or self.type_of(name)))
            self.owner[found] = target.number
            target.size += 1
        return found

    def type_of(self, name: str) -> str:
        """A metric's type as its sender's metadata tell it, `untyped` where they do not."""
        if not self.types:
            return "untyped"
        found = self.types.get(name)
        if found is None:
            for suffix in ("_bucket", "_sum", "_count", "_total"):
                if name.endswith(suffix):
                    found = self.types.get(name[: -len(suffix)])
                    break
        return found or "untyped"

    def _target(self, key: InstanceKey, node: str | None) -> PushTarget:
        found = self._targets.get((key, node))
        if found is None:
            if len(self._targets) >= MOST_TARGETS:
                raise bad("too_many_series", f"{MOST_TARGETS} targets push already, no more are taken.")
            number, self._next_target = self._next_target, self._next_target + 1
            name = f"push/{key.name()}"
            if name in self._names:
                name = f"{name}@{node or 'sender'}"
            self._names.add(name)
            found = self._targets[key, node] = self.targets[number] = PushTarget(number, key, name, node)
        return found

    def _place(self, series: Series) -> int:
        if self._free:
            number = self._free.pop()
            self.series[number] = series
        else:
            number = len(self.series)
            self.series.append(series)
        if number >= len(self.owner):
            more = np.full(len(self.owner), NEVER, np.int64)
            self.owner, self.newest, self.heard = (np.concatenate([a, more]) for a in (self.owner, self.newest, self.heard))
        self.newest[number] = self.heard[number] = NEVER
        return number

    def forget(self, before_ms: int) -> Ints:
        """Forgets the series that were last sent before then; gives their numbers, which may be used anew."""
        n = len(self.series)
        old = np.flatnonzero((self.heard[:n] < before_ms) & (self.owner[:n] >= 0))
        if not len(old):
            return old
        gone = set(old.tolist())
        self._numbers = {place: number for place, number in self._numbers.items() if number not in gone}
        for number in gone:
            self.series[number] = None
            self.targets[int(self.owner[number])].size -= 1
        self.owner[old] = -1
        self._free.extend(old.tolist())
        self._targets = {place: one for place, one in self._targets.items() if one.size > 0}
        self.targets = {one.number: one for one in self._targets.values()}
        self._names = {one.id for one in self._targets.values()}
        self.generation += 1
        return old


def check_pair(name: str, value: str, budget: TargetBudget) -> None:
    """Raises PushRefused(400) for a name that is none, and for what is over the budget."""
    if LABEL_NAME.fullmatch(name) is None:
        raise bad("bad_labels", f"{quote(name)} is no label name.")
    if budget.label_name_bytes and len(name) > budget.label_name_bytes:
        raise bad("label_too_long", f"the label name {quote(name)} has more than {budget.label_name_bytes} bytes.")
    if budget.label_value_bytes and len(value.encode()) > budget.label_value_bytes:
        raise bad("label_too_long", f"the value of the label {quote(name)} has more than {budget.label_value_bytes} bytes.")


def check_labels(pairs: Mapping[str, str] | Iterable[tuple[str, str]], budget: TargetBudget, checked: bool = False) -> Labels:
    """Sorted label pairs without empty values. checked: `check_pair` was called for each. Raises PushRefused(400) for what
    Prometheus refuses as well: a name twice, a name that is none; and for what is over the budget."""
    rows = sorted(pairs.items() if isinstance(pairs, Mapping) else pairs)
    before = None
    for name, value in rows:
        if name == before:
            raise bad("bad_labels", f"the label {quote(name)} stands twice in one series.")
        before = name
        if not checked:
            check_pair(name, value, budget)
    kept = tuple([pair for pair in rows if pair[1]])
    if budget.labels and len(kept) > budget.labels:
        raise bad("too_many_labels", f"a series has {len(kept)} labels, {budget.labels} are allowed.")
    return kept


def check_name(name: str) -> str:
    """The metric's name. Raises PushRefused(400)."""
    if not name:
        raise bad("bad_labels", "a series has no __name__.")
    if METRIC_NAME.fullmatch(name) is None:
        raise bad("bad_labels", f"{quote(name)} is no metric name.")
    return name


__all__ = ["FORGET_MS", "NEVER", "Labels", "PushRefused", "PushTarget", "SeriesBook", "check_labels", "check_name", "check_pair"]
