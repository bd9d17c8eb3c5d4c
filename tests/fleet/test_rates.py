"""Published rates: the counts of their sources, known names, and schedules that scale with fleet and span."""

from __future__ import annotations

import pytest

from fleet.build import all_plugins
from fleet.hardware import H100_ROCE
from fleet.rates import able, drawn, groups
from fleet.scenario import FleetSpec, RatesSpec, Scenario, seconds_of

LLAMA_GPU_HOURS = 16_384 * 54 * 24


def _of(group: str, nodes: int, days: int, seed: int = 1, factor: float = 1.0):
    scenario = Scenario("x", FleetSpec(nodes, 0), duration=f"{days}d", seed=seed, rates=RatesSpec(factor, (group,)))
    return drawn(scenario, all_plugins())


@pytest.mark.parametrize(("group", "count"), [("llama3_405b", 419), ("planned", 47)])
def test_counts_are_those_of_the_source(group, count):
    """Rates times the observed GPU-hours give the published number of interruptions."""
    total = sum(row.per_hour for row in groups()[group].rows) * LLAMA_GPU_HOURS
    assert round(total) == count


LLAMA_ROWS = [("faulty GPU", 148), ("GPU HBM3 memory", 72), ("network switch or cable", 35), ("GPU SRAM memory", 19),
              ("GPU system processor", 17)]


@pytest.mark.parametrize(("cause", "count"), LLAMA_ROWS)
def test_causes_have_their_published_counts(cause, count):
    """The rows that the facts name."""
    row = next(r for r in groups()["llama3_405b"].rows if r.cause == cause)
    assert round(row.per_hour * LLAMA_GPU_HOURS) == count


def test_every_word_of_the_table_is_a_fault_that_the_usual_fleet_can_have():
    """No row is lost silently on the generic node."""
    words = {w for group in groups().values() for row in group.rows for w in row.becomes} - {"hand"}
    assert [w for w in sorted(words) if not able(all_plugins(), H100_ROCE.has | {"trainer"}, w)] == []


def test_a_fleet_of_the_sources_size_meets_as_many_interruptions():
    """2,048 nodes in 54 days: 419, within four sigma of a Poisson count."""
    assert abs(len(_of("llama3_405b", 2048, 54)) - 419) < 4 * 419**0.5


def test_schedules_scale_with_fleet_span_and_factor():
    """Twice the nodes, or the days, or the factor: about twice as many; the same seed the same schedule."""
    base = len(_of("fail_slow", 200, 30))
    assert base > 100
    for other in (_of("fail_slow", 400, 30), _of("fail_slow", 200, 60), _of("fail_slow", 200, 30, factor=2.0)):
        assert 1.6 < len(other) / base < 2.4
    assert _of("fail_slow", 200, 30) == _of("fail_slow", 200, 30)
    assert _of("fail_slow", 200, 30) != _of("fail_slow", 200, 30, seed=2)


def test_slow_spells_last_as_published():
    """Most fail-slows last minutes, some hours; the mean of communication is longer than of computing."""
    lasts = [seconds_of(e.for_ or "0s") for e in _of("fail_slow", 400, 60)]
    assert min(lasts) >= 30
    assert max(lasts) <= 36_000
    assert 300 < sorted(lasts)[len(lasts) // 2] < 1500
