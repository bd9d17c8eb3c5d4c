"""The detectors' statistics agree with plain definitions and are blind to what is missing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from detectors import stats

NAN = float("nan")
VALUES = st.one_of(st.just(NAN), st.integers(-50, 50).map(float))
TABLES = arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=VALUES)


@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_median_and_mean_are_those_of_the_known(table: np.ndarray) -> None:
    """Column by column as numpy has them, without a warning for columns of which nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middle, average = stats.median(table), stats.mean(table)
    for column in range(table.shape[1]):
        known = table[:, column][~np.isnan(table[:, column])]
        assert middle[column] == pytest.approx(np.median(known) if len(known) else NAN, nan_ok=True)
        assert average[column] == pytest.approx(np.mean(known) if len(known) else NAN, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, 12, elements=VALUES), arrays(np.int64, 12, elements=st.integers(-1, 2)))
def test_peers_leave_the_part_itself_out(values: np.ndarray, groups: np.ndarray) -> None:
    """The median of the other known members of the group; NaN without others or without a group."""
    got = stats.peers(values, groups)
    for e in range(12):
        others = [values[o] for o in range(12) if o != e and groups[o] == groups[e] >= 0 and not np.isnan(values[o])]
        assert got.middle[e] == pytest.approx(np.median(others) if others else NAN, nan_ok=True)
        assert got.n[e] == len(others)


@pytest.mark.parametrize(("values", "interval", "low"), [
    ([0, 0, 0, 0, 0, 0, 0, 9], 1, 0.0),      # a burst of one sample
    ([9, 9, 9, 9, 9, 9, 9, 9], 1, 9.0),      # a level
    ([NAN] * 7 + [9], 1, NAN),               # one value is no level
    ([0] * 8 + [9] * 4, 4, 0.0),             # one sample of a slow page fills four ticks
], ids=["burst", "level", "one value", "slow page"])
def test_a_span_tells_levels_from_bursts(values: list[float], interval: int, low: float) -> None:
    """The lowest third is high only where the level holds over the span."""
    got = stats.span(np.array(values, float)[:, None], np.array([interval]), 8)
    assert got.low[0] == pytest.approx(low, nan_ok=True)


def test_columns_do_not_depend_on_their_neighbours() -> None:
    """A table that is wide enough to be taken in pieces gives what its columns give alone."""
    rng = np.random.default_rng(3)
    wide = np.where(rng.random((13, 2 * stats.TOGETHER + 7)) < 0.2, NAN, rng.integers(0, 9, (13, 2 * stats.TOGETHER + 7)))
    intervals = rng.integers(1, 5, wide.shape[1])
    some = np.arange(0, wide.shape[1], 701)
    whole, alone = stats.span(wide, intervals, 8), stats.span(wide[:, some], intervals[some], 8)
    for name in ("mean", "low", "high", "known"):
        np.testing.assert_array_equal(getattr(whole, name)[some], getattr(alone, name))
    np.testing.assert_array_equal(stats.median(wide)[some], stats.median(wide[:, some]))
    np.testing.assert_array_equal(stats.quantile(wide, 0.35)[some], stats.quantile(wide[:, some], 0.35))


def test_filled_and_slope() -> None:
    """Missing values take the newest known one; the slope is that of the known points."""
    table = np.array([[NAN], [1.0], [NAN], [3.0], [4.0]])
    assert stats.filled(table)[:, 0].tolist()[1:] == [1.0, 1.0, 3.0, 4.0]
    assert stats.slope_per_second(table, np.arange(5) * 1000)[0] == pytest.approx(1.0)


@pytest.mark.parametrize(("symptom", "start"), [
    ([0, 1, 1, 0, 1, 1], 1), ([1, 0, 0, 0, 1, 1], 4), ([0, 0, 0, 0, 0, 0], 5),
], ids=["a small hole", "an earlier run", "none"])
def test_a_run_begins_after_the_last_long_hole(symptom: list[int], start: int) -> None:
    """Holes within the allowed gap belong to the run."""
    flags = np.array(symptom, bool)[:, None]
    assert stats.run_start(flags, np.arange(6), 2).tolist() == [start]
