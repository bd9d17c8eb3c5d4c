"""Targets that speak in parts (a rank's log lines, pushes) and share series: every sample counts, by its own time."""

from __future__ import annotations

import numpy as np
import pytest

from core.protocols import Matcher
from core.types import Batch, Layout, Scrape, Series
from pipeline.store.duck import DuckStore

T0 = 1_800_000_000_000
LOSS, STEP, TIME = (Series(name, (("job", "j"), ("rank", "0"))) for name in ("loss", "step", "step_seconds"))
SHORT = Layout("x", "log/j/0/x", (LOSS, STEP), (), partial=True)
LONG = Layout("y", "log/j/0/y", (LOSS, STEP, TIME), (), partial=True)


def scrape(layout, at, *values):
    return Scrape(layout.id, layout.target_id, at, np.array(values, np.float64))


def read(store, name):
    """[(ms after T0, value)] of a series."""
    return [(at - T0, v) for one in store.arrays([Matcher("__name__", "=", name)], 0, T0 * 2)
            for at, v in zip(one.at.tolist(), one.values.tolist(), strict=True)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_no_sample_of_either_is_lost(tmp_path, together, restart):
    """Lines of two shapes in turn, in one append or several, before and after a restart."""
    lines = [scrape(SHORT, T0 + 1000, 1.0, 1.0), scrape(LONG, T0 + 30_000, 2.0, 2.0, 0.5), scrape(SHORT, T0 + 31_000, 3.0, 3.0)]
    store = DuckStore(tmp_path / "g.duckdb")
    batches = [Batch("w", 1, i, T0, (SHORT, LONG) if not i else (), (one,)) for i, one in enumerate(lines)]
    if together:
        batches = [Batch("w", 1, 0, T0, (SHORT, LONG), tuple(lines))]
    for batch in batches:
        result = store.append_counted([batch])
        assert not result.counts.get("conflict")
    if restart:
        store.close()
        store = DuckStore(tmp_path / "g.duckdb")
    store.append([Batch("w", 1, 9, T0, (), (scrape(LONG, T0 + 40_000, 4.0, 4.0, 0.5),))])
    assert read(store, "loss") == [(1000, 1.0), (30_000, 2.0), (31_000, 3.0), (40_000, 4.0)]
    assert read(store, "step_seconds") == [(30_000, 0.5), (40_000, 0.5)]
    store.close()


def test_the_first_of_two_at_one_time_wins(tmp_path):
    """The same series at the same time from both: one sample, counted as a conflict or a duplicate."""
    store = DuckStore(tmp_path / "g.duckdb")
    store.append([Batch("w", 1, 0, T0, (SHORT, LONG), (scrape(SHORT, T0, 1.0, 1.0), scrape(LONG, T0, 2.0, 1.0, 0.5)))])
    assert read(store, "loss") == [(0, 1.0)]
    store.close()
