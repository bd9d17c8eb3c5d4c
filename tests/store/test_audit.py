"""The action ledger in the store: written before acting, only ever added to, sealed, read as an audit."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from core.errors import BadInput, GreylagError
from core.protocols import TickCommit
from core.types import Action, Note, Outcome, Target
from pipeline.store.duck import DuckStore
from pipeline.store.schema import APPEND_ONLY
from pipeline.store.verify import verify
from tests.needs import ROOT

T0 = 1_790_000_010_000
WHY = {"rule": "hot", "fault": "thermal_throttle", "scope": "device", "confidence": 0.9, "culprit": {"node": "n1"}, "jobs": ["train"],
       "findings": [{"id": "fnd-1"}], "evidence": [{"signal": "gpu.temperature_celsius"}], "lost_gpu_hours": 1.5}


def action(step: int = 1, incident: str = "inc-1", attempt: int = 1, **more: object) -> Action:
    base = Action(f"{incident}/{attempt}/{step}", "drain", Target("node", "n1"), {"wait_for": "checkpoint"}, 1200.0, "act",
                  incident, attempt, step, T0, "policy")
    return replace(base, **more)


def outcome(one: Action, state: str, reason: str = "done", at: int = T0) -> Outcome:
    return Outcome(one.id, state, reason, 1.0, at)


def commit(store: DuckStore, i: int, *rows: tuple[Action, Outcome], notes: tuple[Note, ...] = ()) -> None:
    store.commit_tick(TickCommit(T0 + i * 15_000, actions=rows, notes=notes))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    """A drain in three ticks, with why and proof, and another incident."""
    opened = DuckStore(tmp_path / "greylag.duckdb")
    one, other = action(), action(incident="inc-2", actor="ada")
    commit(opened, 1, (one, outcome(one, "PENDING", "policy")), notes=(Note(T0, "inc-1", 1, "why", json.dumps(WHY)),))
    commit(opened, 2, (one, outcome(one, "RUNNING", "policy")), (other, outcome(other, "PENDING", "approved")))
    commit(opened, 3)
    commit(opened, 4, (one, outcome(one, "DONE")), notes=(Note(T0, "inc-1", 1, "proof", '{"result":"cured","reason":"recovered"}'),))
    yield opened
    opened.close()


# --- the audit ----------------------------------------------------------------------------------------------------------
def test_an_action_is_one_row_with_who_what_why_evidence_and_outcome(store):
    """Whatever states it went through: the time when it was written first, and its newest outcome."""
    rows, cursor = store.audit_page(None, 10)
    assert [r["action"] for r in rows] == ["inc-2/1/1", "inc-1/1/1"]
    one = rows[1]
    assert (one["at"][:19], one["who"], one["what"]["kind"], one["why"]["rule"], one["why"]["reason"]) == (
        "2026-09-21T14:13:45", "greylag", "drain", "hot", "policy")
    assert one["evidence"] == {k: WHY[k] for k in ("culprit", "jobs", "findings", "evidence", "lost_gpu_hours")}
    assert (one["outcome"]["state"], one["outcome"]["reason"], one["attempt_result"]["result"]) == ("DONE", "done", "cured")
    assert (rows[0]["who"], rows[0]["outcome"]["state"], rows[0]["attempt_result"], cursor) == ("ada", "PENDING", None, None)


def test_pages_follow_each_other(store):
    """A cursor goes on where the last page ended, also when rows are added meanwhile."""
    first, cursor = store.audit_page(None, 1)
    commit(store, 5, (action(2), outcome(action(2), "PENDING")))
    second, last = store.audit_page(None, 1, cursor)
    assert [r["action"] for r in (*first, *second)] == ["inc-2/1/1", "inc-1/1/1"]
    assert last is None


@pytest.mark.parametrize(("since", "incident", "found"), [
    (T0 + 30_000, None, ["inc-2/1/1"]), (None, "inc-1", ["inc-1/1/1"]), (T0 + 600_000, None, []), (None, "inc-9", []),
])
def test_pages_are_filtered(store, since, incident, found):
    """By the tick in which an action was written first, and by incident."""
    assert [r["action"] for r in store.audit_page(since, 10, None, incident)[0]] == found


@pytest.mark.parametrize("cursor", ["", "x", "1; DROP TABLE ledger", "-1"])
def test_a_cursor_that_none_gave_is_refused(store, cursor):
    """In one sentence, and nothing is asked of the database."""
    with pytest.raises(BadInput):
        store.audit_page(None, 10, cursor)


def test_the_first_why_of_an_attempt_stays(store):
    """A hand-over to a person later on has notes of its own time; what the attempt rested on is not overwritten."""
    commit(store, 5, notes=(Note(T0, "inc-1", 1, "why", json.dumps({**WHY, "rule": "later"})),))
    assert store.audit_page(None, 10, None, "inc-1")[0][0]["why"]["rule"] == "hot"


def test_a_person_s_word_is_kept(store):
    """Freeze and resume are in the notes, with who."""
    commit(store, 5, notes=(Note(T0, "", 0, "freeze", "{}", "ada"),))
    assert [(n.event, n.actor) for n in store.notes()][-1] == ("freeze", "ada")
    assert [n.event for n in store.notes("inc-1")] == ["why", "proof"]


# --- only ever added to -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("table", sorted(APPEND_ONLY))
def test_the_store_refuses_to_replace_rows(store, table):
    """The one way in which the store replaces rows does not know these tables."""
    with store.transaction() as cursor, pytest.raises(GreylagError, match="never replaced"):
        store.put(cursor, table, {"seq": (pa.int64(), [1])}, key="seq")


def test_no_statement_of_the_product_changes_or_drops_a_row():
    """All SQL of the store is read: no UPDATE, DELETE, DROP, ALTER or TRUNCATE names a table that is only added to."""
    forbidden = re.compile(rf"\b(UPDATE|DELETE\s+FROM|DROP\s+TABLE(\s+IF\s+EXISTS)?|ALTER\s+TABLE|TRUNCATE|INSERT\s+OR\s+\w+\s+INTO)"
                           rf"\s+({'|'.join(APPEND_ONLY)})\b", re.IGNORECASE)
    texts = [node.value for path in (ROOT / "pipeline").rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(texts) > 1000
    assert not [text for text in texts if forbidden.search(text)]
    assert forbidden.search("DELETE FROM ledger WHERE seq < 3")
    assert not forbidden.search("DELETE FROM ledgers")


def test_a_tick_that_is_not_newer_adds_nothing(store):
    """The whole commit is refused: no row is written twice."""
    before = store.head()
    with pytest.raises(GreylagError):
        commit(store, 4, (action(3), outcome(action(3), "PENDING")))
    assert (store.head(), len(store.ledger())) == (before, 4)


@pytest.mark.parametrize("sql", [
    "UPDATE ledger SET outcome = replace(outcome, 'DONE', 'FAILED')", "DELETE FROM ledger WHERE seq = 2",
    "UPDATE ledger_notes SET body = '{}' WHERE seq = 1", "DELETE FROM ledger_notes",
    "INSERT INTO ledger SELECT 2, tick_ms, 'x', incident, kind, node, state, reason, action, outcome FROM ledger WHERE seq = 1",
    "DELETE FROM ledger_seals WHERE number = 2", "UPDATE ledger_seals SET seal = 'x' WHERE number = 1",
])
def test_a_row_that_was_tampered_with_shows(tmp_path, store, sql):
    """Another program changes, takes out or slips in a row of a stopped store: `store verify` names it."""
    store.close()
    with duckdb.connect(str(tmp_path / "greylag.duckdb")) as other:
        other.execute(sql)
    assert any(line.startswith("ledger: rows") for line in verify(tmp_path))


def test_a_whole_ledger_verifies_and_each_row_changes_the_seal(store, tmp_path):
    """The newest seal says it all in one line: rows, notes, hash."""
    before = store.head()
    assert (before["rows"], before["notes"], store.broken_seals()) == (4, 2, [])
    commit(store, 5, (action(2), outcome(action(2), "PENDING")))
    assert store.head()["seal"] != before["seal"]
    assert store.broken_seals() == []
    store.close()
    assert verify(tmp_path) == []


def test_a_store_of_before_there_were_seals_is_sealed_with_its_next_row(tmp_path, store):
    """Rows that an older program wrote are taken into the chain as they are found; nothing is refused."""
    store.close()
    with duckdb.connect(str(tmp_path / "greylag.duckdb")) as old:
        old.execute("DROP TABLE ledger_seals")
        old.execute("DROP TABLE ledger_notes")
    again = DuckStore(tmp_path / "greylag.duckdb")
    assert again.head() == {"rows": 0, "notes": 0, "seal": None, "at": None}
    commit(again, 9, (action(2), outcome(action(2), "PENDING")))
    assert (again.head()["rows"], again.broken_seals(), len(again.audit_page(None, 10)[0])) == (5, [], 3)
    again.close()
