"""A recording of a real H200 (sample_data/recordings/h200): power-capped training, a real hang, then a loss that is NaN."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from app.replay import ReplayOptions, replay
from core.clock import rfc3339

CASE = Path(__file__).parents[2] / "sample_data" / "recordings" / "h200"


@cache
def records() -> list[dict]:
    lines: list[str] = []
    replay(ReplayOptions((str(CASE),)), lines.append)
    return [json.loads(line) for line in lines]


def incidents() -> list[dict]:
    return [r for r in records() if r["type"] == "incident" and r["event"] == "opened"]


def test_the_two_faults_and_nothing_else_are_found():
    """The rank that spins in a kernel at 118 W and 100 % utilisation, then the poisoned weight; no other incident."""
    assert [r["incident"]["fault"] for r in incidents()] == ["stalled_loss", "nonfinite_loss"]


def test_the_onset_is_that_of_the_last_step():
    """The incident's onset lies within 20 s of the moment at which the spinning kernel was started."""
    run = json.loads((CASE / "truth.json").read_text())[1]
    log = (CASE / "trainer.lab-train.log").read_text()
    assert "iteration" in log
    onset = incidents()[0]["incident"]["onset_at"]
    assert rfc3339(int((run["began"] + run["fault_after_seconds"]) * 1000)) <= onset
    assert onset <= rfc3339(int((run["began"] + run["fault_after_seconds"] + 45) * 1000))


@pytest.mark.parametrize("fault", ["thermal_throttle", "power_cap", "power_brake", "clock_loss", "packet_loss"])
def test_low_clocks_at_the_power_limit_are_healthy(fault):
    """For minutes the GPU ran 20 % below its greatest clock at its power limit: boost behaviour, no fault."""
    assert not [r for r in records() if r["type"] in ("finding", "incident") and r[r["type"]]["fault"] == fault]
