"""Which row of the ring stands for which series, signal and part of a target, in 18 bytes each.

A fleet of 100 nodes has 170,000 of them. In a dict they cost 210 bytes each, for something that is asked only when a
layout is new: then the dict is made for a moment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Key = tuple[int, int, int]  # a number for name and labels of a series, signal, part


class KnownRows:
    """The rows of one target. Keys and rows stand side by side, in the order in which they came."""

    __slots__ = ("_part", "_row", "_series", "_signal")

    def __init__(self) -> None:
        self._series = np.zeros(0, np.int64)
        self._signal = np.zeros(0, np.int16)
        self._part = np.zeros(0, np.int32)
        self._row = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self._row)

    def by_key(self) -> dict[Key, int]:
        """key → row, made anew."""
        keys = zip(self._series.tolist(), self._signal.tolist(), self._part.tolist(), strict=True)
        return dict(zip(keys, self._row.tolist(), strict=True))

    def add(self, series: Numbers, signal: Numbers, part: Numbers, rows: Numbers) -> None:
        """Keys that are new, with their rows."""
        if len(rows):
            self._series = np.concatenate([self._series, series])
            self._signal = np.concatenate([self._signal, signal.astype(np.int16)])
            self._part = np.concatenate([self._part, part.astype(np.int32)])
            self._row = np.concatenate([self._row, rows.astype(np.int32)])

    def all(self) -> NDArray[np.int32]:
        """int32[row]: all rows."""
        return self._row

    def keep_only(self, used: Numbers) -> Numbers:
        """Forgets all rows but these; gives those that are forgotten."""
        kept = np.isin(self._row, used)
        gone = self._row[~kept].astype(np.int64)
        self._series, self._signal = self._series[kept], self._signal[kept]
        self._part, self._row = self._part[kept], self._row[kept]
        return gone
