"""The one connection to DuckDB: write transactions one at a time, reads with a cursor of their own and a deadline."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from core.errors import GreylagError, Unavailable
from pipeline.store.schema import APPEND_ONLY, LEAST_LOG, connect, database_file, first_line, prepare

DEADLINE_SECONDS = 10.0
MEMORY_LIMIT = "1GB"
THREADS = 2
FEW_ROWS = 16
CHECKPOINT_SPARE = 4 * 1024 * 1024
# The log may hold a dozen readings of each series, between LEAST_LOG and this.
LOG_BYTES_A_SERIES = 100
MOST_LOG = 256 << 20
CACHE_LIMIT = "32MB"  # of pages that are kept between queries: appends need the newest of each table, some 20 MB


class Database:
    """path: the database file, or the folder for `greylag.duckdb`, or None for a store in memory.

    One thread writes at a time (a lock sees to it); any thread may read. A read fetches all of its answer and ends its
    transaction. Raises BadInput where the file cannot be opened: another process holds it, it is no DuckDB file, its
    schema is newer than this program.
    """

    def __init__(self, path: Path | str | None = None, memory_limit: str = MEMORY_LIMIT, threads: int = THREADS,
                 deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.file = None if path is None else database_file(Path(path))
        self.where = "the store in memory" if self.file is None else str(self.file)
        self.deadline_seconds = deadline_seconds
        self._write_lock = threading.RLock()
        self._cursor_lock = threading.Lock()
        self._names = itertools.count()
        self._closed = False
        self._readers = 0
        self._memory_limit = memory_limit
        self._log = LEAST_LOG
        self._root = connect(self.file, memory_limit, threads)
        try:
            self._writer = self._root.cursor()
            prepare(self._writer, self.where)
        except BaseException:
            self._root.close()
            raise

    def close(self) -> None:
        """Writes everything into the file and lets it go. Safe to call twice."""
        with self._write_lock, self._cursor_lock:
            if self._closed:
                return
            self._closed = True
            if self._room():
                with contextlib.suppress(duckdb.Error):  # an open reader: the WAL keeps what is not in the file yet
                    self._writer.execute("CHECKPOINT")
            self._writer.close()
            self._root.close()

    # --- writing ------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A write transaction: committed at the end of the block, or nothing of it is. Raises GreylagError."""
        with self._write_lock:
            if self._closed:
                raise GreylagError(f"{self.where} is closed")
            try:
                self._writer.execute("BEGIN")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(duckdb.Error):
                    self._writer.execute("ROLLBACK")
                self._rolled_back()
                if isinstance(error, Exception) and not isinstance(error, GreylagError):
                    raise GreylagError(f"{self.where} could not commit ({first_line(error)})") from error
                raise

    def _rolled_back(self) -> None:
        """What is kept in memory may be ahead of the database now: subclasses read it anew."""

    def insert(self, cursor: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, where: str = "") -> None:
        """Appends an Arrow table whose columns stand in the table's order. where: a condition over `incoming`."""
        # DuckDB finds `rows` by its name in this frame: that costs a third less than registering a view of it.
        cursor.execute(f"INSERT INTO {table} SELECT * FROM rows AS incoming {where}")

    @contextlib.contextmanager
    def registered(self, cursor: duckdb.DuckDBPyConnection, rows: pa.Table) -> Iterator[str]:
        """The name under which the cursor sees an Arrow table."""
        name = f"arrow_{next(self._names)}"
        cursor.register(name, rows)
        try:
            yield name
        finally:
            with contextlib.suppress(duckdb.Error):
                cursor.unregister(name)

    def put(self, cursor: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, tuple[pa.DataType, Sequence[Any]]],
            key: str | None = None) -> None:
        """Writes rows given as columns. key: the column by which they replace older rows (None = they are appended).
        Raises GreylagError for a key in a table that is only ever added to."""
        if key is not None and table in APPEND_ONLY:
            raise GreylagError(f"{self.where}: rows of {table} are never replaced")
        if not any(len(values) for _, values in columns.values()):
            return
        rows = pa.table({name: pa.array(list(values), kind) for name, (kind, values) in columns.items()})
        if rows.num_rows <= FEW_ROWS and not any(pa.types.is_nested(kind) for kind, _ in columns.values()):
            self._put_few(cursor, table, rows, key)
            return
        with self.registered(cursor, rows) as name:
            if key is not None:
                cursor.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {name})")
            cursor.execute(f"INSERT INTO {table} SELECT * FROM {name}")

    @staticmethod
    def _put_few(cursor: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, key: str | None) -> None:
        """A few rows as parameters: registering an Arrow table costs two changes of the catalogue, more than the rows."""
        if key is not None:
            keys = rows.column(key).to_pylist()
            cursor.execute(f"DELETE FROM {table} WHERE {key} IN ({', '.join('?' * len(keys))})", keys)
        one = f"({', '.join('?' * rows.num_columns)})"
        values = [value for row in zip(*(c.to_pylist() for c in rows.columns), strict=True) for value in row]
        cursor.execute(f"INSERT INTO {table} VALUES {', '.join([one] * rows.num_rows)}", values)

    def checkpoint(self) -> bool:
        """Moves the write-ahead log into the file. False where a reader is open, or the disk has no room for it: try again
        later, it is never forced."""
        with self._write_lock:
            if not self._room():
                return False
            try:
                self._writer.execute("CHECKPOINT")
            except duckdb.Error:
                return False
            return True

    def fit_log(self, series: int) -> None:
        """Lets the write-ahead log grow with the number of series before DuckDB moves it into the file by itself. Each time it
        packs the last, part-filled stretch of every table anew: of a million series that is a quarter of what their samples cost
        at 32 MB. It is read again at the next start (some 0.1 s for each 10 MB), and stays in memory until then."""
        wanted = LEAST_LOG
        while wanted < MOST_LOG and wanted < LOG_BYTES_A_SERIES * series:
            wanted *= 2
        if wanted == self._log:
            return
        with self._write_lock:
            if self._closed:
                return
            try:
                self._writer.execute(f"SET checkpoint_threshold = '{wanted >> 20}MiB'")
            except duckdb.Error as error:
                raise GreylagError(f"{self.where} does not take a longer log ({first_line(error)})") from error
            self._log = wanted

    def trim_cache(self) -> bool:
        """Gives back pages of the file that are kept only because memory_limit has room for them: all that was ever written,
        up to that limit. The system's own cache has them still. False where a reader is at work, which may need that room."""
        with self._write_lock, self._cursor_lock:
            if self._closed or self._readers or self.file is None:
                return False
            try:
                self._writer.execute(f"SET memory_limit = '{CACHE_LIMIT}'")
            except duckdb.Error:  # more is in use than that: all else has been given back
                return False
            finally:
                self._writer.execute(f"SET memory_limit = '{self._memory_limit}'")
            return True

    def _room(self) -> bool:
        """Whether the disk has room for a checkpoint: one that finds none makes DuckDB refuse all further work."""
        if self.file is None:
            return True
        try:
            disk = os.statvfs(self.file.parent)
            log = self.file.with_name(self.file.name + ".wal")
            return disk.f_bavail * disk.f_frsize >= CHECKPOINT_SPARE + 2 * (log.stat().st_size if log.exists() else 0)
        except OSError:
            return True

    # --- reading ------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def reading(self, deadline_seconds: float | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of this call's own. Raises Unavailable past the deadline, GreylagError for other failures."""
        seconds = self.deadline_seconds if deadline_seconds is None else deadline_seconds
        with self._cursor_lock:
            if self._closed:
                raise GreylagError(f"{self.where} is closed")
            cursor = self._root.cursor()
            self._readers += 1
        watch = threading.Timer(seconds, cursor.interrupt)
        watch.daemon = True
        watch.start()
        try:
            yield cursor
        except duckdb.InterruptException:
            raise Unavailable(f"the query took longer than {seconds:g} s") from None
        except duckdb.OutOfMemoryException:
            raise Unavailable("the query needs more memory than the store may use") from None
        finally:
            watch.cancel()
            cursor.close()
            with self._cursor_lock:
                self._readers -= 1

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query. Raises Unavailable or GreylagError."""
        try:
            with self.reading() as cursor:
                return cursor.execute(sql, list(parameters)).fetchall()
        except duckdb.Error as error:
            raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
