"""The scaler decides by itself: up quickly, down slowly, within the bounds, and it settles under a constant load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scaler import LAG_HIGH_SECONDS, ScalerState, WorkerLoad, decide
from core.config import WorkersConfig
from core.reasons import SCALE_REASONS

CONFIG = WorkersConfig(1, 8)


def crew(n: int, cpu: float, lag: float = 0.0, missed: int = 0, targets: int = 100) -> list[WorkerLoad]:
    """n equal workers."""
    return [WorkerLoad(f"collector-{i}", targets, 1000.0, lag, cpu, missed, 100 << 20) for i in range(n)]


def looks(state: ScalerState, loads, times: int, start: float = 0.0, memory: int | None = None, config=CONFIG):
    """The decisions of so many looks, 5 s apart, at the same loads; and the last state."""
    out = []
    for i in range(times):
        state, decision = decide(state, loads, start + i * 5.0, config, 8, memory)
        out.append((decision.wanted, decision.direction, decision.reason))
        if decision.direction != "hold":
            break
    return out, state


@pytest.mark.parametrize(("wanted", "loads", "memory", "expected"), [
    (1, crew(1, 0.8), None, (2, "up", "cpu_high")),
    (1, crew(1, 1.0), None, (2, "up", "cpu_high")),
    (2, crew(2, 1.0), None, (4, "up", "cpu_high")),
    (1, crew(1, 0.6, lag=LAG_HIGH_SECONDS + 1), None, (2, "up", "lag_high")),
    (1, crew(1, 0.6, missed=3), None, (2, "up", "missed_slots")),
    (1, crew(1, 0.1, lag=60.0), None, (1, "hold", "owner_behind")),
    (8, crew(8, 0.9), None, (8, "hold", "at_max")),
    (1, crew(1, 0.9, targets=1), None, (1, "hold", "at_max")),
    (1, crew(1, 0.9), 100 << 20, (1, "hold", "no_memory")),
    (1, crew(1, 0.6), None, (1, "hold", "steady")),
    (2, crew(2, 0.3), None, (2, "hold", "steady")),
    (2, crew(2, 0.1), None, (2, "hold", "watching")),
    (3, crew(2, 0.9), None, (3, "hold", "settling")),
    (0, [], None, (1, "up", "below_min")),
    (12, crew(12, 0.1), None, (8, "down", "above_max")),
])
def test_two_looks(wanted, loads, memory, expected):
    """What two looks at the same loads lead to, each with its named reason."""
    assert looks(ScalerState(wanted), loads, 2, memory=memory)[0][-1] == expected


def test_one_high_look_is_not_enough():
    """A single high look changes nothing, and a normal one after it starts the count anew."""
    state, first = decide(ScalerState(1), crew(1, 0.9), 0.0, CONFIG, 8)
    state, second = decide(state, crew(1, 0.6), 5.0, CONFIG, 8)
    state, third = decide(state, crew(1, 0.9), 10.0, CONFIG, 8)
    assert [(d.direction, d.reason) for d in (first, second, third)] == [("hold", "watching"), ("hold", "steady"), ("hold", "watching")]


def test_down_after_five_quiet_minutes():
    """One worker less after 300 s without a break, and not before."""
    out, _ = looks(ScalerState(3), crew(3, 0.1), 100)
    assert out[-1] == (2, "down", "quiet")
    assert len(out) == 300 / 5 + 1


def test_a_busy_look_breaks_the_quiet():
    """A look in between that is not quiet starts the five minutes anew."""
    _, state = looks(ScalerState(2), crew(2, 0.1), 59)
    state, _ = decide(state, crew(2, 0.4), 300.0, CONFIG, 8)
    out, _ = looks(state, crew(2, 0.1), 59, start=305.0)
    assert {direction for _, direction, _ in out} == {"hold"}


def test_a_step_down_that_was_taken_back_makes_the_next_one_wait_twice_as_long():
    """Load that comes back at once teaches patience."""
    out, state = looks(ScalerState(2), crew(2, 0.1), 100)
    assert out[-1][:2] == (1, "down")
    out, state = looks(state, crew(1, 0.9), 3, start=310.0)
    assert out[-1][:2] == (2, "up")
    out, _ = looks(state, crew(2, 0.1), 300, start=330.0)
    assert len(out) == 600 / 5 + 1


def live(total: float, state: ScalerState, minutes: float, start: float = 0.0, skew: float = 1.0):
    """A model: the load is spread over the workers (one has `skew` times the mean), who miss slots above a whole CPU."""
    wanted, at = [], start
    while at < start + minutes * 60:
        n = state.wanted
        loads = [replace(w, cpu_ratio=min(1.0, w.cpu_ratio * (skew if i == 0 and n > 1 else 1.0)),
                         missed=int(w.cpu_ratio > 1), lag_seconds=9.0 if w.cpu_ratio > 1 else 0.0)
                 for i, w in enumerate(crew(n, total / n + 0.01))]
        state, decision = decide(state, loads, at, CONFIG, 8)
        wanted.append(decision.wanted)
        assert decision.reason in SCALE_REASONS
        at += 5.0
    return wanted, state


@given(st.floats(0, 12), st.integers(1, 8), st.floats(1.0, 1.3))
def test_a_constant_load_settles(total, begin, skew):
    """From any number of workers the scaler moves one way only, then stands still, within the bounds."""
    wanted, _ = live(total, ScalerState(begin), 60, skew=skew)
    assert all(1 <= n <= 8 for n in wanted)
    steps = [b - a for a, b in zip([begin, *wanted], wanted, strict=False) if b != a]
    assert all(s > 0 for s in steps) or all(s < 0 for s in steps)
    assert len(set(wanted[-60:])) == 1 or steps[-1] < 0


@given(st.floats(0, 12), st.floats(0, 12), st.integers(1, 8))
def test_more_load_never_wants_fewer(one, other, begin):
    """Monotone: from the same state, the heavier load ends with at least as many workers."""
    small, large = sorted((one, other))
    fewer, _ = live(small, ScalerState(begin), 10)
    more, _ = live(large, ScalerState(begin), 10)
    assert more[-1] >= fewer[-1]


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 30), st.integers(0, 9), st.integers(0, 50)), max_size=8),
       st.integers(0, 20), st.integers(1, 4), st.integers(4, 9))
def test_bounds_hold_whatever_the_workers_say(rows, wanted, least, most):
    """One look at anything: the number stays within the bounds (or goes to them), the reason is of the closed list."""
    loads = [WorkerLoad(f"collector-{i}", targets, 0.0, lag, cpu, missed) for i, (cpu, lag, missed, targets) in enumerate(rows)]
    state, decision = decide(ScalerState(wanted), loads, 0.0, replace(CONFIG, min=least, max=most), most)
    assert decision.reason in SCALE_REASONS
    assert state.wanted == decision.wanted
    if decision.direction != "hold":
        assert least <= decision.wanted <= most
