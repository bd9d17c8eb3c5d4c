"""`greylag import`: the past of a running Prometheus, VictoriaMetrics, Thanos, Mimir or Loki, or of files, into a store.

The folder can be given to `greylag replay` as it is. A run that was ended goes on where it ended: each slice of time is one
transaction, and the store knows up to where all is stored. What was asked for is kept beside the store, so that the same
command, with times like `30d` in it, means the same when it is given again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app import wiring
from app.import_files import Asked as Files
from app.import_files import FileImport, Known, ledger_end
from app.import_jobs import keep_inventory, zone_of
from app.stored import FILE_NAME, FOR_EVER_MS
from app.workerfiles import write_whole
from collectors.history.doors import WAYS, build_of, reader_of, types_of
from collectors.history.log_slices import LogHistory
from collectors.history.loki import LABELS, Loki
from collectors.history.pieces import HistoryReader
from collectors.history.selector import EVERYTHING, read_selector
from collectors.history.slices import History
from collectors.history.web import TENANT, Access, NotThere, Server, check_url, secret_file
from collectors.mapping import Mapper
from collectors.recording.lognames import LogNames
from core.clock import monotonic_seconds, parse_rfc3339, rfc3339, wall_ms
from core.errors import BadInput, GreylagError
from pipeline.store.duck import DuckStore

Say = Callable[[str], None]
LEDGER = "import.json"
FORMATS = ("auto", *WAYS, "loki", "tsdb-dump", "logs", "sacct")
OF_FILES = ("tsdb-dump", "logs", "sacct")
DEFAULT_SPAN_MS = 30 * 86_400_000
PROGRESS_SECONDS = 2.0
MOST_LABELS = 20
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
NEEDS_TIME = "a time is needed: 2026-11-01T00:00:00Z, seconds since 1970, or a time ago such as 30d"
READ_ME = "give --from URL, or files"


@dataclasses.dataclass(frozen=True, slots=True)
class ImportOptions:
    """What `greylag import` was asked for. now_ms: what times like `30d` count from."""

    out: str
    url: str | None = None
    files: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None
    match: tuple[str, ...] = ()
    step: str = "15s"
    format: str = "auto"
    inventory: str | None = None
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    headers: tuple[str, ...] = ()
    now_ms: int = 0
    log_names: tuple[str, ...] = ()
    zone: str | None = None
    jobs_by: str = "id"


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An import as it is kept beside the store. id: the name of its batches. start, end: ms, both included."""

    id: str
    source: str
    way: str
    match: tuple[str, ...]
    step_ms: int
    start: int
    end: int

    @property
    def worker(self) -> str:
        return f"import/{self.id}"


def duration_ms(text: str, where: str) -> int:
    """`15s`, `500ms`, `1m30s`, `2` (seconds) as ms. Raises BadInput."""
    found = re.findall(r"(\d+)(ms|[smhdwy])", text)
    whole = sum(int(n) * UNITS_MS[unit] for n, unit in found)
    if text.isdigit():
        whole = int(text) * 1000
    elif "".join(n + unit for n, unit in found) != text:
        whole = 0
    if not 0 < whole <= 100 * UNITS_MS["y"]:
        raise BadInput(where, "", text, "a duration is needed, such as 15s")
    return whole


def moment(text: str, where: str, now_ms: int) -> int:
    """A time in ms: RFC 3339 or ISO (no zone = UTC), seconds or ms since 1970, `now`, or a duration ago. Raises BadInput."""
    if text == "now":
        return now_ms
    if re.fullmatch(r"-?\d{9,11}(\.\d+)?", text):
        return round(float(text) * 1000)
    if re.fullmatch(r"\d{12,14}", text):
        return int(text)
    if re.fullmatch(r"-?(\d+(ms|[smhdwy]))+", text):
        return now_ms - duration_ms(text.lstrip("-"), where)
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise BadInput(where, "", text, NEEDS_TIME) from None


def access_of(options: ImportOptions) -> Access:
    """Credentials as the options name them. Raises BadInput."""
    if options.token_file is not None and options.user is not None:
        raise BadInput("--token-file", "", "--user beside it", "one way to get in is needed")
    if options.password_file is not None and options.user is None:
        raise BadInput("--password-file", "", "no --user", "both are needed")
    headers = {}
    for one in options.headers:
        name, colon, value = one.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9-]+", name.strip()):
            raise BadInput("--header", "", one, "`Name: value` is needed")
        headers[name.strip()] = value.strip()
    return Access(secret_file(options.token_file, "--token-file"), options.user,
                  secret_file(options.password_file, "--password-file"), options.ca_file, headers)


