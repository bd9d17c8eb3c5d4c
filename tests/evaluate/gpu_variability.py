"""One benchmark on hundreds of real V100s (run times, clocks, heat, power): read into arrays, judged, and scored.

Runs of a GPU are the rows, GPUs the columns. The labels are made from run times alone; what a GPU's clock and heat say of
the reason is not in them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from detectors.slow_reasons import Slow, ranked

LIMIT_WATTS = 300.0  # of a V100 SXM2
NAIVE = 1.05         # the naive rule: a single run that takes 5 % longer than the middle of all runs


@dataclass(frozen=True)
class Runs:
    """Each float64[run, gpu], NaN = not measured. names: of the GPUs."""

    names: tuple[str, ...]
    seconds: np.ndarray
    clock: np.ndarray
    temperature: np.ndarray
    power: np.ndarray


def read(path: Path) -> Runs:
    """The runs of a file in their order."""
    frame = pl.read_parquet(path)
    names = tuple(sorted(frame["uuid"].unique().to_list()))
    groups = {key[0]: part for key, part in frame.group_by("uuid", maintain_order=True)}
    longest = max(len(part) for part in groups.values())

    def table(column: str) -> np.ndarray:
        out = np.full((longest, len(names)), np.nan)
        if column in frame.columns:
            for i, name in enumerate(names):
                values = groups[name][column].cast(pl.Float64).to_numpy()
                out[: len(values), i] = values
        return out

    return Runs(names, *(table(c) for c in ("perf", "freq", "temp", "pwr")))


def slow(runs: Runs) -> list[Slow]:
    """What Greylag ranks."""
    return ranked(runs.seconds, runs.clock, runs.temperature, runs.power, LIMIT_WATTS, np.zeros(len(runs.names), np.int64))


def naive(runs: Runs) -> set[str]:
    """GPUs with any run over the naive limit."""
    limit = NAIVE * float(np.nanmedian(runs.seconds))
    return {n for i, n in enumerate(runs.names) if bool((runs.seconds[:, i] > limit).any())}


def labels(folder: Path) -> dict[str, set[str]]:
    """The slow GPUs by data set."""
    told = json.loads((folder / "labels.json").read_text())
    return {name: set(row["slow_gpus"]) for name, row in told.items()}


def score(said: set[str], truth: set[str]) -> tuple[int, int, int]:
    """Right, wrong and missed."""
    return len(said & truth), len(said - truth), len(truth - said)
