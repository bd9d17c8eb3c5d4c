"""The exporters of the in-process fleet as scrapes: from numbers where the page's shape is known, else from its text.

What reads live pages (`TargetScraper`) reads each new shape once: layouts, and which number stands where, are its own. As
long as the shape stays, a slot's numbers are taken from the frame, all targets of an exporter at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from collectors.discovery import ScrapeTarget
from collectors.exposition_values import blank
from collectors.fetch import Body
from collectors.mapping import SMALLEST_BLANK, Mapper
from collectors.page_shape import GPU, MAIN
from collectors.scrape import TargetScraper, known_series
from core.clock import TICK_MS, monotonic_seconds
from core.errors import SourceError
from core.protocols import TargetInfo
from core.types import Floats, Layout, Scrape
from fleet.exporters import FAILURES
from fleet.frames import FleetFrames, Frame
from fleet.pages import CONTENT_TYPE

TIMEOUT_SECONDS = 10.0
# What the site allows a page; one with more is not even made.
SAMPLE_LIMIT = 5_000
# How long a reading is said to take: in virtual time nobody waits, and a measured time would differ from run to run.
TOOK_SECONDS = 0.02

Rows = list[tuple[Layout, Scrape]]


@dataclass(slots=True)
class _Part:
    """A section of a target that is read from frames: which numbers of the frame's row stand in its layout."""

    layout: Layout
    take: NDArray[np.int64]
    blanks: bool


@dataclass(slots=True)
class _Plan:
    """All plain targets of an exporter. shapes: as of when the plan was made; take: of all parts, into `wide`: the frame's values and
    the scraper's own three."""

    shapes: list[int | None]
    parts: list[list[_Part]]
    rows: list[int] = field(default_factory=list)
    stale: bool = True
    take: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ends: list[int] = field(default_factory=list)
    flat: list[_Part] = field(default_factory=list)
    wide: Floats = field(default_factory=lambda: np.zeros((0, 0)))