# --- what was asked for -----------------------------------------------------------------------------------------------
class Ledger:
    """The imports of a folder: `import.json`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEDGER
        self.entries: list[Asked] = []
        if self._path.exists():
            try:
                rows = json.loads(self._path.read_text(encoding="utf-8"))["imports"]
                self.entries = [Asked(**{**row, "match": tuple(row["match"])}) for row in rows]
            except (OSError, ValueError, KeyError, TypeError):
                raise BadInput(str(self._path), "", "a file that was not written by `greylag import`", "another --out is needed") from None

    def known(self, source: str, way: str, match: tuple[str, ...], step_ms: int) -> Asked | None:
        """The newest import of the same source."""
        same = [e for e in self.entries if (e.source, e.match, e.step_ms) == (source, match, step_ms) and way in ("auto", e.way)]
        return same[-1] if same else None

    def put(self, entry: Asked) -> None:
        """Adds an import, or its later end; written as a whole."""
        self.entries = [*(e for e in self.entries if e.id != entry.id), entry]
        write_whole(self._path, json.dumps({"imports": [dataclasses.asdict(e) for e in self.entries]}, indent=1) + "\n")


def _times(options: ImportOptions, before: Asked | None, done: Callable[[Asked], int | None]) -> tuple[int, int]:
    """(start, end): as given, else those of the same import before, else the last 30 days.

    A finished import without an --end goes on to now.
    """
    now = options.now_ms
    end = moment(options.end, "--end", now) if options.end is not None else None
    start = moment(options.start, "--start", now) if options.start is not None else None
    if before is not None and (start is None or re.fullmatch(r"-?\d+[a-z].*", options.start or "")):
        start = before.start
        reached = done(before)
        if end is None and (reached is None or reached < before.end):
            end = before.end
    end = now if end is None else end
    start = end - DEFAULT_SPAN_MS if start is None else start
    if start >= end:
        raise BadInput("--start", "", rfc3339(start), f"a time before the end, {rfc3339(end)}, is needed")
    return start, end


# --- running ----------------------------------------------------------------------------------------------------------
class Import:
    """One run. say: gets lines for people; progress: lines about how far it is."""

    def __init__(self, options: ImportOptions, progress: Say | None) -> None:
        self._options = options
        self._progress = progress
        self._folder = Path(options.out)
        self._told = monotonic_seconds()
        self.summary: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Imports and gives the summary. Raises BadInput, Unavailable, GreylagError."""
        options = self._options
        check_options(options)
        if options.format != "loki":
            _selectors(options)
        for text, where in ((options.start, "--start"), (options.end, "--end")):
            if text is not None:
                moment(text, where, options.now_ms)
        duration_ms(options.step, "--step")
        if options.inventory is not None and not Path(options.inventory).is_file():
            raise BadInput("--inventory", "", options.inventory, "an existing file is needed")
        file = self._folder / FILE_NAME
        existed = file.exists()
        if existed and not (self._folder / LEDGER).exists():
            raise BadInput("--out", "", options.out, f"a folder without another's {FILE_NAME} is needed")
        ledger = Ledger(self._folder)
        store: DuckStore | None = None
        try:
            if options.url is not None:
                server = Server(options.url, access_of(options), time.sleep)
                try:
                    reader = past_of(server, options.format, duration_ms(options.step, "--step"))
                    store = self._open(file)
                    if isinstance(reader, Loki):
                        self._from_loki(server, reader, store, ledger)
                    else:
                        self._from_server(server, reader, _selectors(options), store, ledger)
                finally:
                    server.close()
            if options.files:
                store = store or self._open(file)
                self._from_files(store, ledger)
            assert store is not None
            return self._finish(store)
        except BaseException:
            if store is not None:
                nothing = not existed and not store.stats()["samples"] and not store.stats()["events"]
                store.close()
                store = None
                if nothing:  # nothing is left behind by a run that brought nothing
                    for name in (FILE_NAME, f"{FILE_NAME}.wal", LEDGER):
                        (self._folder / name).unlink(missing_ok=True)
            raise
        finally:
            if store is not None:
                store.close()

    def _open(self, file: Path) -> DuckStore:
        self._folder.mkdir(parents=True, exist_ok=True)
        return DuckStore(file, retention_ms=FOR_EVER_MS)

    def _finish(self, store: DuckStore) -> dict[str, Any]:
        stats = store.stats()
        if self._options.inventory is not None and not self._options.files:
            keep_inventory(self._folder, Path(self._options.inventory), ())
        self.summary |= {"out": self._options.out, "series": stats["series"], "samples": stats["samples"], "events": stats["events"]}
        return self.summary

    # --- a server -----------------------------------------------------------------------------------------------------
    def _from_server(self, server: Server, reader: HistoryReader, matches: Sequence[Any], store: DuckStore, ledger: Ledger) -> None:
        step = 0 if reader.exact else duration_ms(self._options.step, "--step")
        asked, begin = self._begin(server, reader.way, tuple(self._options.match or (EVERYTHING,)), step, store, ledger)
        start, end = asked.start, asked.end
        history = History(server, reader, matches, Mapper(wiring.sources()), types_of(server), asked.worker)
        what = build_of(server) or "the server"
        self._tell(f"reading {what} by {reader.way} from {rfc3339(begin)} to {rfc3339(end)}", always=True)
        for batch in history.batches(start, begin, end):
            store.append([batch])
            store.seal()
            done = (batch.watermark + 1 - start) / max(1, end + 1 - start)
            self._tell(f"read to {rfc3339(batch.watermark)} ({done:.0%}): {history.series} series, {history.samples} samples")
        if not history.samples and begin == start:
            raise BadInput(server.url, "", f"nothing from {rfc3339(start)} to {rfc3339(end)}",
                           f"a time and selectors are needed for which it has samples (asked: {', '.join(asked.match)})")
        self.summary |= {"from": server.url, "way": reader.way, "start": rfc3339(start), "end": rfc3339(end),
                         "read": history.samples}
        if history.nameless:
            self._tell(f"{history.nameless} pieces of series without a name were passed over", always=True)

    def _begin(self, server: Server, way: str, texts: tuple[str, ...], step: int, store: DuckStore, ledger: Ledger) -> tuple[Asked, int]:
        """(what is asked for, the time from which on it is not stored yet), kept in the ledger."""
        marks = store.watermarks()
        start, end = _times(self._options, ledger.known(server.url, way, texts, step), lambda e: marks.get(e.worker))
        key = hashlib.sha256(json.dumps([server.url, way, texts, step, start]).encode()).hexdigest()[:12]
        asked = Asked(key, server.url, way, texts, step, start, end)
        ledger.put(asked)
        return asked, max(start, marks.get(asked.worker, start - 1) + 1)

    def _from_loki(self, server: Server, loki: Loki, store: DuckStore, ledger: Ledger) -> None:
        options = self._options
        if not options.match:
            end = options.now_ms if options.end is None else moment(options.end, "--end", options.now_ms)
            names = ", ".join(loki.label_names(end - DEFAULT_SPAN_MS, end)[:MOST_LABELS])
            raise BadInput("--match", "", "no selector of streams", 'one is needed, such as \'{app="kernel"}\'' +
                           (f"; the labels of this Loki are: {names}" if names else ""))
        asked, begin = self._begin(server, loki.way, options.match, 0, store, ledger)
        start, end = asked.start, asked.end
        everything = wiring.sources()
        readers = {name: one for name, one in everything.items() if one.parse_line is not None}
        history = LogHistory(server, loki, options.match, readers, Mapper(everything), LogNames(options.log_names), asked.worker)
        self._tell(f"reading lines of Loki from {rfc3339(begin)} to {rfc3339(end)}", always=True)
        known = Known(store)
        for batch in history.batches(start, begin, end):
            store.append([dataclasses.replace(batch, events=known.unseen(batch.events))])
            store.seal()
            done = (batch.watermark + 1 - start) / max(1, end + 1 - start)
            self._tell(f"read to {rfc3339(batch.watermark)} ({done:.0%}): {history.lines} lines, {history.events} events")
        others = history.counts["other_log"]
        if begin == start and others == history.lines:
            raise BadInput(server.url, "", f"no line of a kernel's or a trainer's log from {rfc3339(start)} to {rfc3339(end)}",
                           "other selectors or times are needed" if not others else f"--log-names with a group (?P<node>...) or "
                           f"(?P<job>...) says whose the {others} lines are that came: their labels are {history.stranger}")
        if others:
            self._tell(f"{others} lines are of no log that is read here: {history.stranger}", always=True)
        self.summary |= {"from": server.url, "way": loki.way, "start": rfc3339(start), "end": rfc3339(end), "lines": history.lines,
                         "lines_passed_over": others, "read": history.readings}

    # --- files --------------------------------------------------------------------------------------------------------
    def _from_files(self, store: DuckStore, ledger: Ledger) -> None:
        options = self._options
        now = options.now_ms
        start = -(2**62) if options.start is None else moment(options.start, "--start", now)
        end = 2**62 if options.end is None else moment(options.end, "--end", now)
        if start >= end:
            raise BadInput("--start", "", rfc3339(start), f"a time before the end, {rfc3339(end)}, is needed")
        asked = Files(options.files, options.format, options.match, start, end, options.inventory, options.log_names, options.zone,
                      options.jobs_by, options.url is None)
        work = FileImport(asked, _selectors(options), self._folder, self._tell)
        work.run(store, lambda key: ledger.put(Asked(key, ", ".join(options.files), "files", options.match, 0, max(start, 0),
                                                     ledger_end(end))))
        self.summary |= {**work.summary, "read": self.summary.get("read", 0) + work.read}

    def _tell(self, text: str, always: bool = False) -> None:
        if self._progress is not None and (always or monotonic_seconds() - self._told > PROGRESS_SECONDS):
            self._told = monotonic_seconds()
            self._progress(text)


