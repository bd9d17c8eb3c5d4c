"""What is true of a fault that was planted: what it cost, and whether it stood long enough to be seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.evaluate.drive import Episodes, truths
from core.clock import TICK_MS
from fleet.build import build_scenario
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario

HOT = Entry(fault="thermal_throttle", at="0s", node="n01", device="1", severity=0.4, seed=1)


def planted(onset: str, levels: str) -> tuple[SimpleNamespace, Episodes]:
    """A fault that was there (1) or away (0) at each tick, as was looked at."""
    one, episodes = SimpleNamespace(onset=onset, present=True, cured_at=None, level=1.0), Episodes()
    for i, level in enumerate(levels):
        one.level = float(level)
        episodes.look([one], i * TICK_MS)  # type: ignore[list-item]
    return one, episodes


@pytest.mark.parametrize(("onset", "levels", "brief"), [
    ("intermittent", "1" * 9 + "0" * 20 + "1" * 8, True), ("intermittent", "1" * 4 + "0" * 4 + "1" * 10, False), ("step", "1", False)],
    ids=["two short ones", "one that stands", "does not come and go"])
def test_what_comes_and_goes_has_to_stand_once(onset: str, levels: str, brief: bool) -> None:
    """Two and a half minutes at a stretch, once."""
    one, episodes = planted(onset, levels)
    assert episodes.brief(one) is brief  # type: ignore[arg-type]


@pytest.mark.parametrize(("onset", "least", "most"), [("step", 0.4, 0.4), ("ramp", 0.02, 0.3)])
def test_a_ramp_costs_what_it_had_come_to(onset: str, least: float, most: float) -> None:
    """One that ends on its way never cost what it was going to."""
    scenario = Scenario("ramp", FleetSpec(2, 0, "h100-8x-roce", None, "A", before="30s"), (JobSpec("train-1", "training", 2),),
                        (replace(HOT, onset=onset),), seed=3, duration="1m")
    world, _, programme = build_scenario(scenario)
    world.advance(scenario.end_ms)
    (truth,) = truths(world, programme, "A", Episodes())
    assert least <= (truth.impact or 0.0) <= most
