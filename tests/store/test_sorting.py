"""The sorter of recordings that are out of time order."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.derive import STALE_BITS, STALE_NAN
from core.protocols import RawSample
from core.types import Series
from pipeline.store import sorting
from pipeline.store.sorting import DuckSorter
from tests.store.build import series

NAMES = [series("b", gpu="0"), series("a", gpu="1"), series("a", gpu="0"), Series("a", (), "counter")]


def expected(samples: list[RawSample]) -> list[RawSample]:
    return sorted(samples, key=lambda s: (s.at, s.series.name, s.series.labels, s.series.type))


def test_a_recording_grouped_by_family_comes_back_by_time(tmp_path: Path) -> None:
    """Many pieces are staged and streamed; equal times come by series."""
    samples = [RawSample(at * 15_000, one, float(at)) for one in NAMES for at in range(500)]
    random.Random(7).shuffle(samples)
    sorter = DuckSorter(tmp_path)
    for start in range(0, len(samples), 300):
        sorter.add(samples[start : start + 300])
    assert list(sorter.drain()) == expected(samples)


def test_the_temporary_file_is_removed(tmp_path: Path) -> None:
    """Drained to the end, left half-way, or never drained: nothing stays behind."""
    for take in (None, 2, 0):
        sorter = DuckSorter(tmp_path)
        sorter.add([RawSample(n, NAMES[0], 0.0) for n in range(10)])
        stream = iter(sorter.drain())
        for _ in range(10 if take is None else take):
            next(stream)
        if take is None:
            assert next(stream, None) is None
        else:
            sorter.close()
        assert list(tmp_path.iterdir()) == []


def test_values_keep_their_bits(tmp_path: Path) -> None:
    """Stale markers, NaN, infinities and the negative zero come back as they went in."""
    values = np.array([STALE_NAN, math.nan, -math.inf, math.inf, -0.0, 0.1, 5e-324] * 18_000)
    sorter = DuckSorter(tmp_path)
    sorter.add([RawSample(n, NAMES[0], v) for n, v in enumerate(values.tolist())])
    back = np.array([s.value for s in sorter.drain()])
    assert (back.view(np.uint64) == values.view(np.uint64)).all()
    assert back.view(np.uint64)[0] == STALE_BITS


def test_what_is_drained_is_gone(tmp_path: Path) -> None:
    """A second drain gives nothing; an empty sorter gives nothing."""
    sorter = DuckSorter(tmp_path)
    assert (list(sorter.drain()), list(sorter.drain())) == ([], [])


@settings(max_examples=6, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.floats(allow_nan=False)), max_size=40),
       st.integers(1, 8))
def test_any_order_in_gives_one_order_out(rows: list[tuple[int, int, float]], piece: int) -> None:
    """Stable by (time, series), in pieces of any size."""
    samples = [RawSample(at, NAMES[which], value) for at, which, value in rows]
    before, sorting.PIECE_ROWS = sorting.PIECE_ROWS, piece
    try:
        sorter = DuckSorter()
        sorter.add(samples)
        assert list(sorter.drain()) == expected(samples)
    finally:
        sorting.PIECE_ROWS = before
