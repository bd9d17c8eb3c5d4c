"""What the store keeps in memory, read back from the database: the catalogue, and each target's newest reading."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from core.derive import STALE_NAN
from core.types import Floats, Series
from pipeline.store.catalogue import NEVER, NO_ENTITY, NO_IDS, Catalogue
from pipeline.store.epochs import Epochs
from pipeline.store.kinds import LONG, NONE
from pipeline.store.postings import Ids, Labels
from pipeline.store.segments import Part, Segments

Cursor = duckdb.DuckDBPyConnection


def read_catalogue(cursor: Cursor, floor: int) -> Catalogue:
    """Kinds, entities and series as the catalogue's tables have them. Series ids below `floor` are never given again."""
    book = Catalogue()
    for number, domain, keys in cursor.execute("SELECT id, domain, keys FROM kinds ORDER BY id").fetchall():
        book.kinds.restore_kind(number, domain, tuple(json.loads(keys)))
    rows = cursor.execute("SELECT kind, idx, name, type, keys, pivots FROM kind_columns ORDER BY kind, idx").fetchall()
    for kind, _, name, type_, keys, pivot in rows:
        shape = (tuple(json.loads(keys)), labels_in(pivot))
        book.kinds.restore_column(kind, name, type_, book.kinds.shape(shape))
    for number, kind, target_id, labels in cursor.execute(
            "SELECT id, kind, target_id, labels FROM entities ORDER BY id").fetchall():
        book.add_entity(number, kind, labels_in(labels), book.target(target_id))
    found: Any = cursor.execute("SELECT id, entity, col, first_ms, last_ms FROM series").fetchnumpy()
    ids = np.asarray(found["id"], np.uint32)
    entity = filled(found["entity"], NO_ENTITY).astype(np.int32)
    owner = np.where(entity >= 0, book.entity_target[np.maximum(entity, 0)] if len(book.entity_target) else -1, -1)
    book.grow(floor)
    long = cursor.execute("SELECT id, name, labels, type, target_id FROM series WHERE name IS NOT NULL ORDER BY id").fetchall()
    place = {int(number): i for i, number in enumerate(ids.tolist())} if long else {}
    for number, name, labels, type_, target_id in long:
        book.add_long(number, Series(name, labels_in(labels), type_))
        if owner[place[number]] < 0:
            owner[place[number]] = book.target(target_id)
    book.add_series(ids, entity, filled(found["col"], -1).astype(np.int16), owner.astype(np.int32))
    book.first_ms[ids], book.last_ms[ids] = filled(found["first_ms"], NEVER), filled(found["last_ms"], NEVER)
    for (target_id,) in cursor.execute("SELECT DISTINCT target_id FROM layouts WHERE partial").fetchall():
        book.partial.add(book.target(target_id))
    for series, entity_id, until in cursor.execute("SELECT series, entity, until_ms FROM moves").fetchall():
        book.former.setdefault(series, []).append((entity_id, until))
    return book


def read_epochs(cursor: Cursor) -> Epochs:
    """Which batches are committed."""
    epochs = Epochs()
    for worker, epoch in cursor.execute("SELECT worker, epoch FROM epochs").fetchall():
        epochs.start(worker, epoch)
    for key in cursor.execute("SELECT worker, epoch, seq FROM batches ORDER BY epoch, seq").fetchall():
        if epochs.newest.get(key[0], key[1]) <= key[1]:
            epochs.add(key)
    return epochs


