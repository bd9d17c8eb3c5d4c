"""The reading half of the sample side: select, series, labels, events, layouts. Any thread may call these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import absent
from core.errors import GreylagError, Refused
from core.protocols import Matcher, SeriesSamples
from core.types import Event, Floats, Layout, Series, SignalRef
from pipeline.store.catalogue import FOREVER, Catalogue
from pipeline.store.codec import decode, unpack
from pipeline.store.kinds import LONG, Kind
from pipeline.store.merging import Piece, merged, wide_pieces
from pipeline.store.postings import METRIC, Ids
from pipeline.store.restore import values_of
from pipeline.store.samples import LAYOUT, Samples
from pipeline.store.schema import first_line
from pipeline.store.segments import Source

LONGEST_IN_LIST = 500
MOST_SAMPLES = 50_000_000  # a query that reads more is refused, as in Prometheus (query.max-samples)
ANSWER_TRIES = 3
LAYOUTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class SeriesArrays:
    """Samples of one series: at int64[n] ms ascending, values float64[n] with the stale marker's bits for its rows."""

    series: Series
    at: NDArray[np.int64]
    values: Floats


@dataclass(slots=True)
class _Wanted:
    """What is read of one kind. series: uint32[n]; entity, column: of each; until: its newest time there (ms)."""

    kind: Kind
    series: list[Ids]
    entity: list[NDArray[Any]]
    column: list[NDArray[Any]]
    until: list[NDArray[np.int64]]


