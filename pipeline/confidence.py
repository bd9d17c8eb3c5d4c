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
    """By kind of evidence, the probability (0–1) that an incident of it is right: the prior and what was measured, weighed by
    how many incidents each stands for."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {str(kind): chance_of(row, float(data["weight"]), float(data["most"])) for kind, row in data["kinds"].items()}


def chance_of(row: Mapping[str, Any], weight: float, most: float) -> float:
    """The mean of a Beta distribution: `weight` incidents at the prior, and the measured ones; at most `most`."""
    mean = (weight * float(row["prior"]) + float(row["right"])) / (weight + float(row["of"]))
    return round(min(most, mean), 3)
