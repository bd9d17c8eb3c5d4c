"""Whole targets read back: each value stands where its series and time say, whatever table it came from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from core.derive import absent
from core.types import Layout
from pipeline.store.duck import DuckStore
from pipeline.store.ingest import HOUR_MS
from tests.store.build import STEP, T0, batch, layout, scrape, series

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i")


@pytest.fixture
def store(tmp_path) -> Iterator[DuckStore]:
    one = DuckStore(tmp_path, retention_ms=2**50)
    yield one
    one.close()


def partial(target: str, *names: str, of: str = "p") -> Layout:
    """A push of series of an instance."""
    many = tuple(series(name, instance=of) for name in names)
    return Layout(Layout.make_id(target, many), target, many, (), node=of, partial=True)


def seen(store: DuckStore, targets: dict[str, list], start: int, end: int) -> dict[tuple[str, str], dict[int, float]]:
    """By (target, series' name): value by time, of what is there."""
    book = store._catalogue
    wanted = [(name, book.ids_of(many)) for name, many in targets.items()]
    out: dict[tuple[str, str], dict[int, float]] = {}
    for (name, ids), rows in zip(wanted, store.readings_of(wanted, start, end), strict=True):
        for i, number in enumerate(ids.tolist()):
            there = ~absent(rows.values[:, i].copy())
            out[(name, book.get(number).name)] = dict(zip(rows.at[there].tolist(), rows.values[there, i].tolist(), strict=True))
    return out


def stored(store: DuckStore, start: int, end: int) -> dict[tuple[str, str], dict[int, float]]:
    """The same, as `select` has it, of series of one target each."""
    return {(one.series.label("instance"), one.series.name):
            {at: value for at, value in zip(one.at, one.values, strict=True) if value is not None}
            for one in store.select([], start, end)}


def test_rows_are_what_select_gives(store):
    """Sealed and open hours, absent values, NaN, a late reading, a new column and pushes: equal for every series."""
    rng = np.random.default_rng(3)
    old, new, push = layout("t1", NAMES), layout("t1", (*NAMES, "j")), partial("p", "x", "y")
    other = layout("t2", NAMES)
    t, seq = T0 // HOUR_MS * HOUR_MS + HOUR_MS - 40 * STEP, 0
    for k in range(100):
        if k == 60:
            store.seal()
        shape = old if k < 50 else new
        scrapes = [scrape(push, t + k * STEP + 7, [k, None if k % 3 else -k])]
        for one in (shape, other):
            values = [None if rng.random() < 0.2 else float(v) for v in rng.integers(0, 9, len(one.series))]
            if k == 20:
                values[0] = float("inf")
            if k not in (30, 31):
                scrapes.append(scrape(one, t + k * STEP, values))
        seq += 1
        store.append([batch(seq, *scrapes, layouts=[shape, other, push])])
    late = [scrape(old, t + 30 * STEP, range(9)), scrape(old, t + 29 * STEP, range(9))]
    store.append([batch(seq + 1, *late)])
    assert store.seal() > 0
    start, end = t + 10 * STEP, t + 99 * STEP + 7
    found = seen(store, {"t1": list(new.series), "t2": list(other.series), "p": list(push.series)}, start, end)
    assert found == stored(store, start, end)


def test_a_series_that_moved_is_told_to_each_target_in_its_time(store):
    """Rows of before the move are the old target's, those after it the new one's."""
    first = layout("t1", NAMES)
    second = Layout(Layout.make_id("t2", first.series), "t2", first.series, (), node="t1")
    store.append([batch(1, scrape(first, T0, range(9)), layouts=[first])])
    store.append([batch(2, scrape(second, T0 + 30 * STEP, range(1, 10)), layouts=[second])])
    found = seen(store, {"t1": list(first.series), "t2": list(first.series)}, T0, T0 + 60 * STEP)
    assert (found["t1", "c"], found["t2", "c"]) == ({T0: 2.0}, {T0 + 30 * STEP: 3.0})


def test_targets_that_speak_in_parts_share_a_series(store):
    """Two logs that tell of one rank: both are shown what either said."""
    one, two = partial("log/1", "x"), partial("log/2", "x", "y")
    store.append([batch(1, scrape(one, T0, [1]), scrape(two, T0 + 1, [2, 3]), layouts=[one, two])])
    found = seen(store, {"log/1": list(one.series), "log/2": list(two.series)}, T0, T0 + STEP)
    assert found == {("log/1", "x"): {T0: 1.0, T0 + 1: 2.0}, ("log/2", "x"): {T0: 1.0, T0 + 1: 2.0}, ("log/2", "y"): {T0 + 1: 3.0}}


def test_nothing_asked_for_is_nothing(store):
    """No targets, and a target that is not known."""
    assert store.readings_of([], T0, T0 + STEP) == []
    (rows,) = store.readings_of([("who", np.empty(0, np.uint32))], T0, T0 + STEP)
    assert (len(rows.at), rows.values.shape) == (0, (0, 0))
