"""What GPUs drew on average, from their energy counters: how busy each was, without the luck of single readings.

A reading of power or activity is a moment's, of steps that last seconds; the counter holds all that lay between two readings, so
GPUs of one job can be compared to a fraction of a percent within a minute. Exporters read the counter every 10 to 60 s and repeat
it in between (DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, among the default counters of dcgm-exporter): its rate is 0 at the repeated
rows and all of it at the next.
"""

from __future__ import annotations

import numpy as np

from core.types import Floats
from core.window import Window
from detectors import stats
from detectors.stats import Ints

ENERGY = "gpu.energy_watts"


def read(window: Window, columns: Ints) -> Floats | None:
    """float64[tick, len(columns)]: watts on average between the readings around each row, NaN where that is not known; None where no
    counter is told."""
    if ENERGY not in window.blocks or not len(columns):
        return None
    rate = window.values(ENERGY)[:, columns]
    if not (rate > 0).any():
        return None
    return np.stack([_spread(one) for one in rate.T], axis=1)


def scatter(drew: Floats, rows: Ints, over: int) -> float:
    """Robust sigma of how parts (float64[tick, part], watts) differ from each other at a moment, each as a share of its own level in
    these rows. over: of the means of so many rows. NaN where it is not known."""
    apart = np.full(drew.shape, np.nan)
    apart[rows] = stats.ratio(drew[rows], stats.median(drew[rows])[None, :])
    apart -= stats.median(apart, axis=1)[:, None]
    means = np.lib.stride_tricks.sliding_window_view(apart, over, axis=0).mean(axis=-1)
    known = means[~np.isnan(means)]
    return stats.MAD_TO_SIGMA * float(np.median(np.abs(known))) if len(known) else float("nan")


def _spread(rate: Floats) -> Floats:
    """float64[tick] of one counter: what came at a reading, over the rows since the one before. Nothing is known after the last,
    before the first, nor around a row that is missing."""
    out = np.full(len(rate), np.nan)
    told = np.flatnonzero(rate > 0)
    if len(told) < 2:
        return out
    missing = np.concatenate([[0], np.cumsum(np.isnan(rate))])
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(rate))])
    first, last = told[:-1] + 1, told[1:] + 1
    mean = np.where(missing[last] == missing[first], (total[last] - total[first]) / (last - first), np.nan)
    out[told[0] + 1:told[-1] + 1] = np.repeat(mean, last - first)
    return out
