"""The series catalogue in memory: ids, postings for matchers, and the newest sample of each series.

Pure: no DuckDB here. The writer adds series and moves the newest samples on; readers match. A lock makes one
registration or one match at a time; both are short.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.derive import STALE_NAN, absent
from core.errors import BadInput
from core.protocols import Matcher
from core.types import Layout, Series

Ids = NDArray[np.uint32]
Labels = tuple[tuple[str, str], ...]

NEVER = -(2**62)  # before any time
LONGEST_PATTERN = 1_000
METRIC = "__name__"
NO_IDS: Ids = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class KnownLayout:
    """A layout as the store needs it. ids: of each value, in order; keep: indexes of the values that count where a
    series stands in it twice (None = all of them)."""

    id: str
    target_id: str
    ids: Ids
    keep: NDArray[np.int64] | None

    @property
    def size(self) -> int:
        return len(self.ids)


def unique_rows(ids: Ids) -> NDArray[np.int64] | None:
    """Indexes of the first row of each id, in order; None where no id stands twice."""
    _, first = np.unique(ids, return_index=True)
    return None if len(first) == len(ids) else np.sort(first)


class Catalogue:
    """Series by id. Arrays are indexed by series id: last_ms and first_ms int64, last_value float64 (the stale marker
    where the series has ended), owner int32 (index into `targets`)."""

    def __init__(self, next_id: int = 0) -> None:
        self.next_id = next_id
        self.series: list[Series | None] = [None] * next_id
        self.layouts: dict[str, KnownLayout] = {}
        self.targets: list[str] = []
        size = max(1024, next_id)
        self.last_ms = np.full(size, NEVER, np.int64)
        self.first_ms = np.full(size, NEVER, np.int64)
        self.last_value = np.full(size, STALE_NAN)
        self.owner = np.full(size, -1, np.int32)
        self._target_index: dict[str, int] = {}
        self._ids: dict[tuple[str, Labels], int] = {}
        self._postings: dict[str, dict[str, array[int]]] = {}
        self._all: array[int] = array("I")
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    # --- writing ------------------------------------------------------------------------------------------------------
    def target(self, target_id: str) -> int:
        """The index of a target, new ones included."""
        found = self._target_index.get(target_id)
        if found is None:
            found = self._target_index[target_id] = len(self.targets)
            self.targets.append(target_id)
        return found

    def restore(self, series_id: int, series: Series, target_id: str, first_ms: int, last_ms: int, last: float) -> None:
        """Adds a series that the database holds, with its newest sample."""
        with self._lock:
            self._add(series_id, series)
        self.first_ms[series_id], self.last_ms[series_id] = first_ms, last_ms
        self.last_value[series_id] = last
        self.owner[series_id] = self.target(target_id)

    def register(self, layout: Layout) -> tuple[KnownLayout, list[int], Ids]:
        """Makes a layout known: (it, ids of new series, ids of series that another target had so far)."""
        index = self.target(layout.target_id)
        fresh: list[int] = []
        ids = np.empty(len(layout.series), np.uint32)
        with self._lock:
            for i, one in enumerate(layout.series):
                found = self._ids.get((one.name, one.labels))
                if found is None:
                    found = self._add(max(self.next_id, len(self.series)), one)
                    fresh.append(found)
                ids[i] = found
        moved = ids[(self.owner[ids] != index) & (self.owner[ids] >= 0)]
        self.owner[ids] = index
        known = KnownLayout(layout.id, layout.target_id, ids, unique_rows(ids))
        self.layouts[layout.id] = known
        return known, fresh, np.unique(moved)

    def _add(self, series_id: int, series: Series) -> int:
        # Equal label pairs are kept once: a fleet repeats its few hundred pairs in each of its series.
        keep = self._pairs.setdefault
        labels = tuple([keep(pair, pair) for pair in series.labels])
        one = Series(series.name, labels, series.type)
        if len(self.series) <= series_id:
            self.series.extend([None] * (series_id + 1 - len(self.series)))
        self.series[series_id] = one
        self.next_id = max(self.next_id, series_id + 1)
        self._grow(series_id + 1)
        self._ids[(one.name, labels)] = series_id
        self._all.append(series_id)
        self._post(METRIC, one.name, series_id)
        for key, value in labels:
            self._post(key, value, series_id)
        return series_id

    def _post(self, key: str, value: str, series_id: int) -> None:
        by_value = self._postings.get(key)
        if by_value is None:
            by_value = self._postings[key] = {}
        ids = by_value.get(value)
        if ids is None:
            by_value[value] = array("I", (series_id,))
        else:
            ids.append(series_id)

    def _grow(self, size: int) -> None:
        have = len(self.last_ms)
        if size <= have:
            return
        more = max(size, 2 * have) - have
        self.last_ms = np.concatenate([self.last_ms, np.full(more, NEVER, np.int64)])
        self.first_ms = np.concatenate([self.first_ms, np.full(more, NEVER, np.int64)])
        self.last_value = np.concatenate([self.last_value, np.full(more, STALE_NAN)])
        self.owner = np.concatenate([self.owner, np.full(more, -1, np.int32)])

    def alive_of(self, target: int) -> Ids:
        """Ids of the target's series whose newest row is no stale marker."""
        n = self.next_id
        alive = (self.owner[:n] == target) & ~absent(self.last_value[:n])
        return np.flatnonzero(alive).astype(np.uint32)

    # --- reading ------------------------------------------------------------------------------------------------------
    def get(self, series_id: int) -> Series:
        """The series of an id. KeyError where none is known."""
        found = self.series[series_id] if series_id < len(self.series) else None
        if found is None:
            raise KeyError(series_id)
        return found

    def ids_of(self, series: Iterable[Series]) -> Ids:
        """Ids of the series that are known, ascending."""
        found = [self._ids.get((one.name, one.labels)) for one in series]
        return np.unique(np.array([i for i in found if i is not None], np.uint32))

    def match(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> Ids:
        """Ids of series that all matchers accept and that have samples between start and end (ms), ascending.

        Raises BadInput for a pattern that RE2 refuses or that is longer than 1,000 characters.
        """
        with self._lock:
            found: Ids | None = None
            # Narrow first by what selects few: equality, then patterns, then what only takes away.
            for one in sorted(matchers, key=lambda m: ("=", "=~", "!=", "!~").index(m.op)):
                found = self._apply(one, found)
                if not len(found):
                    return NO_IDS
            if found is None:
                found = np.unique(np.array(self._all, np.uint32))
        if start is not None:
            found = found[self.last_ms[found] >= start]
        if end is not None:
            found = found[(self.first_ms[found] <= end) & (self.first_ms[found] != NEVER)]
        return found

    def _apply(self, matcher: Matcher, among: Ids | None) -> Ids:
        values = self._postings.get(matcher.label, {})
        if matcher.op in ("=", "!="):
            chosen = [matcher.value] if matcher.value in values else []
            takes_empty = matcher.value == ""
        else:
            flags = _full_matches(matcher.value, ["", *values])
            takes_empty = flags[0]
            chosen = [v for v, flag in zip(values, flags[1:], strict=True) if flag]
        hit = _union(values[v] for v in chosen)
        if takes_empty:  # a series without the label has it as an empty string
            everything = among if among is not None else np.array(self._all, np.uint32)
            without = np.setdiff1d(everything, _union(values.values()))
            hit = np.union1d(hit, without)
        if matcher.op in ("=", "=~"):
            return hit if among is None else np.intersect1d(among, hit)
        everything = among if among is not None else np.array(self._all, np.uint32)
        return np.setdiff1d(everything, hit)

    def label_names(self) -> list[str]:
        """All label names in use, `__name__` included, sorted."""
        with self._lock:
            return sorted(self._postings)

    def label_values(self, name: str) -> list[str]:
        """All values of a label, sorted."""
        with self._lock:
            return sorted(self._postings.get(name, {}))


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
