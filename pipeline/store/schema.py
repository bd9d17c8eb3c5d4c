"""The tables of the store, how its file is opened, and what is said when it cannot be.

Times are BIGINT milliseconds (`..._ms`). No sample table has an index or a key: one writer keeps them consistent.
Records are stored as JSON text made by `pipeline.store.codec` beside the columns that people filter on.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb

from core.errors import BadInput, GreylagError
from core.types import SignalRef
from pipeline.store.codec import decode, pack

SCHEMA_VERSION = 2
FILE_NAME = "greylag.duckdb"
# Files that DuckDB 1.5 can still read: a step back to the older release loses nothing.
STORAGE_VERSION = "v1.5.0"
LEAST_LOG = 32 << 20  # bytes of the write-ahead log before DuckDB moves it into the file by itself

# Version 2. kinds, columns, entities and series are the catalogue (`pipeline.store.kinds`): a column of kind -1 says that
# the metric goes to the long table; a series without an entity is a long one. readings: newest readings of targets that
# their rows in open hours do not tell. moves: where older rows of a series lie that another target took over.
CATALOGUE = (
    "CREATE TABLE kinds (id SMALLINT, domain VARCHAR, keys VARCHAR)",
    "CREATE TABLE kind_columns (kind SMALLINT, idx SMALLINT, name VARCHAR, type VARCHAR, keys VARCHAR, pivots VARCHAR)",
    "CREATE TABLE entities (id UINTEGER, kind SMALLINT, target_id VARCHAR, labels VARCHAR, first_ms BIGINT, last_ms BIGINT)",
    "CREATE TABLE series (id UINTEGER, entity INTEGER, col SMALLINT, target_id VARCHAR, first_ms BIGINT, last_ms BIGINT,"
    " name VARCHAR, labels VARCHAR, type VARCHAR)",
    "CREATE TABLE moves (series UINTEGER, entity UINTEGER, until_ms BIGINT)",
    "CREATE TABLE readings (target_id VARCHAR, at_ms BIGINT, wide UINTEGER[], tall UINTEGER[])",
    "CREATE TABLE layouts (id VARCHAR, target_id VARCHAR, node VARCHAR, job VARCHAR, source VARCHAR, partial BOOLEAN,"
    " series UINTEGER[], types VARCHAR, names VARCHAR, signals BLOB)",
    "CREATE TABLE segments (tier VARCHAR, kind SMALLINT, hour BIGINT, hours BIGINT, part INTEGER, file VARCHAR, rows BIGINT,"
    " samples BIGINT, bytes BIGINT, first_ms BIGINT, last_ms BIGINT, columns SMALLINT)",
)
OTHERS = (
    "CREATE TABLE IF NOT EXISTS meta (key VARCHAR, value VARCHAR)",
    "CREATE TABLE IF NOT EXISTS epochs (worker VARCHAR, epoch BIGINT)",
    "CREATE TABLE IF NOT EXISTS batches (worker VARCHAR, epoch BIGINT, seq BIGINT, watermark_ms BIGINT, samples BIGINT)",
    "CREATE TABLE IF NOT EXISTS events (at_ms BIGINT, kind VARCHAR, node VARCHAR, body VARCHAR)",
    "CREATE TABLE IF NOT EXISTS findings (id VARCHAR, detector VARCHAR, fault VARCHAR, node VARCHAR, device VARCHAR,"
    " opened_ms BIGINT, updated_ms BIGINT, ended_ms BIGINT, body VARCHAR)",
    "CREATE TABLE IF NOT EXISTS incidents (id VARCHAR, fault VARCHAR, scope VARCHAR, state VARCHAR, node VARCHAR,"
    " device VARCHAR, opened_ms BIGINT, updated_ms BIGINT, resolved_ms BIGINT, body VARCHAR)",
    "CREATE TABLE IF NOT EXISTS ledger (seq BIGINT, tick_ms BIGINT, action_id VARCHAR, incident VARCHAR, kind VARCHAR,"
    " node VARCHAR, state VARCHAR, reason VARCHAR, action VARCHAR, outcome VARCHAR)",
    "CREATE TABLE IF NOT EXISTS outbox (seq BIGINT, id VARCHAR, notifier VARCHAR, incident VARCHAR, at_ms BIGINT,"
    " body VARCHAR, result VARCHAR)",
    "CREATE TABLE IF NOT EXISTS records (seq BIGINT, at_ms BIGINT, type VARCHAR, line VARCHAR)",
    "CREATE TABLE IF NOT EXISTS state (key VARCHAR, text VARCHAR)",
)
# Tables that came after version 2. An older program goes on without them, so they make no new version.
ADDED = {
    "outbox_tries": "CREATE TABLE IF NOT EXISTS outbox_tries (id VARCHAR, tries BIGINT, error VARCHAR)",
    "parts": "CREATE TABLE IF NOT EXISTS parts (key VARCHAR, kind VARCHAR, node VARCHAR, updated_ms BIGINT, incidents BIGINT,"
             " body VARCHAR)",
    "ledger_notes": "CREATE TABLE IF NOT EXISTS ledger_notes (seq BIGINT, tick_ms BIGINT, incident VARCHAR, attempt BIGINT,"
                    " event VARCHAR, actor VARCHAR, body VARCHAR)",
    "ledger_seals": "CREATE TABLE IF NOT EXISTS ledger_seals (number BIGINT, tick_ms BIGINT, last_seq BIGINT,"
                    " last_note BIGINT, seal VARCHAR)",
}
# Rows of these are never changed nor taken out: what was done stays on record.
APPEND_ONLY = frozenset({"ledger", "ledger_notes", "ledger_seals"})


def database_file(path: Path) -> Path:
    """The database file of `path`: itself where it has a suffix, else `greylag.duckdb` in the folder `path`."""
    return path if path.suffix and not path.is_dir() else path / FILE_NAME


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def connect(file: Path | None, memory_limit: str, threads: int) -> duckdb.DuckDBPyConnection:
    """A read-write connection to `file` (None = in memory). Raises BadInput where the file cannot be opened."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        # A checkpoint packs the last row group of each table anew: at DuckDB's own 16 MB that is half of what an append
        # costs. What the log holds is read again at the next start, some 0.1 s for each 10 MB.
        "checkpoint_threshold": f"{LEAST_LOG >> 20}MiB",
        "threads": threads,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if file is not None:
        config["storage_compatibility_version"] = STORAGE_VERSION
        config["temp_directory"] = str(file.parent / "tmp")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(str(file), "", error.strerror or "an error", "a folder that can be written is needed") from None
    try:
        return duckdb.connect(":memory:" if file is None else str(file), config=config)
    except duckdb.Error as error:
        raise _cannot_open(str(file), error) from None


