"""Steps that a loss scaler leaves out: one, or a search of the scale, is healthy; all of them are not."""

from __future__ import annotations

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, Target
from tests.contract.windows import JOB, START, Cluster

PLUGIN = load_plugins("detectors")["nonfinite_loss"]
STEP_MS = 4_000  # a step of the cluster takes 4 s
END = START + 15_000 * 99
UNTOLD = ("rank.step_seconds", "rank.step")


def overflows(scales: list[float | None], every: float = 1.0, rank: int = 0) -> list[Event]:
    """One for each scale, `every` so many steps, the last one at the window's end."""
    target = Target("rank", "n000", "0", job=JOB, rank=rank)
    return [Event(END - int(STEP_MS * every * i), target, "overflow", {"rank": rank} | ({} if scale is None else {"loss_scale": scale}))
            for i, scale in reversed(list(enumerate(reversed(scales))))]


def reasons(cluster: Cluster) -> list[str]:
    return [v.reason for v in PLUGIN.judge(cluster.window(), PLUGIN.params()) if v.state == "faulty"]


def seen(events: list[Event], **of: object) -> bool:
    cluster = Cluster(**of)
    cluster.events += events
    return bool(reasons(cluster))


FLOOR = [4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("scales", [FLOOR, [1.0] * 4, [1024.0] * 20, [None] * 20], ids=["at-its-minimum", "stays-at-it", "static", "untold"])
def test_overflows_at_every_step_are_a_fault(scales: list[float | None]) -> None:
    """A scale that has nowhere to go, one that nobody lowers, and overflows that last longer than a search."""
    assert seen(overflows(scales))


def test_the_floor_is_seen_where_nobody_tells_how_long_a_step_takes() -> None:
    """The overflows that lowered the scale came at neighbouring steps, and those at the floor come as fast."""
    assert seen(overflows(FLOOR), without=UNTOLD)


@pytest.mark.parametrize(("events", "without"), [
    (overflows([65536.0]), ()),
    (overflows([None]), ()),
    (overflows([2.0 ** (16 - i) for i in range(9)]), ()),
    (overflows([2.0 ** (32 - i // 2) for i in range(16)]), ()),
    (overflows([None] * 16), ()),
    (overflows([1.0] * 8, every=20.0), ()),
    (overflows([1024.0] * 8, every=20.0), ()),
    (overflows([1024.0] * 20), UNTOLD),
    ([e for rank in range(32) for e in overflows([65536.0, 65536.0], rank=rank)], ()),
    (overflows([1.0, 2.0, 1.0, 2.0, 4.0]), ()),
], ids=["one", "one-untold", "a-search", "a-search-with-hysteresis", "a-search-untold", "now-and-then-at-the-floor", "now-and-then",
        "steps-untold", "told-by-each-rank", "rises"])
def test_a_few_overflows_are_none(events: list[Event], without: tuple[str, ...]) -> None:
    """A skip now and then, and a search of the scale at the start, whoever tells of them."""
    assert not seen(events, without=without)


def test_overflows_that_have_ended_are_over() -> None:
    """Steps go on without one."""
    assert not seen([Event(e.at - 400_000, e.target, e.kind, e.fields) for e in overflows([1024.0] * 20)])


def skipping(share: float, since: int, step_seconds: float = 4.0, every: int = 1) -> Cluster:
    """Trainers that count skipped iterations tell of no loss where all are. every: ticks between two readings of a log."""
    cluster = Cluster(step_seconds=step_seconds)
    ranks = list(range(cluster.width("rank")))
    steps = cluster.signals["rank.step"]
    cluster.signals["rank.skipped_per_second"] = np.zeros_like(steps)
    cluster.put("rank.skipped_per_second", share / step_seconds, since, None, ranks)
    cluster.signals["rank.step"] = steps[np.arange(len(steps)) // every * every]
    return cluster


@pytest.mark.parametrize("every", [1, 4])
def test_a_count_of_skipped_steps_that_grows_as_the_steps_do_is_a_fault(every: int) -> None:
    """Megatron and others tell of no overflow, they count."""
    assert reasons(skipping(1.0, 60, every=every)) == ["steps_skipped"]


@pytest.mark.parametrize(("share", "since", "step_seconds"), [(0.3, 20, 4.0), (1.0, 92, 4.0), (1.0, 76, 30.0), (0.0, 0, 4.0)],
                         ids=["some", "for-two-minutes", "a-dozen-slow-steps", "none"])
def test_a_count_that_may_be_a_search_is_none(share: float, since: int, step_seconds: float) -> None:
    """A third of the steps, or all of them for as long as a search takes."""
    assert reasons(skipping(share, since, step_seconds)) == []
