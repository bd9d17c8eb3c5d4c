"""Small statistics of a scorecard: Wilson intervals, Poisson bounds, quantiles with misses, calibration, base rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.protocols import FaultPlugin
from fleet.rates import Group

Z95 = 1.959964
BINS = 10
GPUS_A_NODE = 8


def wilson(hits: float, n: int, z: float = Z95) -> tuple[float, float] | None:
    """The 95 % Wilson interval of hits in n; None for n = 0. Halves count as half a hit."""
    if n == 0:
        return None
    share, square = hits / n, z * z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def rate(hits: float, n: int) -> dict[str, Any]:
    """`{value, n, low, high}`; value None where n = 0."""
    bounds = wilson(hits, n)
    return {"value": None if n == 0 else round(hits / n, 4), "n": n,
            "low": None if bounds is None else round(bounds[0], 4), "high": None if bounds is None else round(bounds[1], 4)}


def poisson_upper(events: int, level: float = 0.95) -> float:
    """The one-sided upper bound on the mean of a Poisson count (3.0 for none seen)."""
    low, high = float(events), events + 10.0 * math.sqrt(events + 1) + 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _poisson_cdf(events, middle) > 1 - level else (low, middle)
    return high


def _poisson_cdf(events: int, mean: float) -> float:
    term = total = math.exp(-mean)
    for k in range(1, events + 1):
        term *= mean / k
        total += term
    return total


def quantile(values: Iterable[float | None], q: float) -> float | None:
    """The q-quantile (nearest rank) where None stands for infinite; None where that is the answer, or nothing was given."""
    ordered = sorted(math.inf if v is None else v for v in values)
    if not ordered:
        return None
    found = ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]
    return None if math.isinf(found) else found


def calibration(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of (probability, came true 0–1) pairs: the expected calibration error over ten equal bins, and the table of the bins."""
    table = []
    error = 0.0
    for index in range(BINS):
        low, high = index / BINS, (index + 1) / BINS
        inside = [(p, t) for p, t in pairs if low <= p < high or (index == BINS - 1 and p >= 1.0)]
        if inside:
            said = sum(p for p, _ in inside) / len(inside)
            true = sum(t for _, t in inside) / len(inside)
            error += len(inside) / len(pairs) * abs(said - true)
            table.append({"from": low, "to": high, "said": round(said, 4), "true": rate(sum(t for _, t in inside), len(inside))})
    return {"expected_calibration_error": round(error, 4) if pairs else None, "n": len(pairs), "bins": table}


def base_rates(groups: Mapping[str, Group], plugins: Mapping[str, FaultPlugin]) -> dict[str, float]:
    """How often each fault comes in the field, per node-hour of 8 GPUs: all published groups added."""
    out: dict[str, float] = {}
    for group in groups.values():
        for row in group.rows:
            for word, weight in row.becomes.items():
                if word == "hand":
                    continue
                fault = plugins[word].fault if word in plugins and plugins[word].fault else word
                per_node = row.per_hour * (GPUS_A_NODE if group.base == "gpu" else 1)
                out[str(fault)] = out.get(str(fault), 0.0) + per_node * weight
    return out


def field_precision(found_per_hour: float, false_per_hour: float) -> float | None:
    """The share of incidents that are true when faults come and are found at one rate, and false alarms at another."""
    whole = found_per_hour + false_per_hour
    return None if whole <= 0 else round(found_per_hour / whole, 4)
