"""What a detector is given: 15–30 minutes of every canonical signal as arrays, events, jobs, topology and the past.

All signals of one kind (gpu, nic, node, rank, …) share one entity axis: column `e` is the same part in each of their
blocks. A signal that was never seen gives an all-NaN block of the right shape, so a detector never asks whether a key
exists. Windows are read-only: their arrays are not writeable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from core.signals import SIGNALS
from core.types import Baseline, Event, Floats, JobState, Target

Times = NDArray[np.int64]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands. None = unknown, which makes localisation coarser, never wrong."""

    node: str
    instance_type: str | None = None
    rack: str | None = None
    leaf: str | None = None
    spine: str | None = None
    pdu: str | None = None
    cooling: str | None = None
    nvlink_domain: str | None = None
    state: str = "in_service"
    boot_time: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NicPlace:
    """A NIC's rail and the leaf port that it hangs on."""

    node: str
    device: str
    rail: int | None = None
    leaf: str | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and NICs by name, mounts by storage. Empty where no inventory is known."""

    places: Mapping[str, Place] = field(default_factory=dict)
    nics: Mapping[tuple[str, str], NicPlace] = field(default_factory=dict)
    mounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def leaf_of(self, target: Target) -> str | None:
        """The leaf switch of a NIC, else of its node, else None."""
        nic = self.nics.get((target.node or "", target.device or ""))
        if nic is not None and nic.leaf is not None:
            return nic.leaf
        place = self.places.get(target.node or "")
        return place.leaf if place else None

    def place(self, node: str | None) -> Place | None:
        return self.places.get(node or "")


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One signal. values: float64[tick, entity], NaN = missing (gauges: the newest sample of at most 1.5 intervals ago;
    counters: rate per second, NaN across a reset or a gap of more than 3 intervals).

    age_seconds: float64[entity], window end minus the newest sample's time, inf = never seen. interval_seconds:
    float64[entity], the learned time between samples, NaN = not known yet. first_at: float64[entity], ms of the first
    sample ever seen, NaN = never.
    """

    signal: str
    entities: tuple[Target, ...]
    values: Floats
    age_seconds: Floats
    interval_seconds: Floats
    first_at: Floats
    _fresh: dict[float, NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def last(self) -> Floats:
        """float64[entity]: the values at the window's end."""
        if not len(self.values):
            return np.full(len(self.entities), np.nan)
        return self.values[-1]

    def fresh(self, intervals: float = 2.5) -> NDArray[np.bool_]:
        """bool[entity], read-only: the newest sample is at most `intervals` scrape intervals old."""
        found = self._fresh.get(intervals)
        if found is None:  # many detectors ask it of the same signals
            limit = np.where(np.isnan(self.interval_seconds), 60.0, self.interval_seconds) * intervals
            found = self._fresh[intervals] = np.asarray(self.age_seconds <= np.maximum(limit, 15.0))
            found.flags.writeable = False
        return found


BaselineOf = Callable[[str, int], Baseline]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Everything that a detector may know at one tick.

    end: ms of the tick. times: int64[tick], ms, ascending, last = end. entities: by kind. silent_nodes: nodes of which
    no input goes on (a recording ended there, all exporters are down): their silence is no evidence.
    """

    end: int
    step_seconds: int
    times: Times
    entities: Mapping[str, tuple[Target, ...]]
    blocks: Mapping[str, Block]
    events: tuple[Event, ...] = ()
    jobs: tuple[JobState, ...] = ()
    topology: Topology = field(default_factory=Topology)
    silent_nodes: frozenset[str] = frozenset()
    baseline_of: BaselineOf | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for this window: for what several detectors work out of it alike. It must depend on the
        window and the key only, and nobody may change it."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])

    def block(self, signal: str) -> Block:
        """The block of `signal`; all NaN where it was never seen. KeyError for a name that is no signal."""
        found = self.blocks.get(signal)
        if found is not None:
            return found
        return self.once(("block", signal), lambda: self._never_seen(signal))

    def _never_seen(self, signal: str) -> Block:
        entities = self.entities.get(SIGNALS[signal].kind, ())
        n = len(entities)
        nan = np.full(n, np.nan)
        empty, never = np.full((len(self.times), n), np.nan), np.full(n, np.inf)
        for array in (nan, empty, never):
            array.flags.writeable = False
        return Block(signal, entities, empty, never, nan, nan)

    def values(self, signal: str) -> Floats:
        """float64[tick, entity] of `signal`."""
        return self.block(signal).values

    def last(self, signal: str) -> Floats:
        """float64[entity]: values at the window's end."""
        return self.block(signal).last

    def of_kind(self, kind: str) -> tuple[Target, ...]:
        """The entities of a kind, in column order."""
        return self.entities.get(kind, ())

    def baseline(self, signal: str, seconds: int) -> Baseline:
        """The past `seconds` of the signal by entity, spans with open findings left out; n = 0 where unknown."""
        if self.baseline_of is not None:
            return self.once(("baseline", signal, seconds), lambda: self._asked(signal, seconds))
        n = len(self.of_kind(SIGNALS[signal].kind))
        nan = np.full(n, np.nan)
        return Baseline(np.zeros(n), nan, nan, nan)

    def _asked(self, signal: str, seconds: int) -> Baseline:
        found = self.baseline_of(signal, seconds) if self.baseline_of is not None else self.baseline(signal, seconds)
        for array in (found.n, found.median, found.mad, found.slope_per_hour):
            array.flags.writeable = False
        return found

    def ticks(self, seconds: float) -> int:
        """How many ticks `seconds` are, at least 1."""
        return max(1, round(seconds / self.step_seconds))

    def tail(self, signal: str, seconds: float) -> Floats:
        """float64[tick, entity]: the last `seconds` of the signal."""
        return self.values(signal)[-self.ticks(seconds):]

    def events_of(self, *kinds: str, since: int | None = None) -> list[Event]:
        """Events of the kinds, in time order, not before `since` (ms)."""
        found = self.once(("events", kinds), lambda: [e for e in self.events if e.kind in kinds])
        return [e for e in found if since is None or e.at >= since]
