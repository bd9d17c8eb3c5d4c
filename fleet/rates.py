"""Published failure rates as data (`fleet/rates.yaml`), and schedules drawn from them for any fleet and any span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from core.errors import BadInput
from core.protocols import FaultPlugin
from core.yamlfile import parse_yaml
from fleet.hardware import kind_named
from fleet.scenario import Entry, Scenario, duration_text, node_names, seconds_of

STREAM = 8103
HAND = "maintenance"


@dataclass(frozen=True, slots=True)
class Row:
    """A cause. per_hour: events per GPU-hour or node-hour of the base. becomes: weights by fault, plug-in or `hand`.
    minutes: mean duration of what goes away by itself, None = it stays until it is cured."""

    cause: str
    per_hour: float
    becomes: Mapping[str, float]
    minutes: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """A published study. base: gpu or node, what its hours are of."""

    name: str
    source: str
    base: str
    sigma: float
    bounds: tuple[float, float]
    rows: tuple[Row, ...]


@cache
def groups() -> dict[str, Group]:
    """All groups of the table by name."""
    data = parse_yaml(files("fleet").joinpath("rates.yaml").read_text(encoding="utf-8"), "fleet/rates.yaml")
    out = {}
    for name, one in data.items():
        unit, hours = next(iter(one["base"].items()))
        rows = tuple(Row(r["cause"], r["count"] / hours, dict(r["is"]), r.get("minutes")) for r in one["rows"])
        low, high = one.get("bounds_minutes", (0.5, 1440))
        out[name] = Group(name, one["source"], unit.removesuffix("_hours"), float(one.get("sigma", 0.8)), (low, high), rows)
    return out


def able(plugins: Mapping[str, FaultPlugin], has: frozenset[str], word: str) -> list[str]:
    """The plug-ins of that name, or that show that fault, which a fleet of these parts can have."""
    found = [p for p in plugins.values() if word in (p.name, p.fault) and p.fault is not None]
    exact = [p for p in found if p.name == word]
    return sorted(p.name for p in exact or found if set(p.needs) <= has)


def drawn(scenario: Scenario, plugins: Mapping[str, FaultPlugin]) -> tuple[Entry, ...]:
    """What the scenario's rates bring in its span, in order of time; the same for a seed.

    Raises BadInput for a group that the table has not.
    """
    spec, rates = scenario.fleet, scenario.rates
    if rates is None:
        return ()
    known = groups()
    for name in rates.groups:
        if name not in known:
            raise BadInput("rates", "groups", name, f"allowed are: {', '.join(known)}")
    kind, hours = kind_named(spec.type), seconds_of(scenario.duration) / 3600
    out: list[Entry] = []
    words = {w for group in known.values() for row in group.rows for w in row.becomes}
    there = {w: able(plugins, kind.has | {"trainer"}, w) for w in words}
    for index, group in enumerate(known.values()):
        if rates.groups and group.name not in rates.groups:
            continue
        rng = np.random.default_rng([scenario.seed, STREAM, index])
        units = spec.nodes * (kind.gpus if group.base == "gpu" else 1)
        for row in group.rows:
            count = int(rng.poisson(row.per_hour * units * hours * rates.factor))
            for at in np.sort(rng.uniform(0, hours * 3600, count)):
                entry = _entry(scenario, there, group, row, float(at), rng)
                if entry is not None:
                    out.append(entry)
    return tuple(sorted(out, key=lambda e: seconds_of(e.at)))


def _entry(scenario: Scenario, there: Mapping[str, list[str]], group: Group, row: Row, at: float,
           rng: np.random.Generator) -> Entry | None:
    words = list(row.becomes)
    weights = np.array([row.becomes[w] for w in words])
    word = words[int(rng.choice(len(words), p=weights / weights.sum()))]
    pick, seed = float(rng.random()), int(rng.integers(1 << 31))
    lasts: str | None = None
    if row.minutes is not None:
        low, high = group.bounds
        mean = np.log(row.minutes) - group.sigma**2 / 2
        lasts = duration_text(60 * float(np.clip(rng.lognormal(mean, group.sigma), low, high)))
    begins = duration_text(at)
    if word == "hand":
        names = node_names(scenario.fleet.nodes + scenario.fleet.spares)[:scenario.fleet.nodes]
        return Entry(hand=HAND, at=begins, for_=lasts, node=names[int(pick * len(names))])
    names = there[word]
    if not names:
        return None
    return Entry(fault=names[int(pick * len(names))], at=begins, for_=lasts, seed=seed)
