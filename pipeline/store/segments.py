"""Where samples lie: for each open hour a table of each kind, and sealed Parquet segments that the manifest names.

An hour's table has parts: sealing freezes a part, so that a late sample opens the next one and none is lost. A file
counts only once the manifest has its row; what the manifest does not name is an orphan and is deleted at the next start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG

FOLDER = "segments"
SEAL_GRACE_MS = 600_000  # samples this late still find their hour open
LONG_PREFIX, WIDE_PREFIX = "samples_", "wide_"
RAW, MINUTES, HOURS = "raw", "1m", "1h"
TIERS = (RAW, MINUTES, HOURS)


@dataclass(frozen=True, slots=True)
class Part:
    """A table with samples of one hour and kind (LONG = the long table)."""

    kind: int
    hour: int
    part: int

    @property
    def name(self) -> str:
        if self.kind == LONG:
            return f"{LONG_PREFIX}{self.hour}_{self.part}"
        return f"{WIDE_PREFIX}{self.kind}_{self.hour}_{self.part}"

    @property
    def table(self) -> str:
        return f'"{self.name}"'

    @property
    def key(self) -> str:
        """The column that rows are sorted by, before their time."""
        return "series_id" if self.kind == LONG else "entity"

    def columns(self, count: int) -> list[str]:
        """Names of the value columns."""
        return ["value"] if self.kind == LONG else [f"c{i}" for i in range(count)]

    @staticmethod
    def of(name: str) -> Part:
        """The part of a table's name."""
        if name.startswith(LONG_PREFIX):
            return Part(LONG, *map(int, name.removeprefix(LONG_PREFIX).split("_")))
        return Part(*map(int, name.removeprefix(WIDE_PREFIX).split("_")))


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed file of a kind, sorted by entity (long: series) and time. file: its name in the segment folder. hours: how
    many hours from `hour` on it may have rows of. columns: how many value columns it has. tier: raw, 1m or 1h."""

    tier: str
    kind: int
    hour: int
    hours: int
    part: int
    file: str
    rows: int
    samples: int
    size: int
    first_ms: int
    last_ms: int
    columns: int

    @property
    def row(self) -> list[object]:
        """As the manifest has it."""
        return [self.tier, self.kind, self.hour, self.hours, self.part, self.file, self.rows, self.samples, self.size,
                self.first_ms, self.last_ms, self.columns]


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows of a kind can be read. relation: SQL after FROM; columns: how many value columns it has."""

    relation: str
    columns: int


