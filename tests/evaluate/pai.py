"""Step times of the workers of a real job (Alibaba PAI), as pages of a trainer that Greylag reads: one row of the data each scrape.

The data name a time for each ten steps of a worker and no wall clock, so a row is one scrape of 15 s. The workers do not wait
for each other (a parameter server serves them): a worker's step time is its own. Of 50 more jobs only the spread over workers
is published, iteration by iteration; workers are made that have exactly that spread, each iteration with others ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from core.types import JobState, Target
from core.window import Block, Window
from tests import needs

FOLDER = "data/pai_minibatch"
SCRAPE_SECONDS = 15.0
NORM_SECONDS = 1e-3  # the data's unit is not told; only ratios matter
START = 1_767_600_000


def workers() -> tuple[np.ndarray, np.ndarray]:
    """(step int[row], step times float64[row, worker]) of the labelled job."""
    wide = pl.read_parquet(needs.shared(FOLDER) / "job_1.parquet").pivot(on="worker", index="time", values="batch_time_norm").sort("time")
    names = sorted((c for c in wide.columns if c != "time"), key=int)
    return wide["time"].to_numpy().astype(np.int64), wide.select(names).to_numpy().astype(np.float64)


def spreads() -> dict[str, np.ndarray]:
    """By job: float64[iteration], the coefficient of variation of its workers' times."""
    frame = pl.read_parquet(needs.shared(FOLDER) / "cov_by_job.parquet").sort("job", "iter")
    return {str(name[0]): part["cov"].to_numpy().astype(np.float64) for name, part in frame.group_by("job", maintain_order=True)}


def made(cov: np.ndarray, count: int, seed: int) -> np.ndarray:
    """float64[row, worker]: times around 450 that spread as told; who is slow is drawn anew in each iteration."""
    sigma = np.sqrt(np.log1p(np.minimum(cov, 3.0) ** 2))[:, None]
    return 450.0 * np.exp(sigma * np.random.default_rng(seed).normal(0.0, 1.0, (len(cov), count)))


def series(job: str, step: np.ndarray, times: np.ndarray, each: float = SCRAPE_SECONDS) -> pl.DataFrame:
    """Tidy rows of `greylag_train_step` and `greylag_train_step_seconds` of a job's workers, each on a node of its own.

    each: seconds between two rows of the data.
    """
    rows, count = times.shape
    at = (1000 * (START + each * np.arange(rows))).astype(np.int64)
    frame = pl.DataFrame({
        "timestamp": np.repeat(at, count), "job": [job] * (rows * count), "rank": np.tile(np.arange(count), rows).astype(str),
        "node": np.tile(np.array([f"{job}-w{i}" for i in range(count)]), rows), "gpu": ["0"] * (rows * count),
    })
    told = {"greylag_train_step": np.repeat(step, count).astype(float), "greylag_train_step_seconds": times.reshape(-1) * NORM_SECONDS}
    return pl.concat([frame.with_columns(metric=pl.lit(name), value=pl.Series(values)) for name, values in told.items()])


def windows(job: str, step: np.ndarray, times: np.ndarray, rows: Iterable[int]) -> Iterator[tuple[int, Window]]:
    """(row, the half hour up to and including it), a row each 15 s: what a replay would show, without its cost."""
    count = times.shape[1]
    ranks = tuple(Target("rank", f"{job}-w{i}", "0", job=job, rank=i) for i in range(count))
    state = JobState(job, "train", tuple(t.node or "" for t in ranks), tuple(range(count)))
    one = np.ones(count)
    for row in rows:
        part = slice(max(0, row - 119), row + 1)
        at = 1000 * START + 15_000 * np.arange(part.start, part.stop)
        told = {"rank.step": np.repeat(step[part, None].astype(float), count, 1), "rank.step_seconds": times[part] * NORM_SECONDS}
        blocks = {name: Block(name, ranks, values, 0 * one, 15 * one, one * 1000 * START) for name, values in told.items()}
        yield row, Window(int(at[-1]), 15, at, {"rank": ranks}, blocks, (), (state,))
