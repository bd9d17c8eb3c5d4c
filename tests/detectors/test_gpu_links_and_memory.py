"""pcie_degraded, ecc_correctable_storm and nonfinite_loss: what they must not fire on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, Target
from tests.contract.windows import JOB, START, Cluster, not_finite

PLUGINS = load_plugins("detectors")
RANK = Target("rank", job=JOB, rank=0)


def faulty(cluster: Cluster, detector: str) -> list[str]:
    plugin = PLUGINS[detector]
    return [v.target.key for v in plugin.judge(cluster.window(), plugin.params()) if v.state == "faulty"]


def idle_generation(c: Cluster) -> Cluster:
    c.put("gpu.utilization_ratio", 0.0, 50, None, [11])
    return c.put("gpu.pcie_link_generation", 1.0, 50, None, [11])


def narrow_by_design(c: Cluster) -> Cluster:
    c.signals["gpu.pcie_max_link_width"] = np.where(np.arange(c.width("gpu")) == 11, 8.0, 16.0) * np.ones((c.ticks, 1))
    return c.put("gpu.pcie_link_width", 8.0, 0, None, [11])


def mixed_boards(c: Cluster) -> Cluster:
    return c.put("gpu.pcie_link_width", 8.0, 0, None, list(range(0, 32, 2)))


def trains_anew(c: Cluster) -> Cluster:
    return c.put("gpu.pcie_link_width", 1.0, 95, 97, [11])


def one_error(c: Cluster) -> Cluster:
    return c.put("gpu.ecc_correctable_per_second", 3 / 15, 95, 96, [11])


def two_errors(c: Cluster) -> Cluster:
    c.put("gpu.ecc_correctable_per_second", 1 / 15, 82, 83, [11])
    return c.put("gpu.ecc_correctable_per_second", 1 / 15, 97, 98, [11])


def one_link_error(c: Cluster) -> Cluster:
    return c.put("gpu.nvlink_errors_per_second", 1.0, 95, 96, [11])


def trains_at_boot(c: Cluster) -> Cluster:
    return c.put("gpu.nvlink_recoveries_per_second", 2.0, 92, 95, list(range(8, 16)))


def one_nan_reading(c: Cluster) -> Cluster:
    not_finite(c, 97)
    healthy = Cluster()
    c.signals["rank.loss"][98:] = healthy.signals["rank.loss"][98:]
    c.signals["rank.loss_nonfinite"][98:] = 0
    return c


def not_logged(c: Cluster) -> Cluster:
    return c.put("rank.loss", np.nan, 60)


def overflow_skips(c: Cluster) -> Cluster:
    c.events += [Event(START + 15_000 * t, RANK, "overflow", {"rank": 0, "loss_scale": 65536}) for t in range(20, 100, 9)]
    return c


def one_bad_step(c: Cluster) -> Cluster:
    c.events.append(Event(START + 15_000 * 95, RANK, "nonfinite", {"rank": 0, "step": 400, "what": "loss"}))
    return c


def one_counted_step(c: Cluster) -> Cluster:
    c.put("rank.loss", np.nan, 94)
    c.events.append(Event(START + 15_000 * 95, RANK, "nonfinite", {"rank": 0, "step": 400, "what": "nan_iterations"}))
    return c


def old_nans_and_a_pause(c: Cluster) -> Cluster:
    return old_nans(c).put("rank.loss", np.nan, 95).put("rank.grad_norm", np.nan, 95)


def skips_that_no_line_tells_of(c: Cluster) -> Cluster:
    """The scaler leaves two steps out in ten minutes: infinite gradients beside finite losses."""
    for t in (60, 97):
        c.put("rank.grad_norm", np.nan, t, t + 1)
        c.events.append(Event(START + 15_000 * t, RANK, "nonfinite", {"rank": 0, "step": 4 * t, "what": "grad_norm"}))
    return c


def search_of_the_scale(c: Cluster) -> Cluster:
    c.events += [Event(START + 15_000 * (80 + i), RANK, "overflow", {"rank": 0, "loss_scale": 2.0 ** (32 - i)}) for i in range(7)]
    return c


def old_nans(c: Cluster) -> Cluster:
    c.events += [Event(START + 15_000 * 40 + i, RANK, "nonfinite", {"rank": 0, "step": 400 + i, "what": "loss"}) for i in range(9)]
    return c


@pytest.mark.parametrize(("detector", "alike"), [
    ("pcie_degraded", idle_generation), ("pcie_degraded", narrow_by_design), ("pcie_degraded", mixed_boards),
    ("nvlink_errors", one_link_error), ("nvlink_errors", trains_at_boot), ("pcie_degraded", trains_anew), ("ecc_correctable_storm", one_error), ("ecc_correctable_storm", two_errors),
    ("nonfinite_loss", one_nan_reading), ("nonfinite_loss", not_logged), ("nonfinite_loss", overflow_skips),
    ("nonfinite_loss", skips_that_no_line_tells_of), ("nonfinite_loss", old_nans_and_a_pause),
    ("nonfinite_loss", one_bad_step), ("nonfinite_loss", one_counted_step), ("nonfinite_loss", search_of_the_scale), ("nonfinite_loss", old_nans),
], ids=lambda x: getattr(x, "__name__", x))
def test_stays_silent_on_look_alikes(detector: str, alike: Callable[[Cluster], Cluster]) -> None:
    """What only looks like the fault opens nothing."""
    assert faulty(alike(Cluster()), detector) == []


def test_a_lower_generation_at_work_is_found() -> None:
    """Generation 3 among fives, at work."""
    assert faulty(Cluster().put("gpu.pcie_link_generation", 3.0, 60, None, [11]), "pcie_degraded") == ["gpu:GPU-n001-3"]


def test_a_log_that_tells_of_nan_at_each_step_is_enough() -> None:
    """Without trainer metrics the log's own words open it."""
    cluster = Cluster(without=("rank.loss", "rank.loss_nonfinite"))
    cluster.events += [Event(START + 15_000 * 95 + 1000 * i, RANK, "nonfinite", {"rank": 0, "step": 400 + i, "what": "loss"},
                             f"iteration {400 + i}: lm loss: NAN") for i in range(5)]
    assert faulty(cluster, "nonfinite_loss") == [f"job:{JOB}/"]


@pytest.mark.parametrize("loss", [True, False], ids=["a loss beside it", "no loss"])
def test_gradients_that_stay_infinite_are_found(loss: bool) -> None:
    """At each step of the last ones; of a step that logs no loss either, one is enough."""
    cluster = Cluster().put("rank.grad_norm", np.nan, 97)
    if not loss:
        cluster.put("rank.loss", np.nan, 97)
    cluster.events += [Event(START + 15_000 * t, RANK, "nonfinite", {"rank": 0, "step": 4 * t, "what": "grad_norm"}, "grad_norm: inf")
                       for t in ((97, 98, 99) if loss else (97,))]
    assert faulty(cluster, "nonfinite_loss") == [f"job:{JOB}/"]


@pytest.mark.parametrize("rate", [1.0, 4647.0, 17657.0])
def test_storms_that_people_met_are_found(rate: float) -> None:
    """Thousands a second, and one a second."""
    cluster = Cluster().put("gpu.ecc_correctable_per_second", rate, 70, None, [11])
    assert faulty(cluster, "ecc_correctable_storm") == ["gpu:GPU-n001-3"]
