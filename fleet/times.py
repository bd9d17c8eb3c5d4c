"""How long operations take and how often they fail, as data (`fleet/times.yaml`): `fast` for demos, `real` for studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from core.errors import BadInput
from core.yamlfile import parse_yaml


@dataclass(frozen=True, slots=True)
class Times:
    """seconds: (least, most) by verb or stage of a node's life. fails: share of operations of a verb that fail for no
    reason of their own. recurs: share of repaired defects that come back. repairs_at_most: after so many a node is
    retired. ways: starts of jobs take what their way of recovery costs, not the job's own short `load_seconds`. sources: where each time
    is from."""

    name: str
    seconds: Mapping[str, tuple[float, float]]
    fails: Mapping[str, float]
    recurs: float
    repairs_at_most: int
    ways: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def draw(self, what: str, rng: np.random.Generator) -> float:
        """Seconds that it takes this time. Raises KeyError for what has no time."""
        low, high = self.seconds[what]
        return float(rng.uniform(low, high)) if high > low else low

    def fail(self, verb: str, rng: np.random.Generator) -> bool:
        """Whether it fails this time."""
        return bool(rng.random() < self.fails.get(verb, 0.0))


def _span(value: Any) -> tuple[float, float]:
    low, high = value if isinstance(value, list) else (value, value)
    return float(low), float(high)


@cache
def all_times() -> dict[str, Times]:
    """The sets of times by name, in the file's order."""
    rows = parse_yaml(files("fleet").joinpath("times.yaml").read_text(encoding="utf-8"), "fleet/times.yaml")
    return {name: Times(name, {k: _span(v) for k, v in row["seconds"].items()}, dict(row["fails"]), float(row["recurs"]),
                        int(row["repairs_at_most"]), bool(row["ways"]), dict(row.get("sources", {}))) for name, row in rows.items()}


def times(name: str = "fast") -> Times:
    """The set of that name. Raises BadInput for another."""
    found = all_times().get(name)
    if found is None:
        raise BadInput("fleet", "times", name, f"allowed are: {', '.join(all_times())}")
    return found
