"""A recording as a `FrameSource`: all its files merged into batches in time order.

Nothing is made up at either end: there is no boot because a file begins and no stale target because one ends. Memory
grows with the distinct series and the widest moment, not with the length. Two readings give the same batches.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from collectors.log_rules import LogRule
from collectors.loglines import normalise_pci
from collectors.mapping import Mapper
from collectors.readings import ReadingScrapes
from collectors.recording.dump_file import DumpFile
from collectors.recording.exposition_file import ExpositionFile
from collectors.recording.frames import WINDOW_MS, Frame, Scan, drained, frames_of, in_order, joined, stage
from collectors.recording.grouping import Grouper
from collectors.recording.inputs import InputFile, find_inputs
from collectors.recording.log_file import Item, LogFile, ordered, telling, times_of
from collectors.recording.series import SeriesTable
from collectors.recording.tidy_file import TidyFile
from core.clock import parse_rfc3339
from core.errors import BadInput
from core.inventory import Inventory, read_inventory
from core.protocols import SampleSorter, SourcePlugin
from core.types import Batch, Event, Layout, Scrape, Target

BATCH_SAMPLES = 50_000
BATCH_EVENTS = 5_000
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
SAME_BOOT_MS = 60_000  # exporters round a boot time differently from scrape to scrape

SampleFile = ExpositionFile | TidyFile
SAMPLE_FILES: dict[str, type[ExpositionFile]] = {"prom": ExpositionFile, "om": ExpositionFile, "dump": DumpFile}
Unit = tuple[int, int, Frame | Item]  # time, number of the stream, what it holds


@dataclass(slots=True)
class Counts:
    """samples: read from the inputs so far, repeats included, nothing derived. events: made of log lines so far."""

    samples: int = 0
    events: int = 0


class Recording:
    """paths: files and directories (DESIGN §5). sources: those with `parse_line`; others are passed over. inventory_path:
    used in place of an inventory among the paths. dumps: further files, whatever their names. log_rules: over the trainers' logs. BadInput, one sentence, for
    whatever cannot be read.

    first_at, last_at: ms over all inputs, None where nothing has a time. ignored: files of directories that are no
    part of a recording. tolerated: breaches that were let pass so far, by name.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        mapper: Mapper,
        sources: Mapping[str, SourcePlugin],
        sorter_factory: Callable[[], SampleSorter],
        inventory_path: str | Path | None = None,
        dumps: Sequence[DumpFile] = (),
        log_rules: Sequence[LogRule] = (),
    ) -> None:
        self._log_rules = tuple(log_rules)
        inputs = find_inputs(paths)
        self.ignored = inputs.ignored
        chosen = Path(inventory_path) if inventory_path is not None else inputs.inventory
        self.inventory_path = chosen
        self.inventory = Inventory() if chosen is None else read_inventory(chosen)
        self.counts = Counts()
        self._sorter_factory = sorter_factory
        self._table = SeriesTable()
        self._grouper = Grouper(self._table, mapper)
        self._readings = ReadingScrapes(mapper)
        self._said_layouts: set[str] = set()
        self._said_at: dict[str, int] = {}
        self._gpus = {(t.node, p): t for t, pci in self.inventory.gpus() if pci and (p := normalise_pci(pci))}
        self._samples: list[tuple[SampleFile, Scan]] = []
        self._logs: list[tuple[LogFile, Scan]] = []
        self._boots: dict[str, list[int]] = {}
        self._scan(inputs.files, dumps, sources)
        self.first_at, self.last_at = self._ends()
        self._units: Iterator[Unit] | None = None
        self._next: Unit | None = None
        self._seq = 0

    @property
    def tolerated(self) -> Counter[str]:
        """Breaches that were let pass, by name; of files that have been read to their end, and repeats so far."""
        total = Counter(self._grouper.tolerated)
        for file, _ in chain[tuple[SampleFile | LogFile, Scan]](self._samples, self._logs):
            total.update(file.tolerated)
        return total

    # -- the first pass --------------------------------------------------------------------------------------------

    def _scan(self, files: Sequence[InputFile], dumps: Sequence[DumpFile], sources: Mapping[str, SourcePlugin]) -> None:
        nodes = {n.name for n in self.inventory.nodes} | {n for j in self.inventory.jobs for n in j.nodes}
        nodes |= {f.subject for f in files if f.kind == "kernel"}
        logs: list[LogFile] = []
        for file in files:
            if file.kind in ("kernel", "trainer"):
                wanted = {n: s for n, s in sources.items() if s.log_kind == file.kind and s.parse_line is not None}
                logs.append(LogFile(file, wanted, frozenset(nodes)))
                continue
            self._scan_samples(SAMPLE_FILES.get(file.kind, TidyFile)(file))
        for dump in dumps:
            self._scan_samples(dump)
        scans = [log.scan() for log in logs]
        self._learn_boots()
        self._logs = list(zip(logs, scans, strict=True))
        self._dated = _ends([scan for _, scan in chain(self._samples, self._logs)])
        if self._dated[0] is None:  # only `[seconds]` and a known boot give this recording a date
            known = [boots[0] + round(log.segments[0][0] * 1000) for log in logs
                     if log.segments and (boots := self._boots_of(log))]
            self._dated = (min(known), max(known)) if known else (None, None)
        for i, (log, _) in enumerate(self._logs):
            if not log.dated:
                self._logs[i] = (log, times_of(log.items(log.anchor(*self._dated, self._boots_of(log)))))

    def _scan_samples(self, one: SampleFile) -> None:
        found = one.scan(self._table)
        if found.first is not None and found.last is not None and not EARLIEST_MS <= found.first <= found.last <= LATEST_MS:
            wrong = found.last if found.last > LATEST_MS else found.first
            raise BadInput(str(one.file.path), "timestamp", wrong, "milliseconds of the years 1 to 9999 are needed")
        self._samples.append((one, found))

    def _learn_boots(self) -> None:
        for _, scan in self._samples:
            for node, seen in scan.boots.items():
                self._boots.setdefault(node, []).extend(seen)
        for entry in self.inventory.nodes:
            if entry.boot_time is not None:
                told = parse_rfc3339(entry.boot_time)
                later = [at for at in self._boots.get(entry.name, ()) if at > told + SAME_BOOT_MS]
                self._boots[entry.name] = [told, *later]
        for node, boots in self._boots.items():
            kept: list[int] = []
            for at in sorted(boots):
                if not kept or at > kept[-1] + SAME_BOOT_MS:
                    kept.append(at)
            self._boots[node] = kept

    def _boots_of(self, log: LogFile) -> tuple[int, ...]:
        return tuple(self._boots.get(log.file.subject, ())) if log.file.kind == "kernel" else ()

    def _ends(self) -> tuple[int | None, int | None]:
        return _ends([scan for _, scan in chain[tuple[object, Scan]](self._samples, self._logs)])

    # -- the second pass -------------------------------------------------------------------------------------------

    def _streams(self) -> Iterator[Iterator[Unit]]:
        sorter: SampleSorter | None = None
        number = 0
        for file, scan in self._samples:
            if scan.back > WINDOW_MS:
                sorter = sorter or self._sorter_factory()
                stage(file.blocks(self._table), self._table, sorter)
                continue
            yield _numbered(in_order(frames_of(file.blocks(self._table)), scan.back), number)
            number += 1
        if sorter is not None:
            yield _numbered(drained(sorter, self._table), number)
            number += 1
        for log, scan in self._logs:
            log.rules = self._log_rules if log.file.kind == "trainer" else ()
            items = telling(log.items(log.anchor(*self._dated, self._boots_of(log))))
            yield _numbered(ordered(items, scan.back), number)
            number += 1

    def advance(self, to: int) -> Iterable[Batch]:
        """Batches with all that happened up to and including `to` (ms), at least one; the last one's watermark is `to`."""
        if self._units is None:
            self._units = heapq.merge(*self._streams(), key=lambda unit: unit[:2])
            self._next = next(self._units, None)
        batch = _Gather()
        while self._next is not None and self._next[0] <= to:
            at = self._next[0]
            frames: list[Frame] = []
            items: list[Item] = []
            while self._next is not None and self._next[0] == at:
                held = self._next[2]
                if isinstance(held, Frame):
                    frames.append(held)
                else:
                    items.append(held)
                self._next = next(self._units, None)
            if frames:
                self._take_frame(joined(frames), batch)
            for item in items:
                self._take_item(item, batch)
            if batch.samples >= BATCH_SAMPLES or len(batch.events) >= BATCH_EVENTS:
                yield self._batch(batch, at)
                batch = _Gather()
        yield self._batch(batch, to)

    def _take_frame(self, frame: Frame, batch: _Gather) -> None:
        layouts, scrapes = self._grouper.scrapes(frame)
        self.counts.samples += len(frame.ids)
        batch.samples += len(frame.ids)
        batch.layouts += layouts
        batch.scrapes += scrapes

    def _take_item(self, item: Item, batch: _Gather) -> None:
        self.counts.events += len(item.events)
        batch.events += [self._named(event) for event in item.events]
        if not item.readings:
            return
        for layout, scrape in self._readings.scrapes(item.readings, item.at):
            if layout.id not in self._said_layouts:
                self._said_layouts.add(layout.id)
                batch.layouts.append(layout)
            # Lines without times of their own may share one; each is a reading, so each gets its own millisecond.
            at = max(scrape.at, self._said_at.get(layout.target_id, scrape.at - 1) + 1)
            self._said_at[layout.target_id] = at
            batch.scrapes.append(scrape if at == scrape.at else replace(scrape, at=at))

    def _named(self, event: Event) -> Event:
        """The event with its GPU named as the inventory, else the samples, name it."""
        target = event.target
        if target.kind != "gpu" or target.device is None:
            return event
        place = (target.node, target.device)
        known: Target | None = self._gpus.get(place) or self._grouper.gpus.get(place)
        return event if known is None else replace(event, target=replace(known, job=None, rank=None))

    def _batch(self, gathered: _Gather, watermark: int) -> Batch:
        self._seq += 1
        return Batch("replay", 1, self._seq, watermark, tuple(gathered.layouts), tuple(gathered.scrapes),
                     tuple(gathered.events))


class _Gather:
    """A batch in the making."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.scrapes: list[Scrape] = []
        self.events: list[Event] = []
        self.samples = 0


def _ends(scans: Sequence[Scan]) -> tuple[int | None, int | None]:
    firsts = [scan.first for scan in scans if scan.first is not None]
    lasts = [scan.last for scan in scans if scan.last is not None]
    return (min(firsts), max(lasts)) if firsts and lasts else (None, None)


def _numbered(stream: Iterator[Frame] | Iterator[Item], number: int) -> Iterator[Unit]:
    for one in stream:
        yield one.at, number, one
