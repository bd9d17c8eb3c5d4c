"""The budget of one target at work on its pages: lines before parsing, series before they get a layout.

A steady page within its budget meets nothing of this: the fast paths of `collectors.scrape` do not ask.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectors.budgets import TargetBudgetKeeper
from collectors.discovery import ScrapeTarget
from collectors.exposition import Limits, LineParser
from collectors.mapping import Mapper
from collectors.page_shape import Row, merge_labels
from collectors.page_thinning import PageThinner
from core.errors import SourceError
from core.types import Series

FORMATS = (False, True)  # text first, then OpenMetrics


class PageBudget:
    """Of one target. keeper: of the worker, for all its targets."""

    def __init__(self, target: ScrapeTarget, keeper: TargetBudgetKeeper, mapper: Mapper) -> None:
        self._target, self._keeper, self._mapper = target, keeper, mapper
        self._thinner = PageThinner(keeper.budget.series, self._carries)
        self._stamp = keeper.stamp
        self._thinned: dict[str, int] = {}
        self._churned: Sequence[int] | None = None

    @property
    def body_limit(self) -> int:
        """Bytes of a page: what the target's configuration and its budget allow, the smaller one."""
        given = [n for n in (self._target.body_size_limit, self._keeper.budget.body_bytes) if n > 0]
        return min(given, default=1 << 40)

    def outdated(self) -> bool:
        """True once after the process asked for less, or for all again: shapes are to be made anew."""
        before, self._stamp = self._stamp, self._keeper.stamp
        return before != self._stamp

    def lines(self, body: bytes, now_ms: int) -> bytes:
        """The page to parse: `body` itself, or what is left of one that is far too long."""
        room = self._keeper.room(self._target.info.id, now_ms)
        self._thinned = {}
        self._churned = None
        if not self._thinner.wanted(body, room):
            return body
        thin, self._thinned = self._thinner.thin(body, room)
        return thin

    def rows(self, rows: list[Row], now_ms: int) -> list[Row]:
        """The rows of the page that are kept."""
        target_id = self._target.info.id
        series = [Series(name, labels, kind) for name, labels, kind, _ in rows]
        admission = self._keeper.admit(target_id, series, self._knows, now_ms)
        self._keeper.note(target_id, self._thinned)
        if len(admission.kept) == len(rows):
            return rows
        kept = [rows[i] for i in admission.kept]
        if "shed_churn_budget" in admission.shed:
            self._churned = sorted(row[3] for row in kept)
        return kept

    def read(self, body: bytes) -> None:
        """The page whose lines were parsed has been taken: what is known of it helps to thin the next one."""
        if self._churned is not None and not self._thinned:
            self._thinner.learn(body, self._churned)
        elif not self._thinned and self._churned is None:
            self._thinner.rest()

    def moved(self, gone: Sequence[Row], come: Sequence[Row], now_ms: int) -> bool:
        """Some series of the page have other labels than before. False where a budget has to look at the whole page."""
        target_id = self._target.info.id
        if self._keeper.health_only or self._keeper.shed_of(target_id):
            return False
        before, after = ([Series(name, labels, kind) for name, labels, kind, _ in rows] for rows in (gone, come))
        return self._keeper.exchange(target_id, before, after, self._knows, now_ms)

    def _knows(self, series: Series) -> bool:
        return self._mapper.knows(series, self._target.info)

    def _carries(self, line: bytes) -> bool:
        """Whether a line's series means something to a source."""
        target = self._target
        for openmetrics in FORMATS:
            try:
                sample = LineParser(openmetrics, Limits()).line(line)
            except SourceError:
                continue
            if sample is not None:
                labels = merge_labels(sample.labels, target.info.labels, target.honor_labels)
                return self._knows(Series(sample.name, labels, sample.type))
        return False
