"""What a scenario left: truths, incidents and alerts as plain records, which scoring reads and a file keeps.

Everything here is JSON of its own accord: a suite that was broken off goes on from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from core.types import Target


@dataclass(frozen=True, slots=True)
class Part:
    """A Target without what may change while it stays the same part."""

    kind: str
    node: str | None = None
    device: str | None = None
    job: str | None = None
    rank: int | None = None

    @staticmethod
    def of(target: Target | None) -> Part | None:
        return None if target is None else Part(target.kind, target.node, target.device, target.job, target.rank)


@dataclass(frozen=True, slots=True)
class Truth:
    """A planted fault, or a look-alike (fault ""). onset: ms since when it costs 1 % or, where it costs nothing, is there;
    end: ms, or that of the scenario. nodes, jobs: those that it covers or slows. impact: share by which the step is
    longer (of a ramp, as far as it came), 0 = none, None = the job stands. shown: the scenario's tier can show it. overlaps: another
    fault was in one of its jobs at the same time. shared: it covers many nodes by a cause of their own. brief: it comes and goes, and
    never stood for `chances.BRIEF_SECONDS` at a stretch."""

    plant: str
    fault: str
    scope: str
    culprit: Part
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    at: int
    onset: int
    end: int
    impact: float | None
    shown: bool
    shared: bool = False
    overlaps: bool = False
    brief: bool = False

    @property
    def harms(self) -> bool:
        return self.impact is None or self.impact > 0


@dataclass(frozen=True, slots=True)
class Said:
    """An incident in its last state, or an alert of a static rule (confidence None). suspects: (part, probability)."""

    id: str
    fault: str
    scope: str
    culprit: Part | None
    opened: int
    klass: str
    state: str = "open"
    confidence: float | None = None
    suspects: tuple[tuple[Part, float], ...] = ()
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A scenario that was run. groups: nodes of each shared cause (`rack:rack-1`), and the
    port behind each interface (`nic:n01/enp24s0np0`). unknown, known: part-minutes."""

    id: str
    kind: str
    stress: str
    tier: str
    type: str
    nodes: int
    scrape_seconds: int
    minutes: float
    truths: tuple[Truth, ...]
    said: tuple[Said, ...]
    alerts: tuple[Said, ...]
    groups: Mapping[str, tuple[str, ...]]
    unknown: float
    known: float
    cpu_seconds: float
    error: str = ""

    @property
    def node_days(self) -> float:
        return self.nodes * self.minutes / 1440


def to_data(ran: Ran) -> dict[str, Any]:
    """Plain data for JSON; `from_data` gives an equal record back."""
    return asdict(ran)


def from_data(data: Mapping[str, Any]) -> Ran:
    """The record of `to_data`, also after JSON has made lists of tuples."""
    given = {one.name: data[one.name] for one in fields(Ran)}
    given["truths"] = tuple(_truth(row) for row in data["truths"])
    given["said"] = tuple(_said(row) for row in data["said"])
    given["alerts"] = tuple(_said(row) for row in data["alerts"])
    given["groups"] = {name: tuple(nodes) for name, nodes in data["groups"].items()}
    return Ran(**given)


def _truth(row: Mapping[str, Any]) -> Truth:
    return Truth(**{**row, "culprit": Part(**row["culprit"]), "nodes": tuple(row["nodes"]), "jobs": tuple(row["jobs"])})


def _said(row: Mapping[str, Any]) -> Said:
    culprit = None if row["culprit"] is None else Part(**row["culprit"])
    return Said(**{**row, "culprit": culprit, "jobs": tuple(row["jobs"]), "nodes": tuple(row["nodes"]),
                   "suspects": tuple((Part(**part), chance) for part, chance in row["suspects"])})