class Reading(Samples):
    """Readers of samples, series, labels, events and layouts."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[SeriesSamples]:
        """Samples with start <= at <= end (ms), series sorted by name and labels; a stale marker is None."""
        out = []
        for one in self.arrays(matchers, start, end):
            values: list[float | None] = one.values.tolist()
            for i in np.flatnonzero(absent(one.values)).tolist():
                values[i] = None
            out.append(SeriesSamples(one.series, one.at.tolist(), values))
        return out

    def arrays(self, matchers: Sequence[Matcher], start: int, end: int, most: int = MOST_SAMPLES) -> list[SeriesArrays]:
        """As `select`, as arrays. Raises Refused(`too_many_samples`) where there are more than `most`."""
        book = self._catalogue
        return self._arrays(book, book.match(matchers, start, end), start, end, most)

    def arrays_of(self, series: Sequence[Series], start: int, end: int, most: int = MOST_SAMPLES) -> list[SeriesArrays]:
        """As `arrays`, of these series; those that are not known are left out."""
        book = self._catalogue
        return self._arrays(book, book.ids_of(series), start, end, most)

    def _arrays(self, book: Catalogue, ids: Ids, start: int, end: int, most: int) -> list[SeriesArrays]:
        """book: the catalogue that the ids are from; a newer one may have forgotten them."""
        if not len(ids) or end < start:
            return []
        pieces: dict[int, list[Piece]] = {}
        for number, piece in self._answer(ids, start, end, most):
            if len(piece[0]):
                pieces.setdefault(number, []).append(piece)
        out = [SeriesArrays(book.get(number), *merged(some)) for number, some in pieces.items()]
        out = [one for one in out if len(one.at)]
        if sum(len(one.at) for one in out) > most:
            raise _too_many(most)
        out.sort(key=lambda one: (one.series.name, one.series.labels))
        return out

    def _answer(self, ids: Ids, start: int, end: int, most: int) -> list[tuple[int, Piece]]:
        """Pieces of series, from one view of the database."""
        for attempt in range(ANSWER_TRIES):
            try:
                with self.reading() as cursor:
                    cursor.execute("BEGIN")
                    found = list(self._pieces(cursor, ids, start, end, most))
                    cursor.execute("COMMIT")
                    return found
            except (duckdb.CatalogException, duckdb.IOException, duckdb.BinderException) as error:
                # An hour was sealed, or expired, between naming its table and reading it: name it anew.
                if attempt == ANSWER_TRIES - 1:
                    raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
            except duckdb.Error as error:
                raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
        raise GreylagError(f"{self.where} could not answer")

    def _pieces(self, cursor: duckdb.DuckDBPyConnection, ids: Ids, start: int, end: int,
                most: int) -> Iterator[tuple[int, Piece]]:
        for wanted in self._wanted(ids):
            yield from self._wide(cursor, wanted, start, end, most)
        found = fetch(cursor, self._segments.sources(LONG, start, end), LONG, ids, [0], start, end, most)
        if found is None:
            return
        numbers, at, values = found["k"], found["t"], found["value"]
        present = np.unique(numbers)
        yield from zip(present.tolist(), _split(numbers, at, values, present), strict=True)

    def _wanted(self, ids: Ids) -> list[_Wanted]:
        book, out = self._catalogue, {}
        with book.lock:
            for kind, series in book.wide_of(ids):
                out[kind.id] = _Wanted(kind, [series], [book.entity[series]], [book.column[series]],
                                       [np.full(len(series), FOREVER, np.int64)])
            moved = [number for number in book.former if number in set(ids.tolist())] if book.former else []
            for number in moved:
                for entity, until in book.former[number]:
                    kind = book.kinds.all[int(book.entity_kind[entity])]
                    one = out.setdefault(kind.id, _Wanted(kind, [], [], [], []))
                    one.series.append(np.array([number], np.uint32))
                    one.entity.append(np.array([entity]))
                    one.column.append(book.column[number : number + 1])
                    one.until.append(np.array([until]))
        return list(out.values())

    def _wide(self, cursor: duckdb.DuckDBPyConnection, wanted: _Wanted, start: int, end: int,
              most: int) -> Iterator[tuple[int, Piece]]:
        series, entity = np.concatenate(wanted.series), np.concatenate(wanted.entity).astype(np.uint32)
        column, until = np.concatenate(wanted.column).astype(np.int64), np.concatenate(wanted.until)
        entities, columns = np.unique(entity), np.unique(column).tolist()
        found = fetch(cursor, self._segments.sources(wanted.kind.id, start, end), wanted.kind.id, entities, columns, start,
                      end, most)
        if found is None:
            return
        for number in columns:
            here = np.flatnonzero(column == number)
            here = here[np.argsort(entity[here], kind="stable")]
            pieces = wide_pieces(found["k"], found["t"], found[f"c{number}"], entity[here])
            for i, (at, values) in zip(here.tolist(), pieces, strict=True):
                last = len(at) if until[i] == FOREVER else int(np.searchsorted(at, until[i], "right"))
                yield int(series[i]), (at[:last], values[:last])

    def series(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> list[Series]:
        """Series that match and have samples from start to end (ms; None = open), sorted by name and labels."""
        book = self._catalogue
        found = [book.get(int(i)) for i in book.match(matchers, start, end)]
        return sorted(found, key=lambda s: (s.name, s.labels))

    def first_seen(self, series: Sequence[Series]) -> int:
        """The time (ms) of the first sample of any of the series; they must be known."""
        return int(self._catalogue.first_ms[self._catalogue.ids_of(series)].min())

    def metric_types(self) -> list[tuple[str, str]]:
        """(metric name, type as the exporter declared it), sorted."""
        return self._catalogue.metric_types()

    def label_names(self, matchers: Sequence[Matcher] = (), start: int | None = None, end: int | None = None) -> list[str]:
        """Label names, `__name__` included, sorted; of the matching series where matchers or times are given."""
        if not matchers and start is None and end is None:
            return self._catalogue.label_names()
        found = self.series(matchers, start, end)
        return sorted({METRIC for _ in found} | {key for one in found for key, _ in one.labels})

    def label_values(self, name: str, matchers: Sequence[Matcher] = (), start: int | None = None,
                     end: int | None = None) -> list[str]:
        """Values of a label (or metric names for `__name__`), sorted."""
        if not matchers and start is None and end is None:
            return self._catalogue.label_values(name)
        found = self.series(matchers, start, end)
        return sorted({s.name if name == METRIC else s.label(name) for s in found} - {""})

    def events(self, start: int, end: int, kinds: Sequence[str] = (), limit: int = 10_000,
               nodes: Sequence[str] | None = None) -> list[Event]:
        """Events with start <= at <= end (ms), in time order; of the kinds where some are given; the newest `limit`. nodes: only
        those of these nodes, and those of no node (a job's, the fleet's)."""
        among = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        if nodes is not None:
            among += f" AND (node IS NULL OR node IN ({', '.join('?' * len(nodes)) or 'NULL'}))"
        rows = self.rows("SELECT body FROM (SELECT body, at_ms, rowid AS n FROM events WHERE at_ms BETWEEN ? AND ?"
                         f"{among} ORDER BY at_ms DESC, n DESC LIMIT ?) ORDER BY at_ms, n", [start, end, *kinds, *(nodes or ()), limit])
        return [decode(Event, row[0]) for row in rows]

    def layout(self, layout_id: str) -> Layout | None:
        """A layout that was handed over before, also by an earlier process; None where it is not known."""
        return self._layout_in(self.rows(LAYOUT, [layout_id]))

    def meanings(self, signal: str, start: int, end: int, node: str | None = None,
                 most: int = 512) -> list[tuple[str, Series, SignalRef]]:
        """(scrape target's id, series, reference) wherever layouts with samples from start to end (ms) mean the signal,
        in order of target and preference; of one node where it is named. Stops after `most` parts and one more."""
        book = self._catalogue
        where, values = "contains(names, ?)", [f" {signal} "]
        if node is not None:
            where, values = where + " AND node = ?", [*values, node]
        ids = [row[0] for row in self.rows(f"SELECT id FROM layouts WHERE {where} ORDER BY target_id, id", values)]
        out: dict[tuple[str, Series, str], tuple[str, Series, SignalRef]] = {}
        parts: set[str] = set()
        for at in range(0, len(ids), LAYOUTS_AT_ONCE):
            rows = self.rows("SELECT target_id, series, signals FROM layouts WHERE id IN (SELECT unnest(?))"
                             " ORDER BY target_id, id", [ids[at : at + LAYOUTS_AT_ONCE]])
            for target_id, numbers, packed in rows:
                refs = [ref for ref in unpack(packed) if ref.signal == signal]
                mine = np.array([numbers[ref.index] for ref in refs], np.uint32)
                live = (book.seen_last(mine) >= start) & (book.first_ms[mine] <= end)
                for number, ref, there in zip(mine.tolist(), refs, live.tolist(), strict=True):
                    if there:
                        series = book.get(number)
                        out.setdefault((target_id, series, ref.target.key), (target_id, series, ref))
                        parts.add(ref.target.key)
            if len(parts) > most:
                break
        return list(out.values())

    def watermarks(self) -> dict[str, int]:
        """The newest watermark (ms) of each worker's current epoch."""
        rows = self.rows("SELECT worker, max(watermark_ms) FROM batches GROUP BY worker ORDER BY worker")
        return {str(worker): int(at) for worker, at in rows}


def fetch(cursor: duckdb.DuckDBPyConnection, sources: Sequence[Source], kind: int, keys: Ids, columns: Sequence[int],
          start: int, end: int, most: int, also: str = "") -> dict[str, Any] | None:
    """Rows of a kind with these keys (ascending) between start and end (ms), sorted by key and time: `k` uint32, `t` int64
    and the value columns by name; None where there is none. also: one more condition, as SQL.

    Raises Refused(`too_many_samples`) where they hold more than `most` cells.
    """
    if not sources:
        return None
    key, values = ("series_id", ["value"]) if kind == LONG else ("entity", [f"c{i}" for i in columns])
    low, high = int(keys[0]), int(keys[-1])
    condition = f"at_ms BETWEEN {int(start)} AND {int(end)} AND {key} BETWEEN {low} AND {high}{also}"
    among = ""
    if len(keys) <= LONGEST_IN_LIST:
        condition += f" AND {key} IN ({', '.join(map(str, keys.tolist()))})"
    elif len(keys) < high - low + 1:
        cursor.register("wanted", pa.table({"id": pa.array(keys, pa.uint32())}))
        among = " WHERE k IN (SELECT id FROM wanted)"
    union = union_of(sources, kind, columns, condition)
    limit = most // len(values) + 1
    found: Any = cursor.execute(f"SELECT * FROM ({union}){among} LIMIT {limit + 1}").fetchnumpy()
    if among:
        cursor.unregister("wanted")
    numbers, at = np.asarray(found["k"], np.uint32), np.asarray(found["t"], np.int64)
    if not len(numbers):
        return None
    if len(numbers) > limit:
        raise _too_many(most)
    order = np.lexsort((at, numbers))
    return {"k": numbers[order], "t": at[order], **{v: values_of(found[v])[order] for v in values}}


def union_of(sources: Sequence[Source], kind: int, columns: Sequence[int], condition: str) -> str:
    """SQL for the rows of a kind: `k`, `t` and the value columns, NULL where a source has them not."""
    key, names = ("series_id", ["value"]) if kind == LONG else ("entity", [f"c{i}" for i in columns])
    selects = []
    for source in sources:
        have = [f"{v}::DOUBLE AS {v}" if kind == LONG or i < source.columns else f"NULL::DOUBLE AS {v}"
                for i, v in zip(columns, names, strict=True)]
        selects.append(f"SELECT {key} AS k, at_ms AS t, {', '.join(have)} FROM {source.relation} WHERE {condition}")
    return " UNION ALL ".join(selects)


def _split(keys: Ids, at: NDArray[np.int64], values: Floats, wanted: Ids) -> Iterator[Piece]:
    low, high = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        yield at[first:last], values[first:last]


def _too_many(most: int) -> Refused:
    return Refused("too_many_samples", f"the query reads more than {most} samples: ask for less time or fewer series")


