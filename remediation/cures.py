"""What cures what: the chance that an attempt helps, from published priors and the own ledger, by fault and strongest step.

A Beta prior (`remediation/worth.yaml`) is worth a few attempts; each attempt of the ledger that cured or failed moves it.
An inconclusive one (the job ended, was queued or re-batched) counts for nothing. The ledger's entries are the summary: they
are bounded, travel in the engine's state and are rebuilt from the store's action rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from core.yamlfile import parse_yaml
from remediation.ledger import Entry

# The step of an attempt that is held to have cured, the strongest first.
STRONGEST = ("replace", "exclude_node", "reboot", "reset_gpu", "shrink_job", "restart_process", "resume_job", "drain")


@cache
def numbers() -> Mapping[str, Any]:
    """The numbers of `remediation/worth.yaml` by name."""
    found: Mapping[str, Any] = parse_yaml(files("remediation").joinpath("worth.yaml").read_text(encoding="utf-8"),
                                          "remediation/worth.yaml")
    return found


def strongest(kinds: Sequence[str]) -> str | None:
    """The step that an attempt with these kinds stands for; None where it commands nothing that could cure."""
    return next((kind for kind in STRONGEST if kind in kinds), None)


@dataclass(frozen=True, slots=True)
class Tally:
    """How attempts of one kind on one fault came out."""

    cured: int = 0
    failed: int = 0
    inconclusive: int = 0

    @property
    def judged(self) -> int:
        return self.cured + self.failed


@dataclass(frozen=True, slots=True)
class Chance:
    """The chance to cure: mean of the posterior (0-1), the prior's mean, and what the own ledger counts."""

    mean: float
    prior: float
    own: Tally


class Cures:
    """The chances of all faults, over one view of the ledger."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for entry in entries:
            kind = strongest(entry.kinds)
            if kind is not None and entry.fault and entry.result in ("cured", "failed", "inconclusive"):
                row = counts.setdefault((entry.fault, kind), {"cured": 0, "failed": 0, "inconclusive": 0})
                row[entry.result] += 1
        self.tallies = {key: Tally(**row) for key, row in counts.items()}

    def chance(self, fault: str, kinds: Sequence[str]) -> Chance:
        """The chance that an attempt with these kinds cures the fault. One that commands nothing that could cure has none."""
        kind = strongest(kinds)
        if kind is None:
            return Chance(0.0, 0.0, Tally())
        prior, weight = prior_of(fault, kind), float(numbers()["prior_weight"])
        own = self.tallies.get((fault, kind), Tally())
        return Chance((prior * weight + own.cured) / (weight + own.judged), prior, own)


def prior_of(fault: str, kind: str) -> float:
    """The published (or, where nothing is, the usual) chance that the kind cures the fault."""
    rows = numbers()["cure"]
    own = rows.get(fault, {})
    return float(own.get(kind, rows["usual"][kind]))
