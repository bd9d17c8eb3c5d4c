"""Late samples go into their kind's files once their day has been put together, and no answer changes by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.derive import STALE_NAN
from core.types import Scrape
from pipeline.store.duck import DuckStore
from pipeline.store.folding import Late, folded
from pipeline.store.ingest import HOUR_MS
from pipeline.store.kinds import LONG
from pipeline.store.segments import RAW
from pipeline.store.verify import verify
from tests.store.build import STEP, batch, layout, scrape

DAY = 24 * HOUR_MS
T = 1_800_000_000_000 // DAY * DAY
NAMES = tuple("abcdefghi")
EVER = (0, 2**50)
N = -1.0  # a series that is absent


def told(store: DuckStore) -> list[tuple[str, list[int], list[float | None]]]:
    return [(one.series.name, list(one.at), list(one.values)) for one in store.select([], *EVER)]


def filled(folder: Path, late: dict[int, dict[str, float]], rollups: int = 0) -> DuckStore:
    """40 slots of a target in one day; late: what comes afterwards, by slot. A day later all hours are sealed."""
    store = DuckStore(folder, retention_ms=2**50, rollup_1m_ms=rollups, rollup_1h_ms=rollups)
    one = layout("t", NAMES)
    missing = [k for k in late if k < 40 and len(late[k]) == len(NAMES)]
    scrapes = [scrape(one, T + k * STEP, [None if name in late.get(k, {}) else k + i for i, name in enumerate(NAMES)])
               for k in range(40) if k not in missing]
    store.append([batch(1, *scrapes, layouts=[one])])
    store.append([batch(2, *[scrape(one, T + k * STEP, [some.get(name) for name in NAMES]) for k, some in late.items()])])
    store.append([batch(3, scrape(one, T + 2 * DAY, range(9)))])
    store.seal()
    return store


def long_rows(store: DuckStore) -> int:
    return sum(s.rows for s in store._segments.sealed if s.tier == RAW and s.kind == LONG)


@pytest.mark.parametrize(("late", "left"), [
    ({5: dict.fromkeys(NAMES, 5.0)}, 0),                      # a whole reading
    ({k: {"c": 7.0} for k in (9, 10)}, 0),                    # cells of rows that there are
    ({5: {"c": 7.0}, 12: dict.fromkeys(NAMES, 5.0)}, 0),      # both
    ({39: {"c": 7.0}}, 1),                                    # the last row of the file: what follows is not known
])
def test_late_samples_join_their_rows(tmp_path, late, left):
    """What was late stands in the wide file, the long one keeps what cannot be moved, and the answers are the same."""
    store = filled(tmp_path, late)
    assert long_rows(store) == sum(map(len, late.values()))
    before = told(store)
    store.compact()
    assert (long_rows(store), told(store) == before, store.compact()) == (left, True, 0)
    store.close()
    assert verify(tmp_path) == []
    with_restart = DuckStore(tmp_path, retention_ms=2**50)
    assert told(with_restart) == before
    with_restart.close()


def test_rollups_stay_what_they_were(tmp_path):
    """A rollup is made of all samples before and after."""
    late = {5: dict.fromkeys(NAMES, 5.0), 9: {"c": 2.0}}
    store = filled(tmp_path, late, rollups=2**50)
    before = repr(store.rollup([], *EVER))
    store.compact()
    assert (long_rows(store), repr(store.rollup([], *EVER))) == (0, before)
    store.close()


def test_a_reading_between_that_lacks_series_stays_apart(tmp_path):
    """In its row the series that it lacks would have ended."""
    store = filled(tmp_path, {})
    one = layout("t", NAMES)
    store.append([batch(4, Scrape(one.id, "t", T + 5 * STEP + 7, np.array([1.0, *[STALE_NAN] * 8])))])
    store.seal()
    before = told(store)
    store.compact()
    assert (long_rows(store), told(store)) == (1, before)
    store.close()


def test_a_fold_that_retention_overtook_is_dropped(tmp_path):
    """Its files go, and the manifest stays as it was."""
    store = filled(tmp_path, {5: dict.fromkeys(NAMES, 5.0)})
    (long,) = store.fold_due()
    fold = store.write_fold(long)
    assert fold is not None
    store.shorten(HOUR_MS)
    store.commit_fold(long, fold)
    store.close()
    assert verify(tmp_path) == []


def read(rows: dict[int, list[float]], beside: dict[tuple[int, int], float]) -> list[list[tuple[int, float | None]]]:
    """The plain rule, series by series: a value counts, the first row without one after it ends the series."""
    out = []
    for c in range(3):
        seen: dict[int, float | None] = {}
        had = False
        for at in sorted(rows):
            value = rows[at][c]
            if value != N:
                seen[at] = value
            elif had:
                seen[at] = None
            had = value != N
        seen.update({at: v for (at, column), v in beside.items() if column == c})
        told = sorted(seen.items())
        out.append([pair for i, pair in enumerate(told) if pair[1] is not None or (i and told[i - 1][1] is not None)])
    return out


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from([N, 1.0, 2.0]), min_size=3, max_size=3), min_size=1),
       st.dictionaries(st.tuples(st.integers(0, 9), st.integers(0, 2)), st.sampled_from([5.0, 6.0]), min_size=1))
def test_reading_is_the_same_after_it(rows, late):
    """Any rows and any late samples: what is read of rows and samples is what is read of the new rows and the rest."""
    beside = {key: v for key, v in late.items() if key[0] not in rows or rows[key[0]][key[1]] == N}
    at = np.array(sorted(rows), np.int64)
    cells = np.array([[STALE_NAN if rows[t][c] == N else rows[t][c] for t in at.tolist()] for c in range(3)])
    keys = sorted(beside)
    given_late = Late(np.full(len(keys), 7, np.uint32), np.array([k[0] for k in keys], np.int64),
                      np.array([k[1] for k in keys], np.int64), np.array([beside[k] for k in keys]), np.zeros(len(keys), np.uint32))
    _, times, values, took = folded(np.full(len(at), 7, np.uint32), at, cells, given_late)
    after = dict(rows)
    for i, t in enumerate(times.tolist()):
        after[t] = [N if np.isnan(v) else v for v in values[:, i].tolist()]
    rest = {key: beside[key] for key, moved in zip(keys, took.tolist(), strict=True) if not moved}
    assert read(after, rest) == read(rows, beside)
