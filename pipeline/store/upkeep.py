"""What the store does for itself: sealing hours, retention, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import GreylagError
from pipeline.store.catalogue import NEVER
from pipeline.store.epochs import REPEAT_SPAN
from pipeline.store.history import History
from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG
from pipeline.store.samples import DAY_MS
from pipeline.store.schema import first_line
from pipeline.store.sealing import seal_part
from pipeline.store.segments import HOURS, MINUTES, RAW, TIERS, Part, Segment

# Windows look back 7 days for events, so events stay at least so long whatever the retention of samples is.
EVENTS_KEPT_MS = 7 * DAY_MS
SEAL_SECONDS = 3600.0
FORGET_SHARE, LEAST_FORGOTTEN = 20, 100


class Upkeep(History):
    """Sealing and retention. Writes are for one thread, but for `write_part`."""

    # --- sealing ------------------------------------------------------------------------------------------------------
    def seal_due(self) -> list[Part]:
        """Parts whose hour is over; they take no samples from now on. Each must go through `write_part` and `seal_part`."""
        with self._write_lock:
            parts = self._segments.due(self.newest_ms)
            self._segments.frozen.update(parts)
            return parts

    def write_part(self, part: Part) -> list[Segment]:
        """Writes the part's files; any thread may do it while appends go on. Raises GreylagError."""
        folder = self._segments.folder
        if folder is None:
            raise GreylagError("a store in memory has no segments")
        tiers = [tier for tier, kept in ((MINUTES, self.rollup_1m_ms), (HOURS, self.rollup_1h_ms)) if kept]
        try:
            with self.reading(deadline_seconds=SEAL_SECONDS) as cursor:
                return seal_part(cursor, part, self._segments.columns[part], folder, tiers)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise GreylagError(f"{self.where} could not seal an hour ({first_line(error)})") from error

    def seal_part(self, part: Part, segments: Sequence[Segment]) -> None:
        """Commits the manifest rows and drops the part's table, in one transaction, with what else that table told: when
        series that have ended were last seen, and the newest readings of targets that are silent."""
        with self._write_lock:
            with self.transaction() as cursor:
                self._segments.enter(cursor, segments)
                cursor.execute(f"DROP TABLE {part.table}")
                stored = self._write_seen(cursor, part) if segments else {}
                # Numbers so far behind the newest are known for repeats without their rows.
                cursor.execute("DELETE FROM batches USING (SELECT worker, max(seq) AS newest FROM batches GROUP BY worker) n"
                               f" WHERE batches.worker = n.worker AND batches.seq < n.newest - {REPEAT_SPAN}")
            self._readings_stored.update(stored)
            self._segments.committed(part, segments)

    def _write_seen(self, cursor: duckdb.DuckDBPyConnection, part: Part) -> dict[str, int]:
        """What would be forgotten with the part's rows. Gives the readings that were written."""
        book, end = self._catalogue, (part.hour + 1) * HOUR_MS
        readings = [one for one in self._planner.readings(end) if self._readings_stored.get(one[0]) != one[1]]
        self.put(cursor, "readings", {
            "target_id": (pa.string(), [one[0] for one in readings]), "at_ms": (pa.int64(), [one[1] for one in readings]),
            "wide": (pa.list_(pa.uint32()), [one[2] for one in readings]),
            "tall": (pa.list_(pa.uint32()), [one[3] for one in readings])}, key="target_id")
        every = np.flatnonzero(book.owner[: book.next_id] >= 0).astype(np.uint32)
        last = book.seen_last(every)
        # Of what goes on the open hours know more; what ended in earlier hours was written with them.
        ended = (last < end) & (last >= end - HOUR_MS)
        ids, last = every[ended], last[ended]
        if len(ids):
            rows = pa.table({"id": pa.array(ids, pa.uint32()), "last_ms": pa.array(last)})
            with self.registered(cursor, rows) as name:
                cursor.execute(f"UPDATE series SET last_ms = m.last_ms FROM {name} m WHERE series.id = m.id")
            entities = book.entity[ids]
            wide = entities >= 0
            seen = pa.table({"id": pa.array(entities[wide], pa.uint32()), "f": pa.array(book.first_ms[ids][wide]),
                             "l": pa.array(last[wide])})
            with self.registered(cursor, seen) as name:
                cursor.execute("UPDATE entities SET first_ms = least(entities.first_ms, m.f), last_ms = greatest("
                               "entities.last_ms, m.l) FROM (SELECT id, min(f) AS f, max(l) AS l FROM"
                               f" {name} GROUP BY id) m WHERE entities.id = m.id")
        return {one[0]: one[1] for one in readings}

    def unfreeze(self, part: Part) -> None:
        """The part could not be sealed: it is tried again later."""
        with self._write_lock:
            self._segments.frozen.discard(part)

    def seal(self) -> int:
        """Seals every hour that is over, in this thread; gives the number of parts."""
        parts = self.seal_due()
        for part in parts:
            self.seal_part(part, self.write_part(part))
        return len(parts)

    # --- retention ----------------------------------------------------------------------------------------------------
    def expire(self) -> int:
        """Drops whole hours, and what else is older than the retention; gives the number of tables and files."""
        return self._drop_before(self.retention_ms)

    def forget(self) -> int:
        """Forgets series, entities and layouts of which retention has left nothing, once they are a twentieth of all; gives
        how many series went. It reads the catalogue anew (2 s for a million series): not for each handful."""
        with self._write_lock:
            return self._prune(least=max(LEAST_FORGOTTEN, len(self._catalogue) // FORGET_SHARE))

    def shorten(self, retention_ms: int) -> int:
        """For a disk that is nearly full: drops raw hours older than `retention_ms` before the newest sample at once, files
        included; gives the number of tables and files. The retention itself stays as it is."""
        dropped = self._drop_before(min(retention_ms, self.retention_ms))
        with self._write_lock:
            self._segments.bury()
        self.checkpoint()
        return dropped

    def fit_log_to_series(self) -> None:
        """See `fit_log`."""
        self.fit_log(len(self._catalogue))

    def _drop_before(self, raw_ms: int) -> int:
        with self._write_lock:
            if self.newest_ms == NEVER:
                return 0
            kept = {RAW: raw_ms, MINUTES: self.rollup_1m_ms, HOURS: self.rollup_1h_ms}
            parts, segments = self._segments.expired({tier: self.newest_ms - span for tier, span in kept.items()})
            if not parts and not segments:
                return 0
            with self.transaction() as cursor:
                for part in parts:
                    cursor.execute(f"DROP TABLE {part.table}")
                self._segments.strike(cursor, segments)
                self._expire_records(cursor)
            self._segments.dropped(parts, segments)
            return len(parts) + len(segments)

    def _expire_records(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Events, the journal and hand-over keys go with the raw samples; findings, incidents and the ledger stay."""
        kept = max(self.retention_ms, EVENTS_KEPT_MS)
        cursor.execute("DELETE FROM events WHERE at_ms < ?", [self.newest_ms - kept])
        # The newest line stays: the journal's numbers go on after it.
        cursor.execute("DELETE FROM records WHERE at_ms < ? AND seq < (SELECT max(seq) FROM records)",
                       [self.newest_ms - self.retention_ms])
        cursor.execute("DELETE FROM batches USING (SELECT worker, max(seq) AS newest, max(watermark_ms) AS mark FROM batches"
                       " GROUP BY worker) n WHERE batches.worker = n.worker AND batches.seq < n.newest AND n.mark < ?",
                       [self.newest_ms - self.retention_ms])

    def _open_rows(self) -> tuple[int, int]:
        """(rows, samples) of the open hours."""
        rows = live = 0
        for part in self._segments.parts:
            counted = " + ".join(f"count({c})" for c in part.columns(self._segments.columns[part])) or "0"
            n, values = self.rows(f"SELECT count(*), {counted} FROM {part.table}")[0]
            rows, live = rows + n, live + (n if part.kind == LONG else values)
        return rows, live

    # --- statistics ---------------------------------------------------------------------------------------------------
    def sample_stats(self) -> dict[str, Any]:
        """Series, rows, segments and bytes. samples: values (stale markers of long rows included)."""
        segments, book = self._segments, self._catalogue
        with self._write_lock:  # so that no hour is sealed between naming its table and counting it
            rows, live = self._open_rows()
        tiers = {tier: [s for s in segments.sealed if s.tier == tier] for tier in TIERS}
        sealed = sum(s.samples for s in tiers[RAW])
        return {
            "series": len(book), "entities": int((book.entity_kind[: book.next_entity] >= 0).sum()),
            "kinds": len(book.kinds.all), "layouts": int(self.rows("SELECT count(*) FROM layouts")[0][0]),
            "samples": live + sealed, "open_hours": len({p.hour for p in segments.parts}), "open_samples": live,
            "open_rows": rows, "open_tables": len(segments.parts),
            "segments": len(tiers[RAW]), "sealed_samples": sealed, "sealed_bytes": sum(s.size for s in tiers[RAW]),
            "rollup_segments": len(tiers[MINUTES]) + len(tiers[HOURS]),
            "rollup_1m_bytes": sum(s.size for s in tiers[MINUTES]), "rollup_1h_bytes": sum(s.size for s in tiers[HOURS]),
            "missing_segments": len(segments.missing),
            "orphans_deleted": self._orphans, "counts": dict(sorted(self._totals.items())),
            "newest_ms": None if self.newest_ms == NEVER else self.newest_ms, "raw_paused": self.raw_paused,
        }
