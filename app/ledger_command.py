"""`greylag incidents ledger|cures`: the audit and what cured what, of a running Greylag or of the store of a stopped one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app import cures
from app.client import Client
from app.store_commands import open_store
from core.clock import parse_rfc3339
from core.errors import BadInput
from remediation.memory import read_memory

PAGE = 500
# Columns of a table (CSV, Parquet): what is nested stands there as JSON.
COLUMNS = ("at", "action", "incident", "attempt", "step", "who", "mode", "kind", "target", "args", "rule", "why", "fault", "scope",
           "confidence", "evidence", "state", "reason", "detail", "took_seconds", "ended_at", "attempt_result")
_NUMBERS = {"attempt": pa.int64(), "step": pa.int64(), "confidence": pa.float64(), "took_seconds": pa.float64()}


def ledger(url: str, store: Path | None, incident: str | None, since: str | None) -> list[dict[str, Any]]:
    """Every action, the oldest first: who, what, why, evidence, outcome. Raises BadInput, Unavailable."""
    if since is not None:
        try:
            parse_rfc3339(since)
        except ValueError:
            raise BadInput("--since", "", since, "an RFC 3339 time such as 2026-01-31T12:00:00Z is needed") from None
    rows = list(_of_running(url, incident, since) if store is None else _of_store(store, incident, since))
    return rows[::-1]


def _of_running(url: str, incident: str | None, since: str | None) -> Iterator[dict[str, Any]]:
    client, cursor = Client(url), None
    try:
        while True:
            answer = client.get("/api/greylag/v1/ledger", incident=incident, since=since, limit=PAGE, cursor=cursor)
            yield from answer["items"]
            cursor = answer["next"]
            if cursor is None:
                return
    finally:
        client.close()


def _of_store(path: Path, incident: str | None, since: str | None) -> Iterator[dict[str, Any]]:
    store, cursor = open_store(path), None
    try:
        while True:
            items, cursor = store.audit_page(None if since is None else parse_rfc3339(since), PAGE, cursor, incident)
            yield from items
            if cursor is None:
                return
    finally:
        store.close()


def seal(url: str, store: Path | None) -> dict[str, Any]:
    """The newest seal of the ledger; of a stopped store also whether its rows still give it: {..., broken: [line, ...]}."""
    if store is None:
        client = Client(url)
        try:
            return dict(client.get("/api/greylag/v1/ledger", limit=1)["seal"])
        finally:
            client.close()
    opened = open_store(store)
    try:
        return {**opened.head(), "broken": opened.broken_seals()}
    finally:
        opened.close()


def cured(url: str, store: Path | None, fault: str | None) -> dict[str, Any]:
    """Cure rates beside what goes away by itself. Raises BadInput, Unavailable."""
    if store is None:
        client = Client(url)
        try:
            return dict(client.get("/api/greylag/v1/cures", fault=fault))
        finally:
            client.close()
    opened = open_store(store)
    try:
        return cures.document(read_memory(opened.state("engine") or ""), opened.last_tick() or 0, fault)
    finally:
        opened.close()


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the audit as COLUMNS; nested values are JSON text, absent ones None."""
    what, why, outcome = row["what"], row["why"], row["outcome"]
    return {
        **{key: row[key] for key in ("at", "action", "incident", "attempt", "step", "who", "mode")},
        "kind": what["kind"], "target": _json(what["target"]), "args": _json(what["args"]), "rule": why["rule"],
        "why": why["reason"], "fault": why["fault"], "scope": why["scope"], "confidence": why["confidence"],
        "evidence": _json(row["evidence"]), "state": outcome["state"], "reason": outcome["reason"], "detail": outcome["detail"],
        "took_seconds": outcome["took_seconds"], "ended_at": outcome["at"], "attempt_result": _json(row["attempt_result"]),
    }


def as_csv(rows: list[dict[str, Any]]) -> str:
    """A table with a head; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"'{v}" if isinstance(v, str) and v[:1] in "=+-@\t\r" else v for k, v in flat(row).items()})
    return out.getvalue()


def write_parquet(rows: list[dict[str, Any]], file: Path) -> None:
    """The table as Parquet, whole or not at all. Raises BadInput where the file cannot be written."""
    table = [flat(row) for row in rows]
    made = pa.table({name: pa.array([one[name] for one in table], _NUMBERS.get(name, pa.string())) for name in COLUMNS})
    temporary = file.with_name(file.name + ".tmp")
    try:
        pq.write_table(made, temporary, compression="zstd")
        temporary.replace(file)
    except OSError as error:
        raise BadInput("--parquet", "", str(file), f"a file that can be written is needed ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)


def line(row: dict[str, Any]) -> str:
    """An action in one line for people."""
    target, why, outcome, proof = row["what"]["target"], row["why"], row["outcome"], row["attempt_result"]
    place = " ".join(str(target[k]) for k in ("node", "device", "job") if target.get(k)) or target["kind"]
    rule = f" by rule {why['rule']}" if why["rule"] else ""
    said = f"{outcome['state'].lower()} ({outcome['reason']})" if outcome["reason"] != "done" else "done"
    result = f"; attempt {row['attempt']} {proof['result']} ({proof['reason']})" if proof else ""
    return (f"{row['at'][:19]}Z  {row['action']}  {row['who']}: {row['what']['kind']} {place}, {why['fault'] or 'fault not noted'}"
            f"{rule} ({why['reason']}): {said}{result}")


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
