"""The part of `greylag import` that reads files: recordings, TSDB dumps, archives of logs, and what sacct printed.

What each path is, its name says, else its first line; `--format logs` and `--format sacct` say it for all. Events that the store
has already, from an import of another file that tells the same, are left out: two archives of logs may overlap, and sacct may be
asked again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app import import_jobs, wiring
from app.stored import FOR_EVER_MS
from collectors.history.selector import predicate
from collectors.mapping import Mapper
from collectors.recording import Recording
from collectors.recording.archives import Gathered, gather, is_archive
from collectors.recording.dump_file import DumpFile
from collectors.recording.inputs import INVENTORIES, InputFile, kind_of
from collectors.recording.lognames import LogNames
from core.clock import TICK_MS, rfc3339, tick_at_or_after
from core.errors import BadInput
from core.types import Batch, Event
from pipeline.store.duck import DuckStore
from pipeline.store.sorting import DuckSorter

APPEND_SAMPLES = 500_000
APPEND_BATCHES = 200
BATCH_EVENTS = 5_000
COPY_BYTES = 1 << 20
MOST_KNOWN_EVENTS = 200_000
LOGS_TOLD = {
    "passed_over": "files are of no log that is read here", "binary_journal": "files are journald's own: export them with `journalctl -o export`",
    "cut_short": "files or archives end too early or are damaged: they were read up to there", "same_file": "files were there twice",
    "same_line": "lines were there twice, in parts that overlap", "no_host": "lines name no host, and neither does their path",
    "no_regular_file": "entries of archives are no regular files",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Of the command line. start, end: ms, both included. alone: no server is read beside the files."""

    files: tuple[str, ...]
    format: str
    match: tuple[str, ...]
    start: int
    end: int
    inventory: str | None
    log_names: tuple[str, ...]
    zone: str | None
    jobs_by: str
    alone: bool = True


