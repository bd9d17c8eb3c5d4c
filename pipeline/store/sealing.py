"""An hour's rows as Parquet files, sorted by entity and time, with their rollups made in the same pass.

A column whose values are all whole numbers is written as integers, delta-packed; others byte by byte (BYTE_STREAM_SPLIT);
zstd over both. Memory: one row group at a time, and DuckDB's sort within its own limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG
from pipeline.store.rollups import Buckets, roll, roll_up, stacked
from pipeline.store.segments import MINUTES, RAW, Part, Segment, sync

# Cells of a row group: coarse enough to compress, fine enough to skip by entity and to bound memory (32 MB of doubles).
GROUP_CELLS = 4_000_000
LEAST_GROUP_ROWS, MOST_GROUP_ROWS = 20_000, 250_000
READ_ROWS = 50_000
ZSTD_LEVEL = 6
# Doubles hold whole numbers up to 2**63 that 64-bit integers hold as well; a sum of an hour's values must fit too.
LARGEST_WHOLE = 2.0**63 / 2
LARGEST_SUMMED = 2.0**63 / 2 / 3_600


@dataclass(frozen=True, slots=True)
class _Shape:
    """A part's rows before they are written: rows, samples, times of the first and last; by column: whether all values
    are whole numbers, the largest magnitude, and whether it has values at all."""

    rows: int
    samples: int
    first_ms: int
    last_ms: int
    whole: tuple[bool, ...]
    largest: tuple[float, ...]
    used: tuple[bool, ...]


def seal_part(cursor: duckdb.DuckDBPyConnection, part: Part, columns: int, folder: Path, tiers: Sequence[str]) -> list[Segment]:
    """Writes a frozen part as files under their final names, on disk for good: the raw rows, and a file for each rollup
    tier (`1m`, `1h`). Until their manifest rows are committed the files mean nothing. An empty part gives none."""
    return seal_rows(cursor, part.table, part, 1, columns, folder, tiers)


def seal_rows(cursor: duckdb.DuckDBPyConnection, relation: str, part: Part, hours: int, columns: int, folder: Path,
              tiers: Sequence[str], name_of: str = "") -> list[Segment]:
    """As `seal_part`, of any relation with a part's columns. hours: that it spans."""
    shape = _look(cursor, relation, part, columns)
    if not shape.rows:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "samples" if part.kind == LONG else f"wide-{part.kind}"
    stem = f"{prefix}-{part.hour}-{part.part}"
    raw = RawFile(folder, part, name_of or f"{stem}.parquet", shape)
    summed = tuple(w and x < LARGEST_SUMMED for w, x in zip(shape.whole, shape.largest, strict=True))
    rolled = [RollupFile(folder, part, tier, f"{stem}-{tier}.parquet", summed, shape.first_ms, shape.last_ms) for tier in tiers]
    try:
        for table in _groups(cursor, relation, part, shape, columns):
            raw.write_rows(table)
            if rolled:
                minutes = roll(*_arrays(table))
                for one in rolled:
                    one.write_buckets(minutes if one.tier == MINUTES else roll_up(minutes, HOUR_MS))
        return [file.finish(part, hours) for file in (raw, *rolled)]
    finally:
        for file in (raw, *rolled):
            file.discard()


def _look(cursor: duckdb.DuckDBPyConnection, relation: str, part: Part, columns: int) -> _Shape:
    names = part.columns(columns)
    asked = ", ".join(
        f"count({c}), coalesce(bool_and({c} = trunc({c}) AND abs({c}) < {LARGEST_WHOLE!r} AND NOT ({c} = 0 AND signbit({c}::DOUBLE))),"
        f" true), max(abs({c}))" for c in names)
    row = cursor.execute(f"SELECT count(*), min(at_ms), max(at_ms){', ' + asked if asked else ''} FROM {relation}").fetchall()[0]
    counts = row[3::3]
    samples = row[0] if part.kind == LONG else sum(counts)
    return _Shape(row[0], samples, row[1] or 0, row[2] or 0, tuple(row[4::3]), tuple(x or 0.0 for x in row[5::3]),
                  tuple(n > 0 for n in counts))


