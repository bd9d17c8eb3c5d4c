"""Windows of real series and of the fleet's, described by a few numbers each, for the question: can they be told apart?

A window is WIDTH successive readings. Step times are told relative to the run's own median and in hundredths of it, the
loss as its distance from the run's trend: how long a step takes and how low a loss is are a job's choice, how they move is
not. The real runs print whole milliseconds or five digits, so both sides are brought to the coarser of the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tests import needs
from tests.fleet.jobhelp import Bench

WIDTH = 32
FEATURES = ("mean", "log variance", "autocorrelation", "median step", "share of repeats", "whole numbers")
ROOT = Path(__file__).resolve().parents[2]
MEGATRON = ("megatron_golden_gpt3_15b_8t_release_sm.json", "megatron_golden_mixtral_8x7b_alltoall_tp2pp4ep4_release.json")
WARM_STEPS = 20  # compiling and warming up: another thing than training


@dataclass(frozen=True)
class Run:
    """A series of one real or emulated run. source: whose windows stay on one side of the split."""

    signal: str
    source: str
    real: bool
    values: np.ndarray


def features(window: np.ndarray) -> list[float]:
    """FEATURES of a window."""
    moved = np.diff(window)
    centred = window - window.mean()
    power = float(centred @ centred)
    return [float(window.mean()), float(np.log10(window.var() + 1e-12)),
            float(centred[1:] @ centred[:-1] / power) if power > 1e-15 else 0.0, float(np.median(np.abs(moved))),
            float(np.mean(moved == 0)), float(np.mean(window == np.round(window)))]


def windows(run: Run, most: int) -> Iterator[list[float]]:
    """At most so many windows, evenly over the run."""
    starts = np.unique(np.linspace(0, len(run.values) - WIDTH, most).astype(int)) if len(run.values) >= WIDTH else ()
    for start in starts:
        yield features(run.values[start:start + WIDTH])


def step_times(seconds: np.ndarray) -> np.ndarray:
    """Hundredths of the run's median step, read off a clock that shows no less: so the shortest of the real runs were."""
    known = seconds[np.isfinite(seconds) & (seconds > 0)]
    return np.diff(np.round(np.cumsum(100 * known / np.median(known))))


def around_trend(loss: np.ndarray, every: int = 101) -> np.ndarray:
    """The loss less its running median, to four digits."""
    known = loss[np.isfinite(loss)]
    if len(known) < every:
        return np.zeros(0)
    half = every // 2
    padded = np.concatenate([np.full(half, known[0]), known, np.full(half, known[-1])])
    trend = np.median(np.lib.stride_tricks.sliding_window_view(padded, every), axis=1)
    return np.round(known - trend, 4)[half:-half]


# --- real -------------------------------------------------------------------------------------------------------------
def real_runs() -> list[Run]:
    """Step times and losses of the real training runs, healthy ones only."""
    runs = []
    for path in sorted(needs.shared("data/training_logs").glob("healthy_*.parquet")):
        table = pl.read_parquet(path)
        name = path.stem.removeprefix("healthy_")
        seconds = table["iter_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy()[WARM_STEPS:] / 1000
        runs.append(Run("step time", name, True, step_times(seconds)))
        runs.append(Run("loss", name, True, around_trend(table["loss"].cast(pl.Float64).fill_null(np.nan).to_numpy()[WARM_STEPS:])))
    for name in MEGATRON:
        told = json.loads(needs.shared(f"samples/training/{name}").read_text())
        runs.append(Run("step time", name[:20], True, step_times(_golden(told["iteration-time"])[5:])))
        runs.append(Run("loss", name[:20], True, around_trend(_golden(told["lm loss"])[5:])))
    return [run for run in runs if len(run.values) >= WIDTH]


def _golden(series: dict) -> np.ndarray:
    return np.array([float(v) for v in series["values"].values() if v not in ("nan", None)], float)


# --- the fleet's ------------------------------------------------------------------------------------------------------
LINE = re.compile(r"iteration +\d+/.*?elapsed time per iteration \(ms\): ([\d.]+).*?lm loss: (\S+)")


def fleet_runs(seeds: range) -> list[Run]:
    """Step times and losses as healthy jobs of the fleet print them, a line a step. Sizes are drawn from the seed; as many of
    the jobs are on one node as of the real runs, and those print whole milliseconds as these do."""
    runs = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 77])
        alone, scale = seed % 7 < 6, float(rng.choice([0.05, 0.07, 0.1, 0.6]))
        nodes = 1 if alone else int(rng.choice([2, 4, 8]))
        shape = {"loss_noise": float(0.012 * (0.2 / 0.012) ** rng.random()), "first_step": int(rng.integers(0, 20_000))}
        if alone:
            shape |= {"compute_seconds": 2.4 * scale, "tensor_seconds": 0.15 * scale, "loader_seconds": 1.2 * scale, "step_noise": 0.004}
        if seed % 7 == 3:
            shape |= {"heavy_every": 10, "heavy_excess": float(rng.uniform(2.5, 4.5))}
        bench = Bench(nodes=nodes, seed=seed, log_every=1, checkpoint_every_seconds=1e7, **shape)
        bench.run(5_400 if scale > 0.5 or not alone else 900)
        found = np.array([(float(a) / 1000, float(b)) for a, b in LINE.findall(bench.job.log.read().decode())])[WARM_STEPS:]
        seconds = np.diff(np.round(np.cumsum(found[:, 0]), 3)) if alone else found[:, 0]
        runs.append(Run("step time", f"fleet {seed}", False, step_times(seconds)))
        runs.append(Run("loss", f"fleet {seed}", False, around_trend(found[:, 1])))
    return runs
