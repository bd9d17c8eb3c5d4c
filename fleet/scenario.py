"""Scenarios: a fleet, its jobs, what happens when, and a seed, as YAML with strict keys.

A scenario says everything that a run needs; what it leaves open (a place, a size, an onset) is drawn from its seed, so
the truth about a file is known before it runs (`fleet.programme`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from core.clock import parse_rfc3339
from core.errors import BadInput, ConfigError, nearest
from core.protocols import FaultPlugin
from core.yamlfile import Node, build
from fleet.hardware import DEFAULT_KIND, FABRICS, kind_named
from fleet.jobs import SHAPES
from fleet.plants import MOST
from fleet.telemetry import SCHEDULERS, SWITCHES, TIERS
from fleet.times import all_times

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
LONGEST_DAYS = 400
MOST_NODES = 20_000


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """type: a kind of node of the catalogue. fabric: what it has to have, None = whatever its type has. tier: of telemetry.
    scheduler, switches: whether a scheduler (slurm, kubernetes) and the switches (snmp, gnmic) have pages too, None = they have
    none. times: how long operations take, a set of `times.yaml`. cold: the nodes are provisioned first, jobs start after that.
    before: how long the fleet has been at work when the scenario begins."""

    nodes: int = 16
    spares: int = 2
    type: str = DEFAULT_KIND
    fabric: str | None = None
    tier: str = "D"
    scrape_seconds: int = 15
    dcgm_cycle_seconds: int = 30
    times: str = "real"
    cold: bool = False
    before: str = "15m"
    scheduler: str | None = None
    switches: str | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """kind: training (synchronous), sweep (many small ones that wait for nobody), rollout (alternates with training),
    inference. nodes: how many, from the first free one; None = all that are left. shape: sizes, as the kind of job has
    them. restart: how long until somebody starts it again after it failed, None = nobody does."""

    name: str
    kind: str = "training"
    nodes: int | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    restart: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the schedule: exactly one of fault, look_alike (plug-ins by name) and hand (who drains the node).
    at: when, from the start. for_: how long, None = until it is cured (or heals by itself, as its kind does). Place and
    size: what is not given is drawn."""

    fault: str | None = None
    look_alike: str | None = None
    hand: str | None = None
    at: str = "0s"
    for_: str | None = None
    node: str | None = None
    device: str | None = None
    job: str | None = None
    rank: int | None = None
    severity: float | None = None
    onset: str | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        """The plug-in's name, or who the hand is."""
        return self.fault or self.look_alike or self.hand or ""


@dataclass(frozen=True, slots=True)
class RatesSpec:
    """Faults drawn from the table of published rates (`rates.yaml`), beside the schedule. factor: on all rates."""

    factor: float = 1.0
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario. about: what it is for. rates None = only what the schedule says."""

    name: str
    fleet: FleetSpec = FleetSpec()
    jobs: tuple[JobSpec, ...] = (JobSpec("train-1"),)
    schedule: tuple[Entry, ...] = ()
    rates: RatesSpec | None = None
    seed: int = 0
    start: str = "2026-01-01T00:00:00Z"
    duration: str = "1h"
    about: str = ""

    @property
    def start_ms(self) -> int:
        return parse_rfc3339(self.start)

    @property
    def end_ms(self) -> int:
        return self.start_ms + int(seconds_of(self.duration) * 1000)


def seconds_of(text: str) -> float:
    """Seconds of `90s`, `15m`, `2h`, `3d`, `1h30m`, or of a plain number of seconds. Raises ValueError for anything else."""
    try:
        return float(int(text)) if float(text) == int(float(text)) and "e" not in text.lower() else float(text)
    except (ValueError, OverflowError):
        parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(text)
    return sum(float(n) * UNITS[u] for n, u in parts)


def duration_text(seconds: float) -> str:
    """`1h30m` for 5400: the largest whole units; the shortest text that `seconds_of` reads back to whole seconds."""
    left, out = round(seconds), ""
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS[unit])
        out += f"{count}{unit}" if count else ""
    return out or "0s"


def node_names(total: int) -> list[str]:
    """The names of a fleet's nodes."""
    width = max(2, len(str(total)))
    return [f"n{i + 1:0{width}d}" for i in range(total)]


