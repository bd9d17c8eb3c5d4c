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
    found = pace_levels.levels(spells(0.3, (30, 60), (95, 120)), 12, pace_levels.EDGE)
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


def means_of_five(seed: int, slow: float, n: int = 55, at: int = 19) -> Floats:
    """A log's lines, one for five steps, the job slower by `slow` from the line `at` on."""
    return np.asarray(tailed(5 * n, seed).reshape(n, 5).mean(axis=1) * np.where(np.arange(n) >= at, 1 + slow, 1.0))


@pytest.mark.parametrize(("slow", "least", "most"), [(0.08, 11, 12), (0.0, 0, 0)])
def test_a_short_past_of_means_is_enough(slow: float, least: int, most: int) -> None:
    """A log's means of five steps, five minutes of them before the drop: their quantile is known in the middle of the bulk."""
    assert least <= sum(says(throughput_drop, job_of(means_of_five(seed, slow))) == FOUND for seed in range(12)) <= most


def test_steps_without_a_bulk_have_no_middle_of_it() -> None:
    """Healthy steps lie close together with a tail above, single or as means; those of noise alone lie as far apart below as above."""
    assert [pace_levels.has_bulk(values) for values in (tailed(60, 1), means_of_five(2, 0.0), rough(60, 3))] == [True, True, False]


def test_single_steps_are_asked_about_the_time_of_the_drop() -> None:
    """What single steps did before the drop that means show, and not what they did over the whole time, of which most may be since then."""
    steps, rows = np.where(np.arange(60) < 20, 3.2, 3.45), np.arange(60)
    change = pace_levels.Change(20, 3.2, 3.45, 0.01, 3.2, 3.45)
    told = [throughput_drop._Told(throughput_drop._Kind(steps if slow else np.full(60, 3.45), rows, q), drop, 12, 0.0, 0.0)
            for slow, q, drop in ((True, pace_levels.EDGE, None), (False, pace_levels.EDGE, None),
                                  (True, None, pace_levels.Drop(change, 20, 0, (), 0.0)))]
    assert [throughput_drop._denied(single, told[2], throughput_drop.Params()) for single in told[:2]] == [False, True]


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


def test_what_shows_the_present_drop_best_tells_when_it_began() -> None:
    """A slow spell that is over, and since the 95th tick a slope by half: the drop is the slope, also where levels of single steps run into one."""
    values = spells(0.13, (30, 65)) * (1 + 0.55 * np.clip((np.arange(120) - 95) / 20, 0, 1))
    found = [v for v in throughput_drop.judge(job_of(values), throughput_drop.Params()) if v.state == "faulty"]
    assert [v.onset_at is not None and v.onset_at >= START + 80 * 15_000 for v in found] == [True]
