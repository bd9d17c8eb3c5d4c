"""Samples of one moment, and streams of such moments in time order.

A `Frame` holds what one file says of one time. Streams that are a little out of order are put right in a buffer as wide
as they are wrong; what is wrong by more than `WINDOW_MS` goes through a sorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from collectors.recording.series import Ints, SeriesTable
from core.protocols import RawSample, SampleSorter
from core.types import Floats, Series

WINDOW_MS = 60_000
SORT_CHUNK = 20_000
MOST_REMEMBERED = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Samples in the order of a file. at: int64[n] ms. ids: int64[n], numbers of the `SeriesTable`. values: float64[n]."""

    at: Ints
    ids: Ints
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """at: ms. ids: int64[n], numbers of the `SeriesTable`. values: float64[n], NaN bits kept."""

    at: int
    ids: Ints
    values: Floats


@dataclass(slots=True)
class Scan:
    """What a first look at a file's times gives. back: the most by which a time lies before one above it, ms.

    boots: boot times (ms) that samples of `node_boot_time_seconds` tell, by node.
    """

    first: int | None = None
    last: int | None = None
    back: int = 0
    boots: dict[str, set[int]] = field(default_factory=dict)

    def add(self, at: int) -> None:
        """One time, in the order of the file."""
        if self.last is None or self.first is None:
            self.first = self.last = at
        elif at >= self.last:
            self.last = at
        else:
            self.first = min(self.first, at)
            self.back = max(self.back, self.last - at)


    def add_all(self, times: Ints) -> None:
        """Many times, int64[n], in the order of the file."""
        if not len(times):
            return
        start = int(times[0]) if self.last is None else self.last
        highest = np.maximum(np.maximum.accumulate(times), start)
        self.back = max(self.back, int((highest - times).max()))
        lowest = int(times.min())
        self.first = lowest if self.first is None else min(self.first, lowest)
        self.last = int(highest[-1])


def frames_of(blocks: Iterable[Block]) -> Iterator[Frame]:
    """The blocks' samples as frames, consecutive samples of one time together."""
    held: list[Frame] = []
    for block in blocks:
        if not len(block.at):
            continue
        edges = [0, *(np.flatnonzero(np.diff(block.at)) + 1).tolist(), len(block.at)]
        for start, end in pairwise(edges):
            at = int(block.at[start])
            if held and held[0].at != at:
                yield joined(held)
                held = []
            held.append(Frame(at, block.ids[start:end], block.values[start:end]))
    if held:
        yield joined(held)


def in_order(frames: Iterable[Frame], back: int) -> Iterator[Frame]:
    """The frames by time, equal times joined, of a stream whose times go back by at most `back` ms."""
    waiting: dict[int, list[Frame]] = {}
    newest: int | None = None
    for frame in frames:
        waiting.setdefault(frame.at, []).append(frame)
        if newest is None or frame.at > newest:
            newest = frame.at
            for at in sorted(at for at in waiting if at < newest - back):
                yield joined(waiting.pop(at))
    for at in sorted(waiting):
        yield joined(waiting[at])


def joined(frames: list[Frame]) -> Frame:
    """One frame of several of one time, in their order."""
    if len(frames) == 1:
        return frames[0]
    return Frame(frames[0].at, np.concatenate([f.ids for f in frames]), np.concatenate([f.values for f in frames]))


def stage(blocks: Iterable[Block], table: SeriesTable, sorter: SampleSorter) -> None:
    """Hands all samples of the blocks to the sorter, in chunks."""
    named: dict[int, Series] = {}
    for block in blocks:
        for start in range(0, len(block.at), SORT_CHUNK):
            rows = slice(start, start + SORT_CHUNK)
            ids = block.ids[rows].tolist()
            for number in set(ids) - named.keys():
                named[number] = table.marked(number)
            sorter.add([RawSample(at, named[number], value) for at, number, value in
                        zip(block.at[rows].tolist(), ids, block.values[rows].tolist(), strict=True)])


def drained(sorter: SampleSorter, table: SeriesTable) -> Iterator[Frame]:
    """The sorter's samples as frames."""
    remembered: dict[int, tuple[Series, int]] = {}  # by identity; the series is held, so the identity stays its own
    ids: list[int] = []
    values: list[float] = []
    now: int | None = None
    for sample in sorter.drain():
        if sample.at != now:
            if ids and now is not None:
                yield Frame(now, np.array(ids, np.int64), np.array(values, np.float64))
            ids, values, now = [], [], sample.at
        series = sample.series
        known = remembered.get(id(series))
        if known is None:
            if len(remembered) >= MOST_REMEMBERED:
                remembered.clear()
            known = remembered[id(series)] = (series, table.number_of_marked(series))
        ids.append(known[1])
        values.append(sample.value)
    if ids and now is not None:
        yield Frame(now, np.array(ids, np.int64), np.array(values, np.float64))