# --- reading --------------------------------------------------------------------------------------------------------
def scenario_from(data: Any, file: str, plugins: Mapping[str, FaultPlugin]) -> Scenario:
    """A scenario from YAML data. Raises ConfigError naming file, line, key, what was given and what is allowed."""
    found = build(Scenario, data, file)
    _Check(found, data, file, plugins).all()
    return found


def places_fit(scenario: Scenario, data: Any, file: str, prepare: Callable[[Scenario], object]) -> None:
    """Resolves the scenario's places with `prepare` (which raises BadInput with `index`); ConfigError where one is none."""
    try:
        prepare(scenario)
    except PlaceError as error:
        _Check(scenario, data, file, {}).fail(error.path, error.given, error.allowed)


class PlaceError(BadInput):
    """A job or a line of the schedule does not fit into the fleet. path: keys and indexes from the top."""

    def __init__(self, path: tuple[str | int, ...], error: BadInput) -> None:
        self.path = path
        super().__init__(error.where, error.key, error.given, error.allowed)


def _inside(data: Any, step: str | int) -> Any:
    if isinstance(data, list) and isinstance(step, int):
        return data[step]
    return data.get(step) if isinstance(data, Mapping) and isinstance(step, str) else None


class _Check:
    """What types cannot say. data: what was read, for the lines of its keys."""

    def __init__(self, scenario: Scenario, data: Any, file: str, plugins: Mapping[str, FaultPlugin]) -> None:
        self.of, self.data, self.file, self.plugins = scenario, data, file, plugins

    def fail(self, path: tuple[str | int, ...], given: object, allowed: str) -> None:
        """Raises ConfigError at the path."""
        where, at = self.file, self.data
        words = ""
        for step in path:
            if isinstance(at, Node):
                where = at.where(step if isinstance(step, str) and step in at else None)
            words += f"[{step}]" if isinstance(step, int) else f".{step}" if words else str(step)
            at = _inside(at, step)
        raise ConfigError(where, words, given, allowed)

    def one_of(self, path: tuple[str | int, ...], given: str, allowed: Iterable[str]) -> None:
        """The value has to be one of a list."""
        known = list(allowed)
        if given not in known:
            shown = ", ".join(known) if len(known) <= 40 else f"{known[0]} to {known[-1]}"
            self.fail(path, given, f"allowed are: {shown}{nearest(given, known)}")

    def seconds(self, path: tuple[str | int, ...], text: str, least: float = 0.0) -> float:
        """A duration of at least `least` seconds."""
        try:
            value = seconds_of(text)
        except ValueError:
            value = -1.0
        if not least <= value <= LONGEST_DAYS * UNITS["d"]:
            bound = "" if least == 0 else f" of at least {duration_text(least)}"
            self.fail(path, text, f"a duration{bound} is needed, such as 90s, 15m, 2h or 3d")
        return value

    def all(self) -> None:
        one = self.of
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", one.name):
            self.fail(("name",), one.name, "small letters, digits, - and _ are needed, at most 64 of them")
        self.seconds(("duration",), one.duration, 60.0)
        try:
            parse_rfc3339(one.start)
        except ValueError:
            self.fail(("start",), one.start, "an ISO 8601 time is needed")
        if not 0 <= one.seed < 1 << 62:
            self.fail(("seed",), one.seed, "a whole number of at least 0 is needed")
        if one.rates is not None and not 0 <= one.rates.factor <= 1000:
            self.fail(("rates", "factor"), one.rates.factor, "a number from 0 to 1000 is needed")
        self._fleet()
        self._jobs()
        for index, entry in enumerate(one.schedule):
            self._entry(index, entry)

    def _fleet(self) -> None:
        spec = self.of.fleet
        if not 1 <= spec.nodes <= MOST_NODES:
            self.fail(("fleet", "nodes"), spec.nodes, f"a whole number from 1 to {MOST_NODES} is needed")
        if not 0 <= spec.spares <= MOST_NODES:
            self.fail(("fleet", "spares"), spec.spares, f"a whole number from 0 to {MOST_NODES} is needed")
        try:
            kind = kind_named(spec.type)
        except BadInput as error:
            self.fail(("fleet", "type"), error.given, error.allowed)
            return
        if spec.fabric is not None:
            self.one_of(("fleet", "fabric"), spec.fabric, FABRICS)
            if spec.fabric != kind.fabric:
                self.fail(("fleet", "fabric"), spec.fabric, f"{kind.name} has {kind.fabric}")
        self.one_of(("fleet", "tier"), spec.tier, TIERS)
        self.one_of(("fleet", "times"), spec.times, all_times())
        for key, given, allowed in (("scheduler", spec.scheduler, SCHEDULERS), ("switches", spec.switches, SWITCHES)):
            if given is not None:
                self.one_of(("fleet", key), given, allowed)
        self.seconds(("fleet", "before"), spec.before)
        if not 10 <= spec.scrape_seconds <= 60:
            self.fail(("fleet", "scrape_seconds"), spec.scrape_seconds, "10 to 60 seconds are allowed")
        if not 0 <= spec.dcgm_cycle_seconds <= 600:
            self.fail(("fleet", "dcgm_cycle_seconds"), spec.dcgm_cycle_seconds, "0 to 600 seconds are allowed")

    def _jobs(self) -> None:
        left, names = self.of.fleet.nodes, set[str]()
        for index, job in enumerate(self.of.jobs):
            if job.name in names or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", job.name):
                self.fail(("jobs", index, "name"), job.name, "each job needs a name of its own, of letters, digits and -")
            names.add(job.name)
            self.one_of(("jobs", index, "kind"), job.kind, SHAPES)
            wanted = left if job.nodes is None else job.nodes
            if not 1 <= wanted <= left:
                self.fail(("jobs", index, "nodes"), wanted, f"{left} nodes are left for it, at least 1 is needed")
            left -= wanted
            if job.restart is not None:
                self.seconds(("jobs", index, "restart"), job.restart)

    def _entry(self, index: int, entry: Entry) -> None:
        at: tuple[str | int, ...] = ("schedule", index)
        kinds = [k for k in ("fault", "look_alike", "hand") if getattr(entry, k) is not None]
        if len(kinds) != 1:
            self.fail(at, ", ".join(kinds) or "nothing", "exactly one of fault, look_alike and hand is needed")
        begins = self.seconds((*at, "at"), entry.at)
        if begins > seconds_of(self.of.duration):
            self.fail((*at, "at"), entry.at, f"the scenario is over after {self.of.duration}")
        if entry.for_ is not None:
            self.seconds((*at, "for"), entry.for_, 5.0)
        if entry.node is not None:
            self.one_of((*at, "node"), entry.node, node_names(self.of.fleet.nodes + self.of.fleet.spares))
        if entry.job is not None:
            self.one_of((*at, "job"), entry.job, [job.name for job in self.of.jobs])
        if kinds == ["hand"]:
            if entry.node is None:
                self.fail((*at, "node"), "nothing", "the node that the hand takes is needed")
            extra = [k for k in ("device", "job", "rank", "severity", "onset", "seed") if getattr(entry, k) is not None]
            if extra:
                self.fail((*at, extra[0]), getattr(entry, extra[0]), "a hand takes a node, and nothing else")
            return
        self._plant(at, kinds[0], entry)

    def _plant(self, at: tuple[str | int, ...], key: str, entry: Entry) -> None:
        self.one_of((*at, key), entry.name, sorted(n for n, p in self.plugins.items() if (p.fault is None) == (key == "look_alike")))
        plugin = self.plugins[entry.name]
        if entry.severity is not None and not 0 <= entry.severity <= MOST:
            self.fail((*at, "severity"), entry.severity, f"a number from 0 to {MOST:g} is needed")
        if entry.onset is not None:
            self.one_of((*at, "onset"), entry.onset, plugin.onsets)
        has = kind_named(self.of.fleet.type).has
        lacking = [n for n in plugin.needs if n not in has and n not in ("trainer", "inference")]
        if lacking:
            self.fail((*at, key), entry.name, f"a fleet of {self.of.fleet.type} has no {', '.join(lacking)}")


# --- writing --------------------------------------------------------------------------------------------------------
def as_data(value: Any) -> Any:
    """A scenario as plain data; what equals its default is left out, but for the name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for one in dataclasses.fields(value):
            given = getattr(value, one.name)
            default = one.default if one.default is not dataclasses.MISSING else (
                one.default_factory() if one.default_factory is not dataclasses.MISSING else dataclasses.MISSING)
            if given != default:
                out[one.name.rstrip("_")] = as_data(given)
        return out
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(item) for item in value]
    return value


def as_yaml(scenario: Scenario) -> str:
    """The scenario as a YAML file; reading it gives an equal scenario."""
    return yaml.safe_dump(as_data(scenario), sort_keys=False, allow_unicode=True, width=110)
