"""The action ledger: written before acting, only ever added to, sealed row by row, and read as an audit.

`ledger` has a row for each state that an action went through; `ledger_notes` says why an attempt was begun and what was
found out about it. Both are only appended to: `Database.put` refuses to replace rows in them, no statement of the product
changes or drops one (a test reads them all), and no retention reaches them. Each tick that adds rows also adds a seal: a
hash over the seal before and over the new rows. `broken_seals` makes the chain anew, so that a row that was changed, taken
out or slipped in later shows. DuckDB has no triggers: whoever may write the file with another program can make the chain
anew as well, so keep the newest seal (`head`) elsewhere where that matters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from core.clock import rfc3339
from core.errors import BadInput
from core.protocols import TickCommit
from core.render import plain
from core.types import Action, Note, Outcome
from pipeline.store.codec import decode, encode
from pipeline.store.database import Database
from pipeline.store.schema import first_line

TEXT, WHOLE = pa.string(), pa.int64()
FIRST_SEAL = "0" * 64
_ROWS = "SELECT seq, tick_ms, action_id, incident, kind, node, state, reason, action, outcome FROM ledger"
_NOTES = "SELECT seq, tick_ms, incident, attempt, event, actor, body FROM ledger_notes"
# One row an action: its newest words, when it was first written, and where that stands.
_ACTIONS = ("SELECT min(seq) AS first, min(tick_ms) AS written, max(seq) AS last, arg_max(action, seq) AS action,"
            " arg_max(outcome, seq) AS outcome, arg_max(tick_ms, seq) AS told FROM ledger{where} GROUP BY action_id")


class Audit(Database):
    """Writers and readers of the ledger. The writers run in the caller's transaction."""

    # --- writing ------------------------------------------------------------------------------------------------------
    def _write_ledger(self, cursor: duckdb.DuckDBPyConnection, commit: TickCommit) -> None:
        rows, notes = commit.actions, commit.notes
        if rows:
            first = self._next(cursor, "ledger")
            self.put(cursor, "ledger", {
                "seq": (WHOLE, range(first, first + len(rows))), "tick_ms": (WHOLE, [commit.tick] * len(rows)),
                "action_id": (TEXT, [a.id for a, _ in rows]), "incident": (TEXT, [a.incident for a, _ in rows]),
                "kind": (TEXT, [a.kind for a, _ in rows]), "node": (TEXT, [a.target.node for a, _ in rows]),
                "state": (TEXT, [o.state for _, o in rows]), "reason": (TEXT, [o.reason for _, o in rows]),
                "action": (TEXT, [encode(a) for a, _ in rows]), "outcome": (TEXT, [encode(o) for _, o in rows])})
        if notes:
            first = self._next(cursor, "ledger_notes")
            self.put(cursor, "ledger_notes", {
                "seq": (WHOLE, range(first, first + len(notes))), "tick_ms": (WHOLE, [commit.tick] * len(notes)),
                "incident": (TEXT, [n.incident for n in notes]), "attempt": (WHOLE, [n.attempt for n in notes]),
                "event": (TEXT, [n.event for n in notes]), "actor": (TEXT, [n.actor for n in notes]),
                "body": (TEXT, [n.body for n in notes])})
        if rows or notes:
            self._seal_ledger(cursor, commit.tick)

    def _seal_ledger(self, cursor: duckdb.DuckDBPyConnection, tick: int) -> None:
        newest = cursor.execute("SELECT last_seq, last_note, seal FROM ledger_seals ORDER BY number DESC LIMIT 1").fetchall()
        row, note, seal = newest[0] if newest else (0, 0, FIRST_SEAL)
        rows = cursor.execute(f"{_ROWS} WHERE seq > ? ORDER BY seq", [row]).fetchall()
        notes = cursor.execute(f"{_NOTES} WHERE seq > ? ORDER BY seq", [note]).fetchall()
        self.put(cursor, "ledger_seals", {
            "number": (WHOLE, [self._next(cursor, "ledger_seals", "number")]), "tick_ms": (WHOLE, [tick]),
            "last_seq": (WHOLE, [rows[-1][0] if rows else row]), "last_note": (WHOLE, [notes[-1][0] if notes else note]),
            "seal": (TEXT, [_sealed(seal, rows, notes)])})

    @staticmethod
    def _next(cursor: duckdb.DuckDBPyConnection, table: str, column: str = "seq") -> int:
        return int(cursor.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}").fetchall()[0][0])

    # --- reading ------------------------------------------------------------------------------------------------------
    def notes(self, incident: str | None = None) -> list[Note]:
        """The notes, oldest first; of one incident where it is named."""
        where, values = ("", []) if incident is None else (" WHERE incident = ?", [incident])
        rows = self.rows(f"{_NOTES}{where} ORDER BY seq", values)
        return [Note(int(tick), name, int(attempt), event, body, actor) for _, tick, name, attempt, event, actor, body in rows]

    def audit_page(self, since: int | None, limit: int, cursor: str | None = None,
                   incident: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
        """Actions, the newest first, each with who, what, why, evidence and outcome, as JSON types; and the next cursor.

        since: only those whose first row is of a tick at or after it (ms). Raises BadInput for a cursor that none gave.
        """
        if cursor is not None and not re.fullmatch(r"\d{1,16}", cursor, re.ASCII):
            raise BadInput("cursor", "", cursor, "what the last answer gave as `next` is needed")
        where = "" if incident is None else " WHERE incident = ?"
        values: list[Any] = [] if incident is None else [incident]
        rows = self.rows(f"SELECT first, written, action, outcome, told FROM ({_ACTIONS.format(where=where)})"
                         " WHERE written >= ? AND first < ? ORDER BY first DESC LIMIT ?",
                         [*values, since or 0, int(cursor) if cursor else 2**62, limit + 1])
        more = len(rows) > limit
        read = [(int(w), decode(Action, a), decode(Outcome, o), int(t)) for _, w, a, o, t in rows[:limit]]
        notes = self._notes_of(sorted({a.incident for _, a, _, _ in read}))
        items = [_document(written, action, outcome, told, notes.get((action.incident, action.attempt), {}))
                 for written, action, outcome, told in read]
        return items, str(rows[limit - 1][0]) if more else None

    def _notes_of(self, incidents: Sequence[str]) -> dict[tuple[str, int], dict[str, Any]]:
        if not incidents:
            return {}
        rows = self.rows("SELECT incident, attempt, event, body FROM ledger_notes WHERE incident IN (SELECT unnest(?)) ORDER BY seq",
                         [list(incidents)])
        out: dict[tuple[str, int], dict[str, Any]] = {}
        for incident, attempt, event, body in rows:
            known = out.setdefault((incident, int(attempt)), {})
            if event == "why":
                known.setdefault(event, json.loads(body))  # what the attempt rested on is what was known at its begin
            else:
                known[event] = json.loads(body)
        return out

    def head(self) -> dict[str, Any]:
        """{rows, notes, seal, at} of the newest seal: the whole ledger in one hash; seal None where there is no row yet."""
        rows = self.rows("SELECT last_seq, last_note, seal, tick_ms FROM ledger_seals ORDER BY number DESC LIMIT 1")
        if not rows:
            return {"rows": 0, "notes": 0, "seal": None, "at": None}
        return {"rows": int(rows[0][0]), "notes": int(rows[0][1]), "seal": str(rows[0][2]), "at": rfc3339(int(rows[0][3]))}

    def broken_seals(self) -> list[str]:
        """One line for each seal that its rows do not give: a row was changed, taken out or put in. Reads the whole ledger."""
        with self.reading(3600.0) as cursor:
            return broken_seals(cursor)


def broken_seals(cursor: duckdb.DuckDBPyConnection) -> list[str]:
    """As `Audit.broken_seals`, with a cursor of the caller's."""
    try:
        seals = cursor.execute("SELECT number, tick_ms, last_seq, last_note, seal FROM ledger_seals ORDER BY number").fetchall()
    except duckdb.Error as error:
        return [f"ledger: its seals cannot be read ({first_line(error)})"]
    out: list[str] = []
    row = note = expected = 0
    seal = FIRST_SEAL
    for number, tick, last_seq, last_note, told in seals:
        expected += 1
        rows = cursor.execute(f"{_ROWS} WHERE seq > ? AND seq <= ? ORDER BY seq", [row, last_seq]).fetchall()
        notes = cursor.execute(f"{_NOTES} WHERE seq > ? AND seq <= ? ORDER BY seq", [note, last_note]).fetchall()
        if number != expected or _sealed(seal, rows, notes) != told:
            out.append(f"ledger: rows {row + 1} to {last_seq} (sealed {rfc3339(tick)}) are not what was written")
            expected = number
        row, note, seal = last_seq, last_note, told
    return out


def _sealed(before: str, rows: Sequence[tuple[Any, ...]], notes: Sequence[tuple[Any, ...]]) -> str:
    text = json.dumps([before, [list(r) for r in rows], [list(n) for n in notes]], separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _document(written: int, action: Action, outcome: Outcome, told: int, notes: dict[str, Any]) -> dict[str, Any]:
    """Who, what, why, on which evidence, and what became of it."""
    why, proof = notes.get("why", {}), notes.get("proof")
    return {
        "at": rfc3339(written), "action": action.id, "incident": action.incident, "attempt": action.attempt, "step": action.step,
        "who": action.actor, "mode": action.mode,
        "what": {"kind": action.kind, "target": plain(action.target), "args": plain(action.args),
                 "deadline_seconds": action.deadline_seconds},
        "why": {"rule": why.get("rule"), "reason": action.reason, "fault": why.get("fault"), "scope": why.get("scope"),
                "confidence": why.get("confidence")},
        "evidence": {key: why.get(key) for key in ("culprit", "jobs", "findings", "evidence", "lost_gpu_hours")},
        "outcome": {"state": outcome.state, "reason": outcome.reason, "detail": outcome.detail,
                    "took_seconds": outcome.took_seconds, "at": rfc3339(outcome.at or told)},
        "attempt_result": proof,
    }
