"""The value of a selector at one time or at many: the newest sample of at most 5 minutes ago, unless it is a stale marker.

Prometheus 2 counts a sample that is exactly 5 minutes old, Prometheus 3 does not. We announce ourselves as 2.42 (what the
answers are compared with) and count it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.derive import STALE_NAN, absent
from core.protocols import Matcher, Store
from core.types import Floats, Series
from pipeline.promql.parse import Selector

LOOKBACK_MS = 300_000
Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """What a series gives. at: int64[n], the asked times (ms) at which it has a value; values: float64[n]."""

    series: Series
    at: Times
    values: Floats


def evaluate(store: Store, what: Selector, times: Times, left_open: bool = False) -> Iterator[Points]:
    """The series that have a value at any of the times (ms, ascending), by name and labels, one at a time.

    left_open: a sample exactly 5 minutes old does not count (Prometheus 3).
    """
    if not len(times):
        return
    looked = times - what.offset_ms
    oldest = looked - LOOKBACK_MS + (1 if left_open else 0)
    for series, at, values in _samples(store, what.matchers, int(oldest[0]), int(looked[-1])):
        newest = np.searchsorted(at, looked, side="right") - 1
        safe = np.maximum(newest, 0)
        has = (newest >= 0) & (at[safe] >= oldest) & ~absent(values[safe])
        if has.any():
            yield Points(series, times[has], values[safe[has]])


def _samples(store: Store, matchers: Sequence[Matcher], start: int, end: int) -> Iterator[tuple[Series, Times, Floats]]:
    arrays: Any = getattr(store, "arrays", None)
    if arrays is not None:  # a store that has them as arrays already is spared the way through lists
        for one in arrays(matchers, start, end):
            yield one.series, one.at, one.values
        return
    for row in store.select(matchers, start, end):
        values = np.array([STALE_NAN if v is None else v for v in row.values], np.float64)
        yield row.series, np.array(row.at, np.int64), values
