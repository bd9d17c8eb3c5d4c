"""Why a GPU is slow: which GPUs of a model take longer for the same work, and whether their clock, heat or power says why.

Used where the same work was measured on many GPUs: by `gpu_slow`, whose fault is the slow GPU that nothing explains, and on
the results of a benchmark that ran on a whole cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import Floats
from detectors import stats
from detectors.stats import Ints

REASONS = ("hot", "power_limited", "low_clock", "no_reason", "not_measured")


@dataclass(frozen=True)
class Limits:
    """Sources: SuperBench (more than 5 % below the baseline is defective), signals.md §2 (power at the limit, heat), the
    published variability study of hundreds of V100s (runs of one GPU spread by 0.2 to 3 %).

    slow: share that a GPU takes longer than the middle of its peers. sigmas: and so many robust sigmas of the GPUs.
    runs_min: measurements that a GPU needs. explains: share of its slowness from which a lower clock explains it.
    at_cap: share of the power limit from which the limit holds the clock. hot: °C near which heat does; hotter: °C above
    the peers likewise, where nothing else holds it. peers_min: others needed.
    """

    slow: float = 0.05
    sigmas: float = 3.0
    runs_min: int = 5
    explains: float = 0.5
    at_cap: float = 0.95
    hot: float = 80.0
    hotter: float = 12.0
    peers_min: int = 3


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow GPU. at: its column; slowdown: share that it takes longer than the middle of its peers; reason: of REASONS."""

    at: int
    slowdown: float
    reason: str


def reason_of(slowdown: float, clock_loss: float, temperature: float, hotter: float, power_share: float,
              limits: Limits | None = None) -> str:
    """The reason of one slow GPU. clock_loss: share of the clock below the peers'; temperature: °C; hotter: °C above the
    peers; power_share: of its limit; each NaN where it is not measured."""
    it = limits or Limits()
    if np.isnan(clock_loss):
        return "not_measured"
    if clock_loss < it.explains * slowdown:
        return "no_reason"
    if temperature >= it.hot:
        return "hot"
    if power_share >= it.at_cap:
        return "power_limited"
    return "hot" if hotter >= it.hotter else "low_clock"


def ranked(seconds: Floats, clock: Floats, temperature: Floats, power: Floats, limit_watts: float, groups: Ints,
           limits: Limits | None = None) -> list[Slow]:
    """The slow GPUs, slowest first.

    seconds, clock, temperature, power: float64[run, gpu], NaN = not measured. groups: int[gpu], equal for GPUs of one model
    that did the same work. A GPU with too few runs is not judged, and one that is slow in single runs only is not slow.
    """
    it = limits or Limits()
    runs = stats.count(seconds)
    own = np.where(runs >= it.runs_min, stats.median(seconds), np.nan)
    peers = stats.peers(own, groups)
    slowdown = stats.ratio(own, peers.middle) - 1.0
    floor = np.maximum(0.005 * np.abs(np.nan_to_num(peers.middle, nan=1.0)), 1e-12)
    far = stats.above((own - peers.middle) / np.maximum(peers.spread, floor), it.sigmas)
    lasting = stats.above(stats.ratio(stats.quantile(seconds, 0.25), peers.middle) - 1.0, it.slow / 2)
    slow = stats.above(slowdown, it.slow) & far & lasting & (peers.n >= it.peers_min)

    def level(values: Floats) -> tuple[Floats, Floats]:
        mine = stats.median(values)
        return mine, stats.peers(mine, groups).middle

    (clocks, usual), (heat, others), watts = level(clock), level(temperature), stats.median(power)
    out = [Slow(int(e), round(float(slowdown[e]), 4), reason_of(
        float(slowdown[e]), float(1.0 - clocks[e] / usual[e]), float(heat[e]), float(heat[e] - others[e]),
        float(watts[e] / limit_watts), it)) for e in np.flatnonzero(slow)]
    return sorted(out, key=lambda s: (-s.slowdown, s.at))