class Readings:
    """The newest reading of each target: at int64[target]; series in it, by target, in wide and in long rows."""

    def __init__(self, cursor: Cursor, book: Catalogue, segments: Segments) -> None:
        self.book = book
        self.stored: dict[str, int] = {}  # time of the reading that the table `readings` has
        self.wide: dict[int, list[Ids]] = {}
        self.long: dict[int, list[Ids]] = {}
        rows = cursor.execute("SELECT target_id, at_ms, wide, tall FROM readings").fetchall()
        for target_id, at, _, _ in rows:
            self.stored[target_id] = at
            target = book.target(target_id)  # first: a new target may move the array
            book.reading_ms[target] = at
        newest = [(part, *_newest(cursor, part)) for part in segments.parts]
        for part, ids, first, last in newest:
            self._times(part, ids, first, last)
        for target_id, at, wide, long in rows:
            target = book.target(target_id)
            if book.reading_ms[target] == at:
                self.wide.setdefault(target, []).append(np.array(wide, np.uint32))
                self.long.setdefault(target, []).append(np.array(long, np.uint32))
        for part, ids, _, last in newest:
            self._present(cursor, part, segments.columns[part], ids, last)

    def _times(self, part: Part, ids: Ids, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        book = self.book
        owners = book.owner[ids] if part.kind == LONG else book.entity_target[ids]
        np.maximum.at(book.reading_ms, owners, last)
        if part.kind == LONG:
            book.last_ms[ids] = np.maximum(book.last_ms[ids], last)
            known = book.first_ms[ids]
            book.first_ms[ids] = np.where(known == NEVER, first, np.minimum(known, first))
            return
        kind = book.kinds.all[part.kind]
        sids = kind.all_sids()[book.entity_row[ids]]
        at = np.broadcast_to(last[:, None], sids.shape)[sids != NONE]
        sids = sids[sids != NONE]
        # Of a series that ended in a living entity the entity's newest row is the nearest that rows tell.
        book.last_ms[sids] = np.maximum(book.last_ms[sids], at)

    def _present(self, cursor: Cursor, part: Part, columns: int, ids: Ids, last: NDArray[np.int64]) -> None:
        book = self.book
        owners = book.owner[ids] if part.kind == LONG else book.entity_target[ids]
        here = last == book.reading_ms[owners]
        times = np.unique(last[here])
        if not len(times):
            return
        listed = ", ".join(map(str, times.tolist()))
        found: Any = cursor.execute(f"SELECT * FROM {part.table} WHERE at_ms IN ({listed})").fetchnumpy()
        keys, at = np.asarray(found[part.key], np.int64), np.asarray(found["at_ms"], np.int64)
        owners = book.owner[keys] if part.kind == LONG else book.entity_target[keys]
        newest = at == book.reading_ms[owners]
        if part.kind == LONG:
            there = newest & ~null_mask(found["value"])
            _group(self.long, owners[there], keys[there].astype(np.uint32))
            book.alive[keys[there]] = True
            return
        kind, rows = book.kinds.all[part.kind], book.entity_row[keys]
        for i in range(min(columns, len(kind.columns))):
            sids = kind.sids[rows, i]
            there = newest & (sids != NONE) & ~null_mask(found[f"c{i}"])
            _group(self.wide, owners[there], sids[there])
            book.alive[sids[there]] = True

    def each(self) -> list[tuple[str, int, Ids, Ids]]:
        """(target id, time, series in wide rows, series in long rows)."""
        book = self.book
        out = []
        for target in np.flatnonzero(book.reading_ms[: len(book.targets)] != NEVER).tolist():
            wide, long = (np.unique(np.concatenate([*of.get(target, []), NO_IDS])) for of in (self.wide, self.long))
            out.append((book.targets[target], int(book.reading_ms[target]), wide, np.setdiff1d(long, NO_IDS)))
        return out


def _group(into: dict[int, list[Ids]], owners: NDArray[Any], ids: Ids) -> None:
    order = np.argsort(owners, kind="stable")
    owners, ids = owners[order], ids[order]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    for piece, start in zip(np.split(ids, cuts), [0, *cuts.tolist()], strict=True):
        if len(piece):
            into.setdefault(int(owners[start]), []).append(piece)


def _newest(cursor: Cursor, part: Part) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
    found: Any = cursor.execute(f"SELECT {part.key} AS k, min(at_ms) AS f, max(at_ms) AS l FROM {part.table}"
                                f" GROUP BY {part.key}").fetchnumpy()
    return np.asarray(found["k"], np.uint32), np.asarray(found["f"], np.int64), np.asarray(found["l"], np.int64)


_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: a third of what a short text costs


def labels_out(labels: Labels) -> str:
    """Labels as text; their order is kept."""
    return _ENCODE(labels)


def labels_in(text: str) -> Labels:
    """Labels from text: a list of pairs, or the object that schema 1 wrote."""
    found = json.loads(text)
    pairs = found.items() if isinstance(found, dict) else found
    return tuple([(str(key), str(value)) for key, value in pairs])


def null_mask(column: Any) -> NDArray[np.bool_]:
    """Where a fetched column is NULL."""
    if isinstance(column, np.ma.MaskedArray):
        return np.ma.getmaskarray(column)
    return np.zeros(len(column), np.bool_)


def filled(column: Any, missing: int) -> NDArray[np.int64]:
    """A fetched column of whole numbers, with `missing` where it is NULL."""
    if isinstance(column, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(column), missing, column.data).astype(np.int64)
    return np.asarray(column).astype(np.int64)


def values_of(column: Any) -> Floats:
    """A fetched column of numbers with the stale marker's bits where it is NULL."""
    if isinstance(column, np.ma.MaskedArray):
        out = np.array(column.data, np.float64)
        out[np.ma.getmaskarray(column)] = STALE_NAN
        return out
    return np.asarray(column, np.float64)
