"""What the suites promise is told from their plans alone: counted positives of each fault, chances, node-days."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from app.evaluate.chances import LARGEST, chance, counting, enough
from app.evaluate.plan import NEVER_SHOWN, SUITES, Planned, plan_suite, shows, sized
from core.faults import faults
from fleet.build import all_plugins
from fleet.hardware import NODE_TYPES
from fleet.scenario import Entry, seconds_of

FULL_TURNS = SUITES["full"].repeat
LONG, SHORT = (30.0, 34.0), (10.0, 12.0)


def _counts(planned: Planned, entry: Entry) -> float:
    """The chance that a planned fault counts: 1 or 0 where its size, onset, tier and fabric settle it."""
    plugin, spec = all_plugins()[entry.name], planned.scenario.fleet
    if planned.stress or not shows(plugin, spec.tier, NODE_TYPES[spec.type].fabric):
        return 0.0
    if not sized(plugin) or entry.severity is None:
        return 1.0
    lasts = seconds_of(entry.for_) / 60 if entry.for_ else planned.minutes - seconds_of(entry.at) / 60
    return chance(entry.onset or "step", (entry.severity, entry.severity), (lasts, lasts))


@pytest.mark.parametrize("seed", [10_000, 180_000])
def test_the_standard_suite_has_twenty_counted_ones_of_each_fault(seed: int) -> None:
    """By expectation, with ramps that end early, short episodes and what no telemetry shows left out."""
    chances = defaultdict(list)
    for planned in plan_suite("standard", seed):
        for entry in planned.scenario.schedule:
            if entry.fault and (fault := all_plugins()[entry.name].fault):
                chances[fault].append(_counts(planned, entry))
    expected = {name: sum(of) for name, of in chances.items()}
    never = {all_plugins()[name].fault for name in NEVER_SHOWN}
    assert [(name, expected[name]) for name in faults() if name not in never and expected[name] < SUITES["standard"].positives] == []


def test_the_full_suite_has_three_thousand_node_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without stress, which counts in no macro figure; one turn of it is planned, and two in a hundred are kept to spare."""
    monkeypatch.setitem(SUITES, "full", replace(SUITES["full"], repeat=1))
    turn = sum(p.scenario.fleet.nodes * p.minutes / 1440 for p in plan_suite("full", 10_000) if not p.stress)
    assert turn * FULL_TURNS >= 1.02 * 3000


@pytest.mark.parametrize(("onset", "impact", "lasts", "low", "high"), [
    ("step", (0.05, LARGEST), SHORT, 1.0, 1.0),
    ("step", (0.04, 0.04), SHORT, 0.0, 0.0),
    ("ramp", (0.5, 0.5), SHORT, 1.0, 1.0),
    ("ramp", (0.05, 0.08), SHORT, 0.7, 0.97),        # as far as it came is less than 5 %
    ("ramp", (0.05, 0.05), (2.0, 2.0), 0.0, 0.01),
    ("intermittent", (0.5, 0.5), SHORT, 0.85, 0.97),  # some never stand for long
    ("intermittent", (0.5, 0.5), LONG, 0.99, 1.0),
    ("intermittent", (0.04, 0.04), LONG, 0.0, 0.0),
])
def test_how_likely_a_planned_fault_counts(onset: str, impact: tuple[float, float], lasts: tuple[float, float], low: float,
                                           high: float) -> None:
    """A step counts from 5 % on, a ramp where it comes so far, and what comes and goes where it stands for long once."""
    assert low <= chance(onset, impact, lasts) <= high


@pytest.mark.parametrize(("plant", "sure"), [("xid_79", True), ("disk_full", True), ("config_drift", True), ("disk_slow", False),
                                             ("ecc_correctable_storm", False)])
def test_what_has_no_size_or_is_there_at_once_counts_for_sure(plant: str, sure: bool) -> None:
    """Only ramps and what comes and goes can fall short."""
    assert (counting(all_plugins()[plant], SHORT) == 1.0) is sure


@pytest.mark.parametrize(("chances", "planted"), [([1.0], 20), ([0.95], 24), ([1.0, 0.9], 24), ([0.0], 0)])
def test_so_many_are_planted_that_twenty_count(chances: list[float], planted: int) -> None:
    """What counts for sure needs none to spare, and what never counts is not planted without end."""
    assert enough(20, chances) == planted
