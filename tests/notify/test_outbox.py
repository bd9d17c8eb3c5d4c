"""The outbox: at least once, ordered for each incident, back-off with jitter by a seed, dead letters that are seen and sent again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.lanes import AWAY_AFTER, LONGEST_PAUSE_SECONDS, Lanes, pause_seconds
from app.outbox import Courier, OutboxThread
from core.errors import Refused, Unavailable
from core.protocols import NotifierPlugin, TickCommit
from core.telemetry import Telemetry
from core.types import Outbound
from pipeline.herald import NotifyRoute
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter
from tests.notify.receivers import AT, INCIDENT, message, wait_for


class Door:
    """Takes messages but for those whose body says otherwise: `down`, `never`, `slow`; `up` empties the first."""

    resend_seconds = 0.05

    def __init__(self) -> None:
        self.took: list[str] = []
        self.tried: list[str] = []
        self.stood: list[tuple[str | None, bool]] = []
        self.down = True

    def deliver(self, one: Outbound) -> None:
        self.tried.append(one.id)
        if one.body == "never":
            raise Refused("receiver_refused", "HTTP 400")
        if one.body == "broken":
            raise ValueError("nonsense of a receiver")
        if one.body == "down" and self.down:
            raise Unavailable("HTTP 503")
        self.took.append(one.id)

    def stand(self, body: str | None, watchdog: bool) -> None:
        self.stood.append((body, watchdog))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    one = DuckStore(tmp_path / "g.duckdb")
    yield one
    one.close()


@pytest.fixture
def writer(store: DuckStore) -> Iterator[StoreWriter]:
    one = StoreWriter(store)
    yield one
    one.close()


def commit(store: DuckStore, *messages: Outbound, tick: int = AT) -> None:
    store.commit_tick(TickCommit(tick, outbox=messages))


def courier(store: DuckStore, writer: StoreWriter, door: Door) -> Courier:
    """A courier whose rounds the test makes."""
    outbox = OutboxThread(store, writer, {"hook": door}, Telemetry(), seed=1)
    return outbox._couriers[0]


def rounds(one: Courier, *times: float) -> None:
    for now in times:
        one._clock = lambda now=now: now  # type: ignore[misc]
        while one.deliver(now):
            pass


# --- when to try again ------------------------------------------------------------------------------------------------
def test_a_pause_is_doubled_spread_and_the_same_for_the_same_seed() -> None:
    """Half to one and a half of the doubled pause, never more than one and a half of the longest."""
    for tries in range(1, 30):
        usual = min(LONGEST_PAUSE_SECONDS, 0.5 * 2 ** (tries - 1))
        assert all(0.5 * usual <= pause_seconds(tries, seed, "m") <= 1.5 * usual for seed in range(20))
    assert len({pause_seconds(5, seed, "m") for seed in range(20)}) == 20
    assert pause_seconds(5, 3, "m") == pause_seconds(5, 3, "m")


def test_a_receiver_that_asks_for_more_time_gets_it() -> None:
    """Retry-After is a least."""
    lanes = Lanes(1)
    lanes.failed("a", "m", 1, 0.0, 60.0)
    assert (lanes.resting(59.0), lanes.resting(61.0)) == (("a",), ())


def test_a_receiver_that_is_away_is_asked_with_one_message() -> None:
    """Three failures in a row close all lanes for a while; one that is taken opens them."""
    lanes = Lanes(1)
    for i in range(AWAY_AFTER):
        assert lanes.open(0.0)
        lanes.failed(f"lane {i}", f"m{i}", 1, 0.0)
    assert (lanes.away, lanes.open(0.0), lanes.open(10.0)) == (True, False, True)
    lanes.taken("lane 0")
    assert (lanes.away, lanes.open(0.0)) == (False, True)


def test_after_enough_tries_a_message_is_given_up() -> None:
    """Its lane goes on."""
    lanes = Lanes(1, most_tries=3)
    assert [lanes.failed("a", "m", tries, 0.0) for tries in (1, 2, 3)] == [False, False, True]
    assert lanes.resting(0.0) == ()


# --- order ------------------------------------------------------------------------------------------------------------
def test_a_stuck_message_holds_only_its_own_incident_back(store: DuckStore, writer: StoreWriter) -> None:
    """Others go on; within the incident the order stays."""
    door = Door()
    commit(store, message("a1", "a", "down"), message("b1", "b"), message("a2", "a"), message("b2", "b"))
    one = courier(store, writer, door)
    rounds(one, 0.0)
    before = list(door.took)
    door.down = False
    rounds(one, 1000.0, 2000.0)
    assert (before, door.took, store.outbox_pending()) == (["b1", "b2"], ["b1", "b2", "a1", "a2"], [])


def test_a_thousand_stuck_lanes_do_not_hide_the_one_behind_them(store: DuckStore, writer: StoreWriter) -> None:
    """What rests is left out of what is read."""
    door = Door()
    commit(store, *(message(f"s{i}", f"s{i}", "down") for i in range(1000)), message("new", "new"))
    one = courier(store, writer, door)
    for i in range(1000):
        one.lanes._until[f"s{i}"] = 1e9
    rounds(one, 1.0)
    assert door.took == ["new"]


def test_tries_are_counted_over_a_restart(store: DuckStore, writer: StoreWriter) -> None:
    """The store keeps them, with what the receiver said."""
    commit(store, message("a1", "a", "down"))
    rounds(courier(store, writer, Door()), 0.0, 500.0)
    rounds(courier(store, writer, Door()), 0.0)
    [row] = store.outbox_rows()
    assert (row["state"], row["tries"], row["error"]) == ("waiting", 3, "HTTP 503")


def test_nonsense_of_a_receiver_ends_nothing(store: DuckStore, writer: StoreWriter) -> None:
    """Any error is a failed try."""
    door = Door()
    commit(store, message("a1", "a", "broken"), message("b1", "b"))
    rounds(courier(store, writer, door), 0.0)
    assert (door.took, store.outbox_rows()[0]["error"]) == (["b1"], "ValueError")


# --- dead letters -----------------------------------------------------------------------------------------------------
def test_a_dead_letter_is_seen_and_sent_again(store: DuckStore, writer: StoreWriter) -> None:
    """In the list, in the store's statistics and in the metrics; then taken."""
    door = Door()
    commit(store, message("a1", "a", "never"), message("b1", "b"))
    one = courier(store, writer, door)
    rounds(one, 0.0)
    [row] = store.outbox_rows(dead_only=True)
    seen = (row["id"], row["state"], store.record_stats()["dead_letters"], one._outbox.telemetry.get("greylag_outbox_dead", notifier="hook"))
    door.deliver = lambda m: door.took.append(m.id)  # type: ignore[method-assign]
    one._outbox.resend("a1")
    rounds(one, 1.0)
    assert seen == ("a1", "receiver_refused", 1, 1.0)
    assert (door.took, store.outbox_rows()) == (["b1", "a1"], [])


