"""Where samples lie: one table for each open hour, and sealed Parquet segments that the manifest names.

An hour's table has parts: sealing freezes a part, so that a late sample opens the next one and none is lost. A file
counts only once the manifest has its row; what the manifest does not name is an orphan and is deleted at the next start.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import duckdb

from core.errors import GreylagError
from pipeline.store.ingest import HOUR_MS
from pipeline.store.schema import SAMPLE_COLUMNS

FOLDER = "segments"
# DuckDB's own row group: fine enough to skip by series id, coarse enough to compress (performance.md §4).
ROW_GROUP_ROWS = 122_880
SEAL_GRACE_MS = 600_000  # samples this late still find their hour open
PREFIX = "samples_"


@dataclass(frozen=True, slots=True)
class Part:
    """A table with samples of one hour."""

    hour: int
    part: int

    @property
    def table(self) -> str:
        return f'"{PREFIX}{self.hour}_{self.part}"'


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed file: rows of one hour, sorted by series and time. file: its name in the segment folder."""

    hour: int
    part: int
    file: str
    rows: int
    size: int
    first_ms: int
    last_ms: int


class Segments:
    """The open hours and the manifest, as committed. folder: None for a store in memory, which is never sealed."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.parts: list[Part] = []
        self.frozen: set[Part] = set()
        self.sealed: list[Segment] = []
        self.missing: list[Segment] = []
        self._doomed: list[Path] = []

    def load(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Reads what the database holds. A segment whose file is gone is set apart, and shows in the statistics."""
        names = cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE starts_with(table_name, ?)", [PREFIX]).fetchall()
        self.parts = sorted((Part(*map(int, str(n).removeprefix(PREFIX).split("_"))) for (n,) in names),
                            key=lambda p: (p.hour, p.part))
        self.frozen &= set(self.parts)
        rows = cursor.execute("SELECT hour, part, file, rows, bytes, first_ms, last_ms FROM segments"
                              " ORDER BY hour, part").fetchall()
        everything = [Segment(*row) for row in rows]
        here = {s for s in everything if self.folder is not None and (self.folder / s.file).is_file()}
        self.sealed = [s for s in everything if s in here]
        self.missing = [s for s in everything if s not in here]

    def sweep(self) -> int:
        """Deletes files that the manifest does not name; only at the start, before anything is written."""
        if self.folder is None or not self.folder.is_dir():
            return 0
        named = {s.file for s in self.sealed}
        orphans = [p for p in self.folder.iterdir() if p.is_file() and p.name not in named]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    # --- open hours ---------------------------------------------------------------------------------------------------
    def table_for(self, cursor: duckdb.DuckDBPyConnection, hour: int) -> str:
        """The table that takes samples of an hour; created, in the caller's transaction, where there is none."""
        for one in self.parts:
            if one.hour == hour and one not in self.frozen:
                return one.table
        used = [s.part for s in (*self.sealed, *self.missing) if s.hour == hour]
        used += [p.part for p in self.parts if p.hour == hour]
        fresh = Part(hour, max(used, default=-1) + 1)
        cursor.execute(f"CREATE TABLE {fresh.table} {SAMPLE_COLUMNS}")
        self.parts = [*self.parts, fresh]
        return fresh.table

    def sources(self, start: int, end: int) -> list[str]:
        """SQL for the rows that may lie between start and end (ms), one SELECT a source."""
        hours = range(start // HOUR_MS, end // HOUR_MS + 1)
        out = [f"SELECT series_id, at_ms, value FROM {p.table}" for p in self.parts if p.hour in hours]
        files = [str(self.folder / s.file) for s in self.sealed
                 if self.folder is not None and s.last_ms >= start and s.first_ms <= end]
        if files:
            listed = ", ".join("'" + f.replace("'", "''") + "'" for f in files)
            out.append(f"SELECT series_id, at_ms, value FROM read_parquet([{listed}], hive_partitioning = false)")
        return out

    # --- sealing ------------------------------------------------------------------------------------------------------
    def due(self, newest_ms: int) -> list[Part]:
        """Parts of hours that ended more than the grace before the newest sample."""
        if self.folder is None:
            return []
        return [p for p in self.parts if (p.hour + 1) * HOUR_MS + SEAL_GRACE_MS <= newest_ms and p not in self.frozen]

    def write(self, cursor: duckdb.DuckDBPyConnection, part: Part) -> Segment | None:
        """Writes a frozen part as a file under its final name, on disk for good; None for an empty part.

        Until its manifest row is committed the file means nothing.
        """
        if self.folder is None:
            raise GreylagError("a store in memory has no segments")
        row = cursor.execute(f"SELECT count(*), min(at_ms), max(at_ms) FROM {part.table}").fetchall()[0]
        if not row[0]:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"samples-{part.hour}-{part.part}.parquet"
        final, temporary = self.folder / name, self.folder / f"{name}.tmp"
        quoted = str(temporary).replace("'", "''")
        cursor.execute(
            f"COPY (SELECT series_id, at_ms, value FROM {part.table} ORDER BY series_id, at_ms) TO '{quoted}' (FORMAT parquet,"
            f" PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS})").fetchall()
        sync(temporary)
        os.replace(temporary, final)
        sync(self.folder)
        return Segment(part.hour, part.part, name, int(row[0]), final.stat().st_size, int(row[1]), int(row[2]))

    def commit(self, cursor: duckdb.DuckDBPyConnection, part: Part, segment: Segment | None) -> None:
        """The manifest row and the DROP of the table, in the caller's transaction."""
        if segment is not None:
            cursor.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
                           [segment.hour, segment.part, segment.file, segment.rows, segment.size, segment.first_ms,
                            segment.last_ms])
        cursor.execute(f"DROP TABLE {part.table}")

    def committed(self, part: Part, segment: Segment | None) -> None:
        """The transaction of `commit` is over: readers see the file from now on."""
        if segment is not None:
            self.sealed = [*self.sealed, segment]
        self.parts = [p for p in self.parts if p != part]
        self.frozen.discard(part)

    # --- retention ----------------------------------------------------------------------------------------------------
    def expired(self, horizon_ms: int) -> tuple[list[Part], list[Segment]]:
        """Whole hours that ended at or before the horizon."""
        limit = horizon_ms // HOUR_MS
        parts = [p for p in self.parts if p.hour < limit and p not in self.frozen]
        return parts, [s for s in (*self.sealed, *self.missing) if s.hour < limit]

    def dropped(self, parts: list[Part], segments: list[Segment]) -> None:
        """Their rows are gone from the database. Files go at the next round: a query may still be opening them."""
        for path in self._doomed:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._doomed = [self.folder / s.file for s in segments if self.folder is not None]
        self.parts = [p for p in self.parts if p not in parts]
        self.sealed = [s for s in self.sealed if s not in segments]
        self.missing = [s for s in self.missing if s not in segments]


def sync(path: Path) -> None:
    """Makes a file, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
