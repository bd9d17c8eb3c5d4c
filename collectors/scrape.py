"""One target's pages into layouts and scrapes, as Prometheus stores them.

- Target labels join each series by Prometheus' rule (`collectors.page_shape.merge_labels`).
- `up`, `scrape_duration_seconds` and `scrape_samples_scraped` stand at the end, with the target's labels only. A failed
  scrape has these three alone, `up` 0.
- A page gives one scrape for each of its sections (`collectors.page_shape`), all of the same slot.
- The time of all values is the scheduled slot. A sample with a timestamp of its own (cAdvisor, Pushgateway-like
  exporters) is taken at the slot too, as long as that timestamp is at most 5 minutes old, Prometheus' look-back;
  older (or more than 10 minutes ahead, Prometheus' own limit) it is absent: a dead source behind a live exporter must
  not look fresh. With `honor_timestamps: false` the page's timestamps are not looked at.

Three ways to read a page, each falling back on the next: values only (`PageTemplate.values`, all bytes but the values as
before), other labels on some lines (`PageTemplate.relabelled`, those lines by the strict grammar), and the strict parser.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collectors.discovery import ScrapeTarget
from collectors.exposition import Known, Limits, LineParser, Page, Sample, is_openmetrics, parse_exposition
from collectors.exposition_template import PageTemplate
from collectors.fetch import Body, Fetch
from collectors.mapping import Mapper
from collectors.page_budget import PageBudget
from collectors.page_shape import (
    GPU,
    MAIN,
    Labels,
    Merger,
    Row,
    Section,
    Shape,
    by_section,
    in_order,
    merge_labels,
    rows_of,
    section_target,
    series_of,
)
from collectors.series_rules import SeriesRules
from core.clock import monotonic_seconds
from core.derive import STALE_NAN
from core.errors import SourceError
from core.protocols import TargetInfo
from core.types import Floats, Layout, Scrape, Series

__all__ = ["TargetScraper", "merge_labels"]

OWN_SERIES = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
OLDEST_OWN_TIMESTAMP_MS = 300_000
NEWEST_OWN_TIMESTAMP_MS = 600_000
SECTIONS_KEPT = 8
# A page that changes its series at each reading gets no template: making one costs as much as reading it again.
RESTLESS = 3

MOST_KNOWN = 200_000

Read = list[tuple[Layout, Scrape]]
SharedKnown = tuple[Known, Known]


def known_series() -> SharedKnown:
    """What the scrapers of a worker know of names and labels: nothing yet. No page makes it forget while it is read."""
    room = MOST_KNOWN + 2 * Limits().samples + 2
    return Known(room), Known(room)


@dataclass
class TargetScraper:
    """Reads one target. tolerated: breaches of the standards that were let pass, by name. Not for concurrent use.

    known: names and label blocks read before, in text and in OpenMetrics. The scrapers of one worker share them: most
    blocks (`{cpu="3",mode="idle"}`) are the same on all nodes. budget: what the target may cost; None = anything. templates:
    whether pages are read by what the last one was like; pointless where none is like the last.
    """

    target: ScrapeTarget
    mapper: Mapper
    tolerated: Counter[str] = field(default_factory=Counter)
    known: SharedKnown = field(default_factory=known_series)
    budget: PageBudget | None = None
    templates: bool = True
    cpu_seconds: float = 0.0  # what the last reading cost, without waiting for the page
    tries: int = 0  # readings that failed
    _shape: Shape | None = None
    _template: PageTemplate | None = None
    _changes: int = 0  # shapes in a row that were not as the one before
    _made: OrderedDict[str, Section] = field(default_factory=OrderedDict)
    _failed: Layout | None = None

    def __post_init__(self) -> None:
        self._rules = SeriesRules(self.target, self.tolerated)

    async def scrape(self, fetch: Fetch, slot_ms: int) -> Read:
        """Reads the target for this slot. Never raises for what a target does: the error is in the scrapes."""
        started = monotonic_seconds()
        try:
            body = await fetch.get(self.target.request(self._body_limit))
            began = monotonic_seconds()  # nothing waits in `page`; asking for CPU time costs more than a short page
            rows = self.page(body, slot_ms, started)
            self.cpu_seconds = monotonic_seconds() - began
            return rows
        except SourceError as error:
            return self.failure(error.reason, slot_ms, monotonic_seconds() - started)

    def page(self, body: Body, slot_ms: int, started: float) -> Read:
        """The layouts and scrapes of a body. Raises SourceError where it breaks the format or a limit."""
        before = self._shape
        if self.budget is not None and self.budget.outdated():
            self._template = None
        values = self._alike(body)
        if values is None:
            values = self._relabelled(body, slot_ms)
        if values is None:
            values = self._parsed(body, slot_ms)
        shape = self._shape
        assert shape is not None
        took = monotonic_seconds() - started
        out: Read = []
        for section in shape.sections.values():
            n = len(section.take)
            row = np.empty(n + len(OWN_SERIES) if section.name == MAIN else n)
            row[:n] = values[section.take]
            if section.name == MAIN:
                row[n:] = (1.0, took, float(shape.samples))
            elif section.name == GPU:  # the only section with series that have blanks
                row = self.mapper.clean(section.layout, row)
            out.append((section.layout, self._scrape_of(section.layout, slot_ms, row, took)))
        gone = set(before.sections) - set(shape.sections) if before is not None and before is not shape else ()
        return out + [self._empty(name, slot_ms, took) for name in sorted(gone)]

    def _scrape_of(self, layout: Layout, slot_ms: int, values: Floats, took: float, error: str | None = None) -> Scrape:
        return Scrape(layout.id, layout.target_id, slot_ms, values, took, error)

    def _empty(self, section: str, slot_ms: int, took: float, error: str | None = None) -> tuple[Layout, Scrape]:
        """A section that is not there: no series, so that all it had are stale."""
        layout = self.mapper.layout(self._info(section), ())
        return layout, self._scrape_of(layout, slot_ms, np.empty(0), took, error)

    def _info(self, section: str) -> TargetInfo:
        info = self.target.info
        return replace(info, id=section_target(info.id, section)) if section else info

    # --- the three ways to read a page ---------------------------------------------------------------------------------
    def _alike(self, body: Body) -> Floats | None:
        """float64[sample] of a page like the last one; None where it is not."""
        if self._template is None or len(body.data) > self._body_limit:
            return None
        read = self._template.values(body.data, body.content_type)
        if read is not None:
            self.tolerated.update(self._template.tolerated)
        return read

    def _relabelled(self, body: Body, slot_ms: int) -> Floats | None:
        """float64[sample] of a page on which some series have other labels than on the last one; None where it is more."""
        if self._template is None or self._shape is None or len(body.data) > self._body_limit:
            return None
        found = self._template.relabelled(body.data, body.content_type)
        if found is None:
            return None
        template, lines = found
        read = template.values(body.data, body.content_type)
        changed = None if read is None else self._strictly(lines, is_openmetrics(body.content_type))
        shape = None if changed is None else self._moved(self._shape, changed, slot_ms)
        if read is None or shape is None:
            return None
        self._shape, self._template = shape, template
        self.tolerated.update(template.tolerated)
        return read

    def _strictly(self, lines: dict[int, bytes], openmetrics: bool) -> dict[int, Sample] | None:
        """The lines by the strict grammar; None where one is not a plain sample."""
        parser = LineParser(openmetrics, self._limits())
        out: dict[int, Sample] = {}
        try:
            for i, line in lines.items():
                sample = parser.line(line)
                if sample is None or sample.at is not None:
                    return None
                out[i] = sample
        except SourceError:
            return None
        return out

    def _moved(self, shape: Shape, changed: dict[int, Sample], slot_ms: int) -> Shape | None:
        """The shape with other labels for some samples; None where two series would be one, or a budget has a say."""
        if shape.repeats:
            return None  # a series that gets other labels may free the place of one that was left out
        merge = Merger(self.target.info.labels, self.target.honor_labels)
        fresh = Shape(shape.samples, dict(shape.sections))
        try:
            kept = self._rules.rows([(one.name, merge(one.labels), one.type, i) for i, one in changed.items()], self._taken())
        except SourceError:
            return None
        left = {row[3]: row[:2] for row in kept}
        gone: list[Row] = []
        come: list[Row] = []
        order = np.fromiter(changed, np.int32, len(changed))
        for name, section in shape.sections.items():
            if not np.isin(section.take, order).any():
                continue  # a job start gives other labels to the GPUs' series: the thousands beside them stay as they are
            before = section.rows()
            after = self._rules.moved(before, changed, left)
            if after is None:
                return None
            gone += [row for row in before if row[3] in changed]
            come += [row for row in after if row[3] in changed]
            fresh.sections[name] = self._section(name, after)
        if left or (self.budget is not None and not self.budget.moved(gone, come, slot_ms)):
            return None
        return fresh

    def _parsed(self, body: Body, slot_ms: int) -> Floats:
        known = self.known[is_openmetrics(body.content_type)]
        if len(known) > MOST_KNOWN:  # between pages only: within one, equal series must be one object
            known.forget()
        data = body.data if self.budget is None else self.budget.lines(body.data, slot_ms)
        page = parse_exposition(data, body.content_type, self._limits(), known=known)
        if 0 < self.target.sample_limit < len(page.samples) and not self.target.rules:  # else those count that are left
            raise SourceError("too_many_samples", f"{len(page.samples)} samples, {self.target.sample_limit} are allowed")
        self.tolerated.update(page.tolerated)
        before = self._shape
        self._shape = self._shape_of(page.samples, slot_ms)
        if self.budget is not None:
            self.budget.read(data)
        alike = before is not None and {k: s.layout.id for k, s in before.sections.items()} == {
            k: s.layout.id for k, s in self._shape.sections.items()}
        self._changes = 0 if alike else self._changes + 1
        self._template = None
        if self.templates and self._changes < RESTLESS and data is body.data:
            self._template = PageTemplate.of(page, body.data, body.content_type)
        return self._values(page, slot_ms)

    def _limits(self) -> Limits:
        return Limits(body_bytes=self._body_limit)

    @property
    def _body_limit(self) -> int:
        return self.target.body_size_limit if self.budget is None else self.budget.body_limit

    # --- failures and shapes -------------------------------------------------------------------------------------------
    def failure(self, reason: str, slot_ms: int, took: float) -> Read:
        """The scrapes of a target that could not be read: its own series with `up` 0, and the reason; nothing else."""
        self.tries += 1
        if self._failed is None:
            self._failed = self.mapper.layout(self.target.info, self._own())
        values = np.array((0.0, took, 0.0))
        sections = () if self._shape is None else sorted(set(self._shape.sections) - {MAIN})
        return [(self._failed, self._scrape_of(self._failed, slot_ms, values, took, reason)),
                *(self._empty(name, slot_ms, took, reason) for name in sections)]

    def _own(self) -> list[Series]:
        labels = tuple(sorted(self.target.info.labels.items()))
        return [Series(name, labels, "gauge") for name in OWN_SERIES]

    def _taken(self) -> set[tuple[str, Labels]]:
        """Names and labels of its own series: a page cannot speak for the scraper."""
        return {(one.name, one.labels) for one in self._own()}

    def _values(self, page: Page, slot_ms: int) -> Floats:
        """float64[sample]; absent where the sample's own time is too far from the slot."""
        samples = page.samples
        values = np.fromiter((sample.value for sample in samples), np.float64, len(samples))
        if self.target.honor_timestamps:
            oldest, newest = slot_ms - OLDEST_OWN_TIMESTAMP_MS, slot_ms + NEWEST_OWN_TIMESTAMP_MS
            for i, sample in enumerate(samples):
                if sample.at is not None and not oldest <= sample.at <= newest:
                    values[i] = STALE_NAN
        return values

    @property
    def sections(self) -> Mapping[str, Section]:
        """The sections of the page that was read last, by name; none before the first."""
        return {} if self._shape is None else self._shape.sections

    @property
    def new(self) -> bool:
        """Whether its next page is likely to be its first. One that does not answer is not waited for."""
        return self._shape is None and self.tries < 2

    @property
    def health(self) -> bool | None:
        """Whether the page carries canonical signals; None while no page has been read."""
        return None if self._shape is None else any(
            ref.target.kind != "exporter" for one in self._shape.sections.values() for ref in one.layout.signals)

    def _shape_of(self, samples: Sequence[Sample], slot_ms: int) -> Shape:
        # What relabelling makes of a series decides whether it is one of the scraper's own.
        rows = rows_of(samples, Merger(self.target.info.labels, self.target.honor_labels),
                       () if self.target.rules else self._taken())
        rows = self._rules.rows(rows, self._taken())
        repeats = self._rules.repeats
        if self.budget is not None:
            rows = self.budget.rows(rows, slot_ms)
        shape = Shape(len(samples), repeats=repeats)
        for name, some in by_section(rows).items():
            shape.sections[name] = self._section(name, some)
        return shape

    def _section(self, name: str, rows: list[Row]) -> Section:
        """The section of these rows; its layout is the same object as long as its series are the same."""
        rows = in_order(rows)
        take = np.array([row[3] for row in rows], np.int32)
        series = series_of(rows)
        if name == MAIN:
            series += self._own()
        before = None if self._shape is None else self._shape.sections.get(name)
        if before is not None and before.layout.series == tuple(series):
            return Section(name, before.layout, take)
        layout = self.mapper.layout(self._info(name), series)
        known = self._made.pop(layout.id, None)
        section = Section(name, known.layout if known else layout, take)
        self._made[layout.id] = section
        while len(self._made) > SECTIONS_KEPT:
            self._made.popitem(last=False)
        return section
