"""The pages of the file that DuckDB keeps between queries."""

from __future__ import annotations

import numpy as np

from core.protocols import Matcher
from core.types import Batch, Layout, Scrape, Series
from pipeline.store.duck import DuckStore

T0 = 1_800_000_000_000
SERIES = tuple(Series(f"m_a_{i}", (("job", "j"),), "gauge") for i in range(40))
LAYOUT = Layout(Layout.make_id("t", SERIES), "t", SERIES, ())


def fill(store: DuckStore, readings: int) -> None:
    rng = np.random.default_rng(1)
    scrapes = tuple(Scrape(LAYOUT.id, "t", T0 + 1000 * k, rng.standard_normal(len(SERIES))) for k in range(readings))
    store.append([Batch("w", 1, 1, T0 + 1000 * readings, (LAYOUT,), scrapes)])
    store.checkpoint()


def cached(store: DuckStore) -> int:
    (row,) = store.rows("SELECT sum(memory_usage_bytes) FROM duckdb_memory()")
    return int(row[0])


def test_what_is_written_does_not_stay_in_memory(tmp_path, monkeypatch):
    """Trimming gives back pages beyond the limit, loses nothing, and leaves queries their memory."""
    monkeypatch.setattr("pipeline.store.database.CACHE_LIMIT", "1MB")
    store = DuckStore(tmp_path)
    fill(store, 20_000)
    before = cached(store)
    assert before > 5_000_000
    store.trim_cache()
    assert cached(store) < before / 2
    assert store.rows("SELECT current_setting('memory_limit') = '953.6 MiB'") == [(True,)]
    found = store.select([Matcher("__name__", "=", "m_a_7")], T0, T0 + 20_000_000)
    assert len(found[0].at) == 20_000
    store.close()


def test_a_reader_keeps_its_memory(tmp_path):
    """While someone reads nothing is taken away, and after that it is again; a store in memory has nothing to give."""
    store = DuckStore(tmp_path)
    fill(store, 10)
    with store.reading():
        assert not store.trim_cache()
    assert store.trim_cache()
    store.close()
    assert not DuckStore(None).trim_cache()
