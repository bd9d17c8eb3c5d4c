"""When a tick may be judged: every live collector has reported it, or an interval has passed, or nobody lives."""

from __future__ import annotations

import pytest

from app.gate import TickGate

T = 1_800_000_000_000  # a multiple of 15 s


def gate(last: int | None = None, **marks: int) -> TickGate:
    one = TickGate(last)
    for worker, mark in marks.items():
        one.report(worker, mark, 0.0)
    return one


@pytest.mark.parametrize(("marks", "now", "wall", "due"), [
    ({"a": T}, T, 0.0, T),
    ({"a": T, "b": T}, T, 0.0, T),
    ({"a": T, "b": T - 15_000}, T + 1000, 0.0, None),
    ({"a": T, "b": T - 15_000}, T + 15_000, 0.0, T),
    ({"a": T - 1}, T, 0.0, None),
    ({"a": T - 1}, T, 60.0, T),
    ({"a": T - 1}, T - 1, 60.0, None),
    ({}, T, 0.0, None),
])
def test_a_tick_is_due(marks: dict[str, int], now: int, wall: float, due: int | None) -> None:
    """Watermarks, cluster time and silence decide."""
    one = gate(T - 15_000 if len(marks) > 1 else None, **marks)
    assert one.wait(now, wall, 0.0) == due


def test_after_a_restart_no_tick_is_judged_twice() -> None:
    """The first tick comes after the last committed one, whatever the watermark says."""
    one = gate(T, a=T - 60_000)
    one.report("a", T + 15_000, 0.0)
    assert one.wait(T + 15_000, 0.0, 0.0) == T + 15_000


def test_ticks_follow_each_other_without_a_hole() -> None:
    """A watermark that jumps ahead gives every tick in between."""
    one = gate(None, a=T)
    one.report("a", T + 45_000, 0.0)
    judged = []
    while (due := one.wait(T + 45_000, 0.0, 0.0)) is not None:
        judged.append(due)
        one.done(due)
    assert judged == [T, T + 15_000, T + 30_000, T + 45_000]


@pytest.mark.parametrize(("last", "reported", "due"), [
    (T, T, None),  # its tick is committed: the next slot is awaited
    (T - 15_000, T, T),  # acknowledged, and then the owner was killed: nobody reports it again
    (T - 15_000, T + 7_000, T),
    (T, T + 7_000, None),
    (None, T, T),
    (T, T - 60_000, None),
    (None, None, None),
])
def test_what_was_acknowledged_before_a_restart_is_judged(last, reported, due) -> None:
    """The newest slot in the store whose tick was not committed is due at once."""
    assert TickGate(last, reported=reported).wait(T + 15_000, 0.0, 0.0) == due


def test_a_long_outage_is_not_judged_tick_by_tick() -> None:
    """After the owed tick the next report says where to go on."""
    one = TickGate(T - 15_000, reported=T)
    one.done(T)
    later = T + 86_400_000
    assert one.wait(later, 0.0, 0.0) is None
    one.report("a", later, 0.0)
    assert one.wait(later, 0.0, 0.0) == later


@pytest.mark.parametrize("mark", [T - 15_000, T, T + 15_000, T + 20_000])
def test_a_report_may_come_before_the_owed_tick_is_judged(mark) -> None:
    """The owed tick comes first, and then the first slot that is not judged yet."""
    one = TickGate(T - 15_000, reported=T)
    one.report("a", mark, 0.0)
    assert one.wait(T, 0.0, 0.0) == T
    one.done(T)
    one.report("a", T + 30_000, 0.0)
    assert one.wait(T + 30_000, 0.0, 0.0) == max(T + 15_000, -(-mark // 15_000) * 15_000)


def test_a_worker_that_left_holds_no_tick() -> None:
    """The others' reports are enough once it is gone."""
    one = gate(T - 15_000, a=T, b=T - 15_000)
    assert one.wait(T + 1000, 0.0, 0.0) is None
    one.leave("b")
    assert one.wait(T + 1000, 0.0, 0.0) == T