def _groups(cursor: duckdb.DuckDBPyConnection, relation: str, part: Part, shape: _Shape, columns: int) -> Iterator[pa.Table]:
    """The rows, sorted, in tables of whole entities (but for one of more rows than a row group may have)."""
    cast = [f"{c}::BIGINT AS {c}" if whole else f"{c}::DOUBLE AS {c}" for c, whole in zip(part.columns(columns), shape.whole, strict=True)]
    query = cursor.sql(f"SELECT {', '.join([part.key, 'at_ms', *cast])} FROM {relation} ORDER BY {part.key}, at_ms")
    target = int(np.clip(GROUP_CELLS // max(1, columns), LEAST_GROUP_ROWS, MOST_GROUP_ROWS))
    held: list[pa.Table] = []
    rows = 0
    for batch in query.to_arrow_reader(READ_ROWS):
        held.append(pa.Table.from_batches([batch]))
        rows += batch.num_rows
        if rows < target:
            continue
        table = pa.concat_tables(held)
        keys = table.column(0).to_numpy()
        cut = int(np.searchsorted(keys, keys[-1]))
        if cut == 0:
            if rows < 4 * target:
                continue
            cut = rows
        yield table.slice(0, cut).combine_chunks()
        held, rows = [table.slice(cut)], rows - cut
    if rows:
        yield pa.concat_tables(held).combine_chunks()


def _arrays(table: pa.Table) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """(keys, times, values float64[column, row] with NaN for what is missing)."""
    values = np.full((table.num_columns - 2, table.num_rows), np.nan)
    for i, column in enumerate(table.columns[2:]):
        values[i] = column.cast(pa.float64()).to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy()
    return table.column(0).to_numpy(), table.column(1).to_numpy(), values


class _File:
    """One Parquet file, under a temporary name until it is finished."""

    def __init__(self, folder: Path, part: Part, tier: str, name: str, whole: Sequence[bool], first_ms: int, last_ms: int) -> None:
        self.tier, self.name, self.columns, self.rows, self.samples = tier, name, len(whole), 0, 0
        self.path, self.temporary = folder / name, folder / f"{name}.tmp"
        self.first_ms, self.last_ms = first_ms, last_ms
        fields = [(part.key, pa.uint32()), ("at_ms", pa.int64())]
        fields += [(c, pa.int64() if w else pa.float64()) for c, w in zip(part.columns(len(whole)), whole, strict=True)]
        sorted_by = [part.key, "at_ms"]
        encodings = {name: "BYTE_STREAM_SPLIT" if kind == pa.float64() else "DELTA_BINARY_PACKED" for name, kind in fields}
        if tier != RAW:
            fields.insert(0, ("stat", pa.uint8()))
            sorted_by.append("stat")
            encodings["stat"] = "PLAIN"
        self.schema = pa.schema(fields)
        self._file: pq.ParquetWriter | None = pq.ParquetWriter(
            self.temporary, self.schema, version="2.6", compression="zstd", compression_level=ZSTD_LEVEL, use_dictionary=False,
            column_encoding=encodings, data_page_version="2.0", write_statistics=sorted_by, store_schema=False)

    def write(self, table: pa.Table, group: int | None = None) -> None:
        """Row groups of `group` rows each (None = all rows are one)."""
        assert self._file is not None
        self._file.write_table(table, row_group_size=group or max(1, table.num_rows))
        self.rows += table.num_rows

    def finish(self, part: Part, hours: int) -> Segment:
        """Makes the file durable under its final name."""
        assert self._file is not None
        self._file.close()
        self._file = None
        sync(self.temporary)
        os.replace(self.temporary, self.path)
        sync(self.path.parent)
        return Segment(self.tier, part.kind, part.hour, hours, part.part, self.name, self.rows, self.samples,
                       self.path.stat().st_size, self.first_ms, self.last_ms, self.columns)

    def discard(self) -> None:
        """Closes what was not finished, and takes it away."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.temporary.unlink(missing_ok=True)


class RawFile(_File):
    """A file of samples."""

    def __init__(self, folder: Path, part: Part, name: str, shape: _Shape) -> None:
        super().__init__(folder, part, RAW, name, shape.whole, shape.first_ms, shape.last_ms)
        self.samples = shape.samples

    def write_rows(self, table: pa.Table) -> None:
        """A row group of sorted rows."""
        self.write(table.cast(self.schema))


class RollupFile(_File):
    """A file of buckets. whole: by column, whether all its statistics are whole numbers."""

    def write_buckets(self, buckets: Buckets) -> None:
        """A row group for each statistic."""
        columns = stacked(buckets)
        arrays = [pa.array(column) for column in columns[:3]]
        for column, kind in zip(columns[3:], self.schema.types[3:], strict=True):
            missing = np.isnan(column)
            if kind == pa.int64():
                arrays.append(pa.array(np.where(missing, 0, column).astype(np.int64), mask=missing))
            else:
                arrays.append(pa.array(column, mask=missing))
        self.samples += buckets.cells
        if len(buckets.keys):
            self.write(pa.Table.from_arrays(arrays, schema=self.schema), len(buckets.keys))
