"""Trainer readings from logs as scrapes, so that one mechanism flows: `greylag_train_*` series of a synthetic target.

Each rank and each set of signals is a target of its own (`log/<job>/<rank>/<shape>`), and its layout is partial: lines that
speak of different things do not make each other's series stale, and two sets may tell the same series at different times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from collectors.mapping import Mapper
from collectors.sources.trainer import METRIC_OF, PHASE_METRIC
from core.protocols import TargetInfo
from core.types import Layout, Scrape, Series, Target

Reading = tuple[int | None, Target, Mapping[str, float]]


def series_of(signal: str, rank: Target) -> Series | None:
    """The trainer series that stands for a signal of a rank; None for a signal that no trainer metric has."""
    labels = {"job": rank.job, "rank": None if rank.rank is None else str(rank.rank), "node": rank.node,
              "gpu": rank.device}
    metric = METRIC_OF.get(signal)
    if signal.startswith("rank.phase_"):
        metric, labels["phase"] = PHASE_METRIC, signal.removeprefix("rank.phase_")
    if metric is None:
        return None
    pairs = sorted((name, value) for name, value in labels.items() if value)
    return Series(metric, tuple(pairs), "counter" if metric.endswith("_total") else "gauge")


class ReadingScrapes:
    """Turns readings into (layout, scrape) pairs; layouts are made once for each rank and set of signals."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper
        self._layouts: dict[tuple[Target, tuple[str, ...]], Layout | None] = {}

    def _layout(self, rank: Target, signals: tuple[str, ...]) -> Layout | None:
        if (rank, signals) not in self._layouts:
            series = [series_of(signal, rank) for signal in signals]
            known = [one for one in series if one is not None]
            shape = hashlib.sha256("\0".join(signals).encode()).hexdigest()[:6]
            target_id = f"log/{rank.job}/{'' if rank.rank is None else rank.rank}/{shape}"
            labels = {"job": rank.job or "", "instance": target_id}
            made = self._mapper.layout(TargetInfo(target_id, labels, rank.node), known) if known else None
            self._layouts[rank, signals] = None if made is None else replace(made, partial=True)
        return self._layouts[rank, signals]

    def scrapes(self, readings: Iterable[Reading], otherwise_ms: int) -> list[tuple[Layout, Scrape]]:
        """One scrape for each time, rank and set of signals, in time order. Readings without a time are of `otherwise_ms`.

        Two readings of one rank, time and set of signals are one: the later line counts.
        """
        out: dict[tuple[int, str], tuple[Layout, Scrape]] = {}
        for at, rank, values in readings:
            signals = tuple(sorted(signal for signal in values if series_of(signal, rank) is not None))
            layout = self._layout(rank, signals)
            if layout is None:
                continue
            when = otherwise_ms if at is None else at
            row = np.array([values[signal] for signal in signals], np.float64)
            out[when, layout.target_id] = (layout, Scrape(layout.id, layout.target_id, when, row))
        return [out[key] for key in sorted(out)]
