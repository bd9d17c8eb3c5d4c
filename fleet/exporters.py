"""The exporters of all nodes: what each shows at the world's present moment, ill exporters included.

An exporter reads its sheet once for each revision of the world. Then come, in this order: dcgm-exporter's own cycle (a
node repeats its last values until its next one), freezing, a restart (counters count from 0), missing and renamed
families. A page and a frame are made from the result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.derive import STALE_NAN
from core.types import Floats
from fleet.hardware import Node
from fleet.renames import renamed
from fleet.sheets import SHEETS
from fleet.sheets.base import Sheet, Template
from fleet.stations import Station
from fleet.telemetry import SCHEDULERS, Telemetry

if TYPE_CHECKING:
    from fleet.world import World

# How an exporter that does not answer as it should is met by who asks (reasons of `core.reasons.SCRAPE_REASONS`).
FAILURES: Mapping[str, str] = {"down": "connect_failed", "error": "http_status", "empty": "empty_body", "hung": "timeout"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What who asks gets. kind: `page`, or how there is none: a key of FAILURES."""

    kind: str
    body: bytes = b""


@dataclass(slots=True)
class Reading:
    """One exporter of all nodes at a moment. values: float64[node, column]. shapes: of each node the number of its page's
    shape: equal numbers, equal text around the values. rows: the nodes that have it. odd: nodes whose answer is no plain page
    of these values. held: bool[node], those that still show what they showed before. samples: float64[node], how many there are."""

    revision: int
    now_ms: int
    values: Floats
    there: NDArray[np.bool_]
    shapes: list[int]
    rows: list[int]
    odd: frozenset[int]
    held: NDArray[np.bool_]
    samples: Floats


@dataclass(slots=True)
class _Past:
    """What an exporter remembers: what it showed last, when it last read (cycle of each node), where counters began."""

    values: Floats | None = None
    keys: list[Hashable] = field(default_factory=list)
    cycle: NDArray[np.int64] | None = None
    restarts: dict[int, int] = field(default_factory=dict)
    began: dict[int, Floats] = field(default_factory=dict)
    there: NDArray[np.bool_] | None = None
    masks: list[bytes] = field(default_factory=list)
    shaped: tuple[list[Hashable], set[int]] | None = None
    shapes: list[int] = field(default_factory=list)
    samples: Floats = field(default_factory=lambda: np.zeros(0))
    reading: Reading | None = None


def site_exporters(world: World, telemetry: Telemetry) -> tuple[str, ...]:
    """The exporters that are on no node: the scheduler's, and those of the switches where the fabric shows any."""
    switches = telemetry.switches if world.topology.rails else None
    return tuple(name for name in (SCHEDULERS.get(telemetry.scheduler or ""), switches) if name is not None)


def exporters_of(world: World, telemetry: Telemetry | None = None) -> tuple[str, ...]:
    """The exporters that the world's nodes and stations may have under a telemetry (not given: the world's own)."""
    shown = telemetry or world.telemetry
    offered = [*world.kind.exporters, *(("vllm",) if "inference" in world.has else ())]
    return shown.exporters([*offered, *site_exporters(world, shown)])


