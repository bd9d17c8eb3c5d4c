"""A recording in an exposition format: `*.prom` (timestamps in ms) and `*.om` (in seconds), read twice, line by line.

The first pass looks at the times alone: is the file in time order, where does it begin and end, when did its nodes boot.
The second reads the samples. Memory grows with the distinct series, never with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collectors.exposition import Known, LineParser, Sample
from collectors.exposition_values import as_milliseconds, milliseconds, number, seconds
from collectors.meaning import host_of
from collectors.recording.frames import Frame, Scan
from collectors.recording.inputs import InputFile, sample_lines
from collectors.recording.series import SeriesTable, node_label
from core.errors import BadInput, SourceError

MOST_PREFIXES = 2_000_000
BOOT_METRIC = "node_boot_time_seconds"
NEEDS_TIME = "a recording needs a timestamp behind each value (milliseconds in *.prom, seconds in *.om)"


@dataclass(slots=True)
class ExpositionFile:
    """One file. tolerated: breaches of the standard that were let pass, by name, after it was read."""

    file: InputFile
    tolerated: dict[str, int]

    def _parser(self) -> LineParser:
        return LineParser(self.file.kind == "om", recording=True, known=Known(MOST_PREFIXES))

    def _bad(self, parser: LineParser, raw: bytes, reason: str) -> BadInput:
        text = raw[:80].decode("utf-8", "replace")
        return BadInput(f"{self.file.path}:{parser.lines}", "", text, reason)

    def _read(self, parser: LineParser, raw: bytes) -> Sample | None:
        try:
            sample = parser.line(raw)
        except SourceError as error:
            detail = error.detail.partition(": ")[2] or error.detail
            raise self._bad(parser, raw, f"{error.reason}: {detail}") from None
        if sample is not None and sample.at is None:
            raise self._bad(parser, raw, NEEDS_TIME)
        return sample

    def _finish(self, parser: LineParser) -> None:
        try:
            parser.finish()
        except SourceError as error:
            raise BadInput(f"{self.file.path}:{parser.lines}", "", "the end of the file", error.detail) from None
        for name, n in parser.tolerated.items():
            self.tolerated[name] = self.tolerated.get(name, 0) + n

    def scan(self) -> Scan:
        """The first pass. BadInput with file and line for what is no sample, or has no time."""
        parser = self._parser()
        found = Scan()
        add = found.add
        to_ms = _om_time if self.file.kind == "om" else milliseconds
        known: dict[bytes, set[int] | None] = {}  # prefixes; the set collects boot times
        last_text, last, inside = b"", -1, False
        for lines in sample_lines(self.file.path):
            for raw in lines:
                cut = raw.rfind(b"}") + 1 or raw.find(b" ")
                boots = known.get(raw[:cut], _MISSING)
                if boots is None and not inside:
                    parts = raw[cut:].split(b" ")
                    if len(parts) == 3 and not parts[0]:
                        at = None if number(parts[1]) is None else last if parts[2] == last_text else to_ms(parts[2])
                        if at is not None:
                            parser.lines += 1
                            if at != last:
                                add(at)
                            last_text, last = parts[2], at
                            continue
                sample = self._read(parser, raw)
                if sample is None or sample.at is None:
                    inside = bool(raw.strip()) and not raw.lstrip().startswith(b"#")
                    continue
                inside = False
                add(sample.at)
                last_text, last = b"", -1
                self._learn(sample, raw[:cut], known, found)
        self._finish(parser)
        self.tolerated.clear()  # the second pass counts
        return found

    def _learn(self, sample: Sample, prefix: bytes, known: dict[bytes, set[int] | None], found: Scan) -> None:
        if len(known) >= MOST_PREFIXES:
            known.clear()
        if sample.name != BOOT_METRIC:
            known[prefix] = None
            return
        labels = dict(sample.labels)
        node = node_label(labels) or host_of(labels.get("instance")) or self.file.subject
        if 0 < sample.value < 1e11:
            found.boots.setdefault(node, set()).add(round(sample.value) * 1000)

    def frames(self, table: SeriesTable) -> Iterator[Frame]:
        """The second pass: frames in the order of the file, consecutive lines of one time together."""
        parser = self._parser()
        read, stem = parser.line, self.file.subject
        numbers: dict[object, int] = {}
        ids: list[int] = []
        values: list[float] = []
        now: int | None = None
        for lines in sample_lines(self.file.path):
            for raw in lines:
                sample = read(raw)
                if sample is None:
                    continue
                at = sample.at
                if at != now:
                    if at is None:
                        raise self._bad(parser, raw, NEEDS_TIME)
                    if ids and now is not None:
                        yield Frame(now, np.array(ids, np.int64), np.array(values, np.float64))
                    ids, values, now = [], [], at
                known = numbers.get(parser.last)
                if known is None:
                    if len(numbers) > 2 * MOST_PREFIXES:
                        numbers.clear()
                    known = numbers[parser.last] = table.number(sample.name, sample.labels, sample.type, stem)
                ids.append(known)
                values.append(sample.value)
        if ids and now is not None:
            yield Frame(now, np.array(ids, np.int64), np.array(values, np.float64))
        self._finish(parser)


_MISSING: set[int] = set()


def _om_time(raw: bytes) -> int | None:
    time = seconds(raw)
    return None if time is None or not -9e15 < time < 9e15 else as_milliseconds(time)


