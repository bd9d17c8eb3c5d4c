"""How sure each kind of evidence makes us, as measured on tuning suites (`confidence.yaml`, which says on which)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("confidence.yaml")


@cache
def chances() -> Mapping[str, float]:
    """By kind of evidence, the probability (0–1) that an incident of it is right."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {str(kind): chance for kind, chance in measured(data["kinds"], float(data["prior"]), float(data["weight"]), float(data["most"])).items()}


def measured(kinds: Mapping[str, Mapping[str, Any]], prior: float, weight: float, most: float) -> dict[str, float]:
    """The chances of kinds of which `right` of `of` incidents each were right. Each is drawn to the mean of all of them by `weight`
    incidents, and that mean to `prior` by as many: a kind of which few were seen says little of its own. At most `most`."""
    mean = chance_of({key: sum(float(row[key]) for row in kinds.values()) for key in ("right", "of")}, prior, weight)
    return {kind: round(min(most, chance_of(row, mean, weight)), 3) for kind, row in kinds.items()}


def chance_of(row: Mapping[str, Any], prior: float, weight: float) -> float:
    """The mean of a Beta distribution: `weight` incidents at the prior, and the measured ones."""
    return (weight * prior + float(row["right"])) / (weight + float(row["of"]))