class Segments:
    """The open hours and the manifest, as committed. folder: None for a store in memory, which is never sealed.

    Lists are replaced, never changed: readers in other threads go on with the one they have.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.parts: list[Part] = []
        self.columns: dict[Part, int] = {}
        self.frozen: set[Part] = set()
        self.sealed: list[Segment] = []
        self.missing: list[Segment] = []
        self._of: dict[tuple[str, int], list[Segment]] = {}
        self._doomed: list[Path] = []

    def load(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Reads what the database holds. A segment whose file is gone is set apart, and shows in the statistics."""
        names = cursor.execute("SELECT table_name, column_count FROM duckdb_tables() WHERE starts_with(table_name, ?)"
                               " OR starts_with(table_name, ?)", [LONG_PREFIX, WIDE_PREFIX]).fetchall()
        self.columns = {Part.of(str(name)): int(count) - 2 for name, count in names}
        self.parts = sorted(self.columns, key=lambda p: (p.hour, p.kind, p.part))
        self.frozen &= set(self.parts)
        rows = cursor.execute("SELECT * FROM segments ORDER BY hour, kind, part").fetchall()
        everything = [Segment(*row) for row in rows]
        here = {p.name for p in self.folder.iterdir()} if self.folder is not None and self.folder.is_dir() else set()
        self._sealed([s for s in everything if s.file in here])
        self.missing = [s for s in everything if s.file not in here]

    def _sealed(self, segments: list[Segment]) -> None:
        by_kind: dict[tuple[str, int], list[Segment]] = {}
        for one in segments:
            by_kind.setdefault((one.tier, one.kind), []).append(one)
        self.sealed, self._of = segments, by_kind

    def sweep(self) -> int:
        """Deletes files that the manifest does not name; only at the start, before anything is written."""
        orphans = self.orphans()
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def orphans(self) -> list[Path]:
        """Files that the manifest does not name."""
        if self.folder is None or not self.folder.is_dir():
            return []
        named = {s.file for s in self.sealed}
        return sorted(p for p in self.folder.iterdir() if p.is_file() and p.name not in named)

    # --- open hours ---------------------------------------------------------------------------------------------------
    def table_for(self, cursor: duckdb.DuckDBPyConnection, kind: int, hour: int, columns: int) -> str:
        """The table that takes a kind's samples of an hour, with at least so many columns; created or widened, in the
        caller's transaction, where it has to be."""
        for one in self.parts:
            if one.hour == hour and one.kind == kind and one not in self.frozen:
                for i in range(self.columns[one], columns):
                    cursor.execute(f"ALTER TABLE {one.table} ADD COLUMN c{i} DOUBLE")
                self.columns[one] = max(columns, self.columns[one])
                return one.table
        fresh = Part(kind, hour, self.next_part(kind, hour))
        values = ", ".join(f"{name} DOUBLE" for name in fresh.columns(columns))
        cursor.execute(f"CREATE TABLE {fresh.table} ({fresh.key} UINTEGER, at_ms BIGINT, {values})")
        self.columns[fresh] = columns
        self.parts = [*self.parts, fresh]
        return fresh.table

    def next_part(self, kind: int, hour: int) -> int:
        """A part number that neither a table nor a file of the hour has."""
        used = [s.part for s in (*self.sealed, *self.missing) if s.kind == kind and s.hour <= hour < s.hour + s.hours]
        used += [p.part for p in self.parts if p.hour == hour and p.kind == kind]
        return max(used, default=-1) + 1

    def sources(self, kind: int, start: int, end: int, tier: str = RAW) -> list[Source]:
        """Where rows of a kind between start and end (ms) may lie."""
        out = []
        if tier == RAW:
            first, last = start // HOUR_MS, end // HOUR_MS
            out = [Source(p.table, self.columns[p]) for p in self.parts if p.kind == kind and first <= p.hour <= last]
        by_width: dict[int, list[str]] = {}
        for one in self._of.get((tier, kind), ()):
            if self.folder is not None and one.last_ms >= start and one.first_ms <= end:
                by_width.setdefault(one.columns, []).append(str(self.folder / one.file))
        return [*out, *(Source(parquet(files), width) for width, files in by_width.items())]

    def uncovered(self, kind: int, start: int, end: int, tier: str) -> list[Source]:
        """Where raw rows of a kind between start and end (ms) lie that no rollup of the tier was made of."""
        first, last = start // HOUR_MS, end // HOUR_MS
        out = [Source(p.table, self.columns[p]) for p in self.parts if p.kind == kind and first <= p.hour <= last]
        rolled = {hour for s in self._of.get((tier, kind), ()) for hour in range(s.hour, s.hour + s.hours)}
        for one in self._of.get((RAW, kind), ()):
            new = self.folder is not None and one.last_ms >= start and one.first_ms <= end
            if new and not rolled.issuperset(range(one.hour, one.hour + one.hours)):
                out.append(Source(parquet([str(self.folder / one.file)]), one.columns))  # type: ignore[operator]
        return out

    # --- sealing ------------------------------------------------------------------------------------------------------
    def due(self, newest_ms: int) -> list[Part]:
        """Parts of hours that ended more than the grace before the newest sample."""
        if self.folder is None:
            return []
        return [p for p in self.parts if (p.hour + 1) * HOUR_MS + SEAL_GRACE_MS <= newest_ms and p not in self.frozen]

    @staticmethod
    def enter(cursor: duckdb.DuckDBPyConnection, segments: Iterable[Segment]) -> None:
        """Manifest rows, in the caller's transaction."""
        for one in segments:
            cursor.execute(f"INSERT INTO segments VALUES ({', '.join('?' * len(one.row))})", one.row)

    @staticmethod
    def strike(cursor: duckdb.DuckDBPyConnection, segments: Sequence[Segment]) -> None:
        """Takes manifest rows out, in the caller's transaction."""
        for one in segments:
            cursor.execute("DELETE FROM segments WHERE file = ?", [one.file])

    def committed(self, part: Part, segments: Sequence[Segment]) -> None:
        """The part's manifest rows are committed and its table is gone: readers see the files from now on."""
        self._sealed([*self.sealed, *segments])
        self.parts = [p for p in self.parts if p != part]
        self.frozen.discard(part)

    def replaced(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """New files stand for the old ones, as committed."""
        gone = set(old)
        self._sealed(sorted([*(s for s in self.sealed if s not in gone), *new], key=lambda s: (s.hour, s.kind, s.part)))
        self._doom(old)

    # --- retention ----------------------------------------------------------------------------------------------------
    def expired(self, horizons: dict[str, int]) -> tuple[list[Part], list[Segment]]:
        """Whole hours that ended at or before the horizon (ms) of their tier."""
        limits = {tier: horizon // HOUR_MS for tier, horizon in horizons.items()}
        parts = [p for p in self.parts if p.hour < limits[RAW] and p not in self.frozen]
        return parts, [s for s in (*self.sealed, *self.missing) if s.hour + s.hours <= limits[s.tier]]

    def dropped(self, parts: Sequence[Part], segments: Sequence[Segment]) -> None:
        """Their rows are gone from the database."""
        gone = set(segments)
        self._doom(segments)
        self.parts = [p for p in self.parts if p not in parts]
        self._sealed([s for s in self.sealed if s not in gone])
        self.missing = [s for s in self.missing if s not in gone]

    def _doom(self, segments: Sequence[Segment]) -> None:
        # Files go at the next round: a query may still be opening them.
        self.bury()
        self._doomed = [self.folder / s.file for s in segments if self.folder is not None]

    def bury(self) -> None:
        """Deletes the files of segments that were dropped or replaced in an earlier round."""
        for path in self._doomed:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._doomed = []


def parquet(files: Sequence[str]) -> str:
    """SQL for the rows of Parquet files. Columns are matched by name and widened: an hour of whole numbers is stored so."""
    listed = ", ".join("'" + f.replace("'", "''") + "'" for f in files)
    return f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"


def sync(path: Path) -> None:
    """Makes a file, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


