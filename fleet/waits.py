"""What waits for storage, and how its end moves when the storage's pace does: saves, loading, batches that are late.

A wait is reckoned with the pace of the moment at which it begins. When the pace changes, what is left of it takes as much
longer or shorter; what it waits for is gone, it makes no progress at all, and is where it was once that is back.
"""

from __future__ import annotations

import numpy as np

from core.types import Floats
from fleet.hosts import HUNG_FACTOR

# A batch that is late by less than a sub-step is there before anybody looks again.
WORTH_ASKING_SECONDS = 5.0


def gone(factor: float) -> bool:
    """Whether a factor on a time stands for something that does not answer."""
    return factor >= HUNG_FACTOR


def moved(end: int, tail: int, since: int, at: int, then: float, now: float) -> tuple[int, int]:
    """(end, tail) of a wait at `at`, all in ms. Its last `tail` ms before `end` are storage's, reckoned with the factor `then`, which
    held from `since` until now; from now on the factor is `now`."""
    if gone(then):
        end += max(0, at - max(since, end - tail))
    tail = max(0, min(tail, end - at))
    if tail == 0 or now == then:
        return end, tail
    fresh = max(1, round(tail * now / then))
    return end - tail + fresh, fresh


def late(left: Floats, passed: Floats | float, then: Floats, now: Floats) -> Floats:
    """Seconds that each rank (or each node) still waits for its batch, float64[rank], after `passed` seconds. A batch whose source got
    slower meanwhile comes as it was coming: it is the next one that is late."""
    stuck = gone_ranks(then)
    rest = np.maximum(0.0, left - np.where(stuck, 0.0, passed))
    return np.where(gone_ranks(now), rest, rest * np.minimum(1.0, now / then))


def gone_ranks(factor: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """bool[rank]: as `gone`."""
    return np.asarray(factor >= HUNG_FACTOR)
