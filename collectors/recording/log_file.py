"""A log of a recording: `kernel.<node>.log` or `trainer.<job>.log`, read for its times first and then for what it says.

A log that is out of order by more than the window (the logs of many ranks one after the other) is sorted on disk, in
runs, so memory does not grow with it.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from collectors.log_rules import LogRule, RuleWatch
from collectors.loglines import LogReader, head, kernel_head
from collectors.logtimes import REBOOT_SLACK_SECONDS, UNDATED_START_MS, Anchor, Mark, boots_of_segments
from collectors.readings import Reading
from collectors.recording.frames import WINDOW_MS, Scan
from collectors.recording.inputs import InputFile, LogLines
from core.protocols import SourcePlugin, TargetInfo
from core.types import Event

RUN_ITEMS = 20_000
FAR_BEYOND_MS = 3_600_000  # `[seconds]` that would begin this much after the recording's end are counted otherwise


class Item(NamedTuple):
    """What one line says. line: its number, for the order of equal times."""

    at: int
    line: int
    events: tuple[Event, ...]
    readings: tuple[Reading, ...]


@dataclass(slots=True)
class LogFile:
    """One log. dated: all its times are dates, and each line has one. segments: least and greatest `[seconds]` by boot."""

    file: InputFile
    sources: Mapping[str, SourcePlugin]
    nodes: frozenset[str] = frozenset()
    tolerated: dict[str, int] = field(default_factory=dict)
    dated: bool = True
    segments: list[tuple[float, float]] = field(default_factory=list)
    rules: Sequence[LogRule] = ()
    _newest: float = -1.0

    @property
    def info(self) -> TargetInfo:
        """The log as a target."""
        subject = self.file.subject
        if self.file.kind == "kernel":
            return TargetInfo(f"kernel/{subject}", {"node": subject}, subject)
        return TargetInfo(f"log/{subject}", {"job": subject})

    def scan(self) -> Scan:
        """The first look: the times that are dates."""
        found = Scan()
        kernel = self.file.kind == "kernel"
        for line in LogLines(self.file):
            mark = kernel_head(line).mark if kernel else head(line, self.nodes).mark
            self._look(mark, found, kernel)
        return found

    def _look(self, mark: Mark | None, found: Scan, kernel: bool) -> None:
        if mark is not None and mark.kind == "at":
            found.add(int(mark.value))
            return
        if mark is not None and mark.kind == "seconds":
            if not self.segments or mark.value + REBOOT_SLACK_SECONDS < self._newest:
                self.segments.append((mark.value, mark.value))
            else:
                low, high = self.segments[-1]
                self.segments[-1] = (min(low, mark.value), max(high, mark.value))
            self._newest = mark.value
        # A kernel's line without a time goes on with the line before it.
        if mark is not None or not kernel or found.first is None:
            self.dated = False

    def anchor(self, start: int | None, end: int | None, boots: tuple[int, ...]) -> Anchor:
        """What dates this log. start, end: of all dated inputs, None where nothing has a date."""
        first = UNDATED_START_MS if start is None else start
        if not self.segments:
            return Anchor(first)
        if boots:
            return Anchor(first, boots_of_segments(self.segments, boots, first))
        low = round(self.segments[0][0] * 1000)
        if end is not None and first + low > end + FAR_BEYOND_MS:
            return Anchor(first, boot=first - low)
        return Anchor(first)

    def items(self, anchor: Anchor) -> Iterator[Item]:
        """What the lines say, in the order of the file; an item for each line that has a time of its own or says
        something. A fresh anchor is needed for each reading."""
        reader = LogReader(self.sources, self.info, anchor, self.nodes)
        lines = LogLines(self.file)
        watch = RuleWatch(self.rules, self.file.subject) if self.rules else None
        number = -1
        for number, line in enumerate(lines):
            at, said = reader.read(line)
            for event in watch.line(line, at) if watch is not None else ():
                yield Item(event.at, number, (event,), ())
            if said.events or said.readings or said.at is not None or said.elapsed_seconds:
                yield Item(at, number, said.events, said.readings)
        for event in watch.rest() if watch is not None else ():  # heard only while the recording goes on
            yield Item(event.at, number + 1, (event,), ())
        self.tolerated = {name: n for name, n in (("line_too_long", lines.too_long), ("bad_utf8", lines.bad_utf8)) if n}


def times_of(items: Iterator[Item]) -> Scan:
    """First and last time of the items, and how much they are out of order."""
    found = Scan()
    for item in items:
        found.add(item.at)
    return found


def telling(items: Iterator[Item]) -> Iterator[Item]:
    """The items that say something."""
    return (item for item in items if item.events or item.readings)


def ordered(items: Iterator[Item], back: int) -> Iterator[Item]:
    """The items by time and line."""
    if back > WINDOW_MS:
        yield from _merged(items)
        return
    waiting: list[tuple[int, int, int, Item]] = []
    newest: int | None = None
    for number, item in enumerate(items):  # one line may give several items of one time
        newest = item.at if newest is None else max(newest, item.at)
        heapq.heappush(waiting, (item.at, item.line, number, item))
        while waiting and waiting[0][0] < newest - back:
            yield heapq.heappop(waiting)[3]
    while waiting:
        yield heapq.heappop(waiting)[3]


def _merged(items: Iterator[Item]) -> Iterator[Item]:
    """Sorts with runs on disk."""
    runs: list[IO[bytes]] = []
    run: list[Item] = []
    try:
        for item in items:
            run.append(item)
            if len(run) >= RUN_ITEMS:
                runs.append(_written(run))
                run = []
        run.sort(key=lambda i: i[:2])
        yield from heapq.merge(*(_read(r) for r in runs), iter(run), key=lambda i: i[:2])
    finally:
        for file in runs:
            file.close()


def _written(run: list[Item]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed, and so removed, when the merge is over
    for item in sorted(run, key=lambda i: i[:2]):
        pickle.dump(item, file, protocol=5)
    file.seek(0)
    return file


def _read(file: IO[bytes]) -> Iterator[Item]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
