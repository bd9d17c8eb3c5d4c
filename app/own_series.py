"""Greylag's own series as a scrape of itself: each tick's telemetry goes into the own store, under its own names."""

from __future__ import annotations

import numpy as np

from core.telemetry import METRICS, Key, Telemetry
from core.types import Batch, Layout, Scrape, Series

WORKER = "owner"
TARGET = "greylag/self"
LABELS = (("instance", "greylag"), ("job", "greylag"))


class OwnSeries:
    """Gives a batch for each tick; the layout is sent again only when the set of series changed."""

    def __init__(self, telemetry: Telemetry, epoch: int) -> None:
        self._telemetry, self._epoch = telemetry, epoch
        self._seq = 0
        self._keys: list[Key] = []
        self._order: list[int] = []
        self._layout = Layout(Layout.make_id(TARGET, ()), TARGET, (), (), None, "greylag", "greylag")

    def batch(self, at: int) -> Batch:
        """The telemetry as it is now, stamped with the tick's time (ms)."""
        now = self._telemetry.snapshot()
        layouts: tuple[Layout, ...] = ()
        keys = list(now)
        if (keys != self._keys or not self._seq) and self._arrange(keys):
            layouts = (self._layout,)
        self._seq += 1
        values = np.fromiter(now.values(), np.float64, len(now))[self._order]
        return Batch(WORKER, self._epoch, self._seq, at, layouts, (Scrape(self._layout.id, TARGET, at, values),))

    def _arrange(self, keys: list[Key]) -> bool:
        """Takes the series in the order in which the telemetry has them; True where the layout is another one now."""
        self._keys = keys
        self._order = sorted(range(len(keys)), key=keys.__getitem__)
        series = tuple(Series(name, _labels(labels), METRICS[name][0]) for name, labels in (keys[i] for i in self._order))
        if self._seq and series == self._layout.series:
            return False
        self._layout = Layout(Layout.make_id(TARGET, series), TARGET, series, (), None, "greylag", "greylag")
        return True


def _labels(own: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Own labels win over the target's: `job` of an incident stays the job that it is about."""
    found = dict(LABELS) | dict(own)
    return tuple(sorted(found.items()))
