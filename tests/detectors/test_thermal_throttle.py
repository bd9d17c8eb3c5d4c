"""Thermal throttle: its faces on poor and rich pages, and everything that only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import Verdict
from detectors.thermal_throttle import PLUGIN, Params
from tests.contract.windows import Cluster, throttle

PHYSICS = ("gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio", "gpu.thermal_margin_celsius")
# dcgm-exporter's default CSV: no bits, no violations, no margin, no limit.
DEFAULT_CSV = (*PHYSICS, "gpu.power_limit_watts")
BITS, CLOCK, TEMP = "gpu.throttle_reasons_bits", "gpu.sm_clock_hertz", "gpu.temperature_celsius"
POWER, UTIL = "gpu.power_watts", "gpu.utilization_ratio"


def judge(cluster: Cluster, upto: int | None = None) -> list[Verdict]:
    return list(PLUGIN.judge(cluster.window(upto), Params()))


def faulty(verdicts: list[Verdict]) -> list[str]:
    return sorted(v.target.device for v in verdicts if v.state == "faulty" and v.target.kind == "gpu")


def capped(c: Cluster) -> None:
    clocks = c.rng("cap").integers(87, 131, (c.ticks, c.width("gpu"))) * 15e6
    c.put(CLOCK, clocks, 0).put(POWER, c.rng("at cap").normal(699, 2, clocks.shape), 0).put(BITS, 0x4, 0)


def one_capped(c: Cluster) -> None:
    c.put(CLOCK, 1700e6, 50, None, [3]).put(POWER, 698, 50, None, [3]).put(BITS, 0x4, 50, None, [3])
    c.put(TEMP, 81, 50, None, [3]).put("gpu.thermal_margin_celsius", 6, 50, None, [3])


def brake(c: Cluster) -> None:
    c.put(BITS, 0x88, 50, None, [3]).put(CLOCK, 900e6, 50, None, [3]).put(POWER, 300, 50, None, [3])


def idle(c: Cluster) -> None:
    c.put(CLOCK, 345e6, 0, None, slice(0, 8)).put(UTIL, 0, 0, None, slice(0, 8)).put(POWER, 70, 0, None, slice(0, 8))
    c.put(BITS, 1, 0, None, slice(0, 8)).put(TEMP, 30, 0, None, slice(0, 8))


def hot_and_fast(c: Cluster) -> None:
    c.put(TEMP, 84, 50, None, [3]).put("gpu.thermal_margin_celsius", 3, 50, None, [3])


def one_sample(c: Cluster) -> None:
    c.put(BITS, 0x60, 97, 98, [3]).put("gpu.thermal_violation_ratio", 0.9, 97, 98, [3]).put(TEMP, 85, 97, 98, [3])


def hot_day(c: Cluster) -> None:
    c.add(TEMP, 6, 40).add("gpu.thermal_margin_celsius", -6, 40).put(CLOCK, c.signals[CLOCK][40:] * 0.98, 40)


def job_pause(c: Cluster) -> None:
    c.pause(60, 80).put(CLOCK, 1980e6, 60, 80)


def job_end(c: Cluster) -> None:
    c.put(UTIL, 0, 70).put(CLOCK, 345e6, 70).put(POWER, 72, 70).put(TEMP, 33, 70)


def start_up(c: Cluster) -> None:
    ramp = np.linspace(345e6, 1980e6, 20)[:, None]
    c.put(CLOCK, ramp, 0, 20).put(UTIL, 0, 0, 6).put(POWER, 100, 0, 8).put(TEMP, 35, 0, 10)


def slow_for_another_reason(c: Cluster) -> None:
    c.put(CLOCK, 1500e6, 50, None, [3])


LOOK_ALIKES: list[Callable[[Cluster], None]] = [
    capped, one_capped, brake, idle, hot_and_fast, one_sample, hot_day, job_pause, job_end, start_up,
    slow_for_another_reason,
]


@pytest.mark.parametrize("pages", [(), DEFAULT_CSV, PHYSICS], ids=["rich", "default csv", "no physics"])
@pytest.mark.parametrize("interval", [pytest.param(15, marks=pytest.mark.evaluate), 60])
@pytest.mark.parametrize("alike", LOOK_ALIKES, ids=lambda f: f.__name__)
def test_stays_silent_on_look_alikes(alike: Callable[[Cluster], None], interval: int, pages: tuple[str, ...]) -> None:
    """What resembles a throttle is none, on rich and on poor pages, at each moment."""
    cluster = Cluster(nodes=2, interval=interval, without=pages)
    alike(cluster)
    for upto in range(8, 101, 4):
        assert not faulty(judge(cluster, upto)), upto


@pytest.mark.parametrize("loss", [0.05, 0.1, 0.4])
@pytest.mark.parametrize("pages", [
    (), DEFAULT_CSV, PHYSICS, PHYSICS[1:], (PHYSICS[0], PHYSICS[2]), PHYSICS[:2],
    (*DEFAULT_CSV, "gpu.memory_temperature_celsius", "gpu.graphics_active_ratio"), (UTIL,), (TEMP,),
], ids=str)
def test_finds_it_with_what_the_page_has(pages: tuple[str, ...], loss: float) -> None:
    """Bits alone, time in slowdown alone, margin alone, or heat and clock alone are enough; the GPU is named."""
    cluster = throttle(Cluster(nodes=2, without=pages), 5, 40, loss=loss)
    assert faulty(judge(cluster)) == ["5"]


@pytest.mark.parametrize("pages", [(), DEFAULT_CSV], ids=["rich", "default csv"])
def test_a_whole_node_is_named_gpu_by_gpu(pages: tuple[str, ...]) -> None:
    """When a node's cooling fails each of its GPUs is at fault, and none of the other nodes'."""
    cluster = Cluster(nodes=3, without=pages)
    for column in range(8, 16):
        throttle(cluster, column, 50)
    verdicts = judge(cluster)
    assert faulty(verdicts) == [str(i) for i in range(8)]
    assert {v.target.node for v in verdicts if v.state == "faulty"} == {"n001"}


def test_half_of_the_samples_with_a_bit_are_a_fault() -> None:
    """A duty cycle counts, not the newest sample."""
    cluster = Cluster(nodes=2)
    cluster.put(BITS, np.tile([0x20, 0], 30)[:, None], 40, None, [5]).put(CLOCK, 1850e6, 40, None, [5])
    cluster.put(TEMP, 84, 40, None, [5])
    for upto in (70, 71):
        assert faulty(judge(cluster, upto)) == ["5"]


def test_a_ramp_is_found_when_it_bites() -> None:
    """Heat that rises over minutes is clear while the clock holds and faulty soon after it falls."""
    cluster = Cluster(nodes=2, without=DEFAULT_CSV)
    cluster.put(TEMP, np.linspace(62, 87, 12)[:, None], 40, 52, [5]).put(TEMP, 87, 52, None, [5])
    cluster.put(CLOCK, np.linspace(1980e6, 1700e6, 8)[:, None], 52, 60, [5]).put(CLOCK, 1700e6, 60, None, [5])
    cluster.put(POWER, 540, 60, None, [5])
    assert [faulty(judge(cluster, upto)) for upto in (51, 66, 100)] == [[], ["5"], ["5"]]


def test_evidence_has_numbers_and_peers() -> None:
    """Temperature, margin, duty and clock are told with what they were compared with."""
    verdict = next(v for v in judge(throttle(Cluster(nodes=2), 5, 40)) if v.state == "faulty")
    told = {(e.signal, e.compared_with): (e.observed, e.expected) for e in verdict.evidence}
    assert told["gpu.throttle_reasons_bits", "share of samples with a thermal bit"] == (1.0, 0.0)
    assert told["gpu.thermal_margin_celsius", "slowdown begins at 0"] == (-1.0, 0.0)
    observed, expected = told["gpu.sm_clock_hertz", "median of 15 peers at work"]
    assert (observed, round(expected / 1e9, 1)) == (1584e6, 2.0)


def test_waiting_gpus_are_clear() -> None:
    """The victims of a throttled GPU draw less power and are called clear, all of them."""
    verdicts = judge(throttle(Cluster(nodes=2), 5, 40, loss=0.4))
    assert sum(v.state == "clear" and v.target.kind == "gpu" for v in verdicts) == 15


def test_idle_gpus_are_unknown() -> None:
    """An idle GPU is neither faulty nor clear."""
    cluster = Cluster(nodes=2)
    idle(cluster)
    assert {v.target.node for v in judge(cluster)} == {"n001"}


@pytest.mark.parametrize(("samples", "state"), [(0, "clear"), (3, None)])
def test_a_node_is_no_sooner_well_than_each_of_its_gpus(samples: int, state: str | None) -> None:
    """A GPU of which nobody can say that it is well (thermal bits now and then) leaves its node's finding open as well."""
    cluster = Cluster(nodes=2)
    last = len(cluster.signals["gpu.throttle_reasons_bits"])
    cluster.put("gpu.throttle_reasons_bits", 0x20, last - samples, last, [3])
    words = {v.target.key: v.state for v in judge(cluster)}
    assert words["node:n001/"] == "clear"
    assert words.get("node:n000/") == ("clear" if state == "clear" else None)
    assert words.get("gpu:GPU-n000-3") == state


@pytest.mark.parametrize(("hot", "found"), [(range(8), ["gpu:GPU-n000-3", "node:n000/"]), (range(3, 5), ["gpu:GPU-n000-3"]),
                                            (range(32), ["gpu:GPU-n000-3"])], ids=["its node", "its neighbour", "everybody"])
def test_a_node_of_which_most_gpus_are_hot_is_named_with_the_one_that_slows(hot: range, found: list[str]) -> None:
    """Fans are the node's: the hottest GPU slows first, and the others of the node are far hotter than those of other nodes."""
    cluster = throttle(Cluster(without=PHYSICS[2:]), 3, 50)
    cluster.add(TEMP, 15, 50, None, [c for c in hot if c != 3])
    assert sorted(v.target.key for v in judge(cluster) if v.state == "faulty") == found
