"""The levels of a job's pace: what became slow again after a repair, what only goes up and down, and what single steps do not show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import Floats
from core.window import Window
from detectors import pace_levels, straggler, throughput_drop
from tests.contract.windows import JOB, START, Cluster
from tests.detectors.test_job_speed import AT, PARTS_OF_A_STEP, says, timed, window, work_more

FOUND = [f"job:{JOB}/"]


def tailed(n: int, seed: int) -> Floats:
    """Healthy steps as Megatron's: a bulk within 2 %, a third with a tail of 7 %, one in forty much longer."""
    rng = np.random.default_rng(seed)
    tail = np.where(rng.random(n) < 0.45, rng.exponential(0.072, n), 0.0) + np.where(rng.random(n) < 0.027, rng.uniform(0.3, 1.3, n), 0.0)
    return 3.2 * np.exp(0.008 * rng.normal(size=n)) * (1 + tail)


def rough(n: int, seed: int, sigma: float = 0.05, rho: float = 0.6) -> Floats:
    """Steps without a bulk, each like the one before."""
    rng, x = np.random.default_rng(seed), np.zeros(n)
    for i in range(1, n):
        x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * sigma * rng.normal()
    return 3.2 * np.exp(x)


def of_steps(steps: Floats, ticks: int = 120) -> Window:
    """What scrapes show of these steps: the last one's time, and how many there were."""
    c = Cluster(nodes=2, ticks=ticks, without=(*PARTS_OF_A_STEP, "rank.tokens_per_second"))
    ends = np.cumsum(steps)
    last = np.searchsorted(ends, np.arange(1, ticks + 1) * 15.0, side="right") - 1
    for name, values in (("rank.step", 1000.0 + last), ("rank.step_seconds", steps[last]),
                         ("rank.last_step_timestamp_seconds", START / 1000.0 - 15.0 + ends[last])):
        c.signals[name] = np.tile(values[:, None], (1, c.width("rank")))
    return c.window()


def slower(steps: Floats, minute: float, share: float) -> Floats:
    return steps * np.where(np.cumsum(steps) >= 60 * minute, 1 + share, 1.0)


def job_of(values: Floats) -> Window:
    """A job of which each tick shows one step."""
    c = Cluster(nodes=2, ticks=len(values), without=(*PARTS_OF_A_STEP, "rank.tokens_per_second", "rank.last_step_timestamp_seconds"))
    c.signals["rank.step_seconds"] = np.tile(values[:, None], (1, c.width("rank")))
    return c.window()


def spells(share: float, *spans: tuple[int, int]) -> Floats:
    out = tailed(120, 3)
    for a, b in spans:
        out[a:b] *= 1 + share
    return out


def test_each_level_is_told() -> None:
    """Slow, well again, and slower: four levels within a few values."""
    found = pace_levels.levels(spells(0.3, (30, 60), (95, 120)), 12, False)
    assert [round(one.value / 3.2, 1) for one in found] == [1.0, 1.3, 1.0, 1.3]
    assert np.abs(np.array([one.start for one in found]) - [0, 30, 60, 95]).max() <= 4


@pytest.mark.parametrize(("values", "said"), [
    (spells(0.3, (25, 55), (95, 120)), FOUND),
    (spells(0.08, (95, 120)) * np.where((np.arange(120) >= 25) & (np.arange(120) < 55), 1.5, 1.0), FOUND),
    (spells(0.3, (30, 42), (98, 120)), []),
    (spells(0.3, (30, 42), (80, 120)), FOUND),
    (spells(0.3, (8, 30), (50, 70), (95, 120)), []),
    (spells(0.3, (25, 55)), []),
], ids=["again", "smaller than before", "as long as a spell", "longer than a spell", "up and down", "well again"])
def test_a_job_that_was_slow_before(values: Floats, said: list[str]) -> None:
    """What was repaired is no excuse for what comes later; what goes up and down by itself is no drop."""
    assert says(throughput_drop, job_of(values)) == said


def test_a_job_that_gets_slower_bit_by_bit_is_found() -> None:
    """Over six minutes by a fifth: the level before ends in a slope."""
    values = tailed(120, 5) * (1 + 0.2 * np.clip((np.arange(120) - 70) / 24, 0, 1))
    assert says(throughput_drop, job_of(values)) == FOUND


def test_all_steps_count_where_single_ones_are_rough() -> None:
    """Steps of which each differs by 8 %: the counter shows a slowdown of 8 %, before the last step's time does."""
    steps = slower(rough(700, 4, 0.08, 0.0), 22, 0.08)
    assert says(throughput_drop, of_steps(steps)) == FOUND


@pytest.mark.parametrize("noise", [tailed, rough])
@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_drop(noise: Callable[[int, int], Floats], seed: int) -> None:
    """Half an hour of healthy steps with long tails, and of steps that depend on each other."""
    assert says(throughput_drop, of_steps(noise(700, seed))) == []


@pytest.mark.parametrize(("leads", "said"), [(True, []), (False, FOUND)], ids=["some work on", "all wait alike"])
def test_who_works_on_while_the_others_wait(leads: bool, said: list[str]) -> None:
    """Only GPUs show it: some expert's has as much to do as before, another one after some minutes; a slow network lets all wait."""
    c = timed(7)
    c.without = (*PARTS_OF_A_STEP, "rank.tokens_per_second")
    work_more(c, slice(None), AT, 1.12)
    c.signals["gpu.power_watts"][AT:] *= 0.93
    for i, row in enumerate(range(AT, c.ticks, 16)):
        if leads:
            c.signals["gpu.power_watts"][row:row + 16, [3 + i, 19 + i]] /= 0.93
    assert says(throughput_drop, window(c, AT + 32)) == said


def test_steps_that_scatter_since_they_are_longer_hold_uneven_work() -> None:
    """Sequences of uneven length, where nobody tells more than the step's time."""
    values = tailed(120, 8)
    values[AT:] *= 1.0 + 0.4 * np.random.default_rng(2).lognormal(-0.06, 0.35, 120 - AT)
    assert says(throughput_drop, job_of(values)) == []


def test_a_profiler_that_has_just_ended_is_not_forgotten() -> None:
    """Its counters are back, and the rank's last minutes are still slow."""
    c = timed(3)
    for name in ("gpu.tensor_active_ratio", "gpu.graphics_active_ratio"):
        c.put(name, np.nan, AT, AT + 19, range(8, 16))
    assert says(straggler, window(work_more(c, 11, AT, 1.2, AT + 19), AT + 20)) == []
