"""The calendar of a worker: every target at its offset, each due time at most once, what is over is counted."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.schedule import (
    SLOT_MS,
    Calendar,
    first_after,
    latest_begin,
    next_slot,
    offset_of,
    run_bounded,
    step_of,
)

T = 1_800_000_000_000


@pytest.mark.parametrize(("intervals", "step"), [([], 15_000), ([15_000], 15_000), ([30_000], 15_000), ([10_000], 5_000),
                                                 ([60_000, 20_000], 5_000), ([7_000], 1_000), ([1_500, 1_234], 1_000)])
def test_the_step_of_a_paced_clock_fits_all_intervals(intervals, step):
    """The greatest common divisor, at least each 15 s and at most each second."""
    assert step_of(intervals) == step


@pytest.mark.parametrize("interval", [1000, 15_000, 60_000])
def test_offsets_spread_the_load(interval):
    """Multiples of the slot within the interval, the same at each call, about equally many targets in each slot."""
    found = Counter(offset_of(f"node/n{i}:9100", interval) for i in range(6000))
    slots = interval // SLOT_MS
    assert set(found) == set(range(0, interval, SLOT_MS))
    assert max(found.values()) < 6000 / slots * 1.5
    assert offset_of("node/n1:9100", interval) == offset_of("node/n1:9100", interval)


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(0, 10**6))
def test_first_after(after, interval, offset):
    """The first point of the grid that is later."""
    at = first_after(after, interval, offset)
    assert (at - offset) % interval == 0
    assert at - interval <= after < at


def ids(dues):
    return [(one.target_id, one.at - T) for one in dues]


def test_a_paced_clock_has_no_offsets():
    """Every target is due at the multiples of its interval."""
    calendar = Calendar(spread=False)
    calendar.set_targets([("a", 15_000), ("b", 30_000), ("c", 60_000)], T - 1)
    seen = {at: sorted(one.target_id for one in calendar.take(T + at, T + at)) for at in range(0, 60_000, 15_000)}
    assert seen == {0: ["a", "b", "c"], 15_000: ["a"], 30_000: ["a", "b"], 45_000: ["a"]}


def test_the_time_is_the_scheduled_one():
    """A grid that falls between the slots keeps its own times: each once, in the slot that ends next."""
    calendar = Calendar(spread=False)
    calendar.set_targets([("a", 1234)], 0)
    seen = [(slot, one.at) for slot in range(500, 1_234_001, 500) for one in calendar.take(slot, slot)]
    assert [at for _, at in seen] == list(range(1234, 1_234_001, 1234))
    assert all(0 <= slot - at < 500 for slot, at in seen)


@given(st.lists(st.tuples(st.sampled_from([1000, 1500, 5000, 15_000]), st.integers(0, 9)), min_size=1, max_size=8),
       st.lists(st.integers(0, 40_000), max_size=15), st.booleans())
def test_every_due_time_is_taken_once_or_missed(targets, pauses, spread):
    """Whatever the pauses: taken and missed together are all due times, none twice, none later than it may begin."""
    rows = [(f"{name}-{i}", interval) for i, (interval, name) in enumerate(targets)]
    calendar = Calendar(spread)
    calendar.set_targets(rows, T)
    at = now = T + SLOT_MS
    taken: Counter[tuple[str, int]] = Counter()
    for pause in [*pauses, 0]:
        for one in calendar.take(at, now):
            taken[one.target_id, one.at] += 1
            assert now - one.at <= latest_begin(dict(rows)[one.target_id])
        last = at
        now += pause
        at = next_slot(at, now, SLOT_MS)
        now = max(now, at)
    assert set(taken.values()) <= {1}
    due = 0
    for name, interval in rows:
        offset = offset_of(name, interval) if spread else 0
        due += (last - offset) // interval - (T - offset) // interval
    assert sum(taken.values()) + calendar.missed == due


def test_only_what_is_ours_is_taken_and_missed():
    """A lease by scheduled time: others' readings are neither begun nor counted."""
    calendar = Calendar(spread=False, mine=lambda target, at: (at // 15_000) % 2 == (target == "a"))
    calendar.set_targets([("a", 15_000), ("b", 15_000)], T - 1)
    assert [len(calendar.take(T + at, T + at)) for at in (0, 15_000)] == [1, 1]
    assert [one.target_id for one in calendar.take(T + 90_000, T + 90_000)] == ["b" if (T // 15_000 + 6) % 2 == 0 else "a"]
    assert calendar.missed == 4


def test_a_widened_target_stays_on_its_grid():
    """Three times its interval: every third due time, no miss is counted; back to normal at once."""
    wide = {"a": 3}
    calendar = Calendar(spread=False, factor=lambda target: wide.get(target, 1))
    calendar.set_targets([("a", 5000)], T - 1)
    first = [one.at - T for slot in range(T, T + 60_000, 5000) for one in calendar.take(slot, slot)]
    wide.clear()
    later = [one.at - T for slot in range(T + 60_000, T + 90_000, 5000) for one in calendar.take(slot, slot)]
    assert first == [0, 15_000, 30_000, 45_000]
    assert later == [60_000, 65_000, 70_000, 75_000, 80_000, 85_000]
    assert calendar.missed == 0


def test_a_takeover_reads_late_what_it_still_can():
    """What became ours for a time that has passed is planned anew: late where that is allowed, missed otherwise."""
    ours = {"since": T + 10**9}
    calendar = Calendar(spread=False, mine=lambda target, at: at >= ours["since"])
    calendar.set_targets([("a", 5000), ("b", 15_000)], T - 1)
    for slot in range(T, T + 16_000, 500):
        assert calendar.take(slot, slot) == []
    ours["since"] = T + 1
    calendar.rewind(T, lambda target, at: False)
    assert ids(calendar.take(T + 16_500, T + 16_500)) == [("a", 15_000), ("b", 15_000)]
    assert calendar.missed == 2  # a at 5 s and at 10 s
    assert ids(calendar.take(T + 20_000, T + 20_000)) == [("a", 20_000)]


def test_a_new_list_keeps_what_stays():
    """Targets that stay keep their next due time; new ones start after now; gone ones are due no more."""
    calendar = Calendar(spread=False)
    calendar.set_targets([("a", 15_000), ("b", 15_000)], T - 1)
    calendar.take(T, T)
    calendar.set_targets([("b", 15_000), ("c", 5000)], T)
    assert ids(calendar.take(T + 15_000, T + 15_000)) == [("c", 15_000), ("b", 15_000)]
    assert calendar.missed == 2  # c at 5 s and at 10 s, which nobody took


def test_a_clock_that_jumps():
    """Far ahead: all that was skipped is missed, in no time. Back: nothing is due until the clock has caught up."""
    calendar = Calendar(spread=False)
    calendar.set_targets([("a", 15_000)], T - 1)
    calendar.take(T, T)
    day = T + 86_400_000
    assert len(calendar.take(day, day)) == 1
    assert calendar.missed == 86_400 // 15 - 1
    assert calendar.take(next_slot(day, T, SLOT_MS), day) == []
    assert next_slot(day, T, SLOT_MS) == day + SLOT_MS


def test_work_goes_by_what_is_due():
    """10,000 targets: a slot looks at its own only."""
    calendar, asked = Calendar(spread=True, mine=lambda target, at: bool(asked.append(target)) or True), []
    calendar.set_targets([(f"t{i}", 15_000) for i in range(10_000)], T)
    due = calendar.take(T + SLOT_MS, T + SLOT_MS)
    assert len(asked) == len(due) < 10_000 / 30 * 1.5


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
