"""A worker over its budget sheds step by step, with a reason, and recovers step by step; one dear target pays by itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.shedding import STEPS, WIDEST, CpuMeter, ProcessGovernor, TargetCosts
from core.config import ProcessBudget
from core.reasons import SHED_REASONS

BUDGET = ProcessBudget(cpu_ratio=0.9, memory_bytes=1000)
CALM = (0.1, 100, 0.0)


def levels(*spans, governor=None):
    """(level, reason) every 5 s; spans: (seconds, (cpu ratio, bytes, lag))."""
    governor, now, out = governor or ProcessGovernor(BUDGET, 0.0), 0.0, []
    for seconds, numbers in spans:
        for _ in range(int(seconds / 5)):
            level = governor.look(now, *numbers)
            out.append((level.number, level.reason))
            now += 5
    return out


def steps(found):
    """The levels in the order in which they came, each once."""
    return [key for key, _ in itertools.groupby(found)]


@pytest.mark.parametrize(("numbers", "reason"), [
    ((0.95, 100, 0.0), "shed_cpu"),
    ((0.1, 1001, 0.0), "shed_memory"),
    ((0.1, 100, 3.0), "shed_lag"),
])
def test_it_sheds_step_by_step_and_says_why(numbers, reason):
    """Load that stays brings one step after the other, never two at once, to the last one."""
    found = steps(levels((600, numbers)))
    assert found[:5] == [(0, "steady"), *((n, reason) for n in range(1, 5))]
    assert reason in SHED_REASONS


@pytest.mark.parametrize("numbers", [(0.89, 999, 1.9), (0.0, 0, 0.0)])
def test_within_the_budget_nothing_is_shed(numbers):
    """Just below every bound the level stays 0."""
    assert steps(levels((900, numbers))) == [(0, "steady")]


@pytest.mark.parametrize(("numbers", "wanted"), [
    ((0.1, 100, 30.0), [(0, "start_grace"), (0, "steady")]),
    ((5.0, 100, 0.0), [(0, "start_grace"), (0, "steady")]),
    ((0.1, 1001, 0.0), [(0, "steady"), (1, "shed_memory"), (0, "steady")]),
])
def test_a_start_is_no_load(numbers, wanted):
    """In its first minute a worker sheds nothing for CPU or lag, and says why; memory counts from the beginning."""
    assert steps(levels((55, numbers), (400, CALM), governor=ProcessGovernor(BUDGET))) == wanted
    assert wanted[0][1] in SHED_REASONS or wanted[0][1] == "steady"


def test_the_grace_ends():
    """A worker that is still behind after its first minute sheds as any other."""
    found = levels((100, (0.1, 100, 30.0)), governor=ProcessGovernor(BUDGET))
    assert steps(found)[:3] == [(0, "start_grace"), (0, "steady"), (1, "shed_lag")]


def test_one_look_over_the_budget_is_no_load():
    """A peak that is gone at the next look changes nothing."""
    assert steps(levels((60, CALM), (5, (0.99, 100, 0.0)), (60, CALM))) == [(0, "steady")]


def test_it_recovers_step_by_step():
    """Two calm minutes take one step back; between the bound and four fifths of it the level stays."""
    found = levels((130, (0.95, 100, 0.0)), (600, (0.8, 100, 0.0)), (900, CALM))
    assert steps(found) == [(0, "steady"), (1, "shed_cpu"), (2, "shed_cpu"), (3, "shed_cpu"), (2, "shed_cpu"),
                            (1, "shed_cpu"), (0, "steady")]
    assert [n for n, _ in found[26:146]] == [3] * 120


def test_a_step_back_that_was_too_early_waits_longer_the_next_time():
    """Load that comes back within five minutes doubles the calm that is asked for."""
    governor, now, times = ProcessGovernor(BUDGET, 0.0), 0.0, []
    while now < 4000:
        busy = governor.level.number == 0
        before = governor.level.number
        governor.look(now, *((0.95, 100, 0.0) if busy else CALM))
        if governor.level.number < before:
            times.append(now)
        now += 5
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[1] > 1.5 * gaps[0]


def test_memory_that_does_not_come_back_ends_the_process():
    """At the last step for five minutes and still over: start anew. CPU alone never asks for that."""
    governor = ProcessGovernor(BUDGET, 0.0)
    levels((900, (0.1, 2000, 0.0)), governor=governor)
    assert governor.level.restart
    assert governor.level.reason == "shed_memory_restart"
    busy = ProcessGovernor(BUDGET, 0.0)
    levels((3000, (2.0, 100, 9.0)), governor=busy)
    assert not busy.level.restart


def test_health_signals_go_last():
    """Each step takes more from targets without health signals than from those with; only the last skips, and only plain."""
    assert all(a.plain_factor <= b.plain_factor and a.factor <= b.factor for a, b in itertools.pairwise(STEPS))
    assert all(step.factor <= step.plain_factor for step in STEPS)
    assert STEPS[1].factor == 1
    assert [step.skip_plain for step in STEPS] == [False] * 4 + [True]


@pytest.mark.parametrize(("numbers", "left_out"), [
    ((0.95, 100, 0.0), False),
    ((0.1, 100, 9.0), False),
    ((0.1, 2000, 0.0), True),
], ids=["CPU", "lag", "memory"])
def test_series_are_left_out_for_want_of_memory_alone(numbers, left_out):
    """Leaving series out makes every page a new one, which costs the CPU that is wanted."""
    governor = ProcessGovernor(BUDGET, 0.0)
    levels((600, numbers), governor=governor)
    assert governor.level.number == len(STEPS) - 1
    assert governor.level.health_only == left_out


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 2000), st.floats(0, 5)), max_size=200))
def test_levels_move_one_step_at_a_time_and_stay_in_bounds(numbers):
    """Whatever is seen, a look changes the level by at most one, within its bounds."""
    governor, before = ProcessGovernor(BUDGET, 0.0), 0
    for i, row in enumerate(numbers):
        level = governor.look(5.0 * i, *row)
        assert abs(level.number - before) <= 1
        assert 0 <= level.number < len(STEPS)
        assert (level.number == 0) == (level.reason == "steady")
        before = level.number


@pytest.mark.parametrize(("marks", "wanted"), [
    ([(0, 0.0), (5, 5.0)], 0.0),
    ([(0, 0.0), (5, 0.5), (20, 2.0)], 0.1),
    ([(0, 0.0), (60, 60.0), (120, 60.0)], 0.0),
    ([(float(t), 0.5 * t) for t in range(0, 200, 5)], 0.5),
])
def test_the_share_of_a_cpu_is_a_mean_over_a_minute(marks, wanted):
    """A start is no load, and what was more than a minute ago counts no more."""
    meter = CpuMeter()
    assert [meter.ratio(*mark) for mark in marks][-1] == pytest.approx(wanted)


@pytest.mark.parametrize(("costs", "wanted"), [
    ([0.5] * 20, 1),
    ([2.0, 0.1] * 20, 1),
    ([2.0] * 3, 2),
    ([2.0] * 30, 2),
    ([3.5] * 30, 4),
    ([99.0] * 30, WIDEST),
    ([99.0] * 30 + [0.01] * 20, 1),
    ([2.0] * 10 + [1.3] * 30, 2),
])
def test_a_target_that_costs_much_is_read_less_often(costs, wanted):
    """Several dear readings in a row double its interval; several cheap ones halve it. 15 s, a tenth of a CPU: 1.5 s."""
    book = TargetCosts(0.1)
    for cost in costs:
        book.note("t", cost, 15_000)
    assert book.factor("t") == wanted
    assert book.widened() == ({"t": wanted} if wanted > 1 else {})
    assert book.factor("another") == 1
