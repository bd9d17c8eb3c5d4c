"""`greylag incidents ledger` and `cures` over the store of a stopped Greylag."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app import audit, cures, ledger_command
from app.cli import app
from core.errors import BadInput
from core.protocols import TickCommit
from core.reasons import INCIDENT_REASONS
from pipeline.store.duck import DuckStore
from remediation.ledger import Entry
from remediation.memory import Memory
from tests.remediation.worlds import T0, Fault, Owner, cluster, incident, policy


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a repair whose first attempt did not cure, with the notes that the owner writes."""
    folder = tmp_path_factory.mktemp("kept")
    store = DuckStore(folder / "greylag.duckdb")
    owner = Owner(policy(), cluster())
    owner.open(incident())
    fault = Fault(owner, ("replace",))
    carried: list = []
    while owner.incidents["inc-1"].state != "resolved":
        fault.shine()
        step = owner.decide()
        notes = audit.notes(owner.at, step, owner.incidents.get, owner.facts.findings)
        owner.commit(step)
        store.commit_tick(TickCommit(owner.at, actions=(*carried, *step.actions), notes=tuple(notes),
                                     state={"engine": owner.engine.dump()}))
        owner.carry()
        carried = list(owner.carried)
        owner.at += 15_000
    store.close()
    return folder


def run(*args: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    result = CliRunner().invoke(app, ["incidents", *args])
    return result.exit_code, result.output


def test_the_ledger_tells_who_did_what_why_and_what_came_of_it(kept):
    """One line an action, the oldest first, with the result of its attempt."""
    status, text = run("ledger", "--store", str(kept))
    lines = text.splitlines()
    assert (status, len(lines)) == (0, 8)
    assert "inc-1/1/1  greylag: drain n1, thermal_throttle by rule hot (policy): done; attempt 1 failed (verify_failed)" in lines[0]
    assert "inc-1/2/3" in lines[-1]
    assert "attempt 2 cured (recovered)" in lines[-1]


def test_json_has_the_evidence(kept):
    """A line of JSON for each action, with the findings that it rests on."""
    rows = [json.loads(line) for line in run("ledger", "inc-1", "--store", str(kept), "--json")[1].splitlines()]
    assert rows[0]["evidence"]["findings"][0]["id"] == "fnd-1"
    assert {r["outcome"]["state"] for r in rows} == {"DONE"}
    assert rows[-1]["attempt_result"]["after_step_seconds"] == 2.0


def test_csv_and_parquet_are_the_same_table(kept, tmp_path):
    """Both have a column for each part of a row, what is nested as JSON."""
    rows = list(csv.DictReader(io.StringIO(run("ledger", "--store", str(kept), "--csv")[1])))
    status, said = run("ledger", "--store", str(kept), "--parquet", str(tmp_path / "ledger.parquet"))
    table = pq.read_table(tmp_path / "ledger.parquet").to_pylist()
    assert (status, json.loads(said)["actions"], len(table)) == (0, 8, 8)
    assert [r["action"] for r in rows] == [r["action"] for r in table]
    assert tuple(rows[0]) == tuple(table[0]) == ledger_command.COLUMNS
    assert json.loads(table[0]["target"])["node"] == "n1"


def test_a_cell_that_looks_like_a_formula_is_none(kept):
    """A spreadsheet must not run what a name says."""
    row = replace(incident(), id="=cmd")
    shown = ledger_command.ledger("", kept, None, None)[0]
    shown["incident"] = row.id
    assert "'=cmd" in ledger_command.as_csv([shown])


def test_the_seal_says_whether_the_ledger_is_whole(kept):
    """Exit 0 where each row is as it was written."""
    status, text = run("ledger", "--store", str(kept), "--seal")
    assert (status, json.loads(text)["broken"], len(json.loads(text)["seal"])) == (0, [], 64)


@pytest.mark.parametrize("since", ["yesterday", "2026-13-01T00:00:00Z"])
def test_a_bad_time_is_refused(kept, since):
    """In one sentence."""
    with pytest.raises(BadInput):
        ledger_command.ledger("", kept, None, since)


def test_cures_stand_beside_what_goes_away_by_itself(kept):
    """Each way with its n and interval; nothing was watched, so nothing is claimed of what happens untouched."""
    status, text = run("cures", "--store", str(kept))
    assert status == 0
    assert text.startswith("thermal_throttle: by itself within ")
    assert "unknown (n = 0)" in text.splitlines()[0]
    answer = ledger_command.cured("", kept, "thermal_throttle")["items"][0]
    assert answer["untouched"]["n"] == 0
    assert [(row["kinds"][-2:], row["value"], row["n"]) for row in answer["attempts"]] == [
        (["replace", "resume_job"], 1.0, 1), (["undrain", "resume_job"], 0.0, 1)]
    assert ledger_command.cured("", kept, "gpu_lost") == {"items": []}


def test_a_cure_rate_no_better_than_waiting_shows():
    """Ten resets that cured half, beside twenty incidents of which half went away alone in that time."""
    memory = Memory()
    for i in range(10):
        memory.ledger.note(Entry(f"inc-{i}", 1, "p", (), (), T0, T0 + 600_000, "gpu_slow", ("reset_gpu",),
                                 "cured" if i % 2 else "failed", "recovered"))
    memory.ledger.note(Entry("inc-x", 1, "p", (), (), T0, T0 + 600_000, "gpu_slow", ("reset_gpu",), "inconclusive", "job_ended"))
    for i in range(20):
        memory.untouched.watch(T0, incident(f"own-{i}", "gpu_slow"))
        memory.untouched.over(T0 + (300_000 if i % 2 else 6_000_000), [incident(f"own-{i}", state="resolved", reason="quiet")])
    one = cures.document(memory, T0)["items"][0]
    assert (one["untouched"]["value"], one["untouched"]["n"], one["untouched"]["within_seconds"]) == (0.5, 20, 600)
    row = one["attempts"][0]
    assert (row["value"], row["n"], row["failed"], row["inconclusive"]) == (0.5, 10, 5, 1)
    assert row["low"] < 0.25
    assert row["high"] > 0.75
    assert cures.lines({"items": [one]})[1] == "  reset_gpu: cured 50 % (n = 10, 95 %: 24 to 76 %), 1 inconclusive, took 10 min"


def test_nothing_yet_is_said():
    """An empty answer is a sentence."""
    assert cures.lines(cures.document(Memory(), T0)) == ["nothing was acted on yet, and nothing that a rule would have acted on has ended"]
    assert "job_shrank" in INCIDENT_REASONS