class FleetTargets:
    """Scrapes of all targets of the fleet. frames: from numbers; else every page is made and parsed."""

    def __init__(self, source: FleetFrames, mapper: Mapper, frames: bool) -> None:
        self._source, self._mapper, self._by_number, self._known = source, mapper, frames, known_series()
        # An exporter is on nodes, or on what is none (switches, a scheduler's head node).
        self._places = {name: source.pages.exporters.places(name) for name in source.pages.names}
        self._scrapers = {name: [self._scraper(place.index, name) for place in places] for name, places in self._places.items()}
        self._plans = {name: _Plan([None] * len(places), [[] for _ in places]) for name, places in self._places.items()}

    def _scraper(self, node: int, exporter: str) -> TargetScraper:
        labels = self._source.labels(self._places[exporter][node], exporter)
        own = {k: v for k, v in labels.items() if not k.startswith("__")}
        info = TargetInfo(f"{own['job']}/{own['instance']}", own, own["node"])
        target = ScrapeTarget(info, "", TICK_MS, TIMEOUT_SECONDS, honor_labels=True, sample_limit=SAMPLE_LIMIT)
        return TargetScraper(target, self._mapper, known=self._known, templates=not self._by_number)

    def scrapes(self, slot: int) -> Rows:
        """What all targets show at `slot` (ms), which must not lie in the past."""
        rows: Rows = []
        if not self._by_number:
            self._source.world.advance(slot)
            for exporter in self._source.pages.names:
                for node in self._source.pages.exporters.nodes(exporter):
                    rows += self._by_text(exporter, node.index, slot)[0]
            return rows
        for frame in self._source.frames_at(slot):
            rows += self._from(frame)
        return rows

    # --- text --------------------------------------------------------------------------------------------------------
    def _by_text(self, exporter: str, node: int, slot: int) -> tuple[Rows, bool]:
        """The node's scrapes, and whether a page was read."""
        scraper = self._scrapers[exporter][node]
        if self._source.world.knobs.exporter.extra_series.get((node, exporter), 0) > SAMPLE_LIMIT:
            return _timed(scraper.failure("too_many_samples", slot, TOOK_SECONDS)), False
        answer = self._source.answer(self._places[exporter][node], exporter)
        if answer.kind in FAILURES:
            return _timed(scraper.failure(FAILURES[answer.kind], slot, TOOK_SECONDS)), False
        try:
            return _timed(scraper.page(Body(answer.body, CONTENT_TYPE), slot, monotonic_seconds())), True
        except SourceError as error:
            return _timed(scraper.failure(error.reason, slot, TOOK_SECONDS)), False

    # --- numbers -----------------------------------------------------------------------------------------------------
    def _from(self, frame: Frame) -> Rows:
        plan = self._plans[frame.exporter]
        rows: Rows = []
        for node in frame.rows:
            shape, known = frame.shapes[node], plan.shapes[node]
            if shape != known or node in frame.odd:
                more, page = self._by_text(frame.exporter, node, frame.slot)
                rows += more
                plain = page and node not in frame.odd
                plan.stale = plan.stale or plain or known is not None
                plan.shapes[node], plan.parts[node] = shape if plain else None, []
        if plan.rows != frame.rows:
            for node in set(plan.rows) - set(frame.rows):
                plan.shapes[node], plan.parts[node] = None, []
            plan.rows, plan.stale = frame.rows, True
        # Nodes whose text was just read are planned for the slots to come; the others' numbers are taken now.
        read = {scrape.target_id for _, scrape in rows}
        if plan.stale:
            self._replan(frame, plan)
        return rows + self._taken(frame, plan, read)

    def _replan(self, frame: Frame, plan: _Plan) -> None:
        columns = frame.values.shape[1]
        for node, parts in enumerate(plan.parts):
            if plan.shapes[node] is not None and not parts:
                plan.parts[node] = self._parts(frame, node, columns)
        plan.flat = [part for parts in plan.parts for part in parts]
        offsets = [node * (columns + 3) + part.take for node, parts in enumerate(plan.parts) for part in parts]
        plan.take = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        plan.ends = np.cumsum([len(one) for one in offsets]).tolist()
        plan.stale = False
        self._source.pages.exporters.forget_texts(frame.exporter)

    def _parts(self, frame: Frame, node: int, columns: int) -> list[_Part]:
        """The sections of the node's target. The page's samples are the columns that are there, in page order; behind them
        stand the scraper's own three series."""
        order = self._source.pages.exporters.columns(self._places[frame.exporter][node], frame.exporter)
        parts = []
        for name, section in self._scrapers[frame.exporter][node].sections.items():
            take = order[section.take]
            if name == MAIN:
                take = np.concatenate([take, columns + np.arange(3)])
            parts.append(_Part(section.layout, take, name == GPU))
        return parts

    def _taken(self, frame: Frame, plan: _Plan, read: set[str]) -> Rows:
        nodes, columns = frame.values.shape
        if plan.wide.shape != (nodes, columns + 3):
            plan.wide = np.empty((nodes, columns + 3))
        wide = plan.wide
        wide[:, :columns] = frame.values
        wide[:, columns], wide[:, columns + 1] = 1.0, TOOK_SECONDS
        wide[:, columns + 2] = frame.samples
        flat = wide.ravel().take(plan.take)
        large = flat[flat >= SMALLEST_BLANK]
        blanks = bool(len(large)) and bool(blank(large).any())
        rows: Rows = []
        start = 0
        for part, end in zip(plan.flat, plan.ends, strict=True):
            layout = part.layout
            if layout.target_id not in read:
                values = flat[start:end]
                if blanks and part.blanks:
                    values = self._mapper.clean(layout, values)
                rows.append((layout, Scrape(layout.id, layout.target_id, frame.slot, values, TOOK_SECONDS)))
            start = end
        return rows


def _timed(rows: Rows) -> Rows:
    """The scrapes, said to have taken the same time as those from numbers."""
    out: Rows = []
    for layout, scrape in rows:
        values = scrape.values
        if len(values) >= 3 and layout.series[-2].name == "scrape_duration_seconds":
            values = values.copy()
            values[-2] = TOOK_SECONDS
        out.append((layout, replace(scrape, values=values, took_seconds=TOOK_SECONDS)))
    return out
