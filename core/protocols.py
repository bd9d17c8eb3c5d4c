"""The promises between the rooms. One to three methods each; who implements what is in ARCHITECTURE.md.

Every plug-in file ends in `PLUGIN = <one of the *Plugin records below>`; its name is the file's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from core.types import (
    Action,
    Batch,
    Event,
    Finding,
    Incident,
    JobState,
    Layout,
    Note,
    Notice,
    Outbound,
    Outcome,
    PartPast,
    Record,
    Scrape,
    Series,
    SignalRef,
    Target,
    Verdict,
)
from core.window import Window


# --- collectors -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What discovery knows of a scrape target. labels: the target's own (job, instance, node, …).

    node: discovery's `node` label, else the host part of `instance`, else the file's stem.
    """

    id: str
    labels: Mapping[str, str]
    node: str | None = None


class MapSeries(Protocol):
    """Gives what a series means, or None where this source does not know it. Pure, called once per new series."""

    def __call__(self, series: Series, target: TargetInfo) -> SignalRef | None: ...


class ParseLine(Protocol):
    """Turns one log line into events and trainer readings. Pure but for `state`, a dict kept per log by the caller."""

    def __call__(self, line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading: ...


@dataclass(frozen=True, slots=True)
class LogReading:
    """events; readings: (at ms or None, rank target, {signal: value}); at: the line's own time, None where it has none.

    elapsed_seconds: time that the line says has passed (iterations), for lines without a time of their own.
    """

    events: tuple[Event, ...] = ()
    readings: tuple[tuple[int | None, Target, Mapping[str, float]], ...] = ()
    at: int | None = None
    elapsed_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Join:
    """Labels that an exporter tells in a series of its own. metrics: how the names of the metrics that take them start;
    info: the metric whose labels are taken; on: labels that both have; take: the labels that are added."""

    metrics: str
    info: str
    on: tuple[str, ...]
    take: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourcePlugin:
    """An exporter (`map_series`) or a log (`parse_line`). identity: labels that name the node, first wins.

    prefixes: how the names of its metrics start; it is asked about no other. Empty: it is asked about all.
    joins: labels that its series are shown with. second_choice: metrics that count only where no other says the same.
    facts: (label, name): labels of any of its series that say how the node is set up; each value is a part of kind `label`,
    device `name=value`.
    """

    name: str
    map_series: MapSeries | None = None
    parse_line: ParseLine | None = None
    log_kind: str | None = None  # kernel | trainer
    identity: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    second_choice: frozenset[str] = frozenset()
    facts: tuple[tuple[str, str], ...] = ()


class FrameSource(Protocol):
    """Where batches come from in lock-step: a recording, or the in-process fleet."""

    def advance(self, to: int) -> Iterable[Batch]:
        """Batches with all data up to and including `to` (ms), in time order; each call goes on where the last ended."""
        ...


@dataclass(frozen=True, slots=True)
class RawSample:
    """One sample of a recording: at in ms, value with its NaN bits; series with all labels as recorded."""

    at: int
    series: Series
    value: float


class SampleSorter(Protocol):
    """Sorts a recording that is out of time order, within a bound of memory."""

    def add(self, samples: Sequence[RawSample]) -> None:
        """Takes samples in any order."""
        ...

    def drain(self) -> Iterable[RawSample]:
        """All samples by time, equal times in the order of their series' labels; once."""
        ...


# --- pipeline ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Matcher:
    """A label matcher as Prometheus has it; op: = != =~ !~ ; the metric's name is the label `__name__`."""

    label: str
    op: str
    value: str


@dataclass(frozen=True, slots=True)
class SeriesSamples:
    """Samples of one series: at (ms, ascending) and values of equal length; a stale marker is None."""

    series: Series
    at: Sequence[int]
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class TickCommit:
    """What one tick commits in one transaction, together or not at all. hold_state: opaque JSON of the detect loop."""

    tick: int
    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    actions: tuple[tuple[Action, Outcome], ...] = ()
    outbox: tuple[Outbound, ...] = ()
    records: tuple[Record, ...] = ()
    state: Mapping[str, str] | None = None
    parts: tuple[PartPast, ...] = ()
    notes: tuple[Note, ...] = ()


class Store(Protocol):
    """The only room that knows DuckDB. One writer; readers get a consistent view and end their transaction."""

    def append(self, batches: Sequence[Batch]) -> None:
        """Commits the batches in one transaction; a batch (worker, epoch, seq) seen before is skipped and counted."""
        ...

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[SeriesSamples]:
        """Samples with start <= at <= end (ms), series sorted by labels."""
        ...

    def commit_tick(self, commit: TickCommit) -> None:
        """Commits all of a tick in one transaction. Raises GreylagError when it did not commit."""
        ...


@dataclass(frozen=True, slots=True)
class Hold:
    """on after `on` faulty of the last `of` ticks; off after `off` clear ticks in a row; unknown freezes the hold and
    ends it as expired after `expire` ticks in a row."""

    on: int = 4
    of: int = 5
    off: int = 8
    expire: int = 40


class Judge(Protocol):
    """The judgement: pure, no clock, no I/O, no state. Parts without a verdict are unknown."""

    def __call__(self, window: Window, params: Any) -> Sequence[Verdict]: ...


@dataclass(frozen=True, slots=True)
class DetectorPlugin:
    """fault: what it finds. needs: signals without which it cannot speak (any one of each inner tuple).

    params: a frozen dataclass type with defaults; each field's source is in its docstring.
    must_not: look-alikes that it must stay silent on, for the docs.
    """

    name: str
    fault: str
    judge: Judge
    params: type
    needs: tuple[tuple[str, ...], ...]
    hold: Hold = Hold()
    must_not: tuple[str, ...] = ()


class Notifier(Protocol):
    """Delivers one message. Raises Unavailable where another try is worth it, Refused where it is not."""

    def deliver(self, message: Outbound) -> None: ...


class StandingNotifier(Notifier, Protocol):
    """One whose receiver forgets: what fires is said to it again and again. resend_seconds: wall time between two times."""

    resend_seconds: float

    def stand(self, body: str | None, watchdog: bool) -> None:
        """Says what fires now. body: as rendered, None = nothing fires. watchdog: Greylag itself is well. Raises as `deliver`."""
        ...


@dataclass(frozen=True, slots=True)
class NotifierPlugin:
    """render: the body for a notice (None = says nothing of it). build: from the `notify[]` entry's own keys.

    standing: what it builds is a StandingNotifier; of a storm it is told the members that changed, at each tick.
    """

    name: str
    params: type
    build: Callable[[Any], Notifier]
    render: Callable[[Notice, Mapping[str, str]], str | None]
    standing: bool = False


# --- remediation ------------------------------------------------------------------------------------------------------
class ControlDoor(Protocol):
    """The hands' door to a world. Idempotent by action id: submit of a known id gives the known outcome."""

    def submit(self, action: Action) -> Outcome:
        """RUNNING, or a final outcome at once. Raises Unavailable when the world did not answer."""
        ...

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far; REFUSED `unknown_operation` for an id that the world never saw."""
        ...


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the world sees it now. state: in_service|spare|drained|draining|down|rebooting|provisioning|unknown.

    held_by: who took it out (None = nobody; `greylag` = us). maintenance: the name of a reservation or planned drain that
    takes the node out now (None = none is known). checked_at: ms, when it last passed a diagnosis; None where the world
    does not keep it.
    """

    node: str
    state: str
    held_by: str | None = None
    jobs: tuple[str, ...] = ()
    maintenance: str | None = None
    checked_at: int | None = None


class WorldView(Protocol):
    """What the guards re-read before each command."""

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name. Raises Unavailable when the world did not answer."""
        ...


class Facts(Protocol):
    """What remediation may know of the work, from the same window that the detectors saw."""

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        """Median seconds a training step took between the two times (ms), pauses left out; None where unknown."""
        ...

    def open_findings(self) -> Sequence[Finding]:
        """The findings that are open now."""
        ...

    def job(self, job: str) -> JobState | None:
        """The job as the window knows it."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A job's newest complete checkpoint: when it was saved (ms), its step, and the interval that its saves keep, in
    seconds and in steps; progress_at: when the job last finished a step (ms); steps_since: how many it made since the save.
    None = not known."""

    saved_at: int | None = None
    step: float | None = None
    interval_seconds: float | None = None
    progress_at: int | None = None
    interval_steps: float | None = None
    steps_since: float | None = None


class JobFacts(Protocol):
    """What remediation may know of a job's progress, from the same window that the detectors saw."""

    def checkpoint(self, job: str) -> Checkpoint:
        """The newest complete checkpoint as far as it is known."""
        ...

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        """Median tokens a second per GPU between the two times (ms), pauses left out; None where unknown."""
        ...

    def nonfinite_since(self, job: str) -> int | None:
        """Since when (ms) the loss may have been NaN or Inf in the trouble that goes on now: what was saved after it is not
        trusted. None = it is finite, or not known."""
        ...

    def ranks(self, job: str, start: int, end: int) -> int | None:
        """How many ranks said anything of themselves between the two times (ms); None where none ever did."""
        ...


class GpuFacts(Protocol):
    """What remediation may know of a GPU's work."""

    def gpu_in_use(self, gpu: Target) -> bool | None:
        """Whether the GPU computes now; None where nothing fresh says so."""
        ...


class WorkFacts(Facts, JobFacts, GpuFacts, Protocol):
    """All of them, from one window: what the engine is given."""


@dataclass(frozen=True, slots=True)
class BackendPlugin:
    """kinds: action kinds that it can carry out. build: from the `backend` section's own keys to (door, view)."""

    name: str
    params: type
    kinds: tuple[str, ...]
    build: Callable[[Any], tuple[ControlDoor, WorldView]]


# --- fleet ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FaultPlugin:
    """A fault or a look-alike that the bundled fleet can have. fault, scope: as Greylag names them; fault None = a
    look-alike, of which the truth is "nothing to do".

    place: what it is planted on: gpu, nic, disk, mount, node, switch, spine, rack, pdu, cooling, storage, rank, job, label,
    fleet.
    apply(world, planted) turns the world's knobs in each sub-step while it is there, by `planted.level` (0-1, how far it
    has come on) and `planted.severity` (by how much the job's step is to be longer: 0.1 = 10 %). begin and end are called
    once, at planting and when it is taken away (for log lines and what stays behind). cured_by: action kinds that end it.
    impact: smallest and greatest severity that are drawn, log-uniform. onsets: of step, ramp, intermittent.
    heals_seconds: median time after which it goes away by itself, None = never. tier: the poorest telemetry tier (A-D)
    that shows it. locate(world, target, rng) -> place chooses the place where its kind alone does not (a label, a part of
    the fleet); target None = none was named. needs: of roce, efa, nvlink, nvlink5, lustre, hbm, nvidia, neuron, trainer,
    inference: what it cannot be without.
    """

    name: str
    fault: str | None
    scope: str
    place: str
    apply: Callable[..., None]
    cured_by: tuple[str, ...] = ()
    begin: Callable[..., None] | None = None
    end: Callable[..., None] | None = None
    impact: tuple[float, float] = (0.01, 9.0)
    onsets: tuple[str, ...] = ("step",)
    heals_seconds: float | None = None
    tier: str = "A"
    needs: tuple[str, ...] = ()
    locate: Callable[..., Any] | None = None


Layouts = Mapping[str, Layout]
Scrapes = Sequence[Scrape]
