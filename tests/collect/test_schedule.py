"""Slots: on multiples of the step, each once, what is over is counted."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.discovery import make_target
from collectors.schedule import Slots, due, run_bounded
from collectors.scrape_config import ScrapeConfig


@pytest.mark.parametrize(("intervals", "step"), [([], 15_000), ([15_000], 15_000), ([30_000], 15_000), ([10_000], 5_000),
                                                 ([60_000, 20_000], 5_000), ([7_000], 1_000), ([1_500, 1_234], 1_000)])
def test_the_step_fits_all_intervals(intervals, step):
    """The worker wakes at the greatest common divisor, at least each 15 s and at most each second."""
    slots = Slots()
    slots.set_intervals(intervals)
    assert slots.step_ms == step


@given(st.integers(0, 10**12), st.lists(st.integers(0, 100_000), max_size=20))
def test_slots_never_repeat_and_account_for_all(start, works):
    """Slots ascend on multiples of the step; done and missed ones together are all that passed."""
    slots = Slots()
    at = first = slots.first(start)
    now, done = max(start, at), 1
    for work in works:
        now += work
        following = slots.next(at, now)
        assert following > at
        assert following % slots.step_ms == 0
        at, done = following, done + 1
        now = max(now, at)
    assert (at - first) // slots.step_ms + 1 == done + slots.missed


def test_due_targets():
    """A target is read at the multiples of its interval."""
    targets = [make_target(ScrapeConfig("j", scrape_interval_ms=ms), f"a:{ms}", {}) for ms in (15_000, 30_000, 60_000)]
    seen = {at: [t.interval_ms // 1000 for t in due(targets, at, 15_000)] for at in range(0, 60_000, 15_000)}
    assert seen == {0: [15, 30, 60], 15_000: [15], 30_000: [15, 30], 45_000: [15]}


def test_an_interval_between_the_steps_is_read_at_its_rate():
    """An interval that no step divides is read once for each of its multiples."""
    targets = [make_target(ScrapeConfig("j", scrape_interval_ms=1_234), "a:1", {})]
    assert sum(len(due(targets, at, 1000)) for at in range(1000, 1_234_000, 1000)) == 999


def test_concurrency_is_bounded():
    """Never more than the bound at once, results in the order of the jobs."""
    running, most = 0, 0

    async def job(n):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return n

    async def act():
        return await run_bounded([lambda n=n: job(n) for n in range(20)], at_once=4)

    assert asyncio.run(act()) == list(range(20))
    assert most == 4
