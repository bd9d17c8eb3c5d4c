"""Data that nobody here made, where it is there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"the labelled data ../shared/data/{name} is not here")
    return folder


@pytest.fixture(scope="session")
def shared_cases() -> dict[str, dict]:
    """The public cases by id."""
    lines = (_folder("cases") / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@pytest.fixture(scope="session")
def healthy_runs() -> list[tuple[str, dict[str, np.ndarray]]]:
    """(name, columns) of each healthy training run."""
    files = sorted(_folder("training_logs").glob("healthy_*.parquet"))
    assert files
    return [(f.stem, {c: pl.read_parquet(f, columns=[c])[c].cast(pl.Float64).to_numpy()
                      for c in ("iteration", "loss", "iter_ms")}) for f in files]
