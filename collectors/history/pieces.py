"""What the readers of history have in common: pieces of series, and how they say that a server gives no more at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from collectors.recording.series import Ints, Labels
from core.protocols import Matcher
from core.types import Floats

METRIC = "__name__"


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Samples of one series. labels: sorted, without `__name__`. at: int64[n] ms, ascending. values: float64[n], NaN bits
    as the server gave them."""

    name: str
    labels: Labels
    at: Ints
    values: Floats


class TooMuch(Exception):
    """The server, or the memory that a reader may use, does not allow an answer of this size: ask for less time."""


class HistoryReader(Protocol):
    """One way to read the past. way: its name. samples_at_once: how many samples an answer should have, for its memory.

    exact: samples come with their own times and bits; False: on a grid, without stale markers.
    """

    way: str
    samples_at_once: int
    exact: bool

    def read(self, matchers: Sequence[Matcher], start: int, end: int) -> Iterator[Piece]:
        """All samples with start <= at <= end (ms) of the series that match; a series may come in several pieces.

        Raises TooMuch, BadInput, Unavailable.
        """
        ...


def split_name(labels: dict[str, str]) -> tuple[str, Labels]:
    """The metric's name, and the other labels sorted; labels without a value are no labels."""
    name = labels.pop(METRIC, "")
    return name, tuple(sorted(pair for pair in labels.items() if pair[1]))
