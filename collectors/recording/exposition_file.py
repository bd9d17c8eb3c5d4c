"""A recording in an exposition format: `*.prom` (timestamps in ms) and `*.om` (in seconds), read twice, line by line.

The first pass looks for errors and at the times: is the file in time order, where does it begin and end, when did its
nodes boot. The second gives the samples. Memory grows with the distinct series, never with the file.

Fast path: a line `<prefix> <value> <time>` whose prefix stood before in a line that the strict parser read is the same
series. Its value and time are still checked; everything else goes to the strict parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from collectors.exposition import Known, LineParser, Sample
from collectors.exposition_values import as_milliseconds, milliseconds, number, seconds
from collectors.meaning import host_of
from collectors.recording.frames import Block, Scan
from collectors.recording.inputs import InputFile, sample_lines
from collectors.recording.series import SeriesTable, node_label
from core.errors import BadInput, SourceError

MOST_PREFIXES = 2_000_000
PARSER_PREFIXES = 10_000  # the parser needs few: it sees each prefix once
BOOT_METRIC = "node_boot_time_seconds"
NEEDS_TIME = "a recording needs a timestamp behind each value (milliseconds in *.prom, seconds in *.om)"
LARGEST_BOOT_SECONDS = 1e11
_PLAIN = b"0123456789.eE+-"
_INFINITY = float("inf")


def _floats(texts: list[bytes]) -> list[float] | None:
    """The values, None where one is no number."""
    if not b"".join(texts).translate(None, _PLAIN):
        try:
            values = list(map(float, texts))
        except ValueError:
            return None
        if _INFINITY not in values and -_INFINITY not in values:
            return values
    out = [number(text) for text in texts]
    return None if None in out else [v for v in out if v is not None]


@dataclass(slots=True)
class ExpositionFile:
    """One file. tolerated: breaches of the standard that were let pass, by name, after it was read."""

    file: InputFile
    tolerated: dict[str, int] = field(default_factory=dict)

    def _bad(self, line: int, raw: bytes, allowed: str) -> BadInput:
        return BadInput(f"{self.file.path}:{line}", "", raw[:80].decode("utf-8", "replace"), allowed)

    def blocks(self, table: SeriesTable) -> Iterator[Block]:
        """All samples in the order of the file. BadInput with file and line for what is no sample, or has no time."""
        parser = LineParser(self.file.kind == "om", recording=True, known=Known(PARSER_PREFIXES))
        to_ms = _om_time if self.file.kind == "om" else milliseconds
        prefixes: dict[bytes, int] = {}
        find = prefixes.get
        above, last_text, last = 0, b"none", 0
        for lines in sample_lines(self.file):
            times: list[int] = []
            ids: list[int] = []
            texts: list[bytes] = []
            for raw in lines:
                parts = raw.rsplit(b" ", 2)
                known = find(parts[0]) if len(parts) == 3 else None
                if known is not None:
                    at = last if parts[2] == last_text else to_ms(parts[2])
                    if at is not None:
                        last_text, last = parts[2], at
                        times.append(at)
                        ids.append(known)
                        texts.append(parts[1])
                        continue
                sample = self._read(parser, raw, lines, above)
                if sample is None or sample.at is None:
                    continue
                times.append(sample.at)
                ids.append(table.number(sample.name, sample.labels, sample.type, self.file.subject))
                texts.append(repr(sample.value).encode())
                if len(parts) == 3 and parts[0] == raw[: raw.rfind(b"}") + 1 or raw.find(b" ")]:
                    if len(prefixes) >= MOST_PREFIXES:
                        prefixes.clear()
                    prefixes[parts[0]] = ids[-1]
            yield self._block(times, ids, texts, lines, above)
            above += len(lines)
        self.tolerated = dict(parser.tolerated)

    def _block(self, times: list[int], ids: list[int], texts: list[bytes], lines: list[bytes], above: int) -> Block:
        """The columns; BadInput naming the line of a value that is no number."""
        values = _floats(texts)
        if values is None:
            wrong = next(text for text in texts if number(text) is None)
            line = next((i for i, raw in enumerate(lines) if raw.rsplit(b" ", 2)[-2:][0] == wrong), 0)
            shown = wrong[:40].decode("utf-8", "replace")
            raise self._bad(above + line + 1, lines[line], f"a number is needed, {shown!r} is none")
        return Block(np.array(times, np.int64), np.array(ids, np.int64), np.array(values, np.float64))

    def _read(self, parser: LineParser, raw: bytes, lines: list[bytes], above: int) -> Sample | None:
        try:
            sample = parser.line(raw)
        except SourceError as error:
            detail = error.detail.partition(": ")[2] or error.detail
            raise self._bad(above + lines.index(raw) + 1, raw, f"{error.reason}: {detail}") from None
        if sample is not None and sample.at is None:
            raise self._bad(above + lines.index(raw) + 1, raw, NEEDS_TIME)
        return sample

    def scan(self, table: SeriesTable) -> Scan:
        """The first pass. BadInput with file and line for what is no sample, or has no time."""
        found = Scan()
        boots: set[int] = set()
        known = 0
        for block in self.blocks(table):
            found.add_all(block.at)
            while known < len(table.series):
                if table.series[known].name == BOOT_METRIC:
                    boots.add(known)
                known += 1
            for one in boots:
                self._learn(one, block, table, found)
        return found

    def _learn(self, one: int, block: Block, table: SeriesTable, found: Scan) -> None:
        labels = dict(table.series[one].labels)
        node = node_label(labels) or host_of(labels.get("instance")) or self.file.subject
        told = found.boots.setdefault(node, set())
        for value in np.unique(block.values[block.ids == one]).tolist():
            if 0 < value < LARGEST_BOOT_SECONDS:
                told.add(round(value) * 1000)


def _om_time(raw: bytes) -> int | None:
    time = seconds(raw)
    return None if time is None or not -9e15 < time < 9e15 else as_milliseconds(time)
