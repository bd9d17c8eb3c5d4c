"""Lists in pages, the newest first: incidents, findings, rows of the action ledger, events.

A cursor is opaque to callers: it names the last row that was given, so that rows which are added meanwhile shift nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from core.clock import rfc3339
from core.errors import BadInput
from core.render import plain
from core.types import Action, Event, Finding, Incident, Outcome, PartPast
from pipeline.store.codec import decode
from pipeline.store.database import Database

Page = tuple[list[dict[str, Any]], str | None]


class Pages(Database):
    """Readers of pages. Each gives (rows as shown in JSON, cursor of the next page or None where this is the last).

    since: ms, by what `records` readers go by too (the last update; an action's tick; an event's time). Raises BadInput
    for a cursor that no answer gave.
    """

    def incident_page(self, since: int | None, limit: int, cursor: str | None = None) -> Page:
        """Incidents by opening time."""
        return self._by_opening("incidents", Incident, since, limit, cursor)

    def finding_page(self, since: int | None, limit: int, cursor: str | None = None) -> Page:
        """Findings by opening time."""
        return self._by_opening("findings", Finding, since, limit, cursor)

    def _by_opening(self, table: str, kind: type[Any], since: int | None, limit: int, cursor: str | None) -> Page:
        where, values = ["updated_ms >= ?"], [since if since is not None else 0]
        if cursor is not None:
            at, last = _read(cursor, r"(\d{1,16})\.([\w-]{1,64})")
            where.append("(opened_ms < ? OR (opened_ms = ? AND id > ?))")
            values += [int(at), int(at), last]  # type: ignore[list-item]
        rows = self.rows(f"SELECT opened_ms, id, body FROM {table} WHERE {' AND '.join(where)}"
                         " ORDER BY opened_ms DESC, id LIMIT ?", [*values, limit + 1])
        return _page(rows, limit, lambda row: f"{row[0]}.{row[1]}", lambda row: plain(decode(kind, row[2])))

    def action_page(self, since: int | None, limit: int, cursor: str | None = None) -> Page:
        """Rows of the ledger: {at, action, outcome}; an action has one for each state that it went through."""
        before = int(_read(cursor, r"(\d{1,16})")[0]) if cursor is not None else 2**62
        rows = self.rows("SELECT seq, tick_ms, action, outcome FROM ledger WHERE tick_ms >= ? AND seq < ?"
                         " ORDER BY seq DESC LIMIT ?", [since if since is not None else 0, before, limit + 1])
        return _page(rows, limit, lambda row: str(row[0]), lambda row: {
            "at": rfc3339(row[1]), "action": plain(decode(Action, row[2])), "outcome": plain(decode(Outcome, row[3]))})

    def part_page(self, since: int | None, limit: int, cursor: str | None = None, node: str | None = None) -> Page:
        """The ledger of parts by their last change; of one node where it is named."""
        where, values = ["updated_ms >= ?"], [since if since is not None else 0]
        if node is not None:
            where.append("node = ?")
            values.append(node)  # type: ignore[arg-type]
        if cursor is not None:
            at, last = _read(cursor, r"(\d{1,16})\.(.{1,512})")
            where.append("(updated_ms < ? OR (updated_ms = ? AND key > ?))")
            values += [int(at), int(at), last]  # type: ignore[list-item]
        rows = self.rows(f"SELECT updated_ms, key, body FROM parts WHERE {' AND '.join(where)}"
                         " ORDER BY updated_ms DESC, key LIMIT ?", [*values, limit + 1])
        return _page(rows, limit, lambda row: f"{row[0]}.{row[1]}", lambda row: plain(decode(PartPast, row[2])))

    def event_page(self, since: int, until: int, limit: int, cursor: str | None = None) -> Page:
        """Events with since <= at <= until (ms). The cursor is a time and how many events of that time were given."""
        given = 0
        if cursor is not None:
            until, given = (int(text) for text in _read(cursor, r"(\d{1,16})\.(\d{1,9})"))
        rows = self.rows("SELECT at_ms, body FROM events WHERE at_ms BETWEEN ? AND ? ORDER BY at_ms DESC, body"
                         " LIMIT ? OFFSET ?", [since, until, limit + 1, given])
        last = rows[limit - 1][0] if len(rows) > limit else None
        same = sum(row[0] == last for row in rows[:limit]) + (given if last == until else 0)
        return _page(rows, limit, lambda row: f"{row[0]}.{same}", lambda row: plain(decode(Event, row[1])))


def _read(cursor: str, form: str) -> tuple[str, ...]:
    found = re.fullmatch(form, cursor, re.ASCII)
    if found is None:
        raise BadInput("cursor", "", cursor, "what the last answer gave as `next` is needed")
    return found.groups()


def _page(rows: list[tuple[Any, ...]], limit: int, name: Callable[[tuple[Any, ...]], str],
          show: Callable[[tuple[Any, ...]], dict[str, Any]]) -> Page:
    """rows: at most limit + 1 of them; the one too many only says that there are more."""
    shown = rows[:limit]
    return [show(row) for row in shown], name(shown[-1]) if len(rows) > limit else None
