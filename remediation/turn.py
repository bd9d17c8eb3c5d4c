"""One tick of the engine: what it knows, and what it decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.protocols import NodeView, WorkFacts
from core.types import Action, Incident, Outcome
from core.window import Topology
from remediation.cures import Cures
from remediation.ledger import Entry
from remediation.track import Track
from remediation.verify import Recovery


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about an incident, and why. decision: the incident's state from now on."""

    at: int
    incident: str
    decision: str
    reason: str
    rule: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a tick decided: changed incidents, actions with their outcomes (PENDING = to do), decisions, proofs, and the
    attempts whose result is new."""

    incidents: tuple[Incident, ...] = ()
    actions: tuple[tuple[Action, Outcome], ...] = ()
    decisions: tuple[Decision, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    results: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """What stands where, and which incidents a person silenced."""

    topology: Topology = field(default_factory=Topology)
    silenced: Callable[[Incident], bool] = lambda incident: False


@dataclass(slots=True)
class Turn:
    """One call of `step`. nodes: the world, read once and only when an attempt may start; None = it did not answer.
    job_nodes: of it, where each job runs. unfit: spares that must not be used, with the reason. cures, heals: of the ledger,
    made when they are first asked for.

    working: the tracks at work, kept until one changes: a thousand incidents must not each look at a thousand. live: the open
    incidents of parts that may slow a job.
    """

    at: int
    facts: WorkFacts
    fresh: frozenset[str]
    frozen: bool
    site: Site = field(default_factory=Site)
    incidents: list[Incident] = field(default_factory=list)
    actions: list[tuple[Action, Outcome]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    nodes: Mapping[str, NodeView] | None = None
    job_nodes: Mapping[str, list[str]] = field(default_factory=dict)
    looked: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)
    cures: Cures | None = None
    heals: dict[str, float] = field(default_factory=dict)
    working: list[Track] | None = None
    live: tuple[Incident, ...] = ()
