"""Batches reach the owner once each, in order, whatever the owner does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors import handover as module
from collectors.handover import MOST_ITEMS, REMEMBERED_MS, Handover, Increments, Parcel, parcels
from core.telemetry import Telemetry
from core.types import Layout, Scrape, Series
from core.wire import encode_batch
from tests.collect.doors import FakeOwner, serve

LAYOUTS = {name: Layout(name, name, (Series("up", ()),), ()) for name in "abc"}


def parcel(watermark, *names):
    """A parcel with one scrape of each named layout."""
    scrapes = tuple(Scrape(n, n, watermark, np.array([1.0])) for n in names)
    return Parcel(watermark, tuple(LAYOUTS[n] for n in names), scrapes)


def deliver(owner, *lots, telemetry=None):
    """Hands the parcels over and waits until nothing is left."""

    async def act():
        async with serve(owner) as url:
            handover = Handover(url, "w", telemetry)
            sender = asyncio.create_task(handover.run())
            for one in lots:
                handover.put(one)
            assert await handover.drained(10.0)
            sender.cancel()
            await handover.aclose()
            return handover

    return asyncio.run(act())


def test_batches_are_numbered_and_layouts_sent_once():
    """Seq counts from 1 within the epoch; a layout travels with the first batch that needs it."""
    owner = FakeOwner()
    deliver(owner, parcel(15, "a"), parcel(30, "a", "b"), parcel(45))
    assert [(b.worker, b.epoch, b.seq, b.watermark) for b in owner.batches] == [
        ("w", 1, 1, 15), ("w", 1, 2, 30), ("w", 1, 3, 45)]
    assert [[one.id for one in b.layouts] for b in owner.batches] == [["a"], ["b"], []]
    assert [len(b.scrapes) for b in owner.batches] == [1, 2, 0]


def test_a_batch_is_tried_again_under_its_own_number():
    """After an error the same (worker, epoch, seq) goes again, with its layouts: the owner may be a new one."""
    owner = FakeOwner(("503 Busy", {}), ("500 Oh", {}))
    deliver(owner, parcel(15, "a"), parcel(30, "a"))
    assert owner.tried == [(1, 1), (1, 1), (1, 1), (1, 2)]
    assert [one.id for one in owner.batches[0].layouts] == ["a"]


def test_layouts_do_not_go_again_after_the_owner_was_away():
    """What the owner has committed it keeps: only what it asks for is sent again, be it slow or started anew."""
    owner = FakeOwner(("200 OK", {"committed": 1}), ("503 Busy", {}))
    deliver(owner, parcel(15, "a"), parcel(30, "a"))
    assert [[one.id for one in batch.layouts] for batch in owner.batches] == [[]]


def test_of_unknown_layouts_only_those_of_the_batch_are_sent_again():
    """409 unknown_layout says nothing about layouts that the batch does not use."""
    owner = FakeOwner(("200 OK", {"committed": 1}), ("409 Conflict", {"reason": "unknown_layout"}))
    deliver(owner, parcel(15, "a", "b"), parcel(30, "a"), parcel(45, "a", "b"))
    assert [[one.id for one in batch.layouts] for batch in owner.batches] == [["a"], []]


def test_an_old_epoch_registers_anew():
    """409 old_epoch: a new epoch is asked for, numbers start again, layouts are sent again."""
    owner = FakeOwner(("200 OK", {"committed": 1}), ("409 Conflict", {"reason": "old_epoch"}))
    deliver(owner, parcel(15, "a"), parcel(30, "a"))
    assert owner.tried == [(1, 1), (1, 2), (2, 1)]
    assert [one.id for one in owner.batches[0].layouts] == ["a"]


def test_unknown_layouts_are_sent_again():
    """409 unknown_layout: the same number goes again with all its layouts."""
    owner = FakeOwner(("200 OK", {"committed": 1}), ("409 Conflict", {"reason": "unknown_layout"}))
    deliver(owner, parcel(15, "a"), parcel(30, "a"))
    assert owner.tried == [(1, 1), (1, 2), (1, 2)]
    assert [one.id for one in owner.batches[0].layouts] == ["a"]


def test_a_layout_unused_for_long_is_sent_again():
    """The owner forgets what it has not seen for a window."""
    owner = FakeOwner()
    later = 15 + REMEMBERED_MS + 15
    deliver(owner, parcel(15, "a", "b"), parcel(30, "b"), parcel(later, "a", "b"))
    assert [one.id for one in owner.batches[2].layouts] == ["a"]


def test_a_refused_batch_is_dropped_and_counted():
    """What the owner refuses for good is counted by name, and the next batch follows."""
    telemetry = Telemetry()
    owner = FakeOwner(("400 Bad", {"reason": "bad_syntax"}))
    deliver(owner, parcel(15, "a"), parcel(30, "a"), telemetry=telemetry)
    assert [b.watermark for b in owner.batches] == [30]
    assert [one.id for one in owner.batches[0].layouts] == ["a"]
    assert telemetry.get("greylag_collector_dropped_total", worker="w", reason="refused_by_owner") == 1


class Body(bytes):
    """Bytes that can be watched: `life` lives as long as they do."""


def test_a_batch_that_was_taken_is_given_back_at_once(monkeypatch):
    """No cycle of the HTTP client keeps the bytes of a batch until cycles are looked for: a worker sends 10 MB each few
    seconds. They arrive whole, in pieces."""
    lives = []

    def encode(batch):
        body = Body(encode_batch(batch))
        body.life = Increments(Telemetry())
        lives.append(weakref.ref(body.life))
        return body

    monkeypatch.setattr(module, "encode_batch", encode)
    monkeypatch.setattr(module, "PIECE_BYTES", 100)
    owner = FakeOwner()
    gc.disable()
    try:
        deliver(owner, parcel(15, "a", "b", "c"), parcel(30, "a"))
        left = [one() for one in lives]
    finally:
        gc.enable()
    assert left == [None, None]
    assert [len(b.scrapes) for b in owner.batches] == [3, 1]


def test_the_queue_is_bounded():
    """While the owner is away the oldest parcels but the one under way are dropped and counted."""
    telemetry = Telemetry()

    async def act():
        handover = Handover("http://127.0.0.1:1", "w", telemetry)
        for i in range(MOST_ITEMS + 5):
            handover.put(parcel(i, "a"))
        backlog = handover.backlog
        await handover.aclose()
        return backlog

    assert asyncio.run(act()) == MOST_ITEMS
    assert telemetry.get("greylag_collector_dropped_total", worker="w", reason="handover_full") == 5


def test_a_large_slot_travels_in_pieces(monkeypatch):
    """Only the last piece says that the slot is complete."""
    rows = [(LAYOUTS[n], Scrape(n, n, 30, np.ones(3))) for n in "abc"]
    monkeypatch.setattr("collectors.handover.MOST_PARCEL_SAMPLES", 6)
    pieces = parcels(30, 15, rows, [])
    assert [(p.watermark, p.samples, len(p.layouts)) for p in pieces] == [(15, 6, 2), (30, 3, 1)]


def test_counters_travel_as_increments():
    """Each batch carries what was added since the last one that the owner took; a gauge as it is."""
    telemetry = Telemetry()
    increments = Increments(telemetry)
    telemetry.add("greylag_scrapes_total", 5, result="ok")
    telemetry.set("greylag_collector_cpu_ratio", 0.5, worker="w")
    first = increments.take()
    telemetry.add("greylag_scrapes_total", 2, result="ok")
    again = increments.take()
    increments.told()
    second = increments.take()
    assert {row[0]: row[2] for row in first} == {"greylag_scrapes_total": 5, "greylag_collector_cpu_ratio": 0.5}
    assert again == first
    assert {row[0]: row[2] for row in second} == {"greylag_scrapes_total": 2, "greylag_collector_cpu_ratio": 0.5}


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["told", "forget", "again"])), max_size=20))
def test_increments_add_up(steps):
    """Whatever is lost or repeated on the way: what was told adds up to the counter."""
    telemetry, told = Telemetry(), 0.0
    increments = Increments(telemetry)
    for amount, what in [*steps, (0, "told"), (0, "told")]:
        telemetry.add("greylag_scrapes_total", amount, result="ok")
        carried = sum(value for _, _, value in increments.take())
        if what == "told":
            increments.told()
            told += carried
        elif what == "forget":
            increments.forget()
    assert told == telemetry.get("greylag_scrapes_total", result="ok")


def test_a_refused_batch_gives_its_telemetry_to_the_next():
    """What was counted is not lost with a batch that the owner does not take."""
    telemetry, owner = Telemetry(), FakeOwner(("400 Bad", {}))
    telemetry.add("greylag_scrapes_total", 5, result="ok")
    deliver(owner, parcel(15, "a"), parcel(30, "a"), telemetry=telemetry)
    rows = {name: value for name, _, value in owner.batches[0].telemetry}
    assert rows == {"greylag_scrapes_total": 5, "greylag_collector_dropped_total": 1}


def test_what_was_pushed_is_never_dropped():
    """A full queue drops scrapes only; there is no room for more pushes until it has emptied."""
    telemetry = Telemetry()

    async def act():
        handover = Handover("http://127.0.0.1:1", "w", telemetry)
        assert handover.roomy
        kept = [replace(parcel(i, "a"), keep=True) for i in range(MOST_ITEMS // 2)]
        for one in [*kept, *(parcel(i, "b") for i in range(MOST_ITEMS))]:
            handover.put(one)
        out = (handover.roomy, sum(one in kept for one in handover._queue), handover.backlog)
        await handover.aclose()
        return out

    assert asyncio.run(act()) == (False, MOST_ITEMS // 2, MOST_ITEMS)


def test_whoever_waits_hears_of_the_commit():
    """`committed` is called once the owner has the parcel, and not for one that it refuses."""
    told, owner = [], FakeOwner(("400 Bad", {}))
    lots = [replace(parcel(i, "a"), committed=lambda i=i: told.append(i)) for i in (15, 30)]
    deliver(owner, *lots)
    assert told == [30]
