"""Fewer and larger files: the parts of an hour become one, and the hours of a day that is over become one file a kind.

Old files stay until the manifest names the new one; what a crash leaves behind is an orphan of the next start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import GreylagError
from pipeline.store.ingest import HOUR_MS
from pipeline.store.restore import null_mask, values_of
from pipeline.store.rollups import MINUTE_MS, STATS, Buckets, joined
from pipeline.store.schema import first_line
from pipeline.store.sealing import GROUP_CELLS, RollupFile, seal_rows
from pipeline.store.segments import MINUTES, RAW, Part, Segment, parquet
from pipeline.store.upkeep import SEAL_SECONDS, Upkeep

HOURS_A_DAY = 24
# Hours are put together while their files are small: a large file has nothing to gain, and rewriting it costs.
MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of one tier and kind that become one."""

    segments: tuple[Segment, ...]

    @property
    def hours(self) -> tuple[int, int]:
        """(first hour, how many)."""
        first = min(s.hour for s in self.segments)
        return first, max(s.hour + s.hours for s in self.segments) - first


class Compaction(Upkeep):
    """Puts segments together."""

    def compact(self) -> int:
        """Puts together what can be, in this thread; gives the number of files that went away."""
        gone = 0
        for merge in self.compact_due():
            self.commit_merge(merge, self.write_merge(merge))
            gone += len(merge.segments) - 1
        with self._write_lock:
            self._segments.bury()
        return gone

    def compact_due(self) -> list[Merge]:
        """Days that are over (by half a day, so that late parts are in) with several small files, and hours in parts."""
        over = (self.newest_ms - 12 * HOUR_MS) // HOUR_MS // HOURS_A_DAY
        days: dict[tuple[str, int, int], list[Segment]] = {}
        for one in self._segments.sealed:
            days.setdefault((one.tier, one.kind, one.hour // HOURS_A_DAY), []).append(one)
        due = []
        for (_, _, day), many in days.items():
            if day < over and len(many) > 1 and sum(s.size for s in many) <= MOST_BYTES:
                due.append(Merge(tuple(many)))
                continue
            hours: dict[int, list[Segment]] = {}
            for one in many:
                hours.setdefault(one.hour, []).append(one)
            due += [Merge(tuple(some)) for some in hours.values() if len(some) > 1 and day < over]
        return due

    def write_merge(self, merge: Merge) -> Segment | None:
        """Writes the new file; any thread may do it while appends go on. Raises GreylagError."""
        folder, first = self._segments.folder, merge.segments[0]
        if folder is None:
            raise GreylagError("a store in memory has no segments")
        hour, hours = merge.hours
        number = self._segments.next_part(first.kind, hour)
        part, width = Part(first.kind, hour, number), max(s.columns for s in merge.segments)
        relation = parquet([str(folder / s.file) for s in merge.segments])
        name = f"merged-{first.tier}-{first.kind}-{hour}-{hours}-{number}.parquet".replace("--1-", "-long-")
        try:
            with self.reading(deadline_seconds=SEAL_SECONDS) as cursor:
                if first.tier == RAW:
                    made = seal_rows(cursor, relation, part, hours, width, folder, (), name)
                    return made[0] if made else None
                return _merge_rollups(cursor, relation, part, merge, width, folder, name)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise GreylagError(f"{self.where} could not put files together ({first_line(error)})") from error

    def commit_merge(self, merge: Merge, made: Segment | None) -> None:
        """The new file stands for the old ones from now on, unless retention took one of them meanwhile."""
        with self._write_lock:
            if made is None or not set(merge.segments) <= set(self._segments.sealed):
                return
            with self.transaction() as cursor:
                self._segments.strike(cursor, merge.segments)
                self._segments.enter(cursor, [made])
            self._segments.replaced(merge.segments, [made])


def _merge_rollups(cursor: duckdb.DuckDBPyConnection, relation: str, part: Part, merge: Merge, width: int, folder: Path,
                   name: str) -> Segment:
    first = merge.segments[0]
    step = MINUTE_MS if first.tier == MINUTES else HOUR_MS
    names = part.columns(width)
    checks = [f"coalesce(bool_and({c} = trunc({c}) AND abs({c}) < {2.0**62!r}), true)" for c in names]
    row = cursor.execute(f"SELECT {', '.join(['count(*)', *checks])} FROM {relation}").fetchall()[0]
    file = RollupFile(folder, part, first.tier, name, tuple(bool(x) for x in row[1:]),
                      min(s.first_ms for s in merge.segments), max(s.last_ms for s in merge.segments))
    try:
        for low, high in _ranges(cursor, relation, part, width):
            found: Any = cursor.execute(f"SELECT stat, {part.key} AS k, at_ms AS t, {', '.join(f'{c}::DOUBLE AS {c}' for c in names)}"
                                        f" FROM {relation} WHERE {part.key} BETWEEN {low} AND {high}").fetchnumpy()
            order = np.lexsort((found["t"], found["k"], found["stat"]))
            n = len(order) // len(STATS)
            values = [np.where(null_mask(found[c]), np.nan, values_of(found[c]))[order].reshape(len(STATS), n) for c in names]
            keys, at = np.asarray(found["k"], np.uint32)[order[:n]], np.asarray(found["t"], np.int64)[order[:n]]
            file.write_buckets(joined([Buckets(keys, at, np.stack(values, axis=1))], step))
        return file.finish(part, merge.hours[1])
    finally:
        file.discard()


def _ranges(cursor: duckdb.DuckDBPyConnection, relation: str, part: Part, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of keys whose rows fit in a row group."""
    rows = cursor.execute(f"SELECT {part.key}, count(*) FROM {relation} GROUP BY 1 ORDER BY 1").fetchall()
    low, held = None, 0
    last = 0
    for key, count in rows:
        if low is not None and (held + count) * max(1, width) > GROUP_CELLS:
            yield low, last
            low, held = None, 0
        low = key if low is None else low
        held, last = held + count, key
    if low is not None:
        yield low, last

