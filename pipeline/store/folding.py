"""Late samples of series in wide tables go from the long table's files into the rows where they belong.

A late sample was stored beside its table, since a sealed or written row is never changed. Once its day has been put
together its files are written anew without it: a cell that was empty is filled, a row that was missing is put in. Only
what changes no answer is moved: a row that lacks a series that stood in the row before it would end that series, and a
value with none after it would be ended by the next row. What would is left in the long table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import absent, stale_array
from core.errors import GreylagError
from core.types import Floats
from pipeline.store.catalogue import Times
from pipeline.store.compaction import HOURS_A_DAY, Compaction
from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG
from pipeline.store.postings import Ids
from pipeline.store.reading import union_of
from pipeline.store.restore import null_mask, values_of
from pipeline.store.schema import first_line
from pipeline.store.sealing import seal_rows
from pipeline.store.segments import RAW, TIERS, Part, Segment, Source, parquet
from pipeline.store.upkeep import SEAL_SECONDS

Bools = NDArray[np.bool_]
MOST_CELLS = 4_000_000
MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Fold:
    """Files that were written anew: `new` stand for `old`, which are one file of the long table and some of kinds."""

    old: tuple[Segment, ...]
    new: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """Late samples of one kind, sorted by entity and time: columns alike."""

    entity: Ids
    at: Times
    column: NDArray[np.int64]
    value: Floats
    series: Ids

    def only(self, which: Any) -> Late:
        """Some of them."""
        return Late(self.entity[which], self.at[which], self.column[which], self.value[which], self.series[which])


class Folding(Compaction):
    """Folds late samples into their kinds' files."""

    _tried: frozenset[str] = frozenset()  # files of the long table of which nothing more can be moved

    def compact(self) -> int:
        """As `Compaction.compact`; then folds what is late."""
        gone = super().compact()
        for one in self.fold_due():
            self.commit_fold(one, self.write_fold(one))
        with self._write_lock:
            self._segments.bury()
        return gone

    def fold_due(self) -> list[Segment]:
        """Files of the long table of days that are over and have been put together."""
        waiting = {(s.kind, s.hour // HOURS_A_DAY) for merge in self.compact_due() for s in merge.segments}
        over = (self.newest_ms - 12 * HOUR_MS) // HOUR_MS // HOURS_A_DAY
        return [s for s in self._segments.sealed if s.tier == RAW and s.kind == LONG and s.hour // HOURS_A_DAY < over
                and s.file not in self._tried and not any(day == s.hour // HOURS_A_DAY for _, day in waiting)]

    def write_fold(self, long: Segment) -> Fold | None:
        """Writes the new files; any thread may do it while appends go on. None where nothing can be moved. Raises
        GreylagError."""
        folder = self._segments.folder
        if folder is None:
            raise GreylagError("a store in memory has no segments")
        old, new, taken = [], [], []
        try:
            with self.reading(deadline_seconds=SEAL_SECONDS) as cursor:
                for kind, late in self._late(cursor, folder / long.file).items():
                    for one in self._homes(kind, long):
                        inside = (late.at >= one.first_ms) & (late.at <= one.last_ms)
                        made, moved = self._fold(cursor, folder, one, late.only(inside)) if inside.any() else (None, None)
                        if made is not None and moved is not None:
                            old.append(one)
                            new.append(made)
                            taken.append(moved)
                if not taken:
                    return None
                rest = self._rest(cursor, folder, long, taken)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise GreylagError(f"{self.where} could not fold late samples ({first_line(error)})") from error
        return Fold((*old, long), (*new, *rest))

    def commit_fold(self, long: Segment, fold: Fold | None) -> None:
        """The new files stand for the old ones from now on, unless one of these is gone meanwhile."""
        with self._write_lock:
            if fold is None:
                self._tried |= {long.file}
                return
            if not set(fold.old) <= set(self._segments.sealed):
                for one in fold.new:
                    (self._segments.folder / one.file).unlink(missing_ok=True)  # type: ignore[operator]
                return
            with self.transaction() as cursor:
                self._segments.strike(cursor, fold.old)
                self._segments.enter(cursor, fold.new)
            self._segments.replaced(fold.old, fold.new)
            self._tried |= {s.file for s in fold.new if s.kind == LONG}

    def _late(self, cursor: duckdb.DuckDBPyConnection, path: Path) -> dict[int, Late]:
        """By kind: the file's samples of series that have a place in a wide table, and always had this one."""
        book = self._catalogue
        found: Any = cursor.execute(f"SELECT series_id, at_ms, value::DOUBLE AS value FROM {parquet([str(path)])}").fetchnumpy()
        ids, at = np.asarray(found["series_id"], np.uint32), np.asarray(found["at_ms"], np.int64)
        with book.lock:
            moved = np.array(list(book.former), np.uint32)
            entity = np.where(ids < book.next_id, book.entity[np.minimum(ids, max(book.next_id - 1, 0))], -1)
            kept = (entity >= 0) & ~np.isin(ids, moved) & ~null_mask(found["value"])
            ids, at, entity, value = ids[kept], at[kept], entity[kept], values_of(found["value"])[kept]
            kinds, column = book.entity_kind[entity], book.column[ids].astype(np.int64)
        out = {}
        for kind in np.unique(kinds).tolist():
            here = np.flatnonzero(kinds == kind)
            here = here[np.lexsort((at[here], entity[here]))]
            out[kind] = Late(entity[here].astype(np.uint32), at[here], column[here], value[here], ids[here])
        return out

    def _homes(self, kind: int, long: Segment) -> list[Segment]:
        """The kind's files of the same time. Where they have rollups and the long table has none, the samples stay: a
        rollup is made of what stands beside it."""
        hours = set(range(long.hour, long.hour + long.hours))
        for tier in TIERS[1:]:
            rolled = [{h for s in self._segments.sealed if s.tier == tier and s.kind == k for h in range(s.hour, s.hour + s.hours)}
                      for k in (kind, LONG)]
            if hours & rolled[0] and not hours <= rolled[1]:
                return []
        return [s for s in self._segments.sealed if s.tier == RAW and s.kind == kind
                and hours & set(range(s.hour, s.hour + s.hours))]

    def _fold(self, cursor: duckdb.DuckDBPyConnection, folder: Path, home: Segment, late: Late) -> tuple[Segment | None, Late | None]:
        """(the new file, what is in it now) of a kind's file; (None, None) where nothing can be moved."""
        late = late.only(late.column < home.columns)
        source = Source(parquet([str(folder / home.file)]), home.columns)
        names = [f"c{i}" for i in range(home.columns)]
        changed: list[pa.Table] = []
        moved: list[Late] = []
        entities = np.unique(late.entity)
        # About so many entities have their rows of the file read at once.
        rows_each = max(1, home.rows // max(1, len(self._catalogue.kinds.all[home.kind].entities)))
        at_once = max(1, MOST_CELLS // (rows_each * max(1, home.columns)))
        for i in range(0, len(entities), at_once):
            some = entities[i : i + at_once]
            sql = union_of([source], home.kind, range(home.columns), f"entity IN ({', '.join(map(str, some.tolist()))})")
            found: Any = cursor.execute(f"{sql} ORDER BY k, t").fetchnumpy()
            cells = np.stack([values_of(found[name]) for name in names])
            mine = late.only(np.isin(late.entity, some))
            e, t, rows, took = folded(np.asarray(found["k"], np.uint32), np.asarray(found["t"], np.int64), cells, mine)
            if took.any():
                gone = absent(rows)
                columns = [pa.array(rows[c], mask=gone[c]) for c in range(len(rows))]
                changed.append(pa.Table.from_arrays([pa.array(e, pa.uint32()), pa.array(t), *columns], ["entity", "at_ms", *names]))
                moved.append(mine.only(took))
        if not moved:
            return None, None
        with self.registered(cursor, pa.concat_tables(changed)) as fresh:
            doubles = ", ".join(f"{name}::DOUBLE AS {name}" for name in names)
            relation = (f"(SELECT entity, at_ms, {doubles} FROM {source.relation} r ANTI JOIN {fresh} f ON r.entity = f.entity"
                        f" AND r.at_ms = f.at_ms UNION ALL SELECT * FROM {fresh})")
            made = self._anew(cursor, relation, home, folder)
        every = Late(*(np.concatenate([getattr(one, name) for one in moved]) for name in Late.__slots__))
        return made[0], every

    def _rest(self, cursor: duckdb.DuckDBPyConnection, folder: Path, long: Segment, taken: Sequence[Late]) -> list[Segment]:
        """The long table's file without what was moved; none where nothing is left."""
        rows = pa.table({"s": pa.array(np.concatenate([one.series for one in taken]), pa.uint32()),
                         "t": pa.array(np.concatenate([one.at for one in taken]))})
        with self.registered(cursor, rows) as name:
            relation = (f"(SELECT r.* FROM {parquet([str(folder / long.file)])} r ANTI JOIN {name} m"
                        " ON r.series_id = m.s AND r.at_ms = m.t)")
            return self._anew(cursor, relation, long, folder)

    def _anew(self, cursor: duckdb.DuckDBPyConnection, relation: str, home: Segment, folder: Path) -> list[Segment]:
        number = self._segments.next_part(home.kind, home.hour)
        name = f"folded-{home.kind}-{home.hour}-{home.hours}-{number}.parquet".replace("--1-", "-long-")
        return seal_rows(cursor, relation, Part(home.kind, home.hour, number), home.hours, home.columns, folder, (), name)


def folded(entity: Ids, at: Times, cells: Floats, late: Late) -> tuple[Ids, Times, Floats, Bools]:
    """Rows that late samples change: (entities, times, float64[column, row], bool[late sample] of those that are in them).

    entity, at: of the rows that there are, sorted; cells: float64[column, row], the stale marker where a series is absent.
    """
    origin = int(min(at.min(initial=2**62), late.at.min(initial=2**62)))  # a file's times need 31 bits from there
    key, late_key = (one.astype(np.int64) << 31 | (times - origin) for one, times in ((entity, at), (late.entity, late.at)))
    every = np.unique(np.concatenate([key, late_key]))
    row, late_row = np.searchsorted(every, key), np.searchsorted(every, late_key)
    old = np.zeros(len(every), np.bool_)
    old[row] = True
    base = stale_array(len(cells) * len(every)).reshape(len(cells), len(every))
    base[:, row] = cells
    whole = base.copy()
    free = absent(base[late.column, late_row])
    whole[late.column[free], late_row[free]] = late.value[free]
    owner = every >> 31
    accepted = np.zeros(len(every), np.bool_)
    accepted[late_row[free]] = True
    accepted &= _between(owner, old)
    accepted[np.isin(owner, entity[1:][key[1:] == key[:-1]])] = False  # two rows of one time: which is filled is unknown
    shown = ~absent(whole)
    wanted = _ends(owner, old, ~absent(base), shown)
    for attempt in range(MOST_ROUNDS + 1):
        stands = old | accepted
        got = _ends(owner, stands, np.where(accepted, shown, ~absent(base)), shown)
        wrong = np.flatnonzero((got != wanted).any(axis=0))
        if not len(wrong):
            break
        before = np.maximum.accumulate(np.where(stands, np.arange(len(every)), -1))
        near = np.unique(np.concatenate([wrong, before[np.maximum(wrong - 1, 0)]]))
        if attempt == MOST_ROUNDS or not accepted[near].any():
            near = np.flatnonzero(np.isin(owner, owner[wrong]))
        accepted[near] = False
    rows = np.flatnonzero(accepted)
    return (owner[rows].astype(np.uint32), (every[rows] & (1 << 31) - 1) + origin, whole[:, rows], free & accepted[late_row])


def _between(owner: NDArray[np.int64], old: Bools) -> Bools:
    """bool[row]: at or after the first and before the last row that its entity has: what lies beyond is not known here."""
    index = np.arange(len(owner))
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    group = np.cumsum(np.concatenate([[0], owner[1:] != owner[:-1]]))
    first = np.minimum.reduceat(np.where(old, index, len(owner)), starts)[group]
    last = np.maximum.reduceat(np.where(old, index, -1), starts)[group]
    return np.asarray((index >= first) & (index < last))


def _ends(owner: NDArray[np.int64], stands: Bools, has: Bools, shown: Bools) -> Bools:
    """bool[column, row]: where a reader finds that a series has ended: by the rules of `merging`.

    stands: bool[row], the rows of the table; has: bool[column, row], its values; shown: has, and what lies beside it.
    """
    out = np.zeros(shown.shape, np.bool_)
    rows = np.flatnonzero(stands)
    same = owner[rows[1:]] == owner[rows[:-1]]
    out[:, rows[1:]] = ~has[:, rows[1:]] & has[:, rows[:-1]] & same
    out &= ~shown
    index = np.arange(len(owner))
    happened = np.maximum.accumulate(np.where(shown | out, index, -1), axis=1)
    before = np.concatenate([np.full((len(out), 1), -1), happened[:, :-1]], axis=1)
    there = np.maximum(before, 0)
    follows = (before >= 0) & np.take_along_axis(shown, there, axis=1) & (owner[there] == owner)
    return out & follows

