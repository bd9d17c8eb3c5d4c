"""Matchers over sets of labels: which ids carry which label with which value. Pure: numpy and RE2 through pyarrow."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.errors import BadInput
from core.protocols import Matcher

Ids = NDArray[np.uint32]
Labels = tuple[tuple[str, str], ...]

LONGEST_PATTERN = 1_000
METRIC = "__name__"
NO_IDS: Ids = np.empty(0, np.uint32)


class Postings:
    """Ids by label and value. Ids are added once each, in any order."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, array[int]]] = {}
        self._all: array[int] = array("I")

    def __len__(self) -> int:
        return len(self._all)

    def add(self, number: int, labels: Iterable[tuple[str, str]]) -> None:
        """Makes an id known under its labels."""
        self._all.append(number)
        for key, value in labels:
            by_value = self._values.get(key)
            if by_value is None:
                by_value = self._values[key] = {}
            ids = by_value.get(value)
            if ids is None:
                by_value[value] = array("I", (number,))
            else:
                ids.append(number)

    def names(self) -> list[str]:
        """All label names in use."""
        return list(self._values)

    def values(self, name: str) -> list[str]:
        """All values of a label."""
        return list(self._values.get(name, ()))

    def everything(self) -> Ids:
        """All ids, ascending."""
        return np.unique(np.array(self._all, np.uint32))

    def match(self, matchers: Sequence[Matcher]) -> Ids:
        """Ids that all matchers accept, ascending. Raises BadInput for a pattern that is refused."""
        found: Ids | None = None
        # Narrow first by what selects few: equality, then patterns, then what only takes away.
        for one in sorted(matchers, key=lambda m: ("=", "=~", "!=", "!~").index(m.op)):
            found = self._apply(one, found)
        return self.everything() if found is None else found

    def _apply(self, matcher: Matcher, among: Ids | None) -> Ids:
        values = self._values.get(matcher.label, {})
        chosen, takes_empty = choose(matcher, list(values))
        hit = _union(values[v] for v in chosen)
        if takes_empty:  # an id without the label has it as an empty string
            everything = among if among is not None else np.array(self._all, np.uint32)
            without = np.setdiff1d(everything, _union(values.values()))
            hit = np.union1d(hit, without)
        if matcher.op in ("=", "=~"):
            return hit if among is None else np.intersect1d(among, hit)
        everything = among if among is not None else np.array(self._all, np.uint32)
        return np.setdiff1d(everything, hit)


def choose(matcher: Matcher, values: Sequence[str]) -> tuple[list[str], bool]:
    """(the values that the matcher's text or pattern hits, whether it hits an empty one), before `!` is applied.

    Raises BadInput for a pattern that RE2 refuses or that is longer than 1,000 characters.
    """
    if matcher.op in ("=", "!="):
        return ([matcher.value] if matcher.value in values else []), matcher.value == ""
    flags = _full_matches(matcher.value, ["", *values])
    return [v for v, flag in zip(values, flags[1:], strict=True) if flag], flags[0]


def accepts(matcher: Matcher, values: Sequence[str]) -> list[bool]:
    """Which values (an absent label is an empty one) the matcher accepts."""
    distinct = sorted(set(values))
    chosen, takes_empty = choose(matcher, [v for v in distinct if v])
    hit = {*chosen, *([""] if takes_empty else [])}
    wanted = matcher.op in ("=", "=~")
    return [(v in hit) == wanted for v in values]


def _union(parts: Iterable[array[int]]) -> Ids:
    arrays = [np.array(part, np.uint32) for part in parts]
    return np.unique(np.concatenate(arrays)) if arrays else NO_IDS


def _full_matches(pattern: str, values: list[str]) -> list[bool]:
    """Which values the pattern matches from end to end. RE2, as in Prometheus: no pattern takes more than linear time."""
    if len(pattern) > LONGEST_PATTERN:
        allowed = f"a pattern of at most {LONGEST_PATTERN} characters is allowed"
        raise BadInput("query", "matcher", f"a pattern of {len(pattern)} characters", allowed)
    try:
        flags: Any = pc.match_substring_regex(pa.array(values, pa.string()), f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise BadInput("query", "matcher", pattern, f"a regular expression that RE2 understands is needed ({error})") from None
    return [bool(flag) for flag in flags.to_pylist()]
