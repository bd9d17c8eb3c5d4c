"""Makes a page that is far over its target's budget small before anything is parsed.

Parsing costs some microseconds a sample, and a page of 300,000 series that are new at each scrape would cost its worker
seconds, each time. Here all lines are looked at together, as arrays, for a small part of that. Which to keep is decided by
priority (see `collectors.budgets`): lines of metrics that carry a canonical signal, lines that were kept before, then those
of the small families. What stays goes to the strict parser as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

NEW_AT_ONCE = 20_000  # series that a page of this kind may bring in at once: reading them is what holds the others up
MOST_ASKED = 4096  # families of one page that are asked about; an explosion of names must not become one of questions
SPARE_LINES = 64
COMMENT_NAME = len(b"# TYPE ")  # where the metric's name begins in a TYPE, HELP or UNIT line
_SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created", "_info")

Places = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Lines:
    """A page's lines, as places of bytes. names: where the metric's name ends; values: where its value begins, or near."""

    starts: Places
    ends: Places
    names: Places
    values: Places

    @classmethod
    def of(cls, body: bytes) -> _Lines:
        data = np.frombuffer(body, np.uint8)
        ends = np.flatnonzero(data == 10) + 1
        if not body.endswith(b"\n"):
            ends = np.append(ends, len(body))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        stops = ends - (data[ends - 1] == 10)
        blanks = np.flatnonzero(data == 32)
        braces = np.flatnonzero(data == 123)
        names = np.minimum(_next(blanks, starts, stops), _next(braces, starts, stops))
        last = np.searchsorted(blanks, stops) - 1
        values = np.where(last >= 0, blanks[last] if len(blanks) else 0, 0)
        return cls(starts, ends, names, np.where(values > starts, values, stops))


def _next(places: Places, after: Places, stops: Places) -> Places:
    """For each line the first of `places` in it, else its end."""
    if not len(places):
        return stops
    at = np.searchsorted(places, after)
    found = places[np.minimum(at, len(places) - 1)]
    return np.where((at < len(places)) & (found < stops), found, stops)


def _texts(body: bytes, starts: Places, ends: Places) -> pa.Array:
    """The pieces of the body between the places, which ascend and do not overlap."""
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = starts, ends
    offsets[-1] = ends[-1] if len(ends) else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(body)])
    return pieces.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))


@dataclass(slots=True)
class PageThinner:
    """Of one target. series: the budget. carries: whether a metric, by one of its lines, means a canonical signal."""

    series: int
    carries: Callable[[bytes], bool]
    _kept: pa.Array | None = None  # what stood before the value on the lines that were kept last
    _health: dict[bytes, bool] = field(default_factory=dict)

    def wanted(self, body: bytes, room: int | None = None) -> bool:
        """True where the page is to be thinned: it has more lines than the budget has series (comments may be half of
        them), or the last one was thinned and this one could bring more new series than there is room for."""
        if self.series <= 0 and self._kept is None:
            return False
        if 0 < self.series < len(body) and body.count(b"\n") > 2 * self.series + SPARE_LINES:
            return True
        return self._kept is not None and room is not None and body.count(b"\n") > room + len(self._kept)

    def learn(self, body: bytes, kept: Sequence[int] | Places) -> None:
        """The page was read whole, and of its samples these were kept: the next page may be thinned by what they are."""
        lines = _Lines.of(body)
        samples = _samples(body, lines)[np.asarray(kept, np.int64)]
        self._kept = _texts(body, lines.starts[samples], lines.values[samples])

    def rest(self) -> None:
        """The target is within its budgets again: pages are read whole."""
        self._kept = None

    def thin(self, body: bytes, most_new: int | None = None) -> tuple[bytes, dict[str, int]]:
        """(the page with at most `series` samples, how many lines were left out by reason).

        most_new: how many lines without a signal that were not kept before may come in, at most NEW_AT_ONCE.
        """
        lines = _Lines.of(body) if body else None
        samples = np.empty(0, np.int64) if lines is None else _samples(body, lines)
        if lines is None or not len(samples):
            return body, {}  # the parser's own bounds hold for a page of comments
        starts = lines.starts[samples]
        families = _texts(body, starts, lines.names[samples]).dictionary_encode()
        family = families.indices.to_numpy()
        names = families.dictionary.to_pylist()
        health = self._asked(names, family, body, lines, samples)[family]
        series = _texts(body, starts, lines.values[samples])
        before = np.zeros(len(samples), np.bool_) if self._kept is None else (
            pc.is_in(series, value_set=self._kept).to_numpy(zero_copy_only=False))
        sizes = np.bincount(family, minlength=len(names))[family]
        order = np.lexsort((np.arange(len(samples)), sizes, ~before, ~health))
        new = ~(health | before)[order]
        order = order[~new | (np.cumsum(new) <= min(NEW_AT_ONCE, NEW_AT_ONCE if most_new is None else most_new))]
        chosen = np.sort(order[:self.series])
        shed = {"shed_churn_budget": len(samples) - len(order), "shed_series_budget": len(order) - len(chosen)}
        self._kept = series.take(pa.array(chosen))
        stay = np.zeros(len(lines.starts), np.bool_)
        stay[samples[chosen]] = True
        stay |= self._comments(body, lines, [names[i] for i in np.unique(family[chosen])])
        return _joined(body, lines, stay), {reason: n for reason, n in shed.items() if n}

    def _asked(self, names: list[bytes], family: NDArray[np.int32], body: bytes, lines: _Lines, samples: Places) -> Bools:
        """bool[family]: those that carry a signal, by their first lines."""
        if len(self._health) > 2 * MOST_ASKED:
            self._health = {name: True for name, found in self._health.items() if found}
        unknown = [i for i, name in enumerate(names) if name not in self._health][:MOST_ASKED]
        if unknown:
            first = np.full(len(names), -1)
            first[family[::-1]] = samples[::-1]
            for i in unknown:
                at = first[i]
                self._health[names[i]] = self.carries(body[lines.starts[at]:lines.ends[at]].rstrip(b"\r\n"))
        return np.fromiter((self._health.get(name, False) for name in names), np.bool_, len(names))

    @staticmethod
    def _comments(body: bytes, lines: _Lines, families: list[bytes]) -> Bools:
        """bool[line]: comments about the families, and the one that ends an OpenMetrics page."""
        comments = np.frombuffer(body, np.uint8)[lines.starts] == 35
        out = np.zeros(len(comments), np.bool_)
        at = np.flatnonzero(comments & (lines.ends - lines.starts > COMMENT_NAME))
        if len(at):
            starts = lines.starts[at] + COMMENT_NAME
            stops = lines.ends[at] - 1
            blanks = np.flatnonzero(np.frombuffer(body, np.uint8) == 32)
            wanted = set(families)
            for name in families:
                wanted |= {name.removesuffix(suffix.encode()) for suffix in _SUFFIXES}
            about = _texts(body, starts, np.maximum(starts, _next(blanks, starts, stops)))
            out[at] = pc.is_in(about, value_set=pa.array(sorted(wanted), pa.binary())).to_numpy(zero_copy_only=False)
        last = len(comments) - 1
        if comments[last] and body[lines.starts[last]:].strip() == b"# EOF":
            out[last] = True
        return out


def _samples(body: bytes, lines: _Lines) -> Places:
    """The lines that are neither comments nor empty."""
    first = np.frombuffer(body, np.uint8)[lines.starts]
    return np.flatnonzero((first != 35) & (first != 10))


def _joined(body: bytes, lines: _Lines, stay: Bools) -> bytes:
    at = np.flatnonzero(stay)
    return b"".join(_texts(body, lines.starts[at], lines.ends[at]).to_pylist())
