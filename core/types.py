"""The records that flow: Scrape, Event → Window → Verdict → Finding → Incident → Action → Outcome.

All are frozen. Times are integer milliseconds since the epoch, cluster time (UTC); JSON shows them as RFC 3339.
Missing numbers are NaN in arrays and None in records. `core/contracts.md` is generated from this file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the cluster that can be at fault.

    kind: one of `core.targets.KINDS`. device: what people say (a GPU's index as a decimal string, `mlx5_0/1`, an
    interface). id: stable identity (GPU UUID, NIC GUID, disk serial), None where unknown. job, rank: the work on it.
    """

    kind: str
    node: str | None = None
    device: str | None = None
    id: str | None = None
    job: str | None = None
    rank: int | None = None
    serial: str | None = None

    @property
    def key(self) -> str:
        """Identity as a string: by id where known, else by place. Ownership (job on a GPU) is no part of it."""
        if self.id:
            return f"{self.kind}:{self.id}"
        if self.kind in ("rank", "job"):
            return f"{self.kind}:{self.job or ''}/{'' if self.rank is None else self.rank}"
        return f"{self.kind}:{self.node or ''}/{self.device or ''}"

    def same_part(self, other: Target) -> bool:
        """True when the ids are equal, else (an id missing on either side) when kind, node and device are."""
        if self.kind != other.kind:
            return False
        if self.id and other.id:
            return self.id == other.id
        if self.kind in ("rank", "job"):
            return (self.job, self.rank) == (other.job, other.rank)
        return (self.node, self.device) == (other.node, other.device)

    def __str__(self) -> str:
        place = " ".join(p for p in (self.node, _device_words(self.kind, self.device)) if p)
        if self.kind == "rank":
            return f"rank {self.rank} of job {self.job}" + (f" ({place})" if place else "")
        if self.kind == "job":
            return f"job {self.job}"
        return place or f"{self.kind} {self.id or ''}".strip()


def _device_words(kind: str, device: str | None) -> str | None:
    if device is None:
        return None
    return f"GPU {device}" if kind in ("gpu", "rank") else device


@dataclass(frozen=True, slots=True)
class Series:
    """One exporter series under its own name. labels: sorted (name, value) pairs, without `__name__`.

    type: counter, gauge, histogram, summary, untyped (as the exporter declared it).
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    type: str = "untyped"

    def label(self, name: str) -> str:
        """The label's value, or an empty string."""
        for key, value in self.labels:
            if key == name:
                return value
        return ""


