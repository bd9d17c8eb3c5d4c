"""What a scorecard says of each fault, as chances to draw from: found or missed, how late, at the right part, how sure.

Nothing here is assumed where the scorecard has a figure. A fault that it has none of gets the macro figure; a delay whose
95th percentile is a miss gets the spread of all delays.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from core.errors import BadInput

T = TypeVar("T")
Z95 = 1.644854
# Incidents that a job has and not a node: more nodes in a job bring no more of them.
OF_A_JOB = ("stalled_loss", "nonfinite_loss", "loss_spike", "data_stall", "throughput_drop", "checkpoint_stale", "job_crash_loop",
            "inference_slow", "straggler")
# Of the logarithm of delays, where nothing tells it.
USUAL_SIGMA = 0.8
HALF = 0.5  # Jeffreys' count for a rate


@dataclass(frozen=True, slots=True)
class Chance:
    """Of one fault. recall, small: found, at an impact of 5 % and more and below it. top1: at the right part, where found.
    p50_seconds, sigma: of the log-normal delay. tied: of the incidents that are not at the right part for sure, those in which the
    right one and another look alike (a scorecard counts such a tie as half a hit): they are unsure and not wrong."""

    recall: float
    small: float
    top1: float
    p50_seconds: float
    sigma: float
    tied: float = 0.0

    def place(self, rng: np.random.Generator) -> str:
        """`right`, `tied` or `wrong`."""
        drawn, wrong = float(rng.random()), (1.0 - self.top1) * (1.0 - self.tied)
        return "wrong" if drawn < wrong else "tied" if drawn < wrong + 2.0 * (1.0 - self.top1) * self.tied else "right"

    def delay_ms(self, rng: np.random.Generator) -> int:
        """A delay from the fault's onset."""
        return round(1000 * self.p50_seconds * math.exp(self.sigma * float(rng.standard_normal())))


@dataclass(frozen=True, slots=True)
class Chances:
    """faults: by fault. false: false incidents by fault, a node-day; of faults that are a job's, a day of the job (`_false`). scopes:
    of false incidents by fault, as (scope, weight); a fault that is not there has them on a part or a job. elsewhere: of misplaced ones. right, wrong:
    (confidence, weight) of incidents that came true and of those that did not. file, sha256, suite, seed, node_days: of the
    scorecard."""

    faults: Mapping[str, Chance]
    false: Mapping[str, float]
    right: tuple[tuple[float, float], ...]
    wrong: tuple[tuple[float, float], ...]
    file: str
    sha256: str
    suite: str
    seed: int
    node_days: float
    scopes: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)

    def misplaced(self, fault: str, rng: np.random.Generator) -> str | None:
        """The scope of an incident that names another part; None = the scorecard does not tell."""
        return _drawn(self.elsewhere[fault], rng) if fault in self.elsewhere else None

    def scope(self, fault: str, rng: np.random.Generator) -> str | None:
        """Of a false incident; None = the scorecard does not tell."""
        return _drawn(self.scopes[fault], rng) if fault in self.scopes else None

    def confidence(self, came_true: bool, rng: np.random.Generator) -> float:
        """How sure an incident is of itself, as those of the scorecard were."""
        return _drawn(self.right if came_true else self.wrong or self.right, rng)


def _drawn(rows: Sequence[tuple[T, float]], rng: np.random.Generator) -> T:
    """One of the values by their weights."""
    weights = np.array([w for _, w in rows])
    return rows[int(rng.choice(len(rows), p=weights / weights.sum()))][0]


