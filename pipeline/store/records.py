"""The record side of the store: what a tick commits, the outbox, and their readers.

Readers for people and the API give the records as `core.render` shows them; `finding_records`, `incident_records` and
`ledger` give them back as they were committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from core.clock import rfc3339
from core.errors import GreylagError
from core.protocols import TickCommit
from core.render import plain
from core.types import Action, Finding, Incident, Outcome, PartPast
from pipeline.store.audit import Audit
from pipeline.store.codec import decode, encode
from pipeline.store.outbox import Outbox

LAST_TICK = "last_tick"
TEXT, WHOLE = pa.string(), pa.int64()


class Records(Audit, Outbox):
    """Findings, incidents, the action ledger, the journal, the outbox and the state of the judgement."""

    # --- writing ------------------------------------------------------------------------------------------------------
    def commit_tick(self, commit: TickCommit) -> None:
        """Commits all of a tick in one transaction. Raises GreylagError when it did not commit; then nothing of it is
        stored. A tick that is not newer than the last one is refused: nothing is judged twice."""
        with self.transaction() as cursor:
            row = cursor.execute("SELECT value FROM meta WHERE key = ?", [LAST_TICK]).fetchall()
            if row and int(row[0][0]) >= commit.tick:
                raise GreylagError(f"{self.where}: tick {commit.tick} is not newer than the last one, {row[0][0]}")
            cursor.execute("DELETE FROM meta WHERE key = ?", [LAST_TICK])
            cursor.execute("INSERT INTO meta VALUES (?, ?)", [LAST_TICK, str(commit.tick)])
            self._write_findings(cursor, commit.findings)
            self._write_incidents(cursor, commit.incidents)
            self._write_ledger(cursor, commit)
            self._write_outbox(cursor, commit.outbox, commit.tick)
            self._write_records(cursor, commit)
            self._write_parts(cursor, commit.parts)
            state = dict(commit.state or {})
            self.put(cursor, "state", {"key": (TEXT, list(state)), "text": (TEXT, list(state.values()))}, key="key")

    def _write_findings(self, cursor: duckdb.DuckDBPyConnection, findings: Sequence[Finding]) -> None:
        last = list({f.id: f for f in findings}.values())
        self.put(cursor, "findings", {
            "id": (TEXT, [f.id for f in last]), "detector": (TEXT, [f.detector for f in last]),
            "fault": (TEXT, [f.fault for f in last]), "node": (TEXT, [f.target.node for f in last]),
            "device": (TEXT, [f.target.device for f in last]), "opened_ms": (WHOLE, [f.opened_at for f in last]),
            "updated_ms": (WHOLE, [f.updated_at for f in last]), "ended_ms": (WHOLE, [f.ended_at for f in last]),
            "body": (TEXT, [encode(f) for f in last])}, key="id")

    def _write_incidents(self, cursor: duckdb.DuckDBPyConnection, incidents: Sequence[Incident]) -> None:
        last = list({i.id: i for i in incidents}.values())
        self.put(cursor, "incidents", {
            "id": (TEXT, [i.id for i in last]), "fault": (TEXT, [i.fault for i in last]),
            "scope": (TEXT, [i.scope for i in last]), "state": (TEXT, [i.state for i in last]),
            "node": (TEXT, [i.culprit.node if i.culprit else None for i in last]),
            "device": (TEXT, [i.culprit.device if i.culprit else None for i in last]),
            "opened_ms": (WHOLE, [i.opened_at for i in last]), "updated_ms": (WHOLE, [i.updated_at for i in last]),
            "resolved_ms": (WHOLE, [i.resolved_at for i in last]), "body": (TEXT, [encode(i) for i in last])}, key="id")

    def _write_records(self, cursor: duckdb.DuckDBPyConnection, commit: TickCommit) -> None:
        rows = commit.records
        first = self._next(cursor, "records") if rows else 0
        self.put(cursor, "records", {
            "seq": (WHOLE, range(first, first + len(rows))), "at_ms": (WHOLE, [r.at for r in rows]),
            "type": (TEXT, [r.type for r in rows]), "line": (TEXT, [r.line for r in rows])})

    def _write_parts(self, cursor: duckdb.DuckDBPyConnection, parts: Sequence[PartPast]) -> None:
        """The ledger's changed entries; one without incidents is taken out."""
        over = [p.key for p in parts if not p.incidents]
        if over:
            cursor.execute("DELETE FROM parts WHERE key IN (SELECT unnest(?))", [over])
        kept = [p for p in parts if p.incidents]
        self.put(cursor, "parts", {
            "key": (TEXT, [p.key for p in kept]), "kind": (TEXT, [p.target.kind for p in kept]),
            "node": (TEXT, [p.target.node for p in kept]), "updated_ms": (WHOLE, [p.updated_at for p in kept]),
            "incidents": (WHOLE, [p.incident_count for p in kept]), "body": (TEXT, [encode(p) for p in kept])}, key="key")

    def write_parts(self, parts: Sequence[PartPast]) -> None:
        """Commits entries of the parts' ledger outside of a tick: what was made from an older store's incidents."""
        with self.transaction() as cursor:
            self._write_parts(cursor, parts)

    # --- reading ------------------------------------------------------------------------------------------------------
    def last_tick(self) -> int | None:
        """The newest committed tick (ms), None before the first."""
        rows = self.rows("SELECT value FROM meta WHERE key = ?", [LAST_TICK])
        return int(rows[0][0]) if rows else None

    def state(self, key: str) -> str | None:
        """The text that the last tick committed under a key, None where none ever did."""
        rows = self.rows("SELECT text FROM state WHERE key = ?", [key])
        return str(rows[0][0]) if rows else None

    def finding_records(self, open_only: bool = False, since: int | None = None, limit: int = 1000) -> list[Finding]:
        """Findings as committed, the newest opened first. since: only those updated at or after it (ms)."""
        where, values = _where({"updated_ms >= ?": since})
        if open_only:
            where += (" AND" if where else " WHERE") + " ended_ms IS NULL"
        rows = self.rows(f"SELECT body FROM findings{where} ORDER BY opened_ms DESC, id LIMIT ?", [*values, limit])
        return [decode(Finding, row[0]) for row in rows]

    def findings(self, since: int | None = None, limit: int = 1000, open_only: bool = False) -> list[dict[str, Any]]:
        """Findings as shown in JSON, the newest opened first."""
        return [plain(one) for one in self.finding_records(open_only, since, limit)]

    def incident_records(self, id: str | None = None, state: str | None = None, since: int | None = None,  # noqa: A002
                         limit: int = 1000) -> list[Incident]:
        """Incidents as committed, the newest opened first. since: only those updated at or after it (ms)."""
        where, values = _where({"id = ?": id, "state = ?": state, "updated_ms >= ?": since})
        rows = self.rows(f"SELECT body FROM incidents{where} ORDER BY opened_ms DESC, id LIMIT ?", [*values, limit])
        return [decode(Incident, row[0]) for row in rows]

    def incidents(self, id: str | None = None, state: str | None = None, since: int | None = None,  # noqa: A002
                  limit: int = 1000) -> list[dict[str, Any]]:
        """Incidents as shown in JSON, the newest opened first."""
        return [plain(one) for one in self.incident_records(id, state, since, limit)]

    def ledger(self, incident: str | None = None, since: int | None = None,
               limit: int | None = None) -> list[tuple[Action, Outcome]]:
        """Every row of the action ledger, oldest first: an action stands in it once for each state it went through.

        since: only rows of ticks at or after it (ms). limit: the newest so many.
        """
        return [(decode(Action, a), decode(Outcome, o)) for _, a, o in self._ledger(incident, since, limit)]

    def ledger_rows(self, incident: str, limit: int) -> list[tuple[int, Action, Outcome]]:
        """The newest `limit` rows of an incident's actions with their ticks (ms), oldest first."""
        return [(int(tick), decode(Action, a), decode(Outcome, o)) for tick, a, o in self._ledger(incident, None, limit)]

    def _ledger(self, incident: str | None, since: int | None, limit: int | None) -> list[tuple[Any, ...]]:
        where, values = _where({"incident = ?": incident, "tick_ms >= ?": since})
        most = "" if limit is None else f" LIMIT {int(limit)}"
        rows = self.rows(f"SELECT tick_ms, action, outcome, seq FROM ledger{where} ORDER BY seq DESC{most}", values)
        return [row[:3] for row in reversed(rows)]

    def actions(self, incident: str | None = None, since: int | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest `limit` rows of the ledger as shown in JSON, oldest first: {at, action, outcome}; at = the tick."""
        return [{"at": rfc3339(tick), "action": plain(decode(Action, a)), "outcome": plain(decode(Outcome, o))}
                for tick, a, o in self._ledger(incident, since, limit)]

    def diagnoses(self, limit: int = 20_000) -> list[tuple[Action, Outcome]]:
        """The newest `limit` ends of diagnoses, oldest first."""
        rows = self.rows("SELECT action, outcome FROM ledger WHERE kind = 'diagnose' AND state IN ('DONE', 'FAILED') "
                         "ORDER BY seq DESC LIMIT ?", [limit])
        return [(decode(Action, a), decode(Outcome, o)) for a, o in reversed(rows)]

    def part_records(self, limit: int = 1_000_000) -> list[PartPast]:
        """The ledger of parts, the newest changed first."""
        rows = self.rows("SELECT body FROM parts ORDER BY updated_ms DESC, key LIMIT ?", [limit])
        return [decode(PartPast, row[0]) for row in rows]

    def records(self, after_seq: int = 0, limit: int = 1000) -> list[tuple[int, str]]:
        """Lines of the journal after a number, in order: (number, line of JSON)."""
        rows = self.rows("SELECT seq, line FROM records WHERE seq > ? ORDER BY seq LIMIT ?", [after_seq, limit])
        return [(int(seq), str(line)) for seq, line in rows]

    def record_stats(self) -> dict[str, Any]:
        """Rows of each table, and the last tick."""
        tables = ("events", "findings", "incidents", "ledger", "records", "outbox")
        counts = self.rows("SELECT " + ", ".join(f"(SELECT count(*) FROM {t})" for t in tables))[0]
        outbox = self.outbox_counts().values()
        return {**dict(zip(tables, counts, strict=True)), "messages_waiting": sum(waiting for waiting, _ in outbox),
                "dead_letters": sum(dead for _, dead in outbox), "last_tick": self.last_tick()}


def _where(conditions: dict[str, Any]) -> tuple[str, list[Any]]:
    """` WHERE …` over the conditions whose value is not None, and the values."""
    used = {text: value for text, value in conditions.items() if value is not None}
    return (" WHERE " + " AND ".join(used) if used else ""), list(used.values())
