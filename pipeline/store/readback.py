"""The last half hour of many targets at once, as the ring wants it: for each target one matrix of times and series.

`Reading` answers for a series; a restart asks for all of them. Here the rows of a kind's table are scattered, column by
column, into the matrices of all targets: nothing is done for a single series (170,000 of them cost 10 s that way).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import absent, stale_array
from core.errors import GreylagError
from core.types import Floats, Target
from pipeline.store.catalogue import NO_ENTITY, Times
from pipeline.store.codec import Packed, unpack_columns
from pipeline.store.kinds import LONG
from pipeline.store.postings import Ids, Labels
from pipeline.store.reading import ANSWER_TRIES, LAYOUTS_AT_ONCE, Reading, union_of
from pipeline.store.restore import null_mask
from pipeline.store.schema import first_line

Numbers = NDArray[np.int64]
FEW_SHARE = 0.5  # a kind of which fewer entities are wanted is filtered by the database
READ_SECONDS = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class TargetRows:
    """at: int64[n] ascending, ms; values: float64[n, series], the stale marker where a series is absent."""

    at: Times
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Fetched rows with the target of each. places: int64[row of `of`, column], where a column's value goes within its
    target's matrix (-1 = nowhere); of: int64[n], the row of `places`."""

    target: Numbers
    at: Times
    of: Numbers
    places: Numbers
    columns: list[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Meant:
    """What the series of a layout mean, cut down to those that had samples lately. ids: uint32[series]; keys: (name,
    labels) of each. By signal: index int64[n] into `ids`; signal and part int64[n], indexes into `signals` and `parts`;
    scale float64[n]; counter bool[n]."""

    target_id: str
    node: str | None
    partial: bool
    ids: Ids
    keys: list[tuple[str, Labels]]
    index: Numbers
    signal: Numbers
    part: Numbers
    scale: Floats
    counter: NDArray[np.bool_]
    signals: list[str]
    parts: list[Target]


class ReadBack(Reading):
    """Reading of whole targets."""

    def recent_meanings(self, start: int, signals: Sequence[str] = ()) -> Iterator[Meant]:
        """Layouts that mean signals (of `signals`, where some are named), cut down to the series that do and had a sample
        since `start` (ms); by target, the newest layout of a target first."""
        where, named = " OR ".join(["contains(names, ?)"] * len(signals)) or "names != ''", [f" {name} " for name in signals]
        ids = [row[0] for row in self.rows(f"SELECT id FROM layouts WHERE {where} ORDER BY target_id, rowid DESC", named)]
        for at in range(0, len(ids), LAYOUTS_AT_ONCE):
            rows = self.rows("SELECT target_id, node, partial, series, signals FROM layouts"
                             " WHERE id IN (SELECT unnest(?)) ORDER BY target_id, rowid DESC", [ids[at : at + LAYOUTS_AT_ONCE]])
            for target_id, node, partial, series, packed in rows:
                found = self._meant(target_id, node, partial, np.array(series, np.uint32), unpack_columns(packed), start, signals)
                if found is not None:
                    yield found

    def _meant(self, target_id: str, node: str | None, partial: bool, ids: Ids, packed: Packed, start: int,
               signals: Sequence[str]) -> Meant | None:
        index, signal = np.array(packed.index, np.int64), np.array(packed.signal, np.int64)
        live = self._catalogue.seen_last(ids)[index] >= start
        if signals:
            live &= np.array([name in signals for name in packed.signals], np.bool_)[signal]
        kept = np.flatnonzero(live)
        if not len(kept):
            return None
        counter = np.zeros(len(index), np.bool_)
        counter[packed.counters] = True
        used, place = np.unique(index[kept], return_inverse=True)
        with self._catalogue.lock:
            keys = list(self._catalogue.named(ids[used]))
        return Meant(target_id, node, partial, ids[used], keys, place, signal[kept], np.array(packed.part, np.int64)[kept],
                     np.array(packed.scale, np.float64)[kept], counter[kept], packed.signals, packed.parts)

    def readings_of(self, targets: Sequence[tuple[str, Ids]], start: int, end: int) -> list[TargetRows]:
        """What each target (id, ids of its series, each once) said from start to end (ms), in the order of `targets`.

        A row is a reading that the store has a row of in an entity, or a long row of a series, that is asked for.
        """
        wanted = _Wanted(targets)
        for attempt in range(ANSWER_TRIES):
            try:
                with self.reading(READ_SECONDS) as cursor:
                    cursor.execute("BEGIN")
                    wide = list(self._wide_rows(cursor, wanted, start, end))
                    long = list(self._long_rows(cursor, wanted, start, end))
                    cursor.execute("COMMIT")
                return _scattered(wanted, wide, long, start)
            except (duckdb.CatalogException, duckdb.IOException, duckdb.BinderException) as error:
                if attempt == ANSWER_TRIES - 1:  # as in Reading: the hour was sealed meanwhile
                    raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
            except duckdb.Error as error:
                raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
        raise GreylagError(f"{self.where} could not answer")

    def _wide_rows(self, cursor: duckdb.DuckDBPyConnection, wanted: _Wanted, start: int, end: int) -> Iterator[_Rows]:
        book = self._catalogue
        with book.lock:
            number = book.numbers_of(wanted.names)
            place, entity, column = self._places(wanted, number)
            target = np.full(len(book.targets), -1, np.int64)
            target[number[number >= 0]] = np.flatnonzero(number >= 0)
            kinds, owner = book.entity_kind[entity], book.entity_target.copy()
            entity_row = book.entity_row.copy()
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            here = np.flatnonzero(kinds == kind)
            columns, c = np.unique(column[here], return_inverse=True)
            keys = distinct(entity[here])
            places = np.full((int(entity_row[keys].max()) + 1, len(columns)), -1, np.int64)
            places[entity_row[entity[here]], c] = place[here]
            found = self._fetch_kind(cursor, kind, keys.astype(np.uint32), columns.tolist(), start, end)
            if found is None:
                continue
            key, at, values = found
            of = entity_row[key].astype(np.int64)
            asked = np.zeros(len(entity_row) + 1, np.bool_)  # by row; the last one is that of entities without a row
            asked[: len(places)] = (places >= 0).any(axis=1)
            known = asked[of]
            if not known.all():
                key, at, of, values = key[known], at[known], of[known], [v[known] for v in values]
            if len(key):
                yield _Rows(target[owner[key]], at, of, places, values)

    def _places(self, wanted: _Wanted, number: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(place within the target's matrix, entity, column) of what stands, or stood, in the targets' own entities."""
        book = self._catalogue
        entity = book.entity[wanted.ids].astype(np.int64)
        owner = np.where(entity != NO_ENTITY, book.entity_target[np.maximum(entity, 0)] if len(book.entity_target) else -1, -1)
        mine = np.flatnonzero(owner == number[wanted.target])
        place, entities, columns = [wanted.place[mine]], [entity[mine]], [book.column[wanted.ids[mine]].astype(np.int64)]
        moved = np.array(list(book.former), np.uint32)
        for i in np.flatnonzero(np.isin(wanted.ids, moved)).tolist() if len(moved) else ():
            series = int(wanted.ids[i])
            for one, _ in book.former[series]:
                if book.entity_target[one] == number[wanted.target[i]] and one != entity[i]:
                    place.append(wanted.place[i : i + 1])
                    entities.append(np.array([one]))
                    columns.append(book.column[series : series + 1].astype(np.int64))
        return np.concatenate(place), np.concatenate(entities), np.concatenate(columns)

    def _fetch_kind(self, cursor: duckdb.DuckDBPyConnection, kind: int, keys: Ids, columns: list[int], start: int,
                    end: int) -> tuple[Ids, Times, list[Any]] | None:
        """(keys, times, columns) of a kind's rows in the order in which they lie; None where there is none."""
        sources = self._segments.sources(kind, start, end)
        if not sources:
            return None
        names = ["value"] if kind == LONG else [f"c{i}" for i in columns]
        sql = union_of(sources, kind, columns, f"at_ms BETWEEN {start} AND {end}")
        many = len(self._catalogue) if kind == LONG else len(self._catalogue.kinds.all[kind].entities)
        few = len(keys) < FEW_SHARE * many
        if few:
            cursor.register("wanted", pa.table({"id": pa.array(keys, pa.uint32())}))
            sql = f"SELECT * FROM ({sql}) WHERE k IN (SELECT id FROM wanted)"
        found: Any = cursor.execute(sql).fetchnumpy()
        if few:
            cursor.unregister("wanted")
        k = np.asarray(found["k"], np.uint32)
        return (k, np.asarray(found["t"], np.int64), [found[name] for name in names]) if len(k) else None

    def _long_rows(self, cursor: duckdb.DuckDBPyConnection, wanted: _Wanted, start: int, end: int) -> Iterator[_Rows]:
        """Rows of the long table. A series' rows are its owner's; targets that speak in parts share theirs."""
        book = self._catalogue
        with book.lock:
            number = book.numbers_of(wanted.names)
            partial = np.isin(number, np.array(list(book.partial), np.int64))
            mine = np.flatnonzero((book.owner[wanted.ids] == number[wanted.target]) | partial[wanted.target])
        if not len(mine) or not self._segments.sources(LONG, start, end):
            return
        found = self._fetch_kind(cursor, LONG, distinct(wanted.ids[mine]), [0], start, end)
        if found is None:
            return
        key, at, values = found
        order = mine[np.argsort(wanted.ids[mine], kind="stable")]
        low = np.searchsorted(wanted.ids[order], key, "left")
        many = np.searchsorted(wanted.ids[order], key, "right") - low
        for nth in range(int(many.max(initial=0))):  # the nth target that has the series
            rows = np.flatnonzero(many > nth)
            one = order[low[rows] + nth]
            yield _Rows(wanted.target[one], at[rows], np.arange(len(rows)), wanted.place[one][:, None], [values[0][rows]])


class _Wanted:
    """All series of all targets end to end. ids: uint32[n]; target: index into `names`; place: index within the target."""

    def __init__(self, targets: Sequence[tuple[str, Ids]]) -> None:
        self.names = [name for name, _ in targets]
        self.widths = np.array([len(ids) for _, ids in targets], np.int64)
        self.ids: Ids = np.concatenate([np.asarray(ids, np.uint32) for _, ids in targets] or [np.empty(0, np.uint32)])
        self.target = np.repeat(np.arange(len(targets)), self.widths)
        self.place = np.arange(len(self.ids)) - np.repeat(np.cumsum(self.widths) - self.widths, self.widths)


def _scattered(wanted: _Wanted, wide: list[_Rows], long: list[_Rows], start: int) -> list[TargetRows]:
    """The matrices of all targets, in one stretch of memory."""
    every = [*wide, *long]
    keys = [(rows.target << 32) | (rows.at - start) for rows in every]
    # Rows of one reading lie side by side: without their repeats there is little left to sort.
    heads = [one[np.concatenate([[True], one[1:] != one[:-1]])] for one in keys]
    whole = distinct(np.concatenate([*heads, np.empty(0, np.int64)]))
    of, at = whole >> 32, (whole & 0xFFFFFFFF) + start
    width = wanted.widths[of]
    offset = np.cumsum(width) - width  # where each reading's row begins
    size = int(width.sum())
    cells = stale_array(size + 1)  # the last one takes what nobody wants
    for i, rows in enumerate(every):
        first = offset[np.searchsorted(whole, keys[i])]
        late = i >= len(wide)
        for c, column in enumerate(rows.columns):
            place = rows.places[rows.of, c]
            index = np.where(place >= 0, first + place, size)
            _put(cells, index, column, late)
    edges = np.searchsorted(of, np.arange(len(wanted.names) + 1))
    out = []
    for i, (a, b) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        begin = int(offset[a]) if b > a else 0
        n, w = b - a, int(wanted.widths[i])
        out.append(TargetRows(at[a:b], cells[begin : begin + n * w].reshape(n, w)))
    return out


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different values, ascending: by sorting, which beats numpy's hash table for what is nearly in order."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]


def _put(cells: Floats, index: Numbers, column: Any, late: bool) -> None:
    """Writes a fetched column. late: what stands there already counts, and so does the first of equal times."""
    missing = null_mask(column)
    values = np.asarray(column.data if isinstance(column, np.ma.MaskedArray) else column, np.float64)
    if missing.any():
        index, values = index[~missing], values[~missing]
    if late:
        free = absent(cells[index])
        index, values = index[free][::-1], values[free][::-1]
    cells[index] = values


