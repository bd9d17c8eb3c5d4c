"""Helpers: a recording in a directory, read tick by tick, and a sorter in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from collectors.mapping import Mapper
from collectors.recording import Recording
from core.clock import TICK_MS, tick_at_or_after
from core.derive import absent
from core.plugins import load_plugins
from core.protocols import RawSample
from core.types import Batch

T0 = 1_780_000_005_000  # a multiple of 15 s
SOURCES = load_plugins("collectors.sources")


class MemorySorter:
    """Sorts in memory; made counts how many were needed."""

    made = 0

    def __init__(self) -> None:
        MemorySorter.made += 1
        self._samples: list[RawSample] = []

    def add(self, samples: Sequence[RawSample]) -> None:
        self._samples += samples

    def drain(self) -> Iterable[RawSample]:
        return iter(sorted(self._samples, key=lambda s: (s.at, s.series.name, s.series.labels)))


def write(root: Path, **files: str | bytes) -> Path:
    """Files by name (`__` stands for a point) in the directory."""
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (root / name.replace("__", ".")).write_bytes(data)
    return root


def opened(*paths: Path, inventory: Path | None = None) -> Recording:
    """The recording of the paths."""
    return Recording([str(p) for p in paths], Mapper(SOURCES), SOURCES, MemorySorter, inventory)


def batches(recording: Recording) -> list[Batch]:
    """All batches, tick by tick."""
    out: list[Batch] = []
    if recording.first_at is None or recording.last_at is None:
        return out
    for at in range(tick_at_or_after(recording.first_at), tick_at_or_after(recording.last_at) + 1, TICK_MS):
        out += recording.advance(at)
    return out


def scrapes(recording: Recording) -> list[tuple[int, str, dict[str, float | None]]]:
    """(ms after T0, target, {series: value, None = stale}) of all scrapes."""
    layouts, out = {}, []
    for batch in batches(recording):
        layouts.update({one.id: one for one in batch.layouts})
        for scrape in batch.scrapes:
            series = layouts[scrape.layout_id].series
            gone = absent(scrape.values)
            out.append((scrape.at - T0, scrape.target_id, {
                named(one): None if gone[i] else float(scrape.values[i]) for i, one in enumerate(series)}))
    return out


def named(one) -> str:
    """name{label=value,…} without what names the instance."""
    inner = ",".join(f"{k}={v}" for k, v in one.labels if k not in ("job", "instance"))
    return f"{one.name}{{{inner}}}" if inner else one.name


def events(recording: Recording):
    """All events in the order given."""
    return [event for batch in batches(recording) for event in batch.events]


def same(left: list[Batch], right: list[Batch]) -> bool:
    """True where two readings gave the same batches, bit by bit."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if (a.seq, a.watermark, a.layouts, a.events) != (b.seq, b.watermark, b.layouts, b.events):
            return False
        if len(a.scrapes) != len(b.scrapes):
            return False
        for x, y in zip(a.scrapes, b.scrapes, strict=True):
            if (x.at, x.layout_id, x.target_id) != (y.at, y.layout_id, y.target_id):
                return False
            if not np.array_equal(x.values.view(np.uint64), y.values.view(np.uint64)):
                return False
    return True
