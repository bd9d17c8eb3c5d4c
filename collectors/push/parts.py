"""What the push readers give and raise: samples, log lines, and a refusal with its HTTP status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.types import Floats

Ints = NDArray[np.int64]


class PushRefused(Exception):
    """A request (or a part of it) is not taken. status: HTTP; reason: of `core.reasons.PUSH_REASONS`; sentence: for the
    person who reads the sender's log; retry_after: seconds, None where a retry is of no use."""

    def __init__(self, status: int, reason: str, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.reason, self.sentence, self.retry_after = status, reason, sentence, retry_after


def bad(reason: str, sentence: str) -> PushRefused:
    """A refusal of wrong data: the sender must not try again."""
    return PushRefused(400, reason, sentence)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """at: int64[n] ms. ids: int64[n], numbers of the `SeriesBook`. values: float64[n], NaN bits kept."""

    at: Ints
    ids: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.at)

    def only(self, kept: NDArray[np.bool_]) -> Samples:
        """The samples where `kept` (bool[n]) is True."""
        return Samples(self.at[kept], self.ids[kept], self.values[kept])


NO_SAMPLES = Samples(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, slots=True)
class LogLine:
    """One pushed log line. labels: all that the sender says of it (stream labels, attributes, syslog header). at: ms,
    None where the sender gave no time."""

    text: str
    at: int | None
    labels: Mapping[str, str]


@dataclass(slots=True)
class Parsed:
    """What a request holds. refused: parts that were not taken, by reason; sentence: about the first of them."""

    samples: Samples = NO_SAMPLES
    lines: list[LogLine] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    sentence: str = ""

    def refuse(self, reason: str, sentence: str, n: int = 1) -> None:
        """Counts parts that are not taken."""
        if not n:
            return
        self.refused[reason] += n
        self.sentence = self.sentence or sentence

    @property
    def size(self) -> int:
        """Samples and lines that are taken."""
        return len(self.samples) + len(self.lines)
