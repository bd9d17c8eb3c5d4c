"""The tables of the store, how its file is opened, and what is said when it cannot be.

Times are BIGINT milliseconds (`..._ms`). No sample table has an index or a key: one writer keeps them consistent.
Records are stored as JSON text made by `pipeline.store.codec` beside the columns that people filter on.
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from core.errors import BadInput, GreylagError

SCHEMA_VERSION = 1
FILE_NAME = "greylag.duckdb"
# Files that DuckDB 1.5 can still read: a step back to the older release loses nothing.
STORAGE_VERSION = "v1.5.0"

TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key VARCHAR, value VARCHAR)",
    "CREATE TABLE IF NOT EXISTS series (id UINTEGER, name VARCHAR, labels VARCHAR, type VARCHAR, target_id VARCHAR,"
    " first_ms BIGINT, last_ms BIGINT, last_value DOUBLE)",
    "CREATE TABLE IF NOT EXISTS layouts (id VARCHAR, target_id VARCHAR, node VARCHAR, job VARCHAR, source VARCHAR,"
    " series UINTEGER[], signals VARCHAR)",
    "CREATE TABLE IF NOT EXISTS epochs (worker VARCHAR, epoch BIGINT)",
    "CREATE TABLE IF NOT EXISTS batches (worker VARCHAR, epoch BIGINT, seq BIGINT, watermark_ms BIGINT, samples BIGINT)",
    "CREATE TABLE IF NOT EXISTS segments (hour BIGINT, part INTEGER, file VARCHAR, rows BIGINT, bytes BIGINT,"
    " first_ms BIGINT, last_ms BIGINT)",
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
SAMPLE_COLUMNS = "(series_id UINTEGER, at_ms BIGINT, value DOUBLE)"


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
            return
    try:
        cursor.execute("BEGIN")
        for statement in TABLES:
            cursor.execute(statement)
        cursor.execute("DELETE FROM meta WHERE key = 'schema_version'")
        cursor.execute("INSERT INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
        cursor.execute("COMMIT")
    except duckdb.Error as error:
        raise GreylagError(f"{where}: the tables could not be created ({first_line(error)})") from None