def read_chances(path: str | Path) -> Chances:
    """The scorecard that `greylag evaluate --out FILE` wrote. Raises BadInput for anything else."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput("evaluate", "--scorecard", str(path), f"a scorecard is needed ({error.strerror})") from None
    try:
        card = json.loads(data)
        return _chances(card, str(path), hashlib.sha256(data).hexdigest())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput("evaluate", "--scorecard", str(path),
                       f"what `greylag evaluate --out FILE` wrote is needed ({type(error).__name__}: {error})") from None


def _chances(card: Mapping[str, Any], file: str, sha256: str) -> Chances:
    macro, settings = card["macro"], card["settings"]
    node_days = float(macro["node_days"])
    if not node_days > 0 or macro["recall"] is None:
        raise ValueError("it has no node-days or no faults")
    faults = {name: _chance(row, macro) for name, row in card["faults"].items()}
    false = _false(card["faults"], node_days)
    bins = card["calibration"]["confidence"]["bins"]
    right = tuple((b["said"], b["true"]["n"] * b["true"]["value"]) for b in bins if b["true"]["value"] > 0)
    wrong = tuple((b["said"], b["true"]["n"] * (1 - b["true"]["value"])) for b in bins if b["true"]["value"] < 1)
    if not right:
        raise ValueError("none of its incidents came true")
    scopes = {name: tuple((scope, float(n)) for scope, n in sorted(row["unfounded_scopes"].items()))
              for name, row in card["faults"].items() if row.get("unfounded_scopes")}
    away: dict[str, Counter[str]] = {}
    for one in card.get("wrong", {}).get("false", ()):
        if one["word"] == "misplaced" and not one["stress"]:
            away.setdefault(one["fault"], Counter())[one["scope"]] += 1
    elsewhere = {name: tuple((scope, float(n)) for scope, n in sorted(counts.items())) for name, counts in away.items()}
    return Chances(faults, false, right, wrong, file, sha256, str(settings["suite"]), int(settings["first_seed"]), node_days, scopes,
                   elsewhere)


def _false(rows: Mapping[str, Any], node_days: float) -> dict[str, float]:
    """False incidents by fault, a node-day (of faults that are a job's: a day of the job). One that came once in a day or two of a
    short scorecard is weak evidence of its own rate, and all of its sort together are better evidence of theirs: the rate of the
    sort is the mean of its posterior (Gamma, Jeffreys' half a count), dealt out to the faults that came false by their own
    posterior means, whose prior is the sort's rate. A fault that never came false gets none of it, so those that did get more.
    Misplaced and misnamed ones come near a true fault, with its rate; of nothing at all come the unfounded."""
    counts = {name: int(row["incidents"].get("unfounded", 0)) for name, row in rows.items()}
    out: dict[str, float] = {}
    for of_a_job in (True, False):
        mine = [name for name in rows if (name in OF_A_JOB) == of_a_job]
        days = max((float(rows[name]["false"]["cluster_days"]) if of_a_job else node_days for name in mine), default=0.0)
        total = sum(counts[name] for name in mine) + HALF
        if not days > 0 or total <= HALF:
            continue
        prior = HALF * len(mine) * days / total  # days in which half a count comes at the sort's rate
        shrunk = {name: (counts[name] + HALF) / (days + prior) for name in mine if counts[name]}
        out |= {name: total / days * rate / sum(shrunk.values()) for name, rate in shrunk.items()}
    return out


def _chance(row: Mapping[str, Any], macro: Mapping[str, Any]) -> Chance:
    def value(key: str, otherwise: float) -> float:
        found = row[key]["value"]
        return float(otherwise if found is None else found)

    recall = value("recall", macro["recall"])
    p50, p95 = row["delay_p50_seconds"], row["delay_p95_seconds"]
    middle = p50 if p50 is not None else macro["delay_p50_seconds"]
    if middle is None:
        raise ValueError("more than half of its faults were missed, so it has no delay")
    sigma = math.log(max(1.0, p95 / p50)) / Z95 if p50 and p95 else _spread(macro)
    top1 = value("localisation_top1", macro["localisation_top1"] or 0.0)
    return Chance(recall, value("small", recall), top1, max(1.0, float(middle)), sigma, _tied(row, top1))


def _tied(row: Mapping[str, Any], top1: float) -> float:
    """Of the misses of the right part, the share that no misplaced incident accounts for."""
    kinds = row["incidents"]
    n = int(kinds.get("right", 0)) + int(kinds.get("misplaced", 0))
    missed = (1.0 - top1) * n
    return max(0.0, 1.0 - int(kinds.get("misplaced", 0)) / missed) if missed > 0 else 0.0


def _spread(macro: Mapping[str, Any]) -> float:
    p50, p95 = macro["delay_p50_seconds"], macro["delay_p95_seconds"]
    return math.log(max(1.0, p95 / p50)) / Z95 if p50 and p95 else USUAL_SIGMA