def _cannot_open(file: str, error: duckdb.Error) -> BadInput:
    text = str(error)
    holder = re.search(r"held in (\S*) ?\(PID (\d+)\)", text)
    if holder or "lock on file" in text:
        who = f"process {holder[2]} ({Path(holder[1]).name})" if holder else "another process"
        return BadInput(file, "", f"a store that {who} holds", "stop that process or give another data_dir")
    if isinstance(error, duckdb.SerializationException) or "newer version" in text or "version number" in text:
        return BadInput(file, "", "a file of another DuckDB version", f"this one is {duckdb.__version__}: install the one that wrote it")
    return BadInput(file, "", first_line(error), "a DuckDB file that Greylag wrote, or a path where none exists, is needed")


def prepare(cursor: duckdb.DuckDBPyConnection, where: str) -> None:
    """Creates what is missing. Raises BadInput for a schema that is newer than this program, or for a foreign file."""
    tables = {str(row[0]) for row in cursor.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if tables and "meta" not in tables:
        raise BadInput(where, "", "a DuckDB file without Greylag's tables", "give a path of its own to the store")
    if "meta" in tables:
        row = cursor.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        cursor.fetchall()
        found = int(row[0]) if row else 0
        if found > SCHEMA_VERSION:
            allowed = f"this Greylag understands schemas up to {SCHEMA_VERSION}: install a newer Greylag"
            raise BadInput(where, "", f"a store of schema {found}", allowed)
        if found == SCHEMA_VERSION:
            _add(cursor, tables, where)
            return
        if found != 1:
            raise BadInput(where, "", f"a store of schema {found}", "a store of schema 1 or 2 is needed")
    try:
        cursor.execute("BEGIN")
        for statement in (*OTHERS, *ADDED.values()):
            cursor.execute(statement)
        if "meta" in tables:
            migrate(cursor)
        else:
            for statement in CATALOGUE:
                cursor.execute(statement)
        cursor.execute("DELETE FROM meta WHERE key = 'schema_version'")
        cursor.execute("INSERT INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
        cursor.execute("COMMIT")
    except duckdb.Error as error:
        raise GreylagError(f"{where}: the tables could not be created ({first_line(error)})") from None


def _add(cursor: duckdb.DuckDBPyConnection, tables: set[str], where: str) -> None:
    """Creates the added tables that a store of this version lacks."""
    try:
        for name, statement in ADDED.items():
            if name not in tables:
                cursor.execute(statement)
    except duckdb.Error as error:
        raise GreylagError(f"{where}: the tables could not be created ({first_line(error)})") from None


def migrate(cursor: duckdb.DuckDBPyConnection) -> None:
    """From schema 1 in the caller's transaction: all series are long ones; hours and segments stay as they are."""
    old = ("series", "layouts", "segments")
    for table in old:
        cursor.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in CATALOGUE:
        cursor.execute(statement)
    cursor.execute("INSERT INTO series SELECT id, NULL, NULL, target_id, first_ms, last_ms, name, labels, type FROM old_series")
    # The last value says whether the series had ended; the newest reading of a target is where its series stood last.
    cursor.execute("INSERT INTO readings SELECT target_id, at_ms, [], list(id ORDER BY id) FILTER (last_ms = at_ms AND"
                   " last_value IS NOT NULL) FROM old_series JOIN (SELECT target_id AS t, max(last_ms) AS at_ms FROM old_series"
                   " GROUP BY target_id) ON t = target_id WHERE at_ms IS NOT NULL GROUP BY target_id, at_ms")
    rows = cursor.execute("SELECT id, target_id, node, job, source, series, signals FROM old_layouts").fetchall()
    for number, target_id, node, job, source, series, signals in rows:
        refs = [decode(SignalRef, text) for text in json.loads(signals)]
        names, packed = pack(refs)
        cursor.execute("INSERT INTO layouts VALUES (?, ?, ?, ?, ?, false, ?, NULL, ?, ?)",
                       [number, target_id, node, job, source, series, names, packed])
    cursor.execute("INSERT INTO segments SELECT 'raw', -1, hour, 1, part, file, rows, rows, bytes, first_ms, last_ms, 1"
                   " FROM old_segments")
    for table in old:
        cursor.execute(f"DROP TABLE old_{table}")
