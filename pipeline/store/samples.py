"""The sample side of the store: append, select, sealing and retention."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import STALE_NAN, absent
from core.errors import ConfigError, GreylagError, Refused
from core.protocols import Matcher, SeriesSamples
from core.types import Batch, Event, Floats, Layout, Series, SignalRef
from pipeline.store.catalogue import METRIC, NEVER, Catalogue, Ids, KnownLayout, unique_rows
from pipeline.store.codec import decode, encode
from pipeline.store.database import DEADLINE_SECONDS, MEMORY_LIMIT, THREADS, Database
from pipeline.store.ingest import REPEAT_SPAN, AppendResult, Epochs, Plan, Planner, Rows
from pipeline.store.schema import first_line
from pipeline.store.segments import FOLDER, Part, Segment, Segments

LONGEST_IN_LIST = 500
MOST_SAMPLES = 50_000_000  # a query that reads more is refused, as in Prometheus (query.max-samples)
ANSWER_TRIES = 3
LAYOUTS_AT_ONCE = 64
DAY_MS = 86_400_000
# Windows look back 7 days for events, so events stay at least so long whatever the retention of samples is.
EVENTS_KEPT_MS = 7 * DAY_MS
UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS}


def retention_ms(text: str, where: str = "greylag.yaml") -> int:
    """`retention.raw` as ms: a whole number and m, h, d, w or y, at least 1h. Raises ConfigError."""
    found = re.fullmatch(r"(\d{1,6})([mhdwy])", text)
    span = int(found[1]) * UNITS_MS[found[2]] if found else 0
    if span < UNITS_MS["h"]:
        raise ConfigError(where, "retention.raw", text, "a duration of at least 1h is needed, such as 15d")
    return span


@dataclass(frozen=True, slots=True, eq=False)
class SeriesArrays:
    """Samples of one series: at int64[n] ms ascending, values float64[n] with the stale marker's bits for its rows."""

    series: Series
    at: NDArray[np.int64]
    values: Floats


