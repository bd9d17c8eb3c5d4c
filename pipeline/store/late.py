"""Samples at or before the newest reading of their target: stored in the long table unless there is one of that time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import absent, stale_array
from core.types import Floats
from pipeline.store.catalogue import Catalogue, Times
from pipeline.store.ingest import HOUR_MS, Rows
from pipeline.store.kinds import LONG
from pipeline.store.postings import Ids
from pipeline.store.restore import values_of
from pipeline.store.segments import Segments


def take_late(cursor: duckdb.DuckDBPyConnection, book: Catalogue, segments: Segments, hour: int, ids: Ids, at: Times,
              values: Floats) -> tuple[Rows, Counter[str]]:
    """(the rows to store, what was counted as `duplicate` or `conflict`) of an hour's late samples.

    The first of a series and time wins: what is stored, then what stands first here. A stale marker is no sample.
    """
    stored = _stored(cursor, book, segments, ids, at)
    known = ~absent(stored)
    # Within an hour a time needs 22 bits: series and time make one number.
    keys = (at - hour * HOUR_MS) << 32 | ids.astype(np.int64)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    leader = first[inverse]
    against = np.where(known, stored, values[leader])
    repeated = known | (leader != np.arange(len(ids)))
    equal = (against == values) | (np.isnan(against) & np.isnan(values))
    counts = Counter({"duplicate": int((repeated & equal).sum()), "conflict": int((repeated & ~equal).sum())})
    rows = Rows()
    fresh = ~repeated
    for time in np.unique(at[fresh]).tolist():
        here = fresh & (at == time)
        rows.add(time, ids[here], values[here])
    return rows, counts


def _stored(cursor: duckdb.DuckDBPyConnection, book: Catalogue, segments: Segments, ids: Ids, at: Times) -> Floats:
    """float64[rows]: what is stored of each series and time, the stale marker where there is nothing."""
    out = stale_array(len(ids))
    low, high = int(at.min()), int(at.max())
    entity = book.entity[ids]
    kinds = np.where(entity >= 0, book.entity_kind[np.maximum(entity, 0)] if len(book.entity_kind) else -1, -1)
    for kind in np.unique(kinds[kinds >= 0]).tolist():
        here = np.flatnonzero(kinds == kind)
        columns = np.unique(book.column[ids[here]])
        found = _fetch(cursor, segments, kind, entity[here].astype(np.uint32), at[here], columns.tolist(), low, high)
        place = np.searchsorted(columns, book.column[ids[here]])
        row = found.pop("row")
        table = np.stack([found[f"c{c}"] for c in columns.tolist()])
        hit = row >= 0
        out[here[hit]] = table[place[hit], row[hit]]
    found = _fetch(cursor, segments, LONG, ids, at, [0], low, high)
    hit = found["row"] >= 0
    long = np.where(hit, found["value"][np.maximum(found["row"], 0)], stale_array(1)[0]) if hit.any() else stale_array(len(ids))
    there = hit & ~absent(np.ascontiguousarray(long))
    out[there] = found["value"][found["row"][there]] if there.any() else out[there]
    return out


def _fetch(cursor: duckdb.DuckDBPyConnection, segments: Segments, kind: int, keys: Ids, at: Times, columns: list[int],
           low: int, high: int) -> dict[str, NDArray[Any]]:
    """The stored rows of pairs of key and time: `row` int64[pairs], the row of each pair in the value columns or -1."""
    name, values = ("series_id", ["value"]) if kind == LONG else ("entity", [f"c{i}" for i in columns])
    wanted = pa.table({"k": pa.array(keys, pa.uint32()), "t": pa.array(at)})
    selects = []
    for source in segments.sources(kind, low, high):
        have = [v if kind == LONG or i < source.columns else f"NULL::DOUBLE AS {v}" for i, v in zip(columns, values, strict=True)]
        selects.append(f"SELECT {name} AS k, at_ms AS t, {', '.join(have)} FROM {source.relation}"
                       f" WHERE at_ms BETWEEN {low} AND {high}")
    if not selects:
        return {"row": np.full(len(keys), -1, np.int64), **{v: np.empty(0) for v in values}}
    cursor.register("late_wanted", wanted)
    try:
        found: Any = cursor.execute(f"SELECT s.* FROM ({' UNION ALL '.join(selects)}) s SEMI JOIN late_wanted w"
                                    " ON s.k = w.k AND s.t = w.t").fetchnumpy()
    finally:
        cursor.unregister("late_wanted")
    columns_found = {v: values_of(found[v]) for v in values}
    rows: dict[tuple[int, int], int] = {}
    there = [~absent(column) for column in columns_found.values()]
    any_value = np.logical_or.reduce(there) if there else np.empty(0, np.bool_)
    pairs = zip(np.asarray(found["k"]).tolist(), np.asarray(found["t"]).tolist(), any_value.tolist(), strict=True)
    for i, (key, time, value) in enumerate(pairs):
        if value or (key, time) not in rows:  # a value counts before a stale marker of the same time
            rows[(key, time)] = i
    row = np.array([rows.get(pair, -1) for pair in zip(keys.tolist(), at.tolist(), strict=True)], np.int64)
    return {"row": row, **columns_found}
