"""The story as people read it: what is told, what is left out, and with which words and units."""

from __future__ import annotations

from typing import Any

import pytest

from app.story import Teller, number, part, shown_lines
from app.verdict import Checker

TICK = "2026-11-27T21:36:30.000Z"


def target(kind: str, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(("node", "device", "id", "job", "rank", "serial")) | {"kind": kind} | more


def incident(event: str, state: str, reason: str, at: str = TICK, **more: Any) -> dict[str, Any]:
    one = {"id": "inc-0123456789ab", "fault": "thermal_throttle", "scope": "device", "confidence": 0.93, "state": state,
           "reason": reason, "culprit": target("gpu", node="n04", device="4"), "suspects": [], "victims": [], "evidence": [],
           "jobs": ["train-1"], "lost_gpu_hours": 0.26, "attempt": 1}
    return {"type": "incident", "event": event, "at": at, "incident": one | more}


def event(at: str, kind: str = "boot") -> dict[str, Any]:
    return {"type": "event", "at": at, "event": {"kind": kind, "target": target("node", node="n01")}}


def told(*records: dict[str, Any], started_at: int | None = None) -> list[str]:
    teller = Teller(started_at)
    return [line for record in records for line in teller.lines(record)]


@pytest.mark.parametrize(("value", "unit", "text"), [
    (None, "Hz", "none"), (1.42e9, "Hz", "1.42 GHz"), (84.04, "°C", "84 °C"), (0.1234, "ratio", "12.3 %"), (182.0, "1/s", "182 per s"),
    (0x60, "bits", "0x60"), (6254.0, "seq", "6254"), (18240.0, "step", "18240"), (3.2, "s", "3.2 s"), (0.0, "bytes", "0 bytes"),
    (2.5e6, "bytes/s", "2.5 Mbytes/s"), (3.0, "count", "3"), (1_070_070.0, "1/s", "1.07 million per s"),
])
def test_numbers_carry_their_unit(value, unit, text):
    """Short, with SI prefixes for large units, per cent for shares, nothing for what is counted."""
    assert number(value, unit) == text


@pytest.mark.parametrize(("one", "words"), [
    (None, "no single part"),
    (target("gpu", node="n04", device="4", job="train-1", rank=28), "n04 GPU 4 (rank 28 of train-1)"),
    (target("nic", node="n02", device="mlx5_1/1"), "n02 mlx5_1/1"),
    (target("node", node="n7"), "n7"),
    (target("job", job="train-1"), "job train-1"),
    (target("rank", job="train-1", rank=3, node="n01", device="3"), "rank 3 of job train-1 on n01 GPU 3"),
    (target("label", device="bmc_firmware=24.09"), "label bmc_firmware=24.09"),
])
def test_parts_have_the_names_that_people_use(one, words):
    """Node, device, rank and job; never an identifier where a place is known."""
    assert part(one) == words


def test_the_date_is_told_once_and_the_time_always():
    """A line of its own where the date changes, times of day in front of the rest."""
    lines = told(incident("opened", "open", "opened_by_finding"), incident("updated", "acting", "action_planned"),
                 incident("resolved", "resolved", "recovered", "2026-11-28T00:00:15.000Z"))
    assert [line[:10] for line in lines if "cluster's clock" in line] == ["2026-11-27", "2026-11-28"]
    assert [line[:8] for line in lines if "inc-" in line] == ["21:36:30", "21:36:30", "00:00:15"]


def test_a_state_is_told_when_it_or_its_reason_changed():
    """Updates that change only evidence are for the explorer."""
    acting = incident("updated", "acting", "action_planned")
    lines = told(incident("opened", "open", "opened_by_finding"), acting, acting, acting,
                 incident("updated", "verifying", "verify_started"), incident("resolved", "resolved", "recovered"))
    states = [line.split()[1] for line in lines if "inc-" in line]
    assert states == ["OPENED", "acting", "verifying", "RESOLVED"]
    assert "policy decided on an action" in next(line for line in lines if " acting " in line)


def test_events_of_long_before_the_start_are_no_news():
    """Told are those of the hour before the first tick and all later ones; they wait until that tick is known."""
    old, near, new = event("2026-10-21T11:10:11.000Z"), event("2026-11-27T21:00:00.000Z", "xid"), event(TICK, "link_down")
    expected = ["2026-11-27 (UTC, the cluster's clock)", "21:00:00  event xid at n01", "21:36:30  event link_down at n01"]
    coverage = {"type": "coverage", "at": TICK, "coverage": {}}
    assert told(old, near) == []
    assert told(old, near, coverage, new) == expected
    assert told(old, near, new, started_at=1_795_815_390_000) == expected


def test_events_of_a_short_recording_are_told_at_its_end():
    """The summary says when the recording began."""
    end = {"type": "summary", "at": None, "samples": 0, "events": 2, "findings": 0, "incidents": 0, "started_at": TICK, "ended_at": TICK}
    lines = told(event("2026-10-21T11:10:11.000Z"), event(TICK, "xid"), end)
    assert [line.strip() for line in lines][1:] == [
        "21:36:30  event xid at n01", "0 samples, 2 events, 0 findings, 0 incidents"]


@pytest.mark.parametrize(("state", "reason", "words"), [
    ("PENDING", "policy", "→ step 1: drain n04 (wait_for checkpoint)"),
    ("DONE", "done", "✓ drain n04 (wait_for checkpoint): DONE after 75 s"),
    ("REFUSED", "other_hand", "✗ drain n04 (wait_for checkpoint): REFUSED after 75 s: other_hand (another hand holds the node)"),
])
def test_an_action_is_a_decision_or_an_outcome(state, reason, words):
    """What, on which part, with which arguments; how it ended, how long it took, why it failed."""
    action = {"kind": "drain", "target": target("node", node="n04"), "args": {"wait_for": "checkpoint"}, "reason": "policy", "step": 1}
    outcome = {"state": state, "reason": reason, "took_seconds": 0.0 if state == "PENDING" else 75.0}
    (_, line) = told({"type": "action", "at": TICK, "action": action, "outcome": outcome})
    assert line.split("  ", 1)[1].strip() == words


def test_running_actions_and_coverage_are_not_told():
    """They stay in the JSON lines and in the API."""
    action = {"kind": "drain", "target": target("node", node="n04"), "args": {}, "reason": "policy"}
    running = {"type": "action", "at": TICK, "action": action, "outcome": {"state": "RUNNING", "reason": "", "took_seconds": 1.0}}
    assert told(running, {"type": "coverage", "at": TICK, "coverage": {}}) == []


def test_an_incident_is_shown_as_it_stands():
    """Its state in front, since when, each action once and with its time; one that still runs is told."""
    def row(at: str, name: str, state: str, took: float) -> dict[str, Any]:
        return {"at": at, "action": {"id": name, "kind": name, "target": target("node", node="n04"), "args": {}, "reason": "policy", "step": 1},
                "outcome": {"state": state, "reason": "policy" if state in ("PENDING", "RUNNING") else "done", "took_seconds": took}}

    one = incident("resolved", "resolved", "recovered", onset_at=TICK, resolved_at="2026-11-27T21:46:30.000Z")["incident"]
    lines = shown_lines({"incident": one, "actions": [
        row(TICK, "drain", "PENDING", 0.0), row(TICK, "drain", "RUNNING", 0.0), row("2026-11-27T21:37:45.000Z", "drain", "DONE", 75.0),
        row("2026-11-27T21:38:00.000Z", "replace", "RUNNING", 15.0)]})
    assert lines[0] == "RESOLVED inc-0123456789ab thermal_throttle on n04 GPU 4, scope device, confidence 0.93"
    assert lines[2:] == [
        "  · since 2026-11-27 21:36:30 to 2026-11-27 21:46:30 UTC, 0.26 GPU-hours lost; resolved: recovered (the detectors are quiet and the"
        " job is as fast as before)",
        "21:36:30  → step 1: drain n04", "21:37:45  ✓ drain n04: DONE after 75 s", "21:38:00  · replace n04: RUNNING after 15 s: policy"]


@pytest.mark.parametrize(("before", "after", "words"), [
    (3.2, 3.3, "PROVEN job train-1: a step took 3.20 s before the fault and takes 3.30 s now"),
    (3.2, 3.4, "SLOWER job train-1: a step took 3.20 s before the fault and takes 3.40 s now"),
    (3.2, None, "NOT MEASURED job train-1: its step time after the fault is not known"),
    (None, 3.2, "NOT MEASURED job train-1: its step time before the fault is not known")])
def test_only_what_is_measured_is_proven(before, after, words):
    """A job that stays slower, or whose step time is not known, is not called proven."""
    (_, line) = told({"type": "recovery", "at": TICK, "job": "train-1", "before_seconds": before, "after_seconds": after})
    assert line.split("  ", 1)[1] == words


GPU = target("gpu", node="n04", device="4", id="GPU-1")
TRUTH = {"type": "truth", "at": TICK, "truth": {"fault": "thermal_throttle", "scope": "device", "culprit": GPU}}
RESOLVED = incident("resolved", "resolved", "recovered", culprit=GPU)
DONE = {"type": "action", "at": TICK, "action": {"id": "inc-0123456789ab/1/1"}, "outcome": {"state": "DONE", "reason": "done"}}
PROVEN = {"type": "recovery", "at": TICK, "job": "train-1", "before_seconds": 3.2, "after_seconds": 3.3, "incident": "inc-0123456789ab"}


@pytest.mark.parametrize(("records", "word"), [
    ([TRUTH, RESOLVED, DONE, PROVEN], None),
    ([RESOLVED, DONE, PROVEN], "0 of 1 faults"),
    ([TRUTH, DONE], "no incident names"),
    ([TRUTH, incident("resolved", "resolved", "recovered", culprit=GPU | {"id": "GPU-2"}), PROVEN], "no incident names"),
    ([TRUTH, incident("updated", "escalated", "policy_exhausted", culprit=GPU), PROVEN], "is escalated"),
    ([TRUTH, RESOLVED, PROVEN | {"after_seconds": 3.4}], "3.40 s after"),
    ([TRUTH, RESOLVED], "no measured recovery"),
    ([TRUTH, RESOLVED, PROVEN | {"after_seconds": None}], "no measured recovery"),
    ([TRUTH, RESOLVED, PROVEN, DONE | {"outcome": {"state": "FAILED", "reason": "deadline_exceeded"}}], "FAILED"),
    ([TRUTH, RESOLVED, PROVEN, incident("opened", "open", "x", id="inc-ffffffffffff")], "without a planted fault"),
    ([TRUTH, RESOLVED, PROVEN, incident("updated", "merged", "absorbed", id="inc-ffffffffffff")], None),
])
def test_the_demo_judges_itself_strictly(records, word):
    """Success needs the truth's culprit, a resolved incident, actions done, the step time back, and nothing else."""
    checker = Checker()
    for record in records:
        checker.take(record)
    problems = checker.problems(1)
    assert bool(problems) == (word is not None)
    assert word is None or any(word in problem for problem in problems), problems
