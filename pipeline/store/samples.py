"""The writing half of the sample side: what is in memory, and append."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import ConfigError, GreylagError
from core.types import Batch, Event, Layout
from pipeline.store.catalogue import NEVER, NO_ENTITY, Fresh
from pipeline.store.codec import encode, pack, unpack
from pipeline.store.database import DEADLINE_SECONDS, MEMORY_LIMIT, THREADS, Database
from pipeline.store.ingest import HOUR_MS, AppendResult, Hour, Plan, Planner
from pipeline.store.kinds import LONG
from pipeline.store.late import take_late
from pipeline.store.postings import Ids
from pipeline.store.restore import Readings, labels_out, read_catalogue, read_epochs
from pipeline.store.schema import first_line
from pipeline.store.segments import FOLDER, Segments
from pipeline.store.wide import fill, long_rows

DAY_MS = 86_400_000
UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS, "y": 365 * DAY_MS}
NONE_AT = 0  # rollups that are not kept


def retention_ms(text: str, where: str = "greylag.yaml", key: str = "retention.raw") -> int:
    """`retention.raw` as ms: a whole number and m, h, d, w or y, at least 1h. Raises ConfigError."""
    found = re.fullmatch(r"(\d{1,6})([mhdwy])", text)
    span = int(found[1]) * UNITS_MS[found[2]] if found else 0
    if span < UNITS_MS["h"]:
        raise ConfigError(where, key, text, "a duration of at least 1h is needed, such as 15d")
    return span


class Samples(Database):
    """Series, samples and events. Retention: whole hours older than `retention_ms` before the newest sample; likewise
    `rollup_1m_ms` and `rollup_1h_ms` for the rollups (0 = none are made).

    raw_paused: while True, samples are skipped and counted as `disk_full`; all else goes on.
    """

    def __init__(self, path: Path | str | None = None, memory_limit: str = MEMORY_LIMIT, threads: int = THREADS,
                 deadline_seconds: float = DEADLINE_SECONDS, retention_ms: int = 15 * DAY_MS,
                 rollup_1m_ms: int = NONE_AT, rollup_1h_ms: int = NONE_AT) -> None:
        super().__init__(path, memory_limit, threads, deadline_seconds)
        self.retention_ms, self.rollup_1m_ms, self.rollup_1h_ms = retention_ms, rollup_1m_ms, rollup_1h_ms
        self._totals: dict[str, int] = {}
        self._paused = False
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

    def close(self) -> None:
        """As `Database.close`; files that were dropped or replaced last go too, since nobody reads them any more."""
        with self._write_lock:
            if not self._closed and hasattr(self, "_segments"):
                self._segments.bury()
            super().close()

    @property
    def raw_paused(self) -> bool:
        """Whether samples are skipped."""
        return self._paused

    @raw_paused.setter
    def raw_paused(self, paused: bool) -> None:
        self._paused = self._planner.paused = paused

    # --- the state in memory ------------------------------------------------------------------------------------------
    def _load(self, floor: int = 0) -> None:
        """Reads the state. floor: series ids below it are never given again (a rollback may have used them)."""
        cursor = self._writer
        book = read_catalogue(cursor, floor)
        readings = Readings(cursor, book, self._segments)
        planner = Planner(book, self._recall)
        planner.paused = self._paused
        for target_id, at, wide, long in readings.each():
            planner.restore(target_id, at, wide, long)
        self._readings_stored = readings.stored
        self._epochs = read_epochs(cursor)
        self._planner, self._catalogue = planner, book
        seen = [*book.reading_ms[: len(book.targets)].tolist(), *book.last_ms[: book.next_id].tolist()]
        self.newest_ms = max(seen, default=NEVER)

    def _rolled_back(self) -> None:
        self._segments.load(self._writer)
        self._load(self._catalogue.next_id)

    def _prune(self, least: int = 1) -> int:
        """Forgets series, their entities and layouts of which retention has left nothing; gives how many series went.
        least: fewer of them stay.

        The state is read anew then, as after a failed transaction: readers go on with the one that they hold.
        """
        if self.newest_ms == NEVER:
            return 0
        book, horizon = self._catalogue, self._horizon()
        ids = np.flatnonzero(book.owner[: book.next_id] >= 0)
        gone = ids[book.seen_last(ids.astype(np.uint32)) < horizon]
        if len(gone) < max(1, least):
            return 0
        dead = np.zeros(book.next_id, np.bool_)
        dead[gone] = True
        old: list[str] = []
        for layout_id, series in self._writer.execute("SELECT id, series FROM layouts").fetchall():
            numbers = np.array(series, np.int64)
            if dead[numbers].all():
                old.append(layout_id)
            else:
                dead[numbers] = False
        gone = np.flatnonzero(dead)
        if len(gone) < max(1, least):
            return 0
        with self.transaction() as cursor:
            with self.registered(cursor, pa.table({"id": pa.array(gone, pa.uint32())})) as name:
                cursor.execute(f"DELETE FROM series WHERE id IN (SELECT id FROM {name})")
                cursor.execute(f"DELETE FROM moves WHERE series IN (SELECT id FROM {name})")
            with self.registered(cursor, pa.table({"id": pa.array(old, pa.string())})) as name:
                cursor.execute(f"DELETE FROM layouts WHERE id IN (SELECT id FROM {name})")
            cursor.execute("DELETE FROM entities WHERE id NOT IN (SELECT entity FROM series WHERE entity IS NOT NULL"
                           " UNION SELECT entity FROM moves)")
            cursor.execute("DELETE FROM readings WHERE at_ms < ?", [horizon])
        newest = self.newest_ms
        self._load(book.next_id)
        self.newest_ms = max(newest, self.newest_ms)
        return len(gone)

    def _horizon(self) -> int:
        """The time (ms) before which nothing is kept: not by retention, and not in a file that spans more than an hour."""
        kept = self.newest_ms - max(self.retention_ms, self.rollup_1m_ms, self.rollup_1h_ms)
        hours = [part.hour for part in self._segments.parts] + [segment.hour for segment in self._segments.sealed]
        return min(kept, min(hours, default=2**31) * HOUR_MS)

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
            self.newest_ms = max(self.newest_ms, plan.newest_ms)
            result = plan.result()
            for reason, n in result.counts.items():
                self._totals[reason] = self._totals.get(reason, 0) + n
            return result

    def _write(self, cursor: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        for number, hour in plan.hours.items():
            self._write_hour(cursor, plan, number, hour)
        for number, hour in plan.hours.items():
            if len(hour.late):
                ids, at, values = hour.late.arrays()
                rows, counts = take_late(cursor, self._catalogue, self._segments, number, ids, at, values)
                plan.counts.update(counts)
                if len(rows):
                    plan.samples += len(rows)
                    self.insert(cursor, self._segments.table_for(cursor, LONG, number, 1), long_rows(rows))
        self._write_catalogue(cursor, plan)
        if plan.events:
            self._write_events(cursor, plan.events)
        keys = [key for key, _, _ in plan.accepted]
        self.put(cursor, "batches", {
            "worker": (pa.string(), [k[0] for k in keys]), "epoch": (pa.int64(), [k[1] for k in keys]),
            "seq": (pa.int64(), [k[2] for k in keys]), "watermark_ms": (pa.int64(), [w for _, w, _ in plan.accepted]),
            "samples": (pa.int64(), [n for _, _, n in plan.accepted])})

    def _write_hour(self, cursor: duckdb.DuckDBPyConnection, plan: Plan, number: int, hour: Hour) -> None:
        for one in fill(hour, self._catalogue):
            width = max(len(self._catalogue.kinds.all[one.kind].columns), 1)
            table = self._segments.table_for(cursor, one.kind, number, width)
            columns = ", ".join(["entity", "at_ms", *(f"c{i}" for i in one.columns)])
            self.insert(cursor, f"{table} ({columns})", one.rows)
            plan.samples += one.samples
        if len(hour.rows):
            self.insert(cursor, self._segments.table_for(cursor, LONG, number, 1), long_rows(hour.rows))

    # --- the catalogue's tables ---------------------------------------------------------------------------------------
    def _write_catalogue(self, cursor: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        book = self._catalogue
        fresh, book.fresh = book.fresh, Fresh()
        self._write_kinds(cursor, fresh)
        new = np.concatenate(fresh.series) if fresh.series else np.empty(0, np.uint32)
        if len(new):
            self.insert(cursor, "series", self._series_rows(new))
        moved = [*fresh.placed, *plan.first]
        changed = np.setdiff1d(np.concatenate(moved), new) if moved else new[:0]
        if len(changed):
            with self.registered(cursor, self._series_rows(changed)) as name:
                cursor.execute("UPDATE series SET entity = m.entity, col = m.col, target_id = m.target_id,"
                               f" first_ms = m.first_ms FROM {name} m WHERE series.id = m.id")
        for move in fresh.moves:
            cursor.execute("INSERT INTO moves VALUES (?, ?, ?)", list(move))
        self.put(cursor, "readings", {
            "target_id": (pa.string(), list(plan.silent)), "at_ms": (pa.int64(), list(plan.silent.values())),
            "wide": (pa.list_(pa.uint32()), [[] for _ in plan.silent]),
            "tall": (pa.list_(pa.uint32()), [[] for _ in plan.silent])}, key="target_id")
        self._readings_stored.update(plan.silent)
        self._write_layouts(cursor, plan)

    def _write_kinds(self, cursor: duckdb.DuckDBPyConnection, fresh: Fresh) -> None:
        book = self._catalogue
        self.put(cursor, "kinds", {"id": (pa.int16(), [k.id for k in fresh.kinds]),
                                   "domain": (pa.string(), [k.domain for k in fresh.kinds]),
                                   "keys": (pa.string(), [json.dumps(k.keys) for k in fresh.kinds])})
        kinds, shapes = book.kinds.all, book.kinds.shapes
        rows = [(c.kind, c.index, c.name, c.type, kinds[c.kind].keys, c.pivot) for c in fresh.columns]
        rows += [(LONG, -1, name, type_, *shapes[shape]) for name, type_, shape in fresh.long]
        self.put(cursor, "kind_columns", {
            "kind": (pa.int16(), [r[0] for r in rows]), "idx": (pa.int16(), [r[1] for r in rows]),
            "name": (pa.string(), [r[2] for r in rows]), "type": (pa.string(), [r[3] for r in rows]),
            "keys": (pa.string(), [json.dumps(r[4]) for r in rows]), "pivots": (pa.string(), [labels_out(r[5]) for r in rows])})
        new = fresh.entities
        self.put(cursor, "entities", {
            "id": (pa.uint32(), new), "kind": (pa.int16(), book.entity_kind[new].tolist()),
            "target_id": (pa.string(), [book.targets[i] for i in book.entity_target[new].tolist()]),
            "labels": (pa.string(), [labels_out(book.entity_labels[i]) for i in new]),
            "first_ms": (pa.int64(), [None] * len(new)), "last_ms": (pa.int64(), [None] * len(new))})

    def _series_rows(self, ids: Ids) -> pa.Table:
        """Rows of the table `series`. Names and labels of series in wide tables are their column's and entity's."""
        book = self._catalogue
        entity, first = book.entity[ids], book.first_ms[ids]
        names: dict[str, list[str | None]] = {"target_id": [None] * len(ids), "name": [None] * len(ids),
                                              "labels": [None] * len(ids), "type": [None] * len(ids)}
        for i in np.flatnonzero(entity < 0).tolist():
            one = book.get(int(ids[i]))
            names["target_id"][i], names["name"][i] = book.targets[book.owner[ids[i]]], one.name
            names["labels"][i], names["type"][i] = labels_out(one.labels), one.type
        text = {key: pa.array(values, pa.string()) for key, values in names.items()}
        # The open hours say when a series was last seen; sealing writes it here.
        return pa.table({
            "id": pa.array(ids, pa.uint32()), "entity": pa.array(entity, mask=entity == NO_ENTITY),
            "col": pa.array(book.column[ids], mask=entity == NO_ENTITY), "target_id": text["target_id"],
            "first_ms": pa.array(first, mask=first == NEVER), "last_ms": pa.nulls(len(ids), pa.int64()),
            "name": text["name"], "labels": text["labels"], "type": text["type"]})

    def _write_layouts(self, cursor: duckdb.DuckDBPyConnection, plan: Plan) -> None:
        packed = [pack(one.signals) for one, _ in plan.layouts]
        self.put(cursor, "layouts", {
            "id": (pa.string(), [one.id for one, _ in plan.layouts]),
            "target_id": (pa.string(), [one.target_id for one, _ in plan.layouts]),
            "node": (pa.string(), [one.node for one, _ in plan.layouts]),
            "job": (pa.string(), [one.job for one, _ in plan.layouts]),
            "source": (pa.string(), [one.source for one, _ in plan.layouts]),
            "partial": (pa.bool_(), [one.partial for one, _ in plan.layouts]),
            "series": (pa.list_(pa.uint32()), [known.ids for _, known in plan.layouts]),
            "types": (pa.string(), [self._types(one, known.ids) for one, known in plan.layouts]),
            "names": (pa.string(), [names for names, _ in packed]),
            "signals": (pa.binary(), [body for _, body in packed])})

    def _types(self, layout: Layout, ids: Ids) -> str | None:
        """The types of a layout's series where they are not what the catalogue has for them."""
        book = self._catalogue
        columns = [k.columns for k in book.kinds.all]
        entity = book.entity[ids]
        kinds = np.where(entity >= 0, book.entity_kind[np.maximum(entity, 0)] if len(book.entity_kind) else -1, -1)
        known = [columns[kind][column].type if kind >= 0 else book.get(number).type for number, kind, column in
                 zip(ids.tolist(), kinds.tolist(), book.column[ids].tolist(), strict=True)]
        types = [one.type for one in layout.series]
        return None if types == known else json.dumps(types)

    def _recall(self, layout_id: str) -> Layout | None:
        """A layout from the database, on the writer's own cursor."""
        return self._layout_in(self._writer.execute(LAYOUT, [layout_id]).fetchall())

    def _layout_in(self, rows: Sequence[Sequence[Any]]) -> Layout | None:
        if not rows:
            return None
        number, target_id, node, job, source, partial, ids, types, signals = rows[0]
        series = [self._catalogue.get(i) for i in ids]
        if types is not None:
            series = [type(one)(one.name, one.labels, kind) for one, kind in zip(series, json.loads(types), strict=True)]
        return Layout(number, target_id, tuple(series), unpack(signals), node, job, source, partial)

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


LAYOUT = "SELECT id, target_id, node, job, source, partial, series, types, signals FROM layouts WHERE id = ?"
