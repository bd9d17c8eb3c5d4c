"""Writes the database of a stopped store anew, without the blocks that dropped hours have left, and in small blocks.

DuckDB gives a table at least one block of 256 KiB for all that it holds, and frees blocks only at the file's end. A store of few
series is then mostly air: one recording of 4,300 samples took 3.2 MB, and takes 0.26 MB in blocks of 16 KiB. The new file stands
beside the old one until every table has been counted, and takes its place by one rename; segments are not touched.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import duckdb

from core.errors import GreylagError
from pipeline.store.database import MEMORY_LIMIT, THREADS
from pipeline.store.schema import STORAGE_VERSION, connect, first_line
from pipeline.store.segments import sync

SMALL_BLOCK, USUAL_BLOCK = 16_384, 262_144
SMALL_FILE = 64 << 20  # a file beyond this wins nothing by small blocks, and reading it would cost more
ENDING = ".rewritten"


def shrink(file: Path) -> int:
    """Rewrites the file where that makes it smaller; gives the bytes that were won. Raises BadInput, GreylagError; the file stays
    as it was then."""
    before = file.stat().st_size
    beside = file.with_name(file.name + ENDING)
    beside.unlink(missing_ok=True)
    connection = connect(file, MEMORY_LIMIT, THREADS)
    try:
        connection.execute("CHECKPOINT")
        (name,) = connection.execute("SELECT current_database()").fetchone() or ("",)
        block = SMALL_BLOCK if before <= SMALL_FILE else USUAL_BLOCK
        target = str(beside).replace("'", "''")
        connection.execute(f"ATTACH '{target}' AS rewritten (BLOCK_SIZE {block}, STORAGE_VERSION '{STORAGE_VERSION}')")
        connection.execute(f'COPY FROM DATABASE "{name}" TO rewritten')
        same = _counts(connection, str(name)) == _counts(connection, "rewritten")
        connection.execute("CHECKPOINT rewritten")
        connection.execute("DETACH rewritten")
    except duckdb.Error as error:
        connection.close()
        beside.unlink(missing_ok=True)
        raise GreylagError(f"{file} could not be written anew ({first_line(error)}); it stays as it was") from error
    connection.close()
    after = beside.stat().st_size
    if not same or after >= before:
        beside.unlink()
        if not same:
            raise GreylagError(f"{file} could not be written anew (a table came out with other rows); it stays as it was")
        return 0
    sync(beside)
    os.replace(beside, file)
    with contextlib.suppress(FileNotFoundError):  # what it held is in the file: the checkpoint saw to it
        file.with_name(file.name + ".wal").unlink()
    sync(file.parent)
    return before - after


def _counts(connection: duckdb.DuckDBPyConnection, database: str) -> dict[str, int]:
    """Rows of each table."""
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [database]).fetchall()
    return {str(name): int((connection.execute(f'SELECT count(*) FROM "{database}"."{name}"').fetchone() or (0,))[0])
            for (name,) in tables}