class Tell(Protocol):
    """Takes lines for people; those about how far it is not oftener than every few seconds, unless `always`."""

    def __call__(self, text: str, always: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Sorted:
    """The paths by what they are."""

    dumps: tuple[DumpFile, ...]
    recordings: tuple[str, ...]
    logs: tuple[str, ...]
    sacct: tuple[str, ...]


# --- what a path is ---------------------------------------------------------------------------------------------------
def sort_paths(paths: Sequence[str], asked: Asked, matches: Sequence[Any], names: LogNames) -> Sorted:
    """Says of each path what it is. Raises BadInput."""
    wanted = [predicate(one) for one in matches]
    keep = (lambda name, labels: any(test(name, labels) for test in wanted)) if asked.match else None
    dumps: list[DumpFile] = []
    found: dict[str, list[str]] = {"recordings": [], "logs": [], "sacct": []}
    for path in paths:
        file = Path(path)
        if asked.format == "tsdb-dump" or file.name.endswith((".dump", ".dump.gz")):
            if not file.is_file():
                raise BadInput(path, "", "no file", "an existing file, or - for standard input, is needed")
            dumps.append(DumpFile(InputFile(file, "dump", ""), start=asked.start, end=asked.end, keep=keep))
            continue
        if asked.match:
            raise BadInput("--match", "", f"a selector beside {path}", "selectors are for servers and `promtool tsdb dump` files")
        kind = asked.format if asked.format in ("logs", "sacct") else _kind(file, names)
        if kind == "folder":
            inner = sorted(str(one) for one in file.iterdir() if one.is_file() and import_jobs.is_sacct(one))
            found["sacct"] += inner
            if any(one.is_file() and (one.name in INVENTORIES or kind_of(one)) for one in file.rglob("*")):
                found["recordings"].append(path)
            elif not inner or any(names.of(str(one.relative_to(file))) or is_archive(one) for one in file.rglob("*")):
                found["logs"].append(path)
        else:
            found["recordings" if kind == "recording" else kind].append(path)
    return Sorted(tuple(dumps), **{name: tuple(rows) for name, rows in found.items()})


def _kind(file: Path, names: LogNames) -> str:
    if file.is_dir():
        return "logs" if names.given else "folder"
    if is_archive(file) or (names.given and names.of(str(file))):
        return "logs"
    if file.name in INVENTORIES or kind_of(file) is not None or not file.is_file():
        return "recording"
    if import_jobs.is_sacct(file):
        return "sacct"
    return "logs" if names.of(file.name) else "recording"


def spooled(path: str, folder: str, format_: str) -> str:
    """The path; for `-` a file with what standard input holds, since it is read twice."""
    if path != "-":
        return path
    target = Path(folder) / {"sacct": "stdin.txt", "logs": "stdin.tar"}.get(format_, "stdin.dump")
    with open(target, "wb") as out:
        shutil.copyfileobj(sys.stdin.buffer, out, COPY_BYTES)
    return str(target)


# --- reading ----------------------------------------------------------------------------------------------------------
class FileImport:
    """One run over files. put: keeps what was asked for, (id of the import, start, end). summary gets what was read."""

    def __init__(self, asked: Asked, matches: Sequence[Any], folder: Path, tell: Tell) -> None:
        self._asked, self._matches, self._folder, self._tell = asked, matches, folder, tell
        self.summary: dict[str, Any] = {}
        self.read = 0

    def run(self, store: DuckStore, put: Callable[[str], None]) -> None:
        """Reads all of it. Raises BadInput."""
        asked = self._asked
        names = LogNames(asked.log_names)
        zone = import_jobs.zone_of(asked.zone)
        with tempfile.TemporaryDirectory(prefix="greylag-import-") as scratch:
            paths = [spooled(path, scratch, asked.format) for path in asked.files]
            kinds = sort_paths(paths, asked, self._matches, names)
            identity = [(str(Path(p).resolve()), Path(p).stat().st_size) for p in paths if not p.startswith(scratch) and Path(p).exists()]
            key = hashlib.sha256(json.dumps([identity, list(asked.match), asked.start, asked.end, *self._more()]).encode()).hexdigest()[:12]
            runs = import_jobs.read_files(kinds.sacct, zone, asked.jobs_by == "name") if kinds.sacct else None
            logs = self._gathered(kinds.logs, names, scratch, zone) if kinds.logs else Gathered()
            everything = wiring.sources()
            readers = {name: s for name, s in everything.items() if s.parse_line is not None}
            recording = Recording([*kinds.recordings, *logs.files], Mapper(everything), readers, DuckSorter, asked.inventory, kinds.dumps)
            put(key)
            self._inventory(recording, runs)
            known = Known(store)
            if runs is not None:
                self._jobs(runs, store, known, f"import/{key}/jobs")
            self._take(recording, store, known, f"import/{key}")
        self._tell_rest(recording, runs)
        if asked.alone and not (recording.counts.samples or recording.counts.events or (runs and runs.runs) or logs.counts["read"]):
            raise BadInput(", ".join(asked.files), "", "nothing in that time", "files with samples or events are needed")
        self.read = recording.counts.samples
        self.summary |= {"files": len(asked.files)}

    def _more(self) -> list[Any]:
        """Further words that make it another import; empty where none is given, so that older imports are known again."""
        asked = self._asked
        given = [list(asked.log_names), asked.zone, asked.jobs_by]
        return [] if given == [[], None, "id"] else given

    # --- logs ---------------------------------------------------------------------------------------------------------
    def _gathered(self, paths: Sequence[str], names: LogNames, scratch: str, zone: Any) -> Gathered:
        folder = Path(scratch) / "logs"
        folder.mkdir()
        found = gather(paths, names, folder, zone, self._tell)
        for what, text in LOGS_TOLD.items():
            if found.counts[what]:
                self._tell(f"{found.counts[what]} {text} ({found.examples[what][:200]})", always=True)
        if not found.files:
            raise BadInput(", ".join(paths), "", "no log of a kernel or a trainer among the files",
                           "--log-names with a group (?P<node>...) or (?P<job>...) says which files are logs, and whose")
        self.summary["logs"] = len(found.files)
        self.summary |= {f"logs_{what}": n for what, n in sorted(found.counts.items()) if what != "read"}
        return found

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def _inventory(self, recording: Recording, runs: Any) -> None:
        asked = self._asked
        shown = import_jobs.within(runs.runs, asked.start, asked.end) if runs is not None else []
        import_jobs.keep_inventory(self._folder, recording.inventory_path, shown)

    def _jobs(self, found: Any, store: DuckStore, known: Known, worker: str) -> None:
        events = import_jobs.events_of(found.runs, self._asked.start, self._asked.end)
        for seq, first in enumerate(range(0, len(events), BATCH_EVENTS), start=1):
            part = events[first : first + BATCH_EVENTS]
            store.append([Batch(worker, 1, seq, part[-1].at, events=known.unseen(part))])
        self.summary["jobs"] = len({run.id for run in found.runs})
        self.summary["job_runs"] = len(found.runs)

    def _tell_rest(self, recording: Recording, runs: Any) -> None:
        passed = recording.tolerated.get("histogram", 0)
        if passed:
            self._tell(f"{passed} native histograms were passed over", always=True)
        if runs is None:
            return
        if runs.unreadable:
            line, text = runs.first_bad or (0, "")
            self._tell(f"{runs.unreadable} rows of sacct cannot be read, the first is row {line}: {text[:100]}", always=True)
            self.summary["job_rows_unreadable"] = runs.unreadable
        if not any(run.state == "REQUEUED" for run in runs.runs):
            self._tell("no run was requeued: without --duplicates sacct shows only the last run of each job", always=True)

    # --- recordings ---------------------------------------------------------------------------------------------------
    def _take(self, recording: Recording, store: DuckStore, known: Known, worker: str) -> None:
        first, last = recording.first_at, recording.last_at
        if first is None or last is None:
            return
        pending: list[Batch] = []
        size = 0
        for batch in _in_ticks(recording, first, last):
            kept = _within(batch, self._asked.start, self._asked.end)
            pending.append(dataclasses.replace(kept, worker=worker, events=known.unseen(kept.events)))
            size += sum(len(s.values) for s in kept.scrapes)
            if size >= APPEND_SAMPLES or len(pending) >= APPEND_BATCHES:
                store.append(pending)
                store.seal()
                pending, size = [], 0
                done = (batch.watermark - first) / max(1, last - first)
                self._tell(f"read to {rfc3339(batch.watermark)} ({min(1.0, done):.0%}): {recording.counts.samples} samples, "
                           f"{recording.counts.events} events")
        store.append(pending)
        store.seal()


class Known:
    """The events that the store had when the import began: one of these is not stored again.

    Only where it had any: two lines of one log that say the same at the same time are two.
    """

    def __init__(self, store: DuckStore) -> None:
        self._store = store
        self._any = bool(store.stats()["events"])

    def unseen(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Those that are not there yet."""
        if not self._any or not events:
            return tuple(events)
        there = {_mark(one) for one in self._store.events(min(e.at for e in events), max(e.at for e in events), limit=MOST_KNOWN_EVENTS)}
        return tuple(event for event in events if _mark(event) not in there)


def _mark(event: Event) -> tuple[object, ...]:
    """What two events that are one have in common. Of a scheduler's account two outputs may know more and less."""
    fields: Mapping[str, object] = event.fields
    told = tuple(sorted((key, str(value)) for key, value in fields.items())) if event.line is None else ()
    if fields.get("source") == import_jobs.SOURCE:
        told = (("phase", str(fields.get("phase"))),)
    return event.at, event.kind, event.target.key, event.line, told


def _in_ticks(recording: Recording, first: int, last: int) -> Iterator[Batch]:
    """All batches that hold anything, tick by tick: the same at each reading, so their numbers are."""
    for at in range(tick_at_or_after(first), tick_at_or_after(last) + 1, TICK_MS):
        for batch in recording.advance(at):
            if batch.scrapes or batch.events or batch.layouts:
                yield batch


def _within(batch: Batch, start: int, end: int) -> Batch:
    scrapes = tuple(s for s in batch.scrapes if start <= s.at <= end)
    events = tuple(e for e in batch.events if start <= e.at <= end)
    return dataclasses.replace(batch, scrapes=scrapes, events=events)


def ledger_end(end: int) -> int:
    """The end as the ledger keeps it."""
    return min(end, FOR_EVER_MS)