@dataclass(frozen=True, slots=True)
class SignalRef:
    """Where a canonical signal of a part stands in a scrape: canonical value = values[index] * scale.

    counter: the raw value only grows, and the window holds its rate per second.
    """

    index: int
    signal: str
    target: Target
    scale: float = 1.0
    counter: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What the values of a scrape mean. Filled once, when a body's shape is first seen, and sent with the data.

    partial: a scrape of it may hold a part of its target's series only (pushes, logs): a series that is not in it has
    not ended. Where it is False, a series that its target's next scrape lacks is stale.
    """

    id: str
    target_id: str
    series: tuple[Series, ...]
    signals: tuple[SignalRef, ...]
    node: str | None = None
    job: str | None = None
    source: str | None = None
    partial: bool = False

    @staticmethod
    def make_id(target_id: str, series: tuple[Series, ...], signals: tuple[SignalRef, ...] = ()) -> str:
        """16 hex digits of SHA-256 over the target, the series and their meaning: equal shapes have equal ids.

        Label sets and parts that many rows share are hashed once each: a fleet's start makes millions of rows.
        """
        sets: dict[tuple[tuple[str, str], ...], int] = {}
        parts: dict[str, int] = {}
        rows = [f"{one.name}\x01{one.type}\x02{sets.setdefault(one.labels, len(sets))}" for one in series]
        means = [f"{r.index}\x01{r.signal}\x01{parts.setdefault(r.target.key, len(parts))}\x01{r.scale}\x01{r.counter}"
                 for r in signals]
        labels = ["\x02".join([f"{key}\x03{value}" for key, value in one]) for one in sets]
        text = "\x05".join(["\x00".join(group) for group in ((target_id,), rows, labels, means, parts)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Scrape:
    """One reading of one target. at: the scheduled time. values: float64[len(layout.series)], NaN = absent.

    A failed scrape has error (a reason of `core.reasons.SCRAPE_REASONS`) and no values. generation: of the lease under
    which the target was read; 0 = no lease is needed (pushes, logs, own series).
    """

    layout_id: str
    target_id: str
    at: int
    values: Floats
    took_seconds: float = 0.0
    error: str | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment. kind: one of `core.events.KINDS`; fields are listed there per kind.

    line: the log line it came from, at most 500 characters.
    """

    at: int
    target: Target
    kind: str
    fields: Mapping[str, object] = field(default_factory=dict)
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a collector hands over, once for each (worker, epoch, seq).

    watermark: every slot up to and including this time has been reported by this worker. telemetry: (name, labels,
    value) of the collector's own series: counters as what was added since the last batch, gauges as they are.
    """

    worker: str
    epoch: int
    seq: int
    watermark: int
    layouts: tuple[Layout, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    events: tuple[Event, ...] = ()
    telemetry: tuple[tuple[str, tuple[tuple[str, str], ...], float], ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured reason. signal and unit are of `core.signals` (or an event kind, unit `count`)."""

    signal: str
    unit: str
    observed: float | None
    expected: float | None
    compared_with: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A detector's word on one part at one tick.

    state: faulty | clear | unknown. severity 0–1: 0.3 ticket, 0.6 degraded, 0.9 fatal.
    discrete: a fatal event that counts once, without persistence. reason: a named reason of the detector.
    suspects: for a whole-job verdict, parts that stand out, each with a weight > 0 and a reason; may be empty.
    keeps: a faulty verdict that rests on a finding older than the window: it keeps an open one open, and opens none.
    """

    target: Target
    fault: str
    state: str
    severity: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    discrete: bool = False
    onset_at: int | None = None
    suspects: tuple[tuple[Target, float, str], ...] = ()
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """An open (or just ended) hold of one detector on one part."""

    id: str
    detector: str
    fault: str
    target: Target
    state: str
    severity: float
    evidence: tuple[Evidence, ...]
    reason: str
    onset_at: int
    opened_at: int
    updated_at: int
    ended_at: int | None = None
    end_reason: str | None = None
    suspects: tuple[tuple[Target, float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A candidate culprit. Probabilities of an incident's suspects add up to at most 1."""

    target: Target
    probability: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault at one scope, from its first evidence to its end. `klass` is shown as `class` in JSON."""

    id: str
    fault: str
    scope: str
    culprit: Target | None
    confidence: float
    suspects: tuple[Suspect, ...]
    victims: tuple[Target, ...]
    findings: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    jobs: tuple[str, ...]
    lost_gpu_hours: float
    owner: str
    klass: str
    state: str
    reason: str
    merged_into: str | None
    onset_at: int
    opened_at: int
    updated_at: int
    resolved_at: int | None = None
    attempt: int = 0

    @staticmethod
    def make_id(fault: str, scope: str, scope_key: str, opened_at: int) -> str:
        """`inc-` and 12 hex digits of SHA-256 of fault, scope, scope key and opening time; fixed at opening."""
        text = "\x00".join((fault, scope, scope_key, str(opened_at)))
        return "inc-" + hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Action:
    """One step of one attempt on one incident. id = incident/attempt/step, the idempotency key.

    fault: of the incident, for what people read in the world that is acted on (the reason of a drain); None = it is not told.
    """

    id: str
    kind: str
    target: Target
    args: Mapping[str, object]
    deadline_seconds: float
    mode: str
    incident: str
    attempt: int
    step: int
    at: int
    reason: str
    actor: str = "greylag"
    fault: str | None = None

    @staticmethod
    def make_id(incident: str, attempt: int, step: int) -> str:
        return f"{incident}/{attempt}/{step}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action. state: DONE | FAILED | REFUSED | RUNNING | SIMULATED (or PENDING in the ledger).

    detail: what the world said besides (which test failed, on what), in at most 300 characters; None = nothing.
    """

    action_id: str
    state: str
    reason: str
    took_seconds: float = 0.0
    at: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A word of the ledger that is no action. event: why (what an attempt rests on, with its first action), proof (what was
    found out about it), or a person's word (freeze, resume, approve, reject). attempt: 0 where it is about none.
    body: a JSON object. actor: who."""

    at: int
    incident: str
    attempt: int
    event: str
    body: str
    actor: str = "greylag"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as the window knows it at its end.

    phase: init|warmup|train|eval|checkpoint|done|unknown. ranks: columns of the `rank` blocks, in rank order.
    silent: no input of the job goes on any more (a recording ended or all its sources are down).
    """

    id: str
    phase: str = "unknown"
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    ranks_per_node: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int | None = None
    start: int | None = None
    end: int | None = None
    silent: bool = False

    @property
    def running(self) -> bool:
        return self.end is None and self.phase != "done"


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """The past of one signal by entity: n, median and MAD of the 1-minute means, slope per hour; all float64[entity]."""

    n: Floats
    median: Floats
    mad: Floats
    slope_per_hour: Floats


