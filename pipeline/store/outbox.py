"""The outbox in the store: messages that wait, what became of each, and those that were given up.

A message's result is NULL while it waits, then `delivered`, or one of `DEAD`: a dead letter, which stays until somebody sends
it again. Tries stand in a table of their own, so that a restart goes on counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from core.clock import rfc3339
from core.errors import Refused
from core.types import Outbound
from pipeline.store.database import Database

DEAD = ("receiver_refused", "gave_up", "no_notifier", "refused")  # the last is an older Greylag's word for the first
KEPT_MS = 30 * 86_400_000
LONGEST_ERROR = 300
TEXT, WHOLE = pa.string(), pa.int64()


class Outbox(Database):
    """Messages by (notifier, incident): a lane, in which order is kept."""

    def _write_outbox(self, cursor: duckdb.DuckDBPyConnection, messages: Sequence[Outbound], tick: int) -> None:
        if not messages:
            return
        known = {str(row[0]) for row in cursor.execute("SELECT id FROM outbox WHERE id IN (SELECT unnest(?))",
                                                       [[m.id for m in messages]]).fetchall()}
        new = list({m.id: m for m in messages if m.id not in known}.values())
        first = int(cursor.execute("SELECT coalesce(max(seq), 0) + 1 FROM outbox").fetchall()[0][0])
        self.put(cursor, "outbox", {
            "seq": (WHOLE, range(first, first + len(new))), "id": (TEXT, [m.id for m in new]),
            "notifier": (TEXT, [m.notifier for m in new]), "incident": (TEXT, [m.incident for m in new]),
            "at_ms": (WHOLE, [m.at for m in new]), "body": (TEXT, [m.body for m in new]),
            "result": (TEXT, [None] * len(new))})
        cursor.execute("DELETE FROM outbox WHERE result IS NOT NULL AND at_ms < ?", [tick - KEPT_MS])
        cursor.execute("DELETE FROM outbox_tries WHERE id NOT IN (SELECT id FROM outbox)")

    def outbox_done(self, message_id: str, result: str) -> None:
        """The message has been delivered, or given up: it is no longer pending. result: what became of it."""
        with self.transaction() as cursor:
            cursor.execute("UPDATE outbox SET result = ? WHERE id = ?", [result, message_id])

    def outbox_failed(self, failures: Sequence[tuple[str, int, str]]) -> None:
        """Tries that failed: (id, tries so far, what the receiver said)."""
        with self.transaction() as cursor:
            self.put(cursor, "outbox_tries", {
                "id": (TEXT, [i for i, _, _ in failures]), "tries": (WHOLE, [n for _, n, _ in failures]),
                "error": (TEXT, [e[:LONGEST_ERROR] for _, _, e in failures])}, key="id")

    def outbox_resend(self, message_id: str) -> None:
        """A dead letter waits again, in its place. Raises KeyError for an id that is not known, Refused where it is no dead
        letter, or where a later message of its incident was delivered: it would tell an old state."""
        rows = self.rows("SELECT seq, notifier, incident, result FROM outbox WHERE id = ?", [message_id])
        if not rows:
            raise KeyError(message_id)
        seq, notifier, incident, result = rows[0]
        if result not in DEAD:
            raise Refused("not_dead", f"{message_id} is {result or 'waiting'}: only a message that was given up is sent again")
        later = self.rows("SELECT id FROM outbox WHERE notifier = ? AND incident = ? AND seq > ? AND result = 'delivered'"
                          " ORDER BY seq DESC LIMIT 1", [notifier, incident, seq])
        if later:
            raise Refused("superseded", f"{later[0][0]}, a later message of the same incident, was delivered")
        with self.transaction() as cursor:
            cursor.execute("UPDATE outbox SET result = NULL WHERE id = ?", [message_id])
            cursor.execute("DELETE FROM outbox_tries WHERE id = ?", [message_id])

    # --- reading ------------------------------------------------------------------------------------------------------
    def outbox_pending(self, notifier: str | None = None, limit: int = 1000) -> list[Outbound]:
        """Messages that are not delivered yet, in the order in which they were committed."""
        where, values = ("", []) if notifier is None else (" AND notifier = ?", [notifier])
        rows = self.rows(f"SELECT id, notifier, incident, at_ms, body FROM outbox WHERE result IS NULL{where} ORDER BY seq LIMIT ?",
                         [*values, limit])
        return [Outbound(*row) for row in rows]

    def outbox_heads(self, notifier: str, without: Sequence[str] = (), limit: int = 500) -> list[tuple[Outbound, int]]:
        """The first waiting message of each incident with its tries so far, the oldest first. without: incidents to leave out."""
        rows = self.rows("SELECT id, notifier, incident, at_ms, body, coalesce(tries, 0) FROM (SELECT * FROM outbox WHERE result IS NULL"
                         " AND notifier = ? AND incident NOT IN (SELECT unnest(?::VARCHAR[]))"
                         " QUALIFY row_number() OVER (PARTITION BY incident ORDER BY seq) = 1) LEFT JOIN outbox_tries USING (id)"
                         " ORDER BY seq LIMIT ?", [notifier, list(without), limit])
        return [(Outbound(*row[:5]), int(row[5])) for row in rows]

    def outbox_counts(self) -> dict[str, tuple[int, int]]:
        """By notifier: messages that wait, dead letters."""
        rows = self.rows("SELECT notifier, count(*) FILTER (result IS NULL), count(*) FILTER (result IN (SELECT unnest(?)))"
                         " FROM outbox GROUP BY notifier", [list(DEAD)])
        return {str(name): (int(waiting), int(dead)) for name, waiting, dead in rows}

    def outbox_rows(self, dead_only: bool = False, limit: int = 1000) -> list[dict[str, Any]]:
        """Messages that wait or were given up, the newest first, as shown in JSON (without their bodies)."""
        states = "result IN (SELECT unnest(?))" + ("" if dead_only else " OR result IS NULL")
        rows = self.rows("SELECT id, notifier, incident, at_ms, coalesce(result, 'waiting'), coalesce(tries, 0), error FROM outbox"
                         f" LEFT JOIN outbox_tries USING (id) WHERE {states} ORDER BY seq DESC LIMIT ?", [list(DEAD), limit])
        return [{"id": i, "notifier": notifier, "incident": incident, "at": rfc3339(at), "state": state, "tries": int(tries), "error": error}
                for i, notifier, incident, at, state, tries, error in rows]
