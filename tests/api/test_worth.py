"""What waiting and acting cost, and how detectors score, over the API and as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.house import OwnerHouse
from app.owner import Owner
from app.policy_plan import _item_lines
from app.story import action_lines
from app.worth_lines import score_lines, worth_lines
from core.config import read_config
from core.protocols import TickCommit
from core.render import plain
from core.telemetry import METRICS
from core.types import Action, Outcome, Target
from remediation.cures import Cures
from remediation.worth import as_json, proposal_args, weigh
from tests.remediation.test_worth import LADDER, NOW, judged
from tests.remediation.worlds import T0, incident

API = "/api/greylag/v1"


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """A real owner whose store has one incident and three diagnoses."""
    folder = tmp_path_factory.mktemp("worth")
    (folder / "greylag.yaml").write_text("data_dir: data\nlisten: 127.0.0.1:0\nbackend: {name: observe}\n")
    made = Owner(read_config(folder / "greylag.yaml"))
    rows = [(1, "FAILED", "diagnose_confirmed"), (2, "DONE", "diagnose_refuted"), (3, "DONE", "no_fault_found")]
    actions = []
    for n, state, reason in rows:
        args = {"fault": "gpu_slow", "device": "3", "after": None}
        action = Action(f"inc-{n}/1/2", "diagnose", Target("node", "n1"), args, 60.0, "act", f"inc-{n}", 1, 2, T0, "policy")
        actions += [(action, Outcome(action.id, "PENDING", "policy", at=T0)), (action, Outcome(action.id, state, reason, 5.0, T0))]
    made.store.commit_tick(TickCommit(T0, incidents=(incident(),), actions=tuple(actions)))
    yield made
    made.writer.close()
    made.store.close()
    made.loop.close()


def test_detectors_scores_are_shown(owner: Owner) -> None:
    """By fault, from the ledger's rows, each diagnosis once; another fault has none."""
    api = TestClient(owner.app())
    [one] = api.get(f"{API}/diagnoses").json()["items"]
    assert (one["fault"], one["precision"], one["counts"]["confirmed"], one["counts"]["refuted"], one["counts"]["none"]) == (
        "gpu_slow", 0.5, 1, 1, 1)
    assert api.get(f"{API}/diagnoses", params={"fault": "packet_loss"}).json()["items"] == []
    assert score_lines([one])[0].split() == ["gpu_slow", "50", "%", "confirmed", "1", "confirmed,", "1", "refuted,", "1", "none"]
    assert "greylag_diagnoses_total" in METRICS


def test_an_incident_shows_what_waiting_and_acting_cost(owner: Owner) -> None:
    """As it was last weighed; null where it was not."""
    house = OwnerHouse(owner)
    assert house.read("incident", {"id": "inc-1"})["worth"] is None
    worth = weigh(T0, LADDER, 0, NOW, judged(1, 19), 1200.0)
    assert worth is not None
    owner.hands.engine.history.worths["inc-1"] = worth
    shown = TestClient(owner.app()).get(f"{API}/incidents/inc-1").json()["worth"]
    assert shown["waiting_gpu_hours"] == pytest.approx(worth.waiting_gpu_hours, rel=1e-4)
    assert [(o["place"], o["skip"]) for o in shown["options"]] == [(0, True), (1, False)]
    assert [(o["restart_seconds"], o["queue_seconds"], o["cured"], o["failed"]) for o in shown["options"]] == [
        (1245.0, 60.0, 1, 19), (1020.0, 60.0, 0, 0)]
    assert (shown["spares"], shown["unsaved_seconds"]) == (2, 300.0)


def test_the_costs_are_lines_for_a_terminal() -> None:
    """Waiting first, then each attempt with its chance, its own record and whether it is skipped."""
    lines = worth_lines(plain(as_json(weigh(T0, LADDER, 0, NOW, judged(1, 19), 1200.0))))
    assert lines[0].startswith("worth     waiting: 582.1 GPU-hours expected to be lost (25.0 an hour now, 128 GPUs, 5 min of work unsaved")
    assert ", 2 spares; stopping the job: " in lines[0]
    assert "attempt 1 (drain, reset_gpu, diagnose, undrain, resume_job)" in lines[1]
    assert lines[1].endswith("(1 of 20 here), not worth it: skipped")
    assert "(restart 1020 s, queue 60 s)" in lines[2]
    assert "no own record" in lines[2]
    assert worth_lines(None) == []


def test_a_proposal_is_told_with_a_line_for_each_attempt() -> None:
    """In `incidents show` and in a replay; what it rests on that is one number stays beside the step."""
    args = proposal_args(weigh(T0, LADDER, 0, NOW, judged(1, 19), 1200.0))
    row = {"kind": "drain", "target": plain(Target("node", "n1")), "args": args, "reason": "awaiting_approval"}
    first, *rest = action_lines({"action": row, "outcome": {"state": "PENDING"}})
    assert "unsaved_seconds 300, spares 2)" in first
    assert [line.strip(" ·")[:9] for line in rest] == ["attempt 1", "attempt 2"]
    assert len(action_lines({"action": row, "outcome": {"state": "REFUSED", "reason": "withdrawn", "took_seconds": 0.0}})) == 1


def test_a_plan_tells_the_same_lines() -> None:
    """`greylag policy plan`: waiting and each attempt."""
    outlook = {"incident": "inc-1", "rule": "hot", "attempt": 1, "of": 2, "fault": "gpu_slow", "culprit": plain(Target("node", "n1")),
               "confidence": 0.9, "lost_gpu_hours": 1.0, "would": "propose", "reason": "awaiting_approval", "because": "", "steps": [],
               "worth": plain(as_json(weigh(T0, LADDER, 0, NOW, judged(1, 19), 1200.0)))}
    told = "\n".join(_item_lines(outlook))
    assert "waiting: 582.1" in told
    assert "attempt 1 (drain, reset_gpu" in told
    assert "attempt 2 (drain, replace" in told


def test_a_held_incident_says_so() -> None:
    """Where stopping the job costs more than waiting."""
    from dataclasses import replace

    held = weigh(T0, LADDER, 0, replace(NOW, lost_gpus=0.3, unsaved_seconds=None), Cures(), 1200.0)
    lines = worth_lines(plain(as_json(held)))
    assert "unsaved work not known" in lines[0]
    assert lines[-1].strip() == "held: stopping the job costs more than waiting"
