"""The output of `promtool tsdb dump` as a recording: `{__name__="up", instance="n1:9100"} 1 1700000000000`, a sample a line.

Samples come series by series, so they are sorted before they are replayed. The form knows no stale markers: promtool
prints them as `NaN`. Prometheus writes one where a series ends and never two in a row, so a single NaN is taken for a
marker, and two or more in a row for values (a loss that is not finite stays evidence).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from collectors.recording.exposition_file import MOST_PREFIXES, ExpositionFile
from collectors.recording.frames import Block
from collectors.recording.inputs import sample_lines
from collectors.recording.series import SeriesTable
from core.derive import STALE_NAN

NEEDS = 'a line of `promtool tsdb dump` is needed, such as {__name__="up", job="node"} 1 1700000000000'
ANY_TIME = 2**62
_TEXT = r'"(?:[^"\\]|\\.)*"'
_PAIR = re.compile(rf"\s*([^\s={{}},\"]+|{_TEXT})\s*=\s*({_TEXT})\s*(?:,|$)")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"', "'": "'"}


def unquoted(text: str) -> str:
    """What Go's `strconv.Quote` wrote. Raises ValueError for an escape that it does not write."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    raw = bytearray()
    at = 0
    for found in _ESCAPE.finditer(inner):
        raw += inner[at : found.start()].encode()
        word = found[1]
        at = found.end()
        if word in _SIMPLE:
            raw += _SIMPLE[word].encode()
        elif word[0] == "x":
            raw.append(int(word[1:], 16))
        elif word[0] in "uU":
            raw += chr(int(word[1:], 16)).encode()
        elif len(word) == 3:
            raw.append(int(word, 8) & 0xFF)
        else:
            raise ValueError(f"\\{word}")
    return (raw + inner[at:].encode()).decode(errors="replace")


def read_pairs(text: str) -> dict[str, str]:
    """The labels of `{a="b", c="d"}`. Raises ValueError for anything else."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("no braces")
    inner, at = text[1:-1], 0
    out: dict[str, str] = {}
    while at < len(inner):
        found = _PAIR.match(inner, at)
        if found is None:
            raise ValueError(json.dumps(inner[at : at + 20]))
        name = unquoted(found[1]) if found[1].startswith('"') else found[1]
        out[name] = unquoted(found[2])
        at = found.end()
    return out


@dataclass(slots=True)
class DumpFile(ExpositionFile):
    """One file. start, end: ms, both included: samples outside are passed over. keep: says of (name, labels) whether a
    series is wanted. Native histograms are passed over and counted as `histogram`."""

    start: int = -ANY_TIME
    end: int = ANY_TIME
    keep: Callable[[str, Mapping[str, str]], bool] | None = None

    def blocks(self, table: SeriesTable) -> Iterator[Block]:
        """All samples in the order of the file. BadInput with file and line for what is no sample."""
        known: dict[bytes, int] = {}
        above = 0
        self.tolerated = {}
        held: Block | None = None  # at most one sample: a NaN of which the next one decides what it means
        before = (-1, False)
        for lines in sample_lines(self.file):
            fresh = self._columns(lines, above, known, table)
            above += len(lines)
            joined = fresh if held is None else _join(held, fresh)
            held = None
            if len(joined.at) and np.isnan(joined.values[-1]):
                held = Block(joined.at[-1:], joined.ids[-1:], joined.values[-1:])
            block, before = _marked(joined, before, held is not None)
            if len(block.at):
                yield block
        if held is not None:
            yield _marked(held, before, False)[0]

    def _columns(self, lines: list[bytes], above: int, known: dict[bytes, int], table: SeriesTable) -> Block:
        times: list[int] = []
        ids: list[int] = []
        values: list[float] = []
        for i, raw in enumerate(lines):
            head, _, rest = raw.rpartition(b"} ")
            words = rest.split()
            if not head and not raw.strip():
                continue
            number = known.get(head)
            try:
                if len(words) != 2 or not head:
                    if self._is_histogram(raw):
                        continue
                    raise ValueError("a value and a time in ms are needed behind the labels")
                at, value = int(words[1]), float(words[0])
                if number is None:
                    number = self._number(head, known, table)
            except ValueError as error:
                raise self._bad(above + i + 1, raw, f"{NEEDS} ({str(error)[:80]})") from None
            if number >= 0 and self.start <= at <= self.end:
                times.append(at)
                ids.append(number)
                values.append(value)
        return Block(np.array(times, np.int64), np.array(ids, np.int64), np.array(values, np.float64))

    def _is_histogram(self, raw: bytes) -> bool:
        if raw.startswith(b"{") and b"} {count:" in raw:
            self.tolerated["histogram"] = self.tolerated.get("histogram", 0) + 1
            return True
        return False

    def _number(self, head: bytes, known: dict[bytes, int], table: SeriesTable) -> int:
        """The number of a series, -1 for one that is not wanted. Raises ValueError."""
        labels = read_pairs(head.decode("utf-8", "replace") + "}")
        name = labels.pop("__name__", "")
        if not name or (self.keep is not None and not self.keep(name, labels)):
            number = -1
        else:
            number = table.number(name, tuple(sorted(labels.items())), "untyped", "")
        if len(known) >= MOST_PREFIXES:
            known.clear()
        known[head] = number
        return number


def _join(one: Block, two: Block) -> Block:
    return Block(np.concatenate([one.at, two.at]), np.concatenate([one.ids, two.ids]), np.concatenate([one.values, two.values]))


def _marked(block: Block, before: tuple[int, bool], hold_last: bool) -> tuple[Block, tuple[int, bool]]:
    """The block with its single NaN as stale markers, and (series, was NaN) of its last sample, for the next block.

    before: of the sample above the first. hold_last: the last sample only helps to decide, and is left out.
    """
    at, ids, values = block.at, block.ids, block.values
    if not len(at):
        return block, before
    nan = np.isnan(values)
    nan_before = np.concatenate([[before[1]], nan[:-1]]) & (np.concatenate([[before[0]], ids[:-1]]) == ids)
    nan_after = np.concatenate([nan[1:], [False]]) & np.concatenate([ids[1:] == ids[:-1], [False]])
    lone = nan & ~nan_before & ~nan_after
    out = values.copy()
    out[lone] = STALE_NAN
    n = len(at) - 1 if hold_last else len(at)
    last = (int(ids[n - 1]), bool(nan[n - 1])) if n else before
    return Block(at[:n], ids[:n], out[:n]), last