class Exporters:
    """names: the exporters that each node has. Deterministic: what is shown depends on the world and on when it was read."""

    def __init__(self, world: World, telemetry: Telemetry | None = None) -> None:
        self.world = world
        self.telemetry = telemetry or world.telemetry
        self.names = exporters_of(world, self.telemetry)
        self.sheets: dict[str, Sheet] = {name: SHEETS[name](world, self.telemetry) for name in self.names}
        self._past = {name: _Past() for name in self.names}
        self._shapes: dict[Hashable, int] = {}
        self._down: tuple[int, list[int]] = (-1, [])  # of which revision, nodes that do not answer
        self._templates: dict[tuple[str, int], tuple[int, Template]] = {}

    def nodes(self, name: str) -> list[Node | Station]:
        """The nodes (or stations) that have the exporter now."""
        sheet = self.sheets[name]
        return [sheet.places[row] for row in sheet.rows()]

    def places(self, name: str) -> Sequence[Node | Station]:
        """All that might have it, in the order of the rows of its values."""
        return self.sheets[name].places

    # --- what is shown -----------------------------------------------------------------------------------------------
    def read(self, name: str) -> Reading:
        """The exporter's values on all nodes as of now. Raises KeyError for an unknown exporter."""
        past, sheet, world = self._past[name], self.sheets[name], self.world
        if past.reading is not None and past.reading.revision == world.revision:
            if past.reading.now_ms != world.now_ms:
                self._tell_time(sheet, past.reading)
            return past.reading
        with np.errstate(invalid="ignore"):
            fresh = sheet.values()
        held = self._holding(name, past, len(fresh))
        keys = sheet.keys()
        if past.values is not None and held.any():
            fresh = np.where(held[:, None], past.values, fresh)
            keys = [old if still else new for new, old, still in zip(keys, past.keys, held.tolist(), strict=True)]
        past.values, past.keys = fresh, keys
        values = self._restarted(name, sheet, past, fresh)
        there, values = self._families(name, sheet, values)
        shapes = self._shaped(name, past, there, keys)
        past.reading = Reading(world.revision, world.now_ms, values, there, shapes, sheet.rows(), self._odd(name), held, past.samples)
        return past.reading

    def _tell_time(self, sheet: Sheet, reading: Reading) -> None:
        """Nothing but the time of day has changed: in place, as all nodes are asked one after the other."""
        reading.now_ms = self.world.now_ms
        if sheet.clock is not None:
            shown = reading.values[:, sheet.clock]
            shown[:] = np.where(reading.held, shown, reading.now_ms / 1000 + self.world.hosts.clock_offset)

    def _holding(self, name: str, past: _Past, nodes: int) -> NDArray[np.bool_]:
        """The nodes that still show their last values."""
        hold = np.zeros(nodes, bool)
        if name == "dcgm" and self.telemetry.dcgm_cycle_seconds:
            hold = ~self._due(past, nodes)
        for (row, exporter), how in self.world.knobs.exporter.answers.items():
            if exporter == name and how == "frozen":
                hold[row] = True
        return hold

    def _due(self, past: _Past, nodes: int) -> NDArray[np.bool_]:
        period = self.telemetry.dcgm_cycle_seconds * 1000
        # Each node began at a moment of its own; a prime number of ms between them spreads them over the period.
        cycle = (self.world.now_ms + 7_919 * np.arange(nodes)) // period
        due = np.ones(nodes, bool) if past.cycle is None else cycle != past.cycle
        past.cycle = cycle
        return due

    def _restarted(self, name: str, sheet: Sheet, past: _Past, values: Floats) -> Floats:
        for (row, exporter), at in self.world.knobs.exporter.restarted.items():
            if exporter == name and past.restarts.get(row) != at:
                past.restarts[row] = at
                past.began[row] = np.where(sheet.counter, values[row], 0.0)
        if not past.began:
            return values
        out = values.copy()
        for row, began in past.began.items():
            # A counter that is below where it began was itself set back (a reboot): it counts anew from there.
            began[out[row] < began] = 0.0
            out[row] -= np.nan_to_num(began)
        return out

    def _families(self, name: str, sheet: Sheet, values: Floats) -> tuple[NDArray[np.bool_], Floats]:
        there = ~sheet.absent(values)
        gone = {row: names for (row, exporter), names in self.world.knobs.exporter.missing.items() if exporter == name}
        if not gone:
            return there, values
        values = values.copy()
        for row, names in gone.items():
            for one, (start, end) in zip(sheet.families, sheet.spans, strict=True):
                if one.name in names:
                    there[row, start:end] = False
                    values[row, start:end] = STALE_NAN
        return there, values

    def _shaped(self, name: str, past: _Past, there: NDArray[np.bool_], keys: list[Hashable]) -> list[int]:
        if past.there is None:
            past.there, past.masks = np.zeros_like(there), [b""] * len(there)
        differs = there != past.there
        changed = np.flatnonzero(differs.any(axis=1)).tolist() if differs.any() else []
        if changed or not len(past.samples):
            past.samples = there.sum(axis=1, dtype=np.float64)
        for row in changed if past.masks[0] else range(len(there)):
            past.masks[row] = there[row].tobytes()
        past.there = there
        renames = {row for row, exporter in self.world.knobs.exporter.renamed if exporter == name}
        if changed or past.shaped != (keys, renames):
            past.shaped = keys, renames
            past.shapes = [self._shapes.setdefault((name, mask, key, row in renames), len(self._shapes))
                           for row, (mask, key) in enumerate(zip(past.masks, keys, strict=True))]
        return past.shapes

    def _odd(self, name: str) -> frozenset[int]:
        """Nodes that do not answer, or answer something else than a plain page of the values."""
        knobs = self.world.knobs.exporter
        odd = {row for (row, exporter), how in knobs.answers.items() if exporter == name and how != "frozen"}
        odd.update(row for row, exporter in knobs.extra_series if exporter == name)
        if self.sheets[name].places is not self.world.nodes:
            return frozenset(odd | {one.index for one in self.sheets[name].places if not one.up})
        if self._down[0] != self.world.revision:
            self._down = self.world.revision, [node.index for node in self.world.nodes if not node.up]
        odd.update(self._down[1])
        return frozenset(odd)

    # --- as text -----------------------------------------------------------------------------------------------------
    def answer(self, node: Node | Station, name: str) -> Answer:
        """What who asks gets from the node's exporter. Raises KeyError for an unknown exporter."""
        reading = self.read(name)
        how = "down" if not node.up else self.world.knobs.exporter.answers.get((node.index, name), "page")
        if how in FAILURES:
            return Answer(how)
        body = self._template(node, name, reading).page(reading.values[node.index])
        more = self.world.knobs.exporter.extra_series.get((node.index, name), 0)
        if more:
            body += _extra(name, more, self.world.now_ms)
        if not body:  # all that it could show is gone
            return Answer(self.sheets[name].nothing)
        return Answer("page", _half(body) if how == "half" else body)

    def columns(self, node: Node | Station, name: str) -> NDArray[np.int64]:
        """Which column of the values each sample of the node's page is, in page order, as of now."""
        return self._template(node, name, self.read(name)).columns

    def forget_texts(self, name: str) -> None:
        """Frees what was made for an exporter's pages; they can be made again."""
        for key in [key for key in self._templates if key[0] == name]:
            del self._templates[key]

    def _template(self, node: Node | Station, name: str, reading: Reading) -> Template:
        shape = reading.shapes[node.index]
        known = self._templates.get((name, node.index))
        if known is None or known[0] != shape:
            rename: Callable[[str], str] = str
            if (node.index, name) in self.world.knobs.exporter.renamed:
                rename = renamed
            known = shape, self.sheets[name].template(node, reading.there[node.index], rename)
            self._templates[name, node.index] = known
        return known[1]


def _half(body: bytes) -> bytes:
    """It breaks off within a line."""
    middle = len(body) // 2
    return body[:middle - 2 if body[middle - 1:middle] == b"\n" else middle]


def _extra(name: str, count: int, at_ms: int) -> bytes:
    """Series beyond the exporter's own: a label that takes ever new values, as from a request path or a process number."""
    first = at_ms // 15_000 * count
    family = f"{name}_request_duration_seconds_sum"
    lines = "".join([f'{family}{{path="/v1/items/{first + i}"}} {i % 97}\n' for i in range(count)])
    return f"# HELP {family} Time spent on requests.\n# TYPE {family} counter\n{lines}".encode()
