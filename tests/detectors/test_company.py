"""A slowdown that others share is no job's, whatever became of those others; nor is one while the fabric outside is crowded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.window import Window
from detectors import company, throughput_drop
from tests.contract.windows import START, STEP, Cluster
from tests.detectors.test_job_speed import AT, JOB, everybody, says, timed, window

MARKS, WAITS = "nic.congestion_marks_per_second", "nic.wait_ticks_per_second"
MOMENT = START + AT * STEP * 1000


def half_of(cluster: Cluster, healthy: Cluster, upto: int = AT + 30, later: Callable[[dict[str, np.ndarray]], None] | None = None) -> Window:
    """Job a (16 ranks) as in `cluster`, job b (the other 16) as in `healthy`; later: what else b's signals are given."""
    for name, values in cluster.signals.items():
        if name.startswith("rank."):
            cluster.signals[name] = np.concatenate([values[:, :16], healthy.signals[name][:, 16:]], axis=1)
    if later is not None:
        later(cluster.signals)
    jobs = tuple(replace(cluster.job, id=name, ranks=tuple(range(16 * i, 16 * i + 16))) for i, name in enumerate("ab"))
    return replace(window(cluster, upto), jobs=jobs)


def gone(signals: dict[str, np.ndarray]) -> None:
    """Job b tells nothing any more from 15 ticks before the end on."""
    for name, values in signals.items():
        if name.startswith("rank."):
            values[AT + 15:, 16:] = np.nan


@pytest.mark.parametrize(("other", "later", "said"), [
    (lambda: everybody(timed()), gone, []),
    (timed, gone, ["job:a/"]),
], ids=["it slowed down, and ended", "it was as fast as ever, and ended"])
def test_a_job_that_ended_since_then_still_tells_what_it_did(other: Callable[[], Cluster], later: Callable[..., None], said: list[str]) -> None:
    """Its steps before and after the moment are in the window."""
    assert says(throughput_drop, half_of(everybody(timed()), other(), later=later)) == said


@pytest.mark.parametrize(("before", "after", "by"), [(40.0, 60.0, [0.5]), (40.0, 41.0, [0.025]), (40.0, np.nan, []), (np.nan, 60.0, [])])
def test_by_how_much_others_slowed_down_at_the_moment(before: float, after: float, by: list[float]) -> None:
    """A job of which one side of the moment is not told is nobody's company."""
    c = timed()
    for name in ("rank.step_seconds", "rank.tokens_per_second") if np.isnan(before + after) else ("rank.step_seconds",):
        c.put(name, before, 0, AT, range(16, 32)).put(name, after, AT, None, range(16, 32))
    seen = half_of(c, c)
    assert company.changes(seen, seen.jobs[0], MOMENT) == pytest.approx(by)


def crowd(signal: str, value: float, columns: range, nodes: tuple[str, ...]) -> bool:
    """Whether the fabric outside a job on `nodes` is crowded where these ports show the value from `AT` on."""
    c = timed().put(signal, value, AT, None, columns)
    return company.crowded(window(c, AT + 30), replace(c.job, nodes=nodes), MOMENT)


@pytest.mark.parametrize(("signal", "value", "columns", "nodes", "crowded"), [
    (MARKS, 5000.0, range(32), ("n000", "n001"), True),
    (WAITS, 5e6, range(32), ("n000", "n001"), True),
    (MARKS, 5000.0, range(16), ("n000", "n001"), False),
    (MARKS, 5000.0, range(24), ("n000", "n001", "n003"), False),
    (MARKS, 5.0, range(32), ("n000", "n001"), False),
    (MARKS, 5000.0, range(32), ("n000", "n001", "n002", "n003"), False),
], ids=["all ports", "all wait for credits", "its own ports alone", "one node outside", "hardly a mark", "nothing is outside"])
def test_the_fabric_is_crowded_where_the_ports_of_others_are_held_back(signal: str, value: float, columns: range, nodes: tuple[str, ...],
                                                                       crowded: bool) -> None:
    """Most of those outside the job, on two nodes or more."""
    assert crowd(signal, value, columns, nodes) is crowded


def test_a_drop_in_a_crowd_is_not_the_jobs() -> None:
    """The same drop is told where the ports of the other nodes are as they were."""
    def said(*columns: int) -> list[str]:
        c = everybody(timed()).put(MARKS, 5000.0, AT, None, list(columns))
        return says(throughput_drop, replace(window(c, AT + 30), jobs=(replace(c.job, nodes=("n000", "n001")),)))

    assert (said(*range(32)), said(*range(16))) == ([], [f"job:{JOB}/"])
