"""Rollups read back: sealed buckets, and raw rows of hours that have none yet, put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.derive import absent
from core.errors import BadInput, GreylagError
from core.protocols import Matcher
from core.types import Series
from pipeline.store.catalogue import FOREVER
from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG
from pipeline.store.postings import Ids
from pipeline.store.reading import ANSWER_TRIES, MOST_SAMPLES, Reading, fetch
from pipeline.store.restore import values_of
from pipeline.store.rollups import MINUTE_MS, STATS, Buckets, Rollup, joined, roll
from pipeline.store.schema import first_line
from pipeline.store.segments import HOURS, MINUTES, Source

LONGEST_IN_LIST = 500


class History(Reading):
    """Reading of what outlives the raw samples."""

    def rollup(self, matchers: Sequence[Matcher], start: int, end: int, step: int = MINUTE_MS,
               most: int = MOST_SAMPLES) -> list[Rollup]:
        """Series in buckets of `step` ms (a multiple of a minute) that begin from start to end (ms), sorted by name and
        labels. Steps of whole hours read the 1-hour rollups, others the 1-minute ones; hours that are not sealed yet, or
        were sealed without rollups, are made from their samples. Samples that came late are in them.

        Raises BadInput for another step, Refused(`too_many_samples`).
        """
        return self._rolled(self._catalogue.match(matchers, None, None), start, end, step, most)

    def rollups_of(self, series: Sequence[Series], start: int, end: int, step: int = MINUTE_MS,
                   most: int = MOST_SAMPLES) -> list[Rollup]:
        """As `rollup`, of these series; those that are not known are left out."""
        return self._rolled(self._catalogue.ids_of(series), start, end, step, most)

    def _rolled(self, ids: Ids, start: int, end: int, step: int, most: int) -> list[Rollup]:
        if step < MINUTE_MS or step % MINUTE_MS:
            raise BadInput("rollup", "step", step, "a multiple of 60000 ms is needed")
        if not len(ids) or end < start:
            return []
        low, high = -(-start // step) * step, end // step * step + step - 1
        tier = HOURS if step % HOUR_MS == 0 and self.rollup_1h_ms else MINUTES
        for attempt in range(ANSWER_TRIES):
            try:
                with self.reading() as cursor:
                    cursor.execute("BEGIN")
                    parts = self._buckets(cursor, ids, low, high, tier, most)
                    cursor.execute("COMMIT")
                    return self._rollups(parts, step)
            except (duckdb.CatalogException, duckdb.IOException, duckdb.BinderException) as error:
                if attempt == ANSWER_TRIES - 1:  # as in Reading: the hour was sealed meanwhile
                    raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
            except duckdb.Error as error:
                raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
        raise GreylagError(f"{self.where} could not answer")

    def _buckets(self, cursor: duckdb.DuckDBPyConnection, ids: Ids, low: int, high: int, tier: str,
                 most: int) -> dict[int, list[Buckets]]:
        """By series: its buckets, in pieces."""
        out: dict[int, list[Buckets]] = {}
        for wanted in self._wanted(ids):
            series, entity = np.concatenate(wanted.series), np.concatenate(wanted.entity).astype(np.uint32)
            column, until = np.concatenate(wanted.column).astype(np.int64), np.concatenate(wanted.until)
            columns = np.unique(column).tolist()
            for found in self._found(cursor, wanted.kind.id, np.unique(entity), columns, low, high, tier, most):
                for i, (number, c) in enumerate(zip(series.tolist(), column.tolist(), strict=True)):
                    rows = slice(*np.searchsorted(found.keys, [entity[i], entity[i] + 1]).tolist())
                    one = _one(found, columns.index(c), rows, int(until[i]))
                    if len(one.keys):
                        out.setdefault(number, []).append(one)
        for found in self._found(cursor, LONG, ids, [0], low, high, tier, most):
            for number in np.unique(found.keys).tolist():
                rows = slice(*np.searchsorted(found.keys, [number, number + 1]).tolist())
                out.setdefault(int(number), []).append(_one(found, 0, rows, FOREVER))
        return out

    def _found(self, cursor: duckdb.DuckDBPyConnection, kind: int, keys: Ids, columns: Sequence[int], low: int, high: int,
               tier: str, most: int) -> Iterator[Buckets]:
        """Buckets of a kind, sorted by key: from its rollups, and from raw rows that have none."""
        covered = self._segments.sources(kind, low, high, tier)
        names = ["value"] if kind == LONG else [f"c{i}" for i in columns]
        if covered:
            rows = _stats(cursor, covered, kind, keys, columns, names, low, high)
            if rows is not None:
                yield rows
        raw = self._segments.uncovered(kind, low, high, tier)
        found = fetch(cursor, raw, kind, keys, columns, low, high, most) if raw else None
        if found is not None:
            values = np.stack([np.where(absent(found[name]), np.nan, found[name]) for name in names])
            yield roll(found["k"], found["t"], values)

    def _rollups(self, parts: dict[int, list[Buckets]], step: int) -> list[Rollup]:
        out = []
        for number, pieces in parts.items():
            same = [Buckets(np.zeros(len(p.keys), np.uint32), p.at, p.stats) for p in pieces]
            whole = joined(same, step)
            low, high, total, count, last, _ = whole.stats[:, 0]
            there = ~np.isnan(count)
            if there.any():
                low, high, total, count, last = (x[there] for x in (low, high, total, count, last))
                out.append(Rollup(self._catalogue.get(number), whole.at[there], low, high, total / count, count, last, total))
        out.sort(key=lambda one: (one.series.name, one.series.labels))
        return out


def _one(found: Buckets, column: int, rows: slice, until: int) -> Buckets:
    keys, at, stats = found.keys[rows], found.at[rows], found.stats[:, column : column + 1, rows]
    keep = ~np.isnan(stats[3, 0]) & (at <= until)
    return Buckets(keys[keep], at[keep], stats[:, :, keep])


def _stats(cursor: duckdb.DuckDBPyConnection, sources: Sequence[Source], kind: int, keys: Ids, columns: Sequence[int],
           names: Sequence[str], low: int, high: int) -> Buckets | None:
    """The buckets in rollup files, sorted by key and time."""
    key = "series_id" if kind == LONG else "entity"
    condition = f"at_ms BETWEEN {low} AND {high} AND {key} BETWEEN {int(keys[0])} AND {int(keys[-1])}"
    among = ""
    if len(keys) <= LONGEST_IN_LIST:
        condition += f" AND {key} IN ({', '.join(map(str, keys.tolist()))})"
    else:
        cursor.register("wanted", pa.table({"id": pa.array(keys, pa.uint32())}))
        among = " WHERE k IN (SELECT id FROM wanted)"
    selects = []
    for source in sources:
        have = [f"{v}::DOUBLE AS {v}" if kind == LONG or i < source.columns else f"NULL::DOUBLE AS {v}"
                for i, v in zip(columns, names, strict=True)]
        selects.append(f"SELECT stat, {key} AS k, at_ms AS t, {', '.join(have)} FROM {source.relation} WHERE {condition}")
    found: Any = cursor.execute(f"SELECT * FROM ({' UNION ALL '.join(selects)}){among}").fetchnumpy()
    if among:
        cursor.unregister("wanted")
    stat, k, t = (np.asarray(found[name], np.int64) for name in ("stat", "k", "t"))
    if not len(stat):
        return None
    values = [values_of(found[v]) for v in names]
    values = [np.where(absent(v), np.nan, v) for v in values]
    # Parts of one hour have buckets of equal key and time: a whole bucket's six rows stay together by their order in it.
    order = np.lexsort((t, k, stat))
    n = len(stat) // len(STATS)
    stats = np.stack([v[order].reshape(len(STATS), n) for v in values], axis=1)
    first = order[:n]
    return Buckets(k[first].astype(np.uint32), t[first], stats)


