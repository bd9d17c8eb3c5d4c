"""Greylag's own series as a scrape of itself: each tick's telemetry goes into the own store, under its own names."""

from __future__ import annotations

import numpy as np

from core.telemetry import METRICS, Telemetry
from core.types import Batch, Layout, Scrape, Series

WORKER = "owner"
TARGET = "greylag/self"
LABELS = (("instance", "greylag"), ("job", "greylag"))


class OwnSeries:
    """Gives a batch for each tick; the layout is sent again only when the set of series changed."""

    def __init__(self, telemetry: Telemetry, epoch: int) -> None:
        self._telemetry, self._epoch = telemetry, epoch
        self._seq = 0
        self._layout: Layout | None = None

    def batch(self, at: int) -> Batch:
        """The telemetry as it is now, stamped with the tick's time (ms)."""
        rows = sorted(self._telemetry.snapshot().items())
        series = tuple(Series(name, _labels(labels), METRICS[name][0]) for (name, labels), _ in rows)
        layouts: tuple[Layout, ...] = ()
        if self._layout is None or self._layout.series != series:
            self._layout = Layout(Layout.make_id(TARGET, series), TARGET, series, (), None, "greylag", "greylag")
            layouts = (self._layout,)
        self._seq += 1
        values = np.array([value for _, value in rows], dtype=np.float64)
        return Batch(WORKER, self._epoch, self._seq, at, layouts, (Scrape(self._layout.id, TARGET, at, values),))


def _labels(own: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Own labels win over the target's: `job` of an incident stays the job that it is about."""
    found = dict(LABELS) | dict(own)
    return tuple(sorted(found.items()))