@dataclass(frozen=True, slots=True)
class PartStay:
    """Where a part was seen. until: ms when it was first seen elsewhere, None = it is there still."""

    node: str | None
    device: str | None
    since: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class PartIncident:
    """An incident of which the part was the culprit, and where the part stood then."""

    id: str
    fault: str
    node: str | None
    device: str | None
    opened_at: int
    state: str


@dataclass(frozen=True, slots=True)
class PartAction:
    """What was done for an incident of the part. target: the node or part that it was done to, in words."""

    id: str
    kind: str
    target: str
    state: str
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class PartPast:
    """What is remembered of a part for as long as it lives, wherever it is put. key: by id, else by serial, else by place.

    stays, incidents and actions: the newest of them, oldest first; incident_count and action_counts (by `kind/state`) go on
    counting. diagnosed_bad, diagnosed_good: diagnoses that found a fault, and that found none.
    """

    key: str
    target: Target
    first_at: int
    updated_at: int
    stays: tuple[PartStay, ...] = ()
    incidents: tuple[PartIncident, ...] = ()
    incident_count: int = 0
    actions: tuple[PartAction, ...] = ()
    action_counts: Mapping[str, int] = field(default_factory=dict)
    diagnosed_bad: int = 0
    diagnosed_good: int = 0


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message for the outside, kept until delivered. id is stable: receivers can drop repeats."""

    id: str
    notifier: str
    incident: str
    at: int
    body: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What a message is about, before a notifier gives it its form.

    event: opened, reopened, proposed, escalated, acknowledged, notify, resolved or merged for one incident; storm, storm_updated
    or storm_ended for many that opened at once; standing for all that a notifier has to keep firing. key: the incident's id, or
    the storm's: what receivers tell repeats by. incidents: with the class under which they are told; of a storm those that are
    open, and those that ended at this tick. note: what else is to be said (a used-up budget). actor: who, where a person did it.
    total, still_open: members of a storm, ever and now.
    """

    event: str
    at: int
    key: str
    incidents: tuple[Incident, ...]
    note: str = ""
    actor: str | None = None
    total: int = 1
    still_open: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the story (`replay --json`): type, event, time and the record, already rendered as JSON."""

    at: int
    type: str
    line: str


def is_missing(value: float | None) -> bool:
    """True for None and for NaN."""
    return value is None or math.isnan(value)
