"""For how long a job has to be slow: the longer of five minutes and five steps, judged tick by tick as the owner does."""

from __future__ import annotations

import numpy as np
import pytest

from detectors import company, throughput_drop
from pipeline.detect import DetectLoop
from tests.contract.windows import START, STEP, Cluster
from tests.detectors.test_job_speed import AT, PARTS_OF_A_STEP, settle, timed, window

BEGUN = START + AT * STEP * 1000


def slower(seconds: float | None, growth: float = 0.4, ticks: int = 110) -> Cluster:
    """A job whose steps take so much longer from tick `AT` on, for so many seconds (None = for good)."""
    c = timed(ticks=ticks)
    c.signals["tail"] *= 0.0  # a long step just before the drop would be taken for its first
    settle(c)
    stop = None if seconds is None else AT + round(seconds / STEP)
    more = growth * float(c.signals["rank.step_seconds"].mean())
    c.signals["rank.compute_seconds"][AT:stop] += more
    return settle(c)


def long_steps(usual: float, slow: slice, ticks: int = 220) -> tuple[Cluster, np.ndarray]:
    """A job of so long steps, some of which take 40 % longer, and when each ended (ms). It tells the number and the time of the last one."""
    c = Cluster(ticks=ticks, step_seconds=usual)
    took = usual * (1 + 0.005 * c.rng("steps").normal(0, 1, ticks))
    took[slow] *= 1.4
    ends = np.cumsum(took)
    done = np.searchsorted(ends, np.arange(ticks) * STEP, side="right")
    shown = np.where(done > 0, took[np.maximum(done - 1, 0)], np.nan)
    for name, values in (("step", 1000.0 + done), ("step_seconds", shown),
                         ("last_step_timestamp_seconds", START / 1000 + np.where(done > 0, ends[np.maximum(done - 1, 0)], np.nan))):
        c.signals[f"rank.{name}"] = np.tile(values[:, None], (1, c.width("rank")))
    c.without = PARTS_OF_A_STEP
    return c, START + 1000 * ends


def opened(c: Cluster, first: int = AT - 20) -> list[int]:
    """When its findings opened (ms)."""
    loop = DetectLoop({"throughput_drop": throughput_drop.PLUGIN}, {})
    return [f.opened_at for upto in range(first, c.ticks + 1) for f in loop.run(window(c, upto)).opened]


@pytest.mark.parametrize("seconds", [60, 180, 255, 270])
def test_what_lasts_less_than_five_minutes_opens_nothing(seconds: float) -> None:
    """Steps that take 40 % longer, for up to four and a half minutes."""
    assert opened(slower(seconds)) == []


@pytest.mark.parametrize("growth", [0.1, 0.4, 1.0])
def test_what_lasts_opens_after_five_minutes(growth: float) -> None:
    """No sooner after the first slow step was read, and at most two readings later."""
    (at,) = opened(slower(None, growth))
    assert 300 <= (at - BEGUN) / 1000 <= 330


def test_long_steps_are_counted() -> None:
    """Steps of 90 s that take 40 % longer: five of them have ended, which is more than five minutes, and no seventh was needed."""
    c, ends = long_steps(90.0, slice(20, None))
    (at,) = opened(c, first=100)
    assert ends[24] <= at <= ends[25]


def test_four_long_steps_open_nothing() -> None:
    """Steps of 90 s that took 40 % longer four times, which is over eight minutes, and then were as before."""
    c, _ = long_steps(90.0, slice(20, 24))
    assert opened(c, first=100) == []


@pytest.mark.parametrize(("growth", "minutes", "together"), [
    (0.2, 2, True), (0.2, 6, False), (0.04, 6, True), (0.04, 12, False)])
def test_jobs_slow_down_together_as_far_as_their_beginnings_are_known(growth: float, minutes: float, together: bool) -> None:
    """Of a slowness of some per cent the beginning is known to several minutes, of a plain one to three."""
    assert company.at_once([0, round(60_000 * minutes)], [], growth, throughput_drop.Params().together_seconds) is together
