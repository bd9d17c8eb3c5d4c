"""One target's pages into layouts and scrapes, as Prometheus stores them.

- Target labels join each series. Where the page has the label already, `honor_labels` decides: false → the page's
  becomes `exported_<label>`, true → the page's stays. Labels with an empty value are no labels.
- `up`, `scrape_duration_seconds` and `scrape_samples_scraped` stand at the end, with the target's labels only. A failed
  scrape has these three alone, `up` 0.
- Series are put in the order of name and labels, so a page that shuffles its families keeps its layout.
- The time of all values is the scheduled slot. A sample with a timestamp of its own (cAdvisor, Pushgateway-like
  exporters) is taken at the slot too, as long as that timestamp is at most 5 minutes old, Prometheus' look-back;
  older (or more than 10 minutes ahead, Prometheus' own limit) it is absent: a dead source behind a live exporter must
  not look fresh. With `honor_timestamps: false` the page's timestamps are not looked at.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.discovery import ScrapeTarget
from collectors.exposition import Known, Limits, Page, Sample, parse_exposition
from collectors.exposition_template import PageTemplate
from collectors.fetch import Body, Fetch, Request
from collectors.mapping import Mapper
from core.clock import monotonic_seconds
from core.derive import STALE_NAN
from core.errors import SourceError
from core.types import Floats, Layout, Scrape, Series

OWN_SERIES = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
OLDEST_OWN_TIMESTAMP_MS = 300_000
NEWEST_OWN_TIMESTAMP_MS = 600_000
SHAPES_KEPT = 4

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels, str]


@dataclass(slots=True)
class _Shape:
    """keys: the page's series as parsed. take: which sample stands at each place of the layout. template: of the last
    page of this shape that was parsed, where it can have one."""

    keys: list[Key]
    take: NDArray[np.int64]
    layout: Layout
    template: PageTemplate | None = None


def merge_labels(page: Labels, target: Mapping[str, str], honor: bool) -> Labels:
    """The labels of a series: the page's and the target's, by Prometheus' rule for collisions; sorted."""
    out = dict(page)
    if honor:
        for name, value in target.items():
            out.setdefault(name, value)
    else:
        clashes = [(name, out[name]) for name in target if out.get(name)]
        out.update(target)
        for name, value in sorted(clashes, key=lambda pair: (len(pair[0]), pair[0])):
            free = f"exported_{name}"
            while out.get(free):
                free = f"exported_{free}"
            out[free] = value
    return tuple(sorted((name, value) for name, value in out.items() if value))


