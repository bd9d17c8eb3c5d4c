"""A server's past as batches in time order, slice of time by slice of time.

A slice is as long as its answer fits the reader: it shrinks where the server or our memory says no, and grows over quiet
time. A slice is one batch, so one transaction: its watermark says that all up to there is stored, and a run that was killed
goes on from the store's watermark. Samples of one instance at one time are one scrape, as in every recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from collectors.history.doors import Types
from collectors.history.pieces import HistoryReader, Piece, TooMuch
from collectors.history.web import Server
from collectors.mapping import Mapper
from collectors.recording.frames import Block, frames_of
from collectors.recording.grouping import Grouper
from collectors.recording.series import SeriesTable
from core.errors import BadInput
from core.protocols import Matcher
from core.types import Batch, Layout, Scrape

FIRST_SLICE_MS = 600_000
SHORTEST_SLICE_MS, LONGEST_SLICE_MS = 15_000, 6 * 3_600_000
GROWS_BY = 4.0
OVERRUN = 4  # an answer of so many times the wanted samples is broken off


Found = TypeVar("Found")


def sliced(server: Server, read: Callable[[int, int], Found], size: Callable[[Found], int], wanted: int, start: int, end: int,
           ) -> Iterator[tuple[Found, int]]:
    """(what `read(first, last)` gives, the time after it) slice by slice over start..end (ms, both included).

    size: how much that is; wanted: how much a slice should give. Raises BadInput, Unavailable.
    """
    at, length = start, FIRST_SLICE_MS
    while at <= end:
        stop = min(end + 1, max(at + SHORTEST_SLICE_MS, (at + length) // SHORTEST_SLICE_MS * SHORTEST_SLICE_MS))
        try:
            found = server.patiently(lambda first=at, last=stop - 1: read(first, last))  # type: ignore[misc]
        except TooMuch as error:
            if stop - at <= SHORTEST_SLICE_MS:
                raise BadInput("--match", "", "too much for one request of 15 s", f"narrower selectors are needed ({error})") from None
            length = max(SHORTEST_SLICE_MS, (stop - at) // 2)
            continue
        yield found, stop
        grow = min(GROWS_BY, wanted / max(1, size(found)))
        length = int(min(LONGEST_SLICE_MS, max(SHORTEST_SLICE_MS, (stop - at) * grow)))
        at = stop


class History:
    """worker: the name under which the batches are known. samples, series: what has been read so far.

    selections: one request for each; a series that several of them match counts once.
    """

    def __init__(self, server: Server, reader: HistoryReader, selections: Sequence[Sequence[Matcher]], mapper: Mapper,
                 types: Types, worker: str) -> None:
        self._server, self._reader, self._selections = server, reader, tuple(selections)
        self._types, self._worker = types, worker
        self._table = SeriesTable()
        self._grouper = Grouper(self._table, mapper)
        self.samples = 0
        self.nameless = 0

    @property
    def series(self) -> int:
        return len(self._table.series)

    def batches(self, origin: int, start: int, end: int) -> Iterator[Batch]:
        """All samples with start <= at <= end (ms), one batch for each slice; it is stored when the next is asked for.

        origin: where the whole import began; it numbers the slices. Raises BadInput, Unavailable.
        """
        for pieces, stop in sliced(self._server, self._pieces, lambda found: sum(len(piece.at) for piece in found),
                                   self._reader.samples_at_once, start, end):
            yield self._batch(pieces, (stop - origin) // 1000, stop - 1)

    def _pieces(self, start: int, end: int) -> list[Piece]:
        out: list[Piece] = []
        size = 0
        for matchers in self._selections:
            for piece in self._reader.read(matchers, start, end):
                size += len(piece.at)
                if size > OVERRUN * self._reader.samples_at_once and end - start >= SHORTEST_SLICE_MS:
                    raise TooMuch(f"over {size} samples")
                out.append(piece)
        return out

    def _batch(self, pieces: Sequence[Piece], seq: int, watermark: int) -> Batch:
        layouts: list[Layout] = []
        scrapes: list[Scrape] = []
        named = [piece for piece in pieces if piece.name and len(piece.at)]
        self.nameless += len(pieces) - len(named)
        if named:
            numbers = [self._table.number(p.name, p.labels, self._types.of(p.name), "") for p in named]
            ids = np.repeat(np.array(numbers, np.int64), [len(p.at) for p in named])
            at = np.concatenate([p.at for p in named])
            values = np.concatenate([p.values for p in named])
            self.samples += len(at)
            order = np.lexsort((ids, at))
            for frame in frames_of([Block(at[order], ids[order], values[order])]):
                fresh, read = self._grouper.scrapes(frame)
                layouts += fresh
                scrapes += read
        return Batch(self._worker, 1, seq, watermark, tuple(layouts), tuple(scrapes), ())