class Samples(Database):
    """Series, samples and events. Retention: whole hours older than `retention_ms` before the newest sample."""

    def __init__(self, path: Path | str | None = None, memory_limit: str = MEMORY_LIMIT, threads: int = THREADS,
                 deadline_seconds: float = DEADLINE_SECONDS, retention_ms: int = 15 * DAY_MS) -> None:
        super().__init__(path, memory_limit, threads, deadline_seconds)
        self.retention_ms = retention_ms
        self._totals: dict[str, int] = {}
        self._segments = Segments(None if self.file is None else self.file.parent / FOLDER)
        try:
            self._segments.load(self._writer)
            self._orphans = self._segments.sweep()
            self._load()
            self._prune()
        except BaseException as error:
            self.close()
            if isinstance(error, duckdb.Error):
                raise GreylagError(f"{self.where} could not be read ({first_line(error)})") from error
            raise

    # --- the state in memory ------------------------------------------------------------------------------------------
    def _load(self, floor: int = 0) -> None:
        """Reads catalogue, layouts and epochs. floor: ids below it are never given again (a rollback may have used them)."""
        cursor = self._writer
        rows = cursor.execute("SELECT id, name, labels, type, target_id, first_ms, last_ms, last_value FROM series"
                              " ORDER BY id").fetchall()
        book = Catalogue(max([floor, *(int(row[0]) + 1 for row in rows[-1:])]))
        for number, name, labels, kind, target_id, first_ms, last_ms, last in rows:
            series = Series(name, tuple(json.loads(labels).items()), kind)
            first, newest = (NEVER if at is None else at for at in (first_ms, last_ms))
            book.restore(number, series, target_id, first, newest, STALE_NAN if last is None else last)
        for part in self._segments.parts:
            self._newest_of(cursor, book, part)
        for number, target_id, ids in cursor.execute("SELECT id, target_id, series FROM layouts").fetchall():
            array = np.array(ids, np.uint32)
            book.layouts[number] = KnownLayout(number, target_id, array, unique_rows(array))
        epochs = Epochs()
        for worker, epoch in cursor.execute("SELECT worker, epoch FROM epochs").fetchall():
            epochs.start(worker, epoch)
        for key in cursor.execute("SELECT worker, epoch, seq FROM batches ORDER BY epoch, seq").fetchall():
            if epochs.newest.get(key[0], key[1]) <= key[1]:
                epochs.add(key)
        self._planner, self._epochs = Planner(book), epochs
        self._catalogue = book
        self.newest_ms = int(book.last_ms.max()) if len(book) else NEVER

    @staticmethod
    def _newest_of(cursor: duckdb.DuckDBPyConnection, book: Catalogue, part: Part) -> None:
        # arg_max skips NULLs, so the last row is found by its time and joined.
        found: Any = cursor.execute(
            f"SELECT t.series_id, n.first_ms, t.at_ms, t.value FROM {part.table} t JOIN (SELECT series_id, min(at_ms) AS first_ms,"
            f" max(at_ms) AS last_ms FROM {part.table} GROUP BY series_id) n ON t.series_id = n.series_id"
            f" AND t.at_ms = n.last_ms").fetchnumpy()
        ids = np.asarray(found["series_id"], np.int64)
        if not len(ids):
            return
        first, at = np.asarray(found["first_ms"], np.int64), np.asarray(found["at_ms"], np.int64)
        values = _values(found["value"])
        newer = at >= book.last_ms[ids]
        book.last_ms[ids[newer]], book.last_value[ids[newer]] = at[newer], values[newer]
        known = book.first_ms[ids]
        book.first_ms[ids] = np.where(known == NEVER, first, np.minimum(known, first))

    def _rolled_back(self) -> None:
        self._segments.load(self._writer)
        self._load(self._catalogue.next_id)

    def _prune(self) -> None:
        """Forgets series and layouts that retention has emptied. Only at the start: no reader or layout holds them yet."""
        if self.newest_ms == NEVER:
            return
        book, horizon = self._catalogue, self.newest_ms - self.retention_ms
        old = [k for k in book.layouts.values() if not len(k.ids) or (book.last_ms[k.ids] < horizon).all()]
        kept = [k.ids for k in book.layouts.values() if k not in old]
        used = np.unique(np.concatenate(kept)) if kept else np.empty(0, np.uint32)
        ids = np.array([i for i, one in enumerate(book.series) if one is not None], np.int64)
        gone = np.setdiff1d(ids[book.last_ms[ids] < horizon], used)
        if not len(gone) and not old:
            return
        with self.transaction() as cursor:
            with self.registered(cursor, pa.table({"id": pa.array(gone, pa.uint32())})) as name:
                cursor.execute(f"DELETE FROM series WHERE id IN (SELECT id FROM {name})")
            with self.registered(cursor, pa.table({"id": pa.array([k.id for k in old], pa.string())})) as name:
                cursor.execute(f"DELETE FROM layouts WHERE id IN (SELECT id FROM {name})")
        self._load(book.next_id)

    # --- append -------------------------------------------------------------------------------------------------------
    def append(self, batches: Sequence[Batch]) -> None:
        """Commits the batches in one transaction; a batch (worker, epoch, seq) seen before is skipped and counted.

        Raises Refused(`unknown_layout`, `bad_batch`) or GreylagError; then nothing of any of them is stored.
        """
        self.append_counted(batches)

    def append_counted(self, batches: Sequence[Batch]) -> AppendResult:
        """As `append`; says what was stored, repeated and refused."""
        with self._write_lock:
            self._planner.check(batches)
            with self.transaction() as cursor:
                plan = self._planner.plan(batches, self._epochs)
                if plan.accepted:
                    self._write(cursor, plan)
            for key, _, _ in plan.accepted:
                self._epochs.add(key)
            newest = [hour.arrays()[1].max() for hour in plan.rows.values() if len(hour)]
            self.newest_ms = max([self.newest_ms, *map(int, newest)])
            result = plan.result()
            for reason, n in result.counts.items():
                self._totals[reason] = self._totals.get(reason, 0) + n
            return result

    def _write(self, cursor: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        for hour, rows in plan.rows.items():
            if len(rows):
                self.insert(cursor, self._segments.table_for(cursor, hour), _arrow(rows))
        for hour, rows in plan.late.items():
            if len(rows):
                self._write_late(cursor, plan, hour, rows)
        self._write_series(cursor, plan)
        if plan.events:
            self._write_events(cursor, plan.events)
        keys = [key for key, _, _ in plan.accepted]
        self.put(cursor, "batches", {
            "worker": (pa.string(), [k[0] for k in keys]), "epoch": (pa.int64(), [k[1] for k in keys]),
            "seq": (pa.int64(), [k[2] for k in keys]), "watermark_ms": (pa.int64(), [w for _, w, _ in plan.accepted]),
            "samples": (pa.int64(), [n for _, _, n in plan.accepted])})

    def _write_late(self, cursor: duckdb.DuckDBPyConnection, plan: Plan, hour: int, rows: Rows) -> None:
        """Samples older than the newest of their series: stored unless the series has one of that time already."""
        ids, at, values = rows.arrays()
        wanted = pa.table({"series_id": pa.array(ids, pa.uint32()), "at_ms": pa.array(at)})
        low, high = int(at.min()), int(at.max())
        sources = self._segments.sources(low, high)
        stored: dict[tuple[int, int], float] = {}
        if sources:
            with self.registered(cursor, wanted) as name:
                union = " UNION ALL ".join(sources)
                found: Any = cursor.execute(
                    f"SELECT s.series_id, s.at_ms, s.value FROM ({union}) s SEMI JOIN {name} w ON s.series_id = w.series_id"
                    f" AND s.at_ms = w.at_ms WHERE s.at_ms BETWEEN {low} AND {high}").fetchnumpy()
            pairs = zip(found["series_id"].tolist(), found["at_ms"].tolist(), strict=True)
            stored = dict(zip(pairs, _values(found["value"]).tolist(), strict=True))
        take = []
        for i, (key, value) in enumerate(zip(zip(ids.tolist(), at.tolist(), strict=True), values.tolist(), strict=True)):
            if key in stored:
                same = stored[key] == value or (math.isnan(stored[key]) and math.isnan(value))
                plan.counts["duplicate" if same else "conflict"] += 1
            else:
                stored[key] = value
                take.append(i)
        if take:
            chosen = Rows()
            for i in take:
                chosen.add(int(at[i]), ids[i : i + 1], values[i : i + 1])
            plan.samples += len(take)
            self.insert(cursor, self._segments.table_for(cursor, hour), _arrow(chosen))

    def _write_series(self, cursor: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        book = self._catalogue
        new = plan.new_series
        if new:
            many = [book.get(i) for i in new]
            self.put(cursor, "series", {
                "id": (pa.uint32(), new), "name": (pa.string(), [s.name for s in many]),
                "labels": (pa.string(), [json.dumps(dict(s.labels), ensure_ascii=False) for s in many]),
                "type": (pa.string(), [s.type for s in many]),
                "target_id": (pa.string(), [book.targets[book.owner[i]] for i in new]),
                # The open hours say when a series began and ended; sealing writes it here.
                "first_ms": (pa.int64(), [None] * len(new)), "last_ms": (pa.int64(), [None] * len(new)),
                "last_value": (pa.float64(), [None] * len(new))})
        if plan.moved:
            ids = np.unique(np.concatenate(plan.moved))
            rows = pa.table({"id": pa.array(ids, pa.uint32()),
                             "target_id": pa.array([book.targets[book.owner[i]] for i in ids], pa.string())})
            with self.registered(cursor, rows) as name:
                cursor.execute(f"UPDATE series SET target_id = m.target_id FROM {name} m WHERE series.id = m.id")
        self.put(cursor, "layouts", {
            "id": (pa.string(), [one.id for one, _ in plan.layouts]),
            "target_id": (pa.string(), [one.target_id for one, _ in plan.layouts]),
            "node": (pa.string(), [one.node for one, _ in plan.layouts]),
            "job": (pa.string(), [one.job for one, _ in plan.layouts]),
            "source": (pa.string(), [one.source for one, _ in plan.layouts]),
            "series": (pa.list_(pa.uint32()), [known.ids.tolist() for _, known in plan.layouts]),
            "signals": (pa.string(), [json.dumps([encode(r) for r in one.signals]) for one, _ in plan.layouts])})

    def _write_events(self, cursor: duckdb.DuckDBPyConnection, events: Sequence[Event]) -> None:
        """Events that are not there yet: a collector that was killed reads the last lines of its logs again."""
        once = {(e.at, body): e for e in events for body in [encode(e)]}
        rows = pa.table({
            "at_ms": pa.array([at for at, _ in once], pa.int64()), "kind": pa.array([e.kind for e in once.values()], pa.string()),
            "node": pa.array([e.target.node for e in once.values()], pa.string()),
            "body": pa.array([body for _, body in once], pa.string())})
        self.insert(cursor, "events", rows, "WHERE NOT EXISTS (SELECT 1 FROM events AS known WHERE"
                    " known.at_ms = incoming.at_ms AND known.body = incoming.body)")

    def epoch(self, worker: str) -> int:
        """Grants the worker its next epoch, for good; batches of its older epochs are refused from now on."""
        with self._write_lock:
            granted = self._epochs.newest.get(worker, 0) + 1
            with self.transaction() as cursor:
                cursor.execute("DELETE FROM epochs WHERE worker = ?", [worker])
                cursor.execute("INSERT INTO epochs VALUES (?, ?)", [worker, granted])
                cursor.execute("DELETE FROM batches WHERE worker = ? AND epoch < ?", [worker, granted])
            self._epochs.start(worker, granted)
            return granted

    # --- reading ------------------------------------------------------------------------------------------------------
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
        return self._arrays(self._catalogue.match(matchers, start, end), start, end, most)

    def arrays_of(self, series: Sequence[Series], start: int, end: int, most: int = MOST_SAMPLES) -> list[SeriesArrays]:
        """As `arrays`, of these series; those that are not known are left out."""
        return self._arrays(self._catalogue.ids_of(series), start, end, most)

    def _arrays(self, ids: Ids, start: int, end: int, most: int) -> list[SeriesArrays]:
        book = self._catalogue
        if not len(ids) or end < start:
            return []
        found = self._fetch(ids, start, end, most)
        numbers = np.asarray(found["series_id"], np.int64)
        if not len(numbers):
            return []
        if len(numbers) > most:
            raise Refused("too_many_samples", f"the query reads more than {most} samples: ask for less time or fewer series")
        at, values = np.asarray(found["at_ms"], np.int64), _values(found["value"])
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        firsts = np.concatenate([[0], cuts])
        pieces = zip(firsts, np.split(at, cuts), np.split(values, cuts), strict=True)
        out = [SeriesArrays(book.get(int(numbers[i])), times, piece) for i, times, piece in pieces]
        out.sort(key=lambda one: (one.series.name, one.series.labels))
        return out

    def _fetch(self, ids: Ids, start: int, end: int, most: int) -> Any:
        low, high = int(ids[0]), int(ids[-1])
        condition = f"at_ms BETWEEN {int(start)} AND {int(end)} AND series_id BETWEEN {low} AND {high}"
        rows = None
        if len(ids) <= LONGEST_IN_LIST:
            condition += f" AND series_id IN ({', '.join(map(str, ids.tolist()))})"
        elif len(ids) < high - low + 1:
            rows = pa.table({"id": pa.array(ids, pa.uint32())})
        for attempt in range(ANSWER_TRIES):
            sources = self._segments.sources(start, end)
            if not sources:
                return {"series_id": np.empty(0), "at_ms": np.empty(0), "value": np.empty(0)}
            union = " UNION ALL ".join(f"{one} WHERE {condition}" for one in sources)
            try:
                with self.reading() as cursor:
                    among = ""
                    if rows is not None:
                        cursor.register("wanted", rows)
                        among = " WHERE series_id IN (SELECT id FROM wanted)"
                    return cursor.execute(f"SELECT series_id, at_ms, value FROM ({union}){among}"
                                          f" ORDER BY series_id, at_ms LIMIT {most + 1}").fetchnumpy()
            except (duckdb.CatalogException, duckdb.IOException) as error:
                # The hour was sealed, or expired, between naming its table and reading it: name it anew.
                if attempt == ANSWER_TRIES - 1:
                    raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
            except duckdb.Error as error:
                raise GreylagError(f"{self.where} could not answer ({first_line(error)})") from error
        raise GreylagError(f"{self.where} could not answer")

    def series(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> list[Series]:
        """Series that match and have samples from start to end (ms; None = open), sorted by name and labels."""
        book = self._catalogue
        found = [book.get(int(i)) for i in book.match(matchers, start, end)]
        return sorted(found, key=lambda s: (s.name, s.labels))

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

    def events(self, start: int, end: int, kinds: Sequence[str] = (), limit: int = 10_000) -> list[Event]:
        """Events with start <= at <= end (ms), in time order; of the kinds where some are given; the newest `limit`."""
        among = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        rows = self.rows("SELECT body FROM (SELECT body, at_ms, rowid AS n FROM events WHERE at_ms BETWEEN ? AND ?"
                         f"{among} ORDER BY at_ms DESC, n DESC LIMIT ?) ORDER BY at_ms, n", [start, end, *kinds, limit])
        return [decode(Event, row[0]) for row in rows]

    def layout(self, layout_id: str) -> Layout | None:
        """A layout that was handed over before, also by an earlier process; None where it is not known."""
        rows = self.rows("SELECT target_id, node, job, source, series, signals FROM layouts WHERE id = ?", [layout_id])
        if not rows:
            return None
        target_id, node, job, source, ids, signals = rows[0]
        series = tuple(self._catalogue.get(i) for i in ids)
        refs = tuple(decode(SignalRef, text) for text in json.loads(signals))
        return Layout(layout_id, target_id, series, refs, node, job, source)

    def meanings(self, signal: str, start: int, end: int, node: str | None = None,
                 most: int = 512) -> list[tuple[str, Series, SignalRef]]:
        """(scrape target's id, series, reference) wherever layouts with samples from start to end (ms) mean the signal,
        in order of target and preference; of one node where it is named. Stops after `most` parts and one more."""
        book = self._catalogue
        live = sorted((one.target_id, one.id) for one in list(book.layouts.values()) if len(one.ids)
                      and (book.last_ms[one.ids] >= start).any() and (book.first_ms[one.ids] <= end).any())
        where = "contains(signals, ?)" + ("" if node is None else " AND node = ?")
        values = [signal] if node is None else [signal, node]
        out: dict[tuple[str, Series, str], tuple[str, Series, SignalRef]] = {}
        parts: set[str] = set()
        for at in range(0, len(live), LAYOUTS_AT_ONCE):
            ids = [layout_id for _, layout_id in live[at : at + LAYOUTS_AT_ONCE]]
            rows = self.rows("SELECT target_id, series, list_filter(CAST(CAST(signals AS JSON) AS VARCHAR[]),"
                             f" lambda x: contains(x, ?)) FROM layouts WHERE id IN (SELECT unnest(?)) AND {where}"
                             " ORDER BY target_id, id", [signal, ids, *values])
            for target_id, numbers, texts in rows:
                for ref in (decode(SignalRef, text) for text in texts):
                    if ref.signal == signal:
                        series = book.get(numbers[ref.index])
                        out.setdefault((target_id, series, ref.target.key), (target_id, series, ref))
                        parts.add(ref.target.key)
            if len(parts) > most:
                break
        return list(out.values())

    def watermarks(self) -> dict[str, int]:
        """The newest watermark (ms) of each worker's current epoch."""
        rows = self.rows("SELECT worker, max(watermark_ms) FROM batches GROUP BY worker ORDER BY worker")
        return {str(worker): int(at) for worker, at in rows}

    # --- sealing and retention ----------------------------------------------------------------------------------------
    def seal_due(self) -> list[Part]:
        """Parts whose hour is over; they take no samples from now on. Each must go through `write_part` and `seal_part`."""
        with self._write_lock:
            parts = self._segments.due(self.newest_ms)
            self._segments.frozen.update(parts)
            return parts

    def write_part(self, part: Part) -> Segment | None:
        """Writes the part's file; any thread may do it while appends go on. Raises GreylagError."""
        try:
            with self.reading(deadline_seconds=3600.0) as cursor:
                return self._segments.write(cursor, part)
        except (duckdb.Error, OSError) as error:
            raise GreylagError(f"{self.where} could not seal an hour ({first_line(error)})") from error

    def seal_part(self, part: Part, segment: Segment | None) -> None:
        """Commits the manifest row and drops the part's table, in one transaction, with the series' newest samples."""
        with self._write_lock:
            book = self._catalogue
            with self.transaction() as cursor:
                self._segments.commit(cursor, part, segment)
                if segment is not None:
                    ids = np.flatnonzero(book.last_ms[: book.next_id] >= segment.first_ms)
                    marks = absent(book.last_value[ids])
                    rows = pa.table({"id": pa.array(ids, pa.uint32()), "first_ms": pa.array(book.first_ms[ids]),
                                     "last_ms": pa.array(book.last_ms[ids]),
                                     "last_value": pa.array(book.last_value[ids], mask=marks)})
                    with self.registered(cursor, rows) as name:
                        cursor.execute("UPDATE series SET first_ms = m.first_ms, last_ms = m.last_ms,"
                                       f" last_value = m.last_value FROM {name} m WHERE series.id = m.id")
                # Numbers so far behind the newest are known for repeats without their rows.
                cursor.execute("DELETE FROM batches USING (SELECT worker, max(seq) AS newest FROM batches GROUP BY worker) n"
                               f" WHERE batches.worker = n.worker AND batches.seq < n.newest - {REPEAT_SPAN}")
            self._segments.committed(part, segment)

    def unfreeze(self, part: Part) -> None:
        """The part could not be sealed: it is tried again later."""
        with self._write_lock:
            self._segments.frozen.discard(part)

    def seal(self) -> int:
        """Seals every hour that is over, in this thread; gives the number of segments written."""
        parts = self.seal_due()
        for part in parts:
            self.seal_part(part, self.write_part(part))
        return len(parts)

    def expire(self) -> int:
        """Drops whole hours, and events, that are older than the retention; gives the number of hours' tables and files."""
        with self._write_lock:
            if self.newest_ms == NEVER:
                return 0
            parts, segments = self._segments.expired(self.newest_ms - self.retention_ms)
            if not parts and not segments:
                return 0
            with self.transaction() as cursor:
                for part in parts:
                    cursor.execute(f"DROP TABLE {part.table}")
                for one in segments:
                    cursor.execute("DELETE FROM segments WHERE hour = ? AND part = ?", [one.hour, one.part])
                kept = max(self.retention_ms, EVENTS_KEPT_MS)
                cursor.execute("DELETE FROM events WHERE at_ms < ?", [self.newest_ms - kept])
            self._segments.dropped(parts, segments)
            return len(parts) + len(segments)

    def sample_stats(self) -> dict[str, Any]:
        """Series, rows, segments and bytes."""
        segments = self._segments
        live = 0
        for part in segments.parts:
            live += int(self.rows(f"SELECT count(*) FROM {part.table}")[0][0])
        sealed = sum(s.rows for s in segments.sealed)
        return {
            "series": len(self._catalogue), "layouts": len(self._catalogue.layouts), "samples": live + sealed,
            "open_hours": len({p.hour for p in segments.parts}), "open_samples": live,
            "segments": len(segments.sealed), "sealed_samples": sealed,
            "sealed_bytes": sum(s.size for s in segments.sealed), "missing_segments": len(segments.missing),
            "orphans_deleted": self._orphans, "counts": dict(sorted(self._totals.items())),
            "newest_ms": None if self.newest_ms == NEVER else self.newest_ms,
        }


def _arrow(rows: Rows) -> pa.Table:
    ids, at, values = rows.arrays()
    gone = absent(values)
    column = pa.array(values, mask=gone) if gone.any() else pa.array(values)
    return pa.table({"series_id": pa.array(ids, pa.uint32()), "at_ms": pa.array(at, pa.int64()), "value": column})


def _values(column: Any) -> Floats:
    """A fetched DOUBLE column with the stale marker's bits where it is NULL."""
    if isinstance(column, np.ma.MaskedArray):
        out = np.array(column.data, np.float64)
        out[np.ma.getmaskarray(column)] = STALE_NAN
        return out
    return np.asarray(column, np.float64)


