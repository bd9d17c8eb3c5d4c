"""Greylag's own series as a scrape of itself: each tick's telemetry goes into the own store, under its own names.

Those that say how the collectors are mean canonical signals: the detector `collector_starved` judges Greylag as it judges
any other part. `OwnSeries.collectors` gives them for the tick that is about to be judged; the layout that is stored carries the same
meanings, so that a replay from the store sees what the live tick saw.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from core.telemetry import METRICS, Key, Telemetry
from core.types import Batch, Event, Layout, Scrape, Series, SignalRef, Target

WORKER = "owner"
TARGET = "greylag/self"
LABELS = (("instance", "greylag"), ("job", "greylag"))
SIGNALS_OF = {
    "greylag_collector_shed_level": "collector.shed_level",
    "greylag_collector_shed_targets": "collector.shed_targets",
    "greylag_collector_targets": "collector.targets",
    "greylag_collector_lag_seconds": "collector.lag_seconds",
    "greylag_collector_dropped_total": "collector.missed_slots_per_second",
}
MISSED = "missed_slot"


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
        if (keys != self._keys or not self._layout.series) and self._arrange(keys):
            layouts = (self._layout,)
        self._seq += 1
        values = np.fromiter(now.values(), np.float64, len(now))[self._order]
        return Batch(WORKER, self._epoch, self._seq, at, layouts, (Scrape(self._layout.id, TARGET, at, values),))

    def events(self, at: int, events: tuple[Event, ...]) -> Batch:
        """A batch with events of Greylag's own: changes that people reported, or that labels showed."""
        self._seq += 1
        return Batch(WORKER, self._epoch, self._seq, at, (), (), events)

    def collectors(self, at: int, lags: Mapping[str, float]) -> Batch:
        """What the workers say of themselves, for the tick at `at` (ms). lags: worker → seconds since up to which it has
        reported everything; the workers that are to be judged."""
        tell = self._telemetry
        for worker, lag in lags.items():
            tell.set("greylag_collector_lag_seconds", lag, worker=worker)
            for name in ("greylag_collector_shed_level", "greylag_collector_shed_targets"):
                tell.set(name, tell.get(name, worker=worker), worker=worker)
            # From its first tick on: a counter that begins with its first miss would hide it.
            tell.add("greylag_collector_dropped_total", 0.0, worker=worker, reason=MISSED)
        now = {key: value for key, value in tell.snapshot().items()
               if meaning(*key) is not None and dict(key[1])["worker"] in lags}
        keys = sorted(now)
        series = tuple(Series(name, _labels(labels), METRICS[name][0]) for name, labels in keys)
        layout = Layout(Layout.make_id(TARGET, series, _refs(keys)), TARGET, series, _refs(keys), None, None, "greylag")
        values = np.array([now[key] for key in keys], np.float64)
        return Batch(WORKER, self._epoch, 0, at, (layout,), (Scrape(layout.id, TARGET, at, values),))

    def _arrange(self, keys: list[Key]) -> bool:
        """Takes the series in the order in which the telemetry has them; True where the layout is another one now."""
        self._keys = keys
        self._order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered = [keys[i] for i in self._order]
        series = tuple(Series(name, _labels(labels), METRICS[name][0]) for name, labels in ordered)
        if self._layout.series and series == self._layout.series:
            return False
        refs = _refs(ordered)
        self._layout = Layout(Layout.make_id(TARGET, series, refs), TARGET, series, refs, None, "greylag", "greylag")
        return True


def meaning(name: str, labels: tuple[tuple[str, str], ...]) -> str | None:
    """The canonical signal that one of Greylag's own series carries, or None."""
    if name == "greylag_collector_dropped_total" and dict(labels)["reason"] != MISSED:
        return None
    return SIGNALS_OF.get(name)


def _refs(keys: list[Key]) -> tuple[SignalRef, ...]:
    """The meanings of the series, in their order; the part is the worker."""
    return tuple(SignalRef(i, signal, Target("collector", device=dict(labels)["worker"]), 1.0, METRICS[name][0] == "counter")
                 for i, (name, labels) in enumerate(keys) if (signal := meaning(name, labels)) is not None)


def _labels(own: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Own labels win over the target's: `job` of an incident stays the job that it is about."""
    found = dict(LABELS) | dict(own)
    return tuple(sorted(found.items()))