def test_a_dead_letter_lets_what_follows_pass_and_is_then_old(store: DuckStore, writer: StoreWriter) -> None:
    """The end of the incident was delivered: sending the opening again would open it anew."""
    door = Door()
    commit(store, message("a1", "a", "never"), message("a2", "a"))
    rounds(courier(store, writer, door), 0.0)
    with pytest.raises(Refused) as caught:
        store.outbox_resend("a1")
    assert (door.took, caught.value.reason) == (["a2"], "superseded")


def test_only_what_was_given_up_is_sent_again(store: DuckStore, writer: StoreWriter) -> None:
    """Not what waits, not what was delivered, not what nobody knows."""
    door = Door()
    commit(store, message("a1", "a"), message("b1", "b", "down"))
    rounds(courier(store, writer, door), 0.0)
    for name, error in (("a1", Refused), ("b1", Refused), ("none", KeyError)):
        with pytest.raises(error):
            store.outbox_resend(name)


def test_what_was_for_a_notifier_that_is_gone_is_a_dead_letter(store: DuckStore, writer: StoreWriter) -> None:
    """It does not wait unseen for ever."""
    commit(store, message("a1", "a", notifier="old"), message("b1", "b", "down"))
    outbox = OutboxThread(store, writer, {"hook": Door()}, Telemetry())
    outbox.start()
    outbox.stop()
    assert [(row["id"], row["state"]) for row in store.outbox_rows(dead_only=True)] == [("a1", "no_notifier")]


def test_old_messages_go(store: DuckStore) -> None:
    """What was delivered is kept for 30 days; what waits stays."""
    commit(store, message("a1", "a"), message("b1", "b"))
    store.outbox_done("a1", "delivered")
    later = AT + 31 * 86_400_000
    commit(store, Outbound("c1", "hook", "c", later, "{}"), tick=later)
    assert (store.record_stats()["outbox"], [m.id for m in store.outbox_pending()]) == (2, ["b1", "c1"])


# --- several notifiers, and what stands -------------------------------------------------------------------------------
def test_a_receiver_that_hangs_holds_no_other_back(store: DuckStore, writer: StoreWriter) -> None:
    """Each notifier has a thread of its own."""
    hang, quick = threading.Event(), Door()

    class Slow(Door):
        def deliver(self, one: Outbound) -> None:
            hang.wait(10)

    commit(store, message("a1", "a", notifier="slow"), message("a1b", "a", notifier="quick"))
    outbox = OutboxThread(store, writer, {"slow": Slow(), "quick": quick}, Telemetry())
    outbox.start()
    try:
        assert wait_for(lambda: quick.took == ["a1b"])
        assert outbox.lag_seconds(1e12) > 0
    finally:
        hang.set()
        outbox.stop()


def test_what_fires_is_said_again_until_it_ends(store: DuckStore, writer: StoreWriter) -> None:
    """Each resend_seconds; not after the end was committed, whatever the last tick said."""
    door = Door()
    route = NotifyRoute("am", NotifierPlugin("am", object, lambda p: door, lambda n, links: ",".join(i.id for i in n.incidents), standing=True))
    outbox = OutboxThread(store, writer, {"am": door}, Telemetry(), [route], well=lambda: True)
    outbox.stands(AT, {"am": (INCIDENT,)})
    outbox.start()
    try:
        assert wait_for(lambda: len(door.stood) >= 3)
        outbox.ended([INCIDENT.id])
        seen = len(door.stood)
        assert wait_for(lambda: len(door.stood) >= seen + 2)
    finally:
        outbox.stop()
    assert door.stood[0] == (INCIDENT.id, True)
    assert door.stood[-1] == (None, True)


def test_a_standing_notifier_that_fails_is_tried_again(store: DuckStore, writer: StoreWriter) -> None:
    """Earlier than its next time, not at once."""
    door = Door()

    def broken(body: str | None, watchdog: bool) -> None:
        raise Unavailable("HTTP 503")

    door.stand = broken  # type: ignore[method-assign]
    route = NotifyRoute("am", NotifierPlugin("am", object, lambda p: door, lambda n, links: None, standing=True))
    outbox = OutboxThread(store, writer, {"am": door}, Telemetry(), [route])
    one = outbox._couriers[0]
    one.stand(100.0)
    assert 100.0 < one._resend_at <= 100.05