@dataclass
class TargetScraper:
    """Reads one target. tolerated: breaches of the standards that were let pass, by name. Not for concurrent use."""

    target: ScrapeTarget
    mapper: Mapper
    tolerated: Counter[str] = field(default_factory=Counter)
    _known: Known = field(default_factory=Known)
    _last: _Shape | None = None
    _shapes: OrderedDict[str, _Shape] = field(default_factory=OrderedDict)
    _failed: Layout | None = None

    async def scrape(self, fetch: Fetch, slot_ms: int) -> tuple[Layout, Scrape]:
        """Reads the target for this slot. Never raises for what a target does: the error is in the scrape."""
        started = monotonic_seconds()
        t = self.target
        try:
            body = await fetch.get(Request(t.url, t.timeout_seconds, t.body_size_limit, allow_empty=False))
            return self.page(body, slot_ms, started)
        except SourceError as error:
            return self.failure(error.reason, slot_ms, monotonic_seconds() - started)

    def page(self, body: Body, slot_ms: int, started: float) -> tuple[Layout, Scrape]:
        """The layout and scrape of a body. Raises SourceError where it breaks the format or a limit."""
        shape, values = self._alike(body) or self._parsed(body, slot_ms)
        took = monotonic_seconds() - started
        values[-3:] = (1.0, took, float(len(shape.keys)))
        clean = self.mapper.clean(shape.layout, values)
        return shape.layout, Scrape(shape.layout.id, self.target.info.id, slot_ms, clean, took)

    def _alike(self, body: Body) -> tuple[_Shape, Floats] | None:
        """The values of a page like the last one; None where it must be parsed."""
        shape = self._last
        if shape is None or shape.template is None or len(body.data) > self.target.body_size_limit:
            return None
        read = shape.template.values(body.data, body.content_type)
        if read is None:
            return None
        self.tolerated.update(shape.template.tolerated)
        values = np.empty(len(shape.take) + len(OWN_SERIES))
        values[: len(shape.take)] = read[shape.take]
        return shape, values

    def _parsed(self, body: Body, slot_ms: int) -> tuple[_Shape, Floats]:
        page = parse_exposition(body.data, body.content_type, Limits(body_bytes=self.target.body_size_limit),
                                known=self._known)
        if 0 < self.target.sample_limit < len(page.samples):
            raise SourceError("too_many_samples", f"{len(page.samples)} samples, {self.target.sample_limit} are allowed")
        self.tolerated.update(page.tolerated)
        before = self._last
        shape = self._shape(page.samples)
        if shape is before:  # a page that changes its shape at each reading gets no template: making one costs something
            shape.template = PageTemplate.of(page, body.data, body.content_type, self._known)
        return shape, self._values(page, shape, slot_ms)

    def failure(self, reason: str, slot_ms: int, took: float) -> tuple[Layout, Scrape]:
        """The scrape of a target that could not be read: its own series with `up` 0, and the reason."""
        if self._failed is None:
            self._failed = self.mapper.layout(self.target.info, self._own())
        values = np.array((0.0, took, 0.0))
        return self._failed, Scrape(self._failed.id, self.target.info.id, slot_ms, values, took, reason)

    def _own(self) -> list[Series]:
        labels = tuple(sorted(self.target.info.labels.items()))
        return [Series(name, labels, "gauge") for name in OWN_SERIES]

    def _values(self, page: Page, shape: _Shape, slot_ms: int) -> Floats:
        samples = page.samples
        take = shape.take.tolist()
        values = np.empty(len(take) + len(OWN_SERIES))
        values[: len(take)] = [samples[i].value for i in take]
        if self.target.honor_timestamps:
            oldest, newest = slot_ms - OLDEST_OWN_TIMESTAMP_MS, slot_ms + NEWEST_OWN_TIMESTAMP_MS
            for place, i in enumerate(take):
                at = samples[i].at
                if at is not None and not oldest <= at <= newest:
                    values[place] = STALE_NAN
        return values

    def _shape(self, samples: Sequence[Sample]) -> _Shape:
        keys = [(s.name, s.labels, s.type) for s in samples]
        if self._last is not None and self._last.keys == keys:
            return self._last
        own = self._own()
        rows: dict[tuple[str, Labels], int] = {}
        merged: dict[Labels, Labels] = {}
        taken = {(one.name, one.labels) for one in own}  # a page cannot speak for the scraper
        for i, sample in enumerate(samples):
            labels = merged.get(sample.labels)
            if labels is None:
                labels = merge_labels(sample.labels, self.target.info.labels, self.target.honor_labels)
                merged[sample.labels] = labels
            if (sample.name, labels) not in taken:
                rows[sample.name, labels] = i  # one series at several times of its own: the last line is the newest
        order = sorted(rows)
        series = [Series(name, labels, samples[rows[name, labels]].type) for name, labels in order]
        layout = self.mapper.layout(self.target.info, [*series, *own])
        known = self._shapes.pop(layout.id, None)
        take = np.array([rows[key] for key in order], np.int64)
        shape = _Shape(keys, take, known.layout if known else layout)
        self._shapes[layout.id] = shape
        while len(self._shapes) > SHAPES_KEPT:
            self._shapes.popitem(last=False)
        self._last = shape
        return shape
