"""The writing thread: answers only after the commit, groups, failures, housekeeping."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.clock import monotonic_seconds
from core.errors import GreylagError, Refused, Unavailable
from pipeline.store import writer as writing
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter
from tests.store.build import STEP, T0, batch, layout, message, scrape, tick

EVER = (0, 2**50)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    made = DuckStore(tmp_path)
    yield made
    made.close()


@pytest.fixture
def writer(store: DuckStore) -> Iterator[StoreWriter]:
    made = StoreWriter(store)
    yield made
    made.close()


def held(writer: StoreWriter) -> Callable[[], None]:
    """Makes the writer wait; the function lets it go on."""
    gate = threading.Event()
    writer.call(lambda: gate.wait(10))
    return gate.set


def wait_for(condition: Callable[[], bool]) -> bool:
    end = monotonic_seconds() + 10
    while not condition() and monotonic_seconds() < end:
        threading.Event().wait(0.01)
    return condition()


def test_a_batch_is_answered_once_it_is_committed(store: DuckStore, writer: StoreWriter) -> None:
    """When the future is done the samples can be selected."""
    shape = layout()
    answer = writer.submit(batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])).result(10)
    assert (answer, len(store.select([], *EVER))) == ("stored", 3)


def test_waiting_batches_share_a_transaction_and_each_gets_its_own_answer(store: DuckStore, writer: StoreWriter) -> None:
    """Stored, repeated and old batches of one group are told apart."""
    shape = layout()
    writer.epoch("w").result(10)
    writer.epoch("w").result(10)
    release = held(writer)
    futures = [writer.submit(batch(seq, scrape(shape, T0 + seq * STEP, [1, 2, 3]), layouts=[shape], epoch=epoch))
               for seq, epoch in ((1, 2), (2, 2), (1, 2), (3, 1))]
    release()
    assert [f.result(10) for f in futures] == ["stored", "stored", "repeat_batch", "old_epoch"]


def test_one_bad_batch_does_not_spoil_its_group(store: DuckStore, writer: StoreWriter) -> None:
    """The batch that cannot be stored is refused alone."""
    shape, unknown = layout(), layout("t2")
    release = held(writer)
    good = writer.submit(batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape]))
    bad = writer.submit(batch(2, scrape(unknown, T0, [1, 2, 3])))
    later = writer.submit(batch(3, scrape(shape, T0 + STEP, [1, 2, 3])))
    release()
    assert (good.result(10), later.result(10)) == ("stored", "stored")
    with pytest.raises(Refused, match="unknown_layout"):
        bad.result(10)


def test_ticks_and_outbox_go_through_the_same_thread_in_order(store: DuckStore, writer: StoreWriter) -> None:
    """A tick that is asked for first is committed first; a tick that fails says so and the writer goes on."""
    first, again = writer.commit_tick(tick(1, outbox=(message(),))), writer.commit_tick(tick(1))
    done = writer.outbox_done("m1", "delivered")
    assert (first.result(10), done.result(10), store.outbox_pending()) == (None, None, [])
    with pytest.raises(GreylagError):
        again.result(10)


def test_too_many_waiting_batches_are_not_taken(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded: the sender has to wait."""
    monkeypatch.setattr(writing, "MOST_WAITING", 2)
    release = held(writer)
    shape = layout()
    futures = [writer.submit(batch(n, scrape(shape, T0, [1, 2, 3]), layouts=[shape])) for n in range(2)]
    with pytest.raises(Unavailable):
        writer.submit(batch(9))
    release()
    assert [f.result(10) for f in futures] == ["stored", "stored"]
    assert writer.submit(batch(9)).result(10) == "stored"


def test_hours_that_are_over_are_sealed_while_appends_go_on(store: DuckStore, writer: StoreWriter) -> None:
    """Sealing runs beside the appends, and no answer changes."""
    shape = layout()
    for n in range(40):
        writer.submit(batch(n, scrape(shape, T0 + n * 900_000, [n, 2, 3]), layouts=[shape])).result(10)
    # A last append gives the house a chance to see the hour that ended while the sealer was busy.
    assert wait_for(lambda: store.stats()["segments"] >= 5)
    assert store.select([], *EVER)[0].values == [float(n) for n in range(40)]


def test_an_hour_that_cannot_be_sealed_stays_open(
    store: DuckStore, writer: StoreWriter, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full: appends go on, nothing is lost, the failure is told."""
    def full(part: object) -> None:
        raise GreylagError("no space left on device")

    monkeypatch.setattr(store, "write_part", full)
    shape = layout()
    for n in range(4):
        writer.submit(batch(n, scrape(shape, T0 + n * 3_600_000, [n, 2, 3]), layouts=[shape])).result(10)
    assert wait_for(lambda: writer.last_failure is not None)
    assert (writer.last_failure, store.select([], *EVER)[0].values) == ("no space left on device", [0.0, 1.0, 2.0, 3.0])


def test_housekeeping_that_fails_in_any_way_stops_no_append(
    store: DuckStore, writer: StoreWriter, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that nobody thought of is told, and the thread that all wait for goes on."""
    def wrong() -> None:
        raise ValueError("never thought of")

    monkeypatch.setattr(store, "seal_due", wrong)
    shape = layout()
    answers = [writer.submit(batch(n, scrape(shape, T0 + n, [n, 2, 3]), layouts=[shape])).result(10) for n in range(3)]
    assert (answers, writer.last_failure) == (["stored"] * 3, "never thought of")


def test_close_does_what_waits_and_then_refuses(store: DuckStore) -> None:
    """Everything that was asked before the end is done; what comes later fails, and closing twice is fine."""
    writer = StoreWriter(store)
    release = held(writer)
    shape = layout()
    waiting = [writer.submit(batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])), writer.commit_tick(tick())]
    release()
    writer.close()
    writer.close()
    late = writer.commit_tick(tick(2))
    assert [f.result(0) for f in waiting] == ["stored", None]
    with pytest.raises(GreylagError):
        late.result(0)


@pytest.mark.parametrize(("series", "mebibytes"), [(0, 32), (257_000, 32), (985_000, 128), (5_000_000, 256)])
def test_the_log_of_a_large_site_is_longer(tmp_path: Path, series: int, mebibytes: int) -> None:
    """A checkpoint packs the last stretch of each table anew: it comes after a dozen readings of each series, within bounds."""
    store = DuckStore(tmp_path)
    store.fit_log(series)
    assert store.rows("SELECT current_setting('checkpoint_threshold')") == [(f"{mebibytes}.0 MiB",)]
    store.close()
