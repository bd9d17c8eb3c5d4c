"""Whether a store is whole: manifest against files, tables against catalogue. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from core.errors import BadInput
from pipeline.store.audit import broken_seals
from pipeline.store.database import Database
from pipeline.store.kinds import LONG
from pipeline.store.schema import database_file, first_line
from pipeline.store.segments import FOLDER, RAW, Segment, Segments

# Each gives the number of rows that are wrong.
RULES = (
    ("series with the id of another", "SELECT count(*) - count(DISTINCT id) FROM series"),
    ("series of an entity that does not exist",
     "SELECT count(*) FROM series WHERE entity IS NOT NULL AND entity NOT IN (SELECT id FROM entities)"),
    ("series in a column that their kind does not have",
     "SELECT count(*) FROM series s JOIN entities e ON s.entity = e.id WHERE NOT EXISTS (SELECT 1 FROM kind_columns c"
     " WHERE c.kind = e.kind AND c.idx = s.col)"),
    ("series that share a place", "SELECT count(*) - count(DISTINCT (entity, col)) FROM series WHERE entity IS NOT NULL"),
    ("long series without a name", "SELECT count(*) FROM series WHERE entity IS NULL AND name IS NULL"),
    ("entities of a kind that does not exist", "SELECT count(*) FROM entities WHERE kind NOT IN (SELECT id FROM kinds)"),
    ("layouts with series that do not exist",
     "SELECT count(DISTINCT id) FROM (SELECT id, unnest(series) AS one FROM layouts) WHERE one NOT IN (SELECT id FROM series)"),
)


def verify(path: Path) -> list[str]:
    """One line for each problem of the store at `path` (its file or folder). Raises BadInput where there is none, or
    where another process holds it."""
    file = database_file(path)
    if not file.is_file():
        raise BadInput(str(path), "", "no store", "the path of a greylag.duckdb of a stopped Greylag is needed")
    database = Database(file)
    try:
        segments = Segments(file.parent / FOLDER)
        with database.reading(3600.0) as cursor:
            segments.load(cursor)
            return [*_files(segments), *_tables(cursor, segments), *_catalogue(cursor), *broken_seals(cursor)]
    finally:
        database.close()


def _files(segments: Segments) -> Iterator[str]:
    assert segments.folder is not None
    yield from (f"{s.file}: the manifest names it, and it is not there" for s in segments.missing)
    yield from (f"{p.name}: a file that the manifest does not name" for p in segments.orphans())
    for one in segments.sealed:
        try:
            yield from _file(segments.folder / one.file, one)
        except (OSError, pa.ArrowException) as error:
            yield f"{one.file}: cannot be read ({first_line(error)})"


def _file(path: Path, one: Segment) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        meta = file.metadata
        if meta.num_rows != one.rows:
            yield f"{one.file}: {meta.num_rows} rows, the manifest says {one.rows}"
        if path.stat().st_size != one.size:
            yield f"{one.file}: {path.stat().st_size} bytes, the manifest says {one.size}"
        fixed = 2 if one.tier == RAW else 3
        if meta.num_columns - fixed != one.columns:
            yield f"{one.file}: {meta.num_columns - fixed} value columns, the manifest says {one.columns}"
        if one.tier != RAW or not meta.num_rows:
            return
        times = [file.read_row_group(i, columns=["at_ms"]).column(0) for i in range(meta.num_row_groups)]
        low = min(int(pc.min(t).as_py()) for t in times)
        high = max(int(pc.max(t).as_py()) for t in times)
        if (low, high) != (one.first_ms, one.last_ms):
            yield f"{one.file}: samples from {low} to {high} ms, the manifest says {one.first_ms} to {one.last_ms}"


def _tables(cursor: duckdb.DuckDBPyConnection, segments: Segments) -> Iterator[str]:
    widths = dict(cursor.execute("SELECT kind, count(*) FROM kind_columns WHERE kind >= 0 GROUP BY kind").fetchall())
    for part in segments.parts:
        known = "SELECT id FROM series" if part.kind == LONG else f"SELECT id FROM entities WHERE kind = {part.kind}"
        lost = cursor.execute(f"SELECT count(*) FROM {part.table} WHERE {part.key} NOT IN ({known})").fetchall()[0][0]
        if lost:
            yield f"{part.name}: {lost} rows of {'series' if part.kind == LONG else 'entities'} that the catalogue does not know"
        if part.kind != LONG and segments.columns[part] > widths.get(part.kind, 0):
            yield f"{part.name}: {segments.columns[part]} value columns, its kind has {widths.get(part.kind, 0)}"
        low, high = part.hour * 3_600_000, (part.hour + 1) * 3_600_000
        astray = cursor.execute(f"SELECT count(*) FROM {part.table} WHERE at_ms < {low} OR at_ms >= {high}").fetchall()[0][0]
        if astray:
            yield f"{part.name}: {astray} rows of another hour"


def _catalogue(cursor: duckdb.DuckDBPyConnection) -> Iterator[str]:
    for what, sql in RULES:
        wrong = cursor.execute(sql).fetchall()[0][0]
        if wrong:
            yield f"catalogue: {wrong} {what}"