def _selectors(options: ImportOptions) -> tuple[Any, ...]:
    """The selectors of series. Raises BadInput."""
    return tuple(read_selector(text) for text in (options.match or (EVERYTHING,)))


def past_of(server: Server, way: str, step_ms: int) -> HistoryReader | Loki:
    """How the server's past can be read: of samples, else of lines. Raises BadInput, Unavailable."""
    refused: BadInput | None = None
    if way != "loki":
        try:
            return reader_of(server, way, step_ms)
        except BadInput as error:
            if way != "auto":
                raise
            refused = error
    loki = Loki(server)
    try:
        server.patiently(loki.there)
    except BadInput as error:
        raise error if refused is None or TENANT in str(error) else refused from None
    except NotThere as error:
        raise refused or BadInput(server.url, "", "no Loki", f"an address that has {LABELS} is needed ({error})") from None
    return loki


def check_options(options: ImportOptions) -> None:
    """Raises BadInput for options that do not fit together."""
    if options.format not in FORMATS:
        raise BadInput("--format", "", options.format, f"allowed are: {', '.join(FORMATS)}")
    if options.url is None and not options.files:
        raise BadInput("import", "", "neither --from nor files", READ_ME)
    if options.format in (*WAYS, "loki") and options.url is None:
        raise BadInput("--format", "", options.format, "--from URL is needed with it")
    if options.format in OF_FILES and options.url is not None:
        raise BadInput("--format", "", options.format, "a file, or - for standard input, is needed in place of --from")
    if options.jobs_by not in ("id", "name"):
        raise BadInput("--jobs-by", "", options.jobs_by, "allowed are: id, name")
    LogNames(options.log_names)
    zone_of(options.zone)
    if Path(options.out).exists() and not Path(options.out).is_dir():
        raise BadInput("--out", "", options.out, "a folder is needed")
    if options.url is not None:
        check_url(options.url)
    else:
        given = [n for n, v in (("--token-file", options.token_file), ("--user", options.user), ("--ca-file", options.ca_file)) if v]
        if given:
            raise BadInput(given[0], "", "no --from", "credentials are for servers")


def import_history(options: ImportOptions, progress: Say | None = None) -> dict[str, Any]:
    """Imports, and gives the summary: {from, way, start, end, read, out, series, samples, events}.

    Raises BadInput, Unavailable or GreylagError, each one sentence; what was stored until then stays.
    """
    if not options.now_ms:
        options = dataclasses.replace(options, now_ms=wall_ms())
    return Import(options, progress).run()


def import_command(options: ImportOptions, as_json: bool) -> int:
    """Runs the import with its progress on stderr and the summary on stdout."""

    def progress(text: str) -> None:
        print(text, file=sys.stderr)

    try:
        summary = import_history(options, progress)
    except KeyboardInterrupt:
        raise GreylagError("ended; the same command goes on where this one ended") from None
    if as_json:
        print(json.dumps(summary))
        return 0
    if "jobs" in summary:
        print(f"{summary['jobs']} jobs in {summary['job_runs']} runs")
    print(f"{summary['read']} samples read; {summary['out']} holds {summary['series']} series and {summary['events']} events")
    print(f"next: greylag replay {summary['out']}")
    return 0
