"""Somebody on call with patience: what only slows a job is no reason to stop it, but is mended while it stands anyway."""

from __future__ import annotations

import pytest

from fleet.eventstep import EventWorld
from fleet.responder import Responder
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario

SLOW = Entry(fault="gpu_slow", at="2m", node="n03", device="2", severity=0.4, onset="step", for_="9h")
SLIGHT = Entry(fault="gpu_slow", at="2m", node="n03", device="2", severity=0.02, onset="step", for_="9h")
DEADLY = Entry(fault="xid_79", at="20m", node="n01", device="0")


@pytest.mark.parametrize(("schedule", "patience", "healed", "runs"), [
    pytest.param((SLOW,), None, ["gpu_slow"], 2, id="no-patience"),
    pytest.param((SLOW,), 3600.0, [], 1, id="it-slows-only"),
    pytest.param((SLOW,), 900.0, ["gpu_slow"], 2, id="it-slows-for-long"),
    pytest.param((SLIGHT,), None, [], 1, id="too-small"),
    pytest.param((SLIGHT, DEADLY), 3600.0, ["gpu_slow", "xid_79"], 2, id="while-it-stands"),
    pytest.param((SLIGHT, DEADLY), None, ["xid_79"], 2, id="nobody-thinks-of-it"),
])
def test_what_is_mended_when(schedule, patience, healed, runs):
    """One start of the job serves all ladders that wait for one."""
    scenario = Scenario("x", FleetSpec(4, 2, times="fast"), (JobSpec("train-1"),), duration="45m", schedule=schedule, seed=3)
    event = EventWorld(scenario, [
        lambda one: Responder(one.world, one.operations, 240.0, retries=3, patience_seconds=patience)])
    event.advance(scenario.end_ms)
    assert sorted(name for name, how in event.watchers[0].done if how == "done") == healed
    assert event.world.jobs["train-1"].run == runs
    assert event.world.jobs["train-1"].alive
