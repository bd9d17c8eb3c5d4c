"""What retention has emptied is forgotten while the store runs: series, entities, layouts and their places in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import Refused
from pipeline.store.duck import DuckStore
from pipeline.store.ingest import HOUR_MS
from pipeline.store.verify import verify
from pipeline.store.writer import StoreWriter
from tests.store.build import T0, batch, layout, scrape

NAMES = tuple("abcdefghij")


def pods(store: DuckStore, hours: int, each: int = 20) -> list[str]:
    """`each` targets of ten series an hour, that are never seen again, and one that stays; gives the ids of all layouts."""
    stays, seen = layout("stays", NAMES), []
    for hour in range(hours):
        made = [layout(f"pod-{hour}-{i}", NAMES) for i in range(each)]
        at = T0 + hour * HOUR_MS
        store.append([batch(hour, *[scrape(one, at, range(10)) for one in (*made, stays)], layouts=[*made, stays])])
        store.seal()
        store.expire()
        seen += [one.id for one in made]
    return seen


def kept(store: DuckStore) -> tuple[int, int, int]:
    """(series, entities, layouts)."""
    stats = store.stats()
    return stats["series"], stats["entities"], stats["layouts"]


def test_what_is_gone_is_forgotten_and_what_stays_is_not(tmp_path: Path) -> None:
    """Two hours are kept: of ten hours' pods those of the last hours are known, and the target that goes on."""
    store = DuckStore(tmp_path, retention_ms=2 * HOUR_MS)
    pods(store, 10)
    before = kept(store)
    gone = store.forget()
    after = kept(store)
    assert (before, gone) == ((2010, 201, 201), 1400)
    assert after == (610, 61, 61)
    assert {s.label("instance") for s in store.series([])} == {"stays", *(f"pod-{h}-{i}" for h in (7, 8, 9) for i in range(20))}
    assert len(store.select([], 0, 2**50)) == 610
    store.close()
    assert verify(tmp_path) == []


def test_a_target_that_comes_back_is_new(tmp_path: Path) -> None:
    """Its layout is not known any more: it is asked for again, and then all is as at first."""
    store = DuckStore(tmp_path, retention_ms=2 * HOUR_MS)
    pods(store, 10)
    store.forget()
    one = layout("pod-0-0", NAMES)
    with pytest.raises(Refused):
        store.append([batch(50, scrape(one, T0 + 10 * HOUR_MS, range(10)))])
    result = store.append_counted([batch(51, scrape(one, T0 + 10 * HOUR_MS, range(10)), layouts=[one])])
    assert (result.samples, result.counts) == (10, {})
    store.close()


def test_the_one_that_stays_goes_on_without_its_layout_sent_again(tmp_path: Path) -> None:
    """Forgetting reads the state anew: a steady target notices nothing, and repeats are still told."""
    store = DuckStore(tmp_path, retention_ms=2 * HOUR_MS)
    pods(store, 10)
    store.forget()
    stays, at = layout("stays", NAMES), T0 + 10 * HOUR_MS
    first = store.append_counted([batch(50, scrape(stays, at, range(10)))])
    again = store.append_counted([batch(51, scrape(stays, at, range(10)))])
    assert (first.samples, first.stale, again.counts) == (10, 0, {"duplicate": 10})
    store.close()


def test_a_handful_is_not_worth_it(tmp_path: Path) -> None:
    """Fewer than a hundred wait for the next time."""
    store = DuckStore(tmp_path, retention_ms=2 * HOUR_MS)
    pods(store, 5, each=2)
    assert (store.forget(), len(store.series([]))) == (0, 110)
    store.close()


def test_the_writer_forgets_by_itself(tmp_path: Path) -> None:
    """Its upkeep does it with retention, each hour of samples."""
    store = DuckStore(tmp_path, retention_ms=2 * HOUR_MS)
    writer = StoreWriter(store)
    for hour in range(10):
        made = [layout(f"pod-{hour}-{i}", NAMES) for i in range(20)]
        scrapes = [scrape(one, T0 + hour * HOUR_MS, range(10)) for one in made]
        writer.submit(batch(hour, *scrapes, layouts=made)).result()
    writer.close()
    assert len(store.series([])) < 10 * 200
    assert {f"pod-9-{i}" for i in range(20)} <= {s.label("instance") for s in store.series([])}
    store.close()
