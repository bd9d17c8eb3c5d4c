"""Slow endpoints: what is usual at their load, when they were slow before, with series missing, and which replica it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import Target, Verdict
from core.window import Window
from detectors import inference_slow
from tests.contract.windows import Cluster

TAKEN = "job.token_time_ratio"
LOAD = ("requests_running", "request_time_ratio", "kv_cache_ratio", "first_tokens_per_second", "requests_per_second", "tokens_per_second",
        "token_gaps_per_second")


def judged(window: Window) -> list[Verdict]:
    return list(inference_slow.judge(window, inference_slow.Params()))


def faulty(c: Cluster) -> list[Verdict]:
    return [v for v in judged(c.window()) if v.state == "faulty"]


def slower(c: Cluster, times: float, start: int, stop: int | None = None, columns: slice | list[int] = slice(None)) -> Cluster:
    """Each answer takes so many times as long: of a server that makes as many tokens, and has as many more requests under way."""
    for name in ("token_time_ratio", "request_time_ratio", "requests_running", "kv_cache_ratio"):
        grown(c, name)[start:stop, columns] *= times
    return c


def grown(c: Cluster, name: str) -> np.ndarray:
    """The signal by itself: those of `Cluster` that are equal are one array."""
    c.signals[f"job.{name}"] = c.signals[f"job.{name}"].copy()
    return c.signals[f"job.{name}"]


def busier(c: Cluster, times: float, start: int, stop: int | None = None) -> Cluster:
    """So many times the requests: by what the server of `Cluster` takes with as many under way."""
    running = c.signals["job.requests_running"][start:stop].copy()
    taken = (1 + times * running / 100) / (1 + running / 100)
    for name in LOAD:
        grown(c, name)[start:stop] *= times
    c.signals[TAKEN][start:stop] *= times * taken
    return c


def bursts(c: Cluster) -> Cluster:
    """Five minutes of twice the load, three times."""
    for start in (10, 40, 75):
        busier(c, 2.0, start, start + 20)
    return c


def quick_while_it_had_little_to_do() -> Cluster:
    return busier(Cluster(nodes=2), 0.2, 20, 60)


def burst_goes_on() -> Cluster:
    return bursts(Cluster(nodes=2))


def slow_and_well_again() -> Cluster:
    return slower(Cluster(nodes=2), 1.8, 30, 60)


@pytest.mark.parametrize("make", [quick_while_it_had_little_to_do, burst_goes_on, slow_and_well_again], ids=lambda f: f.__name__)
def test_is_no_slow_endpoint(make: Callable[[], Cluster]) -> None:
    """What load costs is read off the past, and what is over is over."""
    assert faulty(make()) == []


def a_fifth_among_bursts() -> Cluster:
    return slower(bursts(Cluster(nodes=2)), 1.22, 70)


def slow_again() -> Cluster:
    """Ten minutes of it, four well ones, and then a little slower."""
    return slower(slower(Cluster(nodes=2), 1.9, 15, 55), 1.25, 71)


def without(*names: str) -> Callable[[], Cluster]:
    def make() -> Cluster:
        return slower(Cluster(nodes=2, without=tuple(f"job.{name}" for name in names)), 1.7, 70)

    make.__name__ = "without_" + "_and_".join(names)
    return make


@pytest.mark.parametrize("make", [
    a_fifth_among_bursts, slow_again, without("token_time_ratio"), without("token_gaps_per_second"), without("token_time_ratio", "request_time_ratio"),
    without("requests_running"), without("requests_waiting"), without("requests_running", "kv_cache_ratio", "first_tokens_per_second")], ids=lambda f: f.__name__)
def test_finds_slow_endpoints(make: Callable[[], Cluster]) -> None:
    """Small, again, and with what is left of the series."""
    found = faulty(make())
    assert [v.reason for v in found] == ["slower_at_like_load"]
    assert (found[0].onset_at or 0) >= make().window().times[66]


def test_the_slow_replica_among_well_ones_is_the_suspect() -> None:
    """The others have the same work and are as ever."""
    found = faulty(slower(Cluster(nodes=3), 1.6, 70, None, [1]))
    assert [(t.node, chance) for v in found for t, chance, _ in v.suspects] == [("n001", 0.9)]


@pytest.mark.parametrize("columns", [[0, 1, 2], [0, 1]])
def test_replicas_that_are_slow_together_are_the_endpoint(columns: list[int]) -> None:
    """Most of them: nobody is a suspect."""
    c = slower(Cluster(nodes=3), 1.6, 70, None, columns)
    others = [i for i in range(3) if i not in columns]
    slower(c, 1.4, 70, None, others)
    assert [(v.target, v.suspects) for v in faulty(c)] == [(Target("job", job="chat"), ())]


def test_nothing_told_of_load_is_no_crash() -> None:
    """Times alone: they are judged by themselves."""
    c = slower(Cluster(nodes=2, without=("job.requests_running", "job.requests_waiting", "job.kv_cache_ratio", "job.first_tokens_per_second",
                                         "job.requests_per_second", "job.request_time_ratio")), 1.5, 70)
    with np.errstate(all="raise"):
        assert len(faulty(c)) == 1
