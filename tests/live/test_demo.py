"""`greylag demo` as a person or a script runs it: the whole site in processes, judged by its own last word."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.clock import parse_rfc3339
from core.events import KINDS as EVENT_KINDS
from core.targets import OUTCOME_STATES
from tests import needs
from tests.live.site import alive, wait_for

TYPES = {"incident", "finding", "action", "event", "coverage", "truth", "recovery"}
HEALED = ("--headless", "--json", "--exit-when-healed")
FOUR_MINUTES = 240


def demo(*words: str, seconds: float) -> tuple[int, list[dict], str]:
    """Status, records and standard error of a run; fails when it takes longer than `seconds`."""
    ended = subprocess.run([sys.executable, "-m", "app.cli", "demo", *words], capture_output=True, text=True,
                           cwd=needs.ROOT, timeout=seconds, check=False)
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    try:
        below = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [one for child in below for one in (child, *descendants(child))]


def well_formed(records: list[dict]) -> None:
    """The lines of `replay --json` with truths and recoveries: known types, in time order, all in cluster time."""
    assert {r["type"] for r in records} <= TYPES
    ats = [parse_rfc3339(r["at"]) for r in records]
    # What happened before the first tick (boots of weeks ago) and what a log tells late carry their own time.
    judged = [at for at, r in zip(ats, records, strict=True) if r["type"] not in ("event", "truth")]
    assert judged == sorted(judged)
    assert all(at % 15_000 == 0 for at in judged)
    assert max(ats) < time.time() * 1000 - 3_600_000  # the fleet starts hours ago: no wall time slipped in
    for record in records:
        if record["type"] == "event":
            assert record["event"]["kind"] in EVENT_KINDS
        if record["type"] == "action":
            assert record["outcome"]["state"] in {*OUTCOME_STATES, "PENDING"}
        if record["type"] == "incident":
            assert record["event"] in ("opened", "updated", "resolved", "reopened")
            assert re.fullmatch(r"inc-[0-9a-f]{12}", record["incident"]["id"])


def proven(records: list[dict], faults: int) -> None:
    """As many incidents as faults, each with the truth's culprit, all actions done, all step times back."""
    truths = [r["truth"] for r in records if r["type"] == "truth"]
    last = {r["incident"]["id"]: r["incident"] for r in records if r["type"] == "incident"}
    real = [i for i in last.values() if i["state"] != "merged"]
    assert len(truths) == len(real) == faults
    assert {i["state"] for i in real} == {"resolved"}
    assert sorted((t["fault"], t["culprit"]["id"]) for t in truths) == sorted((i["fault"], i["culprit"]["id"]) for i in real)
    ends = {r["action"]["id"]: r["outcome"]["state"] for r in records if r["type"] == "action"}
    assert len(ends) >= 2 * faults
    assert set(ends.values()) == {"DONE"}
    recoveries = [r for r in records if r["type"] == "recovery"]
    assert len(recoveries) == faults
    for one in recoveries:
        assert 0 < one["after_seconds"] <= 1.05 * one["before_seconds"]
    for truth in truths:
        opened = next(r for r in records if r["type"] == "incident" and r["event"] == "opened"
                      and r["incident"]["fault"] == truth["fault"])
        assert opened["incident"]["onset_at"] <= opened["at"]


def test_one_fault_is_found_and_healed():
    """The demo with one fault, small: status 0, and every line is what a script may rely on."""
    status, records, told = demo(*HEALED, "--fault", "thermal_throttle", "--nodes", "4", "--seed", "1", seconds=150)
    assert status == 0, told
    well_formed(records)
    proven(records, 1)
    # A log's line may be read between the proof and the end: the last judgement is the proof.
    assert [r["type"] for r in records if r["type"] not in ("event", "truth")][-1] == "recovery"
    assert "1 fault planted, 1 incident opened, 1 resolved" in told


def test_ctrl_c_ends_everything():
    """SIGINT while it runs: status 0 within seconds, no child left, no traceback."""
    process = subprocess.Popen([sys.executable, "-m", "app.cli", "demo", "--headless", "--nodes", "2"], cwd=needs.ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        # The fleet, the lab, Greylag's supervisor, its owner and its collector.
        below = wait_for(lambda: len(found := descendants(process.pid)) >= 5 and found, 60, "the start of all processes")
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
    assert process.returncode == 0, err
    assert [pid for pid in below if alive(pid)] == []
    assert "Traceback" not in out + err


@pytest.mark.evaluate
@pytest.mark.parametrize("words", [("--seed", "1"), ("--seed", "2"), ("--seed", "3"), ("--nodes", "9"),
                                   ("--nodes", "9", "--seed", "11")], ids=" ".join)
def test_three_faults_are_found_and_healed(words):
    """All faults, on the default fleet and another: within four minutes of wall time on two cores."""
    status, records, told = demo(*HEALED, *words, seconds=FOUR_MINUTES + 15)
    assert status == 0, told
    well_formed(records)
    proven(records, 3)


@pytest.mark.evaluate
def test_nothing_is_found_where_nothing_is_planted():
    """`--fault none`: a minute of wall time is hours of training, and nothing opens or acts."""
    status, records, told = demo("--headless", "--json", "--fault", "none", "--seconds", "60", seconds=120)
    assert status == 0, told
    assert {r["type"] for r in records} <= {"event", "coverage"}


@pytest.mark.evaluate
def test_a_control_door_that_refuses_heals_nothing():
    """Status 1, and no incident ends as resolved."""
    status, records, told = demo(*HEALED, "--refuse-control", "--fault", "thermal_throttle", "--nodes", "4",
                                 seconds=FOUR_MINUTES + 15)
    assert status == 1, told
    done = {r["action"]["kind"] for r in records if r["type"] == "action" and r["outcome"]["state"] == "DONE"}
    assert done <= {"escalate"}  # handing over to a person touches nothing
    assert "resolved" not in {r["incident"]["state"] for r in records if r["type"] == "incident"}
