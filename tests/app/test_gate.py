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
