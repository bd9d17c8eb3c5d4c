"""Counts of rare events from draws that were made beforehand, so that a stream gives the same numbers whatever is planted."""

from __future__ import annotations

import numpy as np

from core.types import Floats

# Up to this mean the exact Poisson probabilities are added up; beyond it the normal form is close enough.
EXACT_UP_TO = 6.0
_TERMS = 24


def arrivals(mean: Floats, uniform: Floats, normal: Floats) -> Floats:
    """How many events happened, float64 like `mean`: Poisson with that mean, by one uniform and one normal draw each."""
    counts = np.zeros(mean.shape)
    at = mean > 0
    if not at.any():
        return counts
    some, chance, spread = mean[at], uniform[at], normal[at]
    term = np.exp(-np.minimum(some, EXACT_UP_TO))
    reached, few = term.copy(), np.zeros(some.shape)
    for count in range(1, _TERMS):
        few += chance > reached
        term = term * some / count
        reached += term
    many = np.maximum(0.0, np.round(some + np.sqrt(some) * spread))
    counts[at] = np.where(some > EXACT_UP_TO, many, few)
    return counts
