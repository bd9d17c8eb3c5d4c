"""A Loki's past as batches in time order: slice of time by slice of time, as `slices` does it for samples.

A slice is one batch, so one transaction, and a run that was ended goes on behind the last one. What the parsers of a log know
(a job's phase, counted steps) begins anew there, as it does where a collector is started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from collectors.history.loki import LINES_AT_ONCE, Entry, Loki, labels_text, log_line
from collectors.history.slices import sliced
from collectors.history.web import Server
from collectors.mapping import Mapper
from collectors.push.logs import LogOf, PushedLogs, classify
from collectors.readings import ReadingScrapes
from collectors.recording.lognames import LogNames
from core.protocols import SourcePlugin
from core.types import Batch, Layout, Scrape


class LogHistory:
    """worker: the name under which the batches are known. lines, events, readings: read so far; others: lines of no log that is
    read here, and stranger: the labels of one of them."""

    def __init__(self, server: Server, loki: Loki, selectors: Sequence[str], sources: Mapping[str, SourcePlugin], mapper: Mapper,
                 names: LogNames, worker: str) -> None:
        self._server, self._loki, self._selectors, self._worker = server, loki, tuple(selectors), worker
        self._names = names
        self._logs = PushedLogs(sources, self._log_of)
        self._readings = ReadingScrapes(mapper)
        self._said: set[str] = set()
        self._known = lru_cache(maxsize=50_000)(self._named)
        self.lines = self.events = self.readings = 0
        self.stranger: str | None = None

    @property
    def counts(self) -> Counter[str]:
        """Lines by the kind of their log: kernel, trainer, other_log."""
        return self._logs.counts

    def _log_of(self, labels: Mapping[str, str]) -> LogOf | None:
        return self._known(tuple(sorted(labels.items())))

    def _named(self, pairs: tuple[tuple[str, str], ...]) -> LogOf | None:
        labels = dict(pairs)
        found: LogOf | None = None
        if self._names.given:
            named = self._names.of_labels(labels_text(labels))
            if named is not None:
                found = LogOf(named.kind, named.subject if named.kind == "kernel" else named.node,
                              named.subject if named.kind == "trainer" else None)
        else:
            found = classify(labels)
        if found is None:
            self.stranger = self.stranger or labels_text(labels)
        return found

    def batches(self, origin: int, start: int, end: int) -> Iterator[Batch]:
        """All lines with start <= time <= end (ms), one batch for each slice; it is stored when the next is asked for.

        origin: where the whole import began; it numbers the slices. Raises BadInput, Unavailable.
        """
        def read(first: int, last: int) -> list[Entry]:
            return self._loki.read(self._selectors, first, last)

        for found, stop in sliced(self._server, read, len, LINES_AT_ONCE, start, end):
            yield self._batch(found, (stop - origin) // 1000, stop - 1)

    def _batch(self, found: Sequence[Entry], seq: int, watermark: int) -> Batch:
        events, readings = self._logs.read(map(log_line, found), watermark)
        self.lines += len(found)
        self.events += len(events)
        self.readings += sum(len(values) for _, _, values in readings)
        layouts: list[Layout] = []
        scrapes: list[Scrape] = []
        for layout, scrape in self._readings.scrapes(readings, watermark):
            if layout.id not in self._said:
                self._said.add(layout.id)
                layouts.append(layout)
            scrapes.append(scrape)
        events.sort(key=lambda event: event.at)
        return Batch(self._worker, 1, seq, watermark, tuple(layouts), tuple(scrapes), tuple(events))
