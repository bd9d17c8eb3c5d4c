"""A courier that fails, hangs or dies: notification is further behind with every second, so that the heartbeat and the watchdog stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app import heartbeat
from app.heartbeat import STALE_SECONDS, Heartbeat, lags
from app.outbox import OutboxThread
from app.owner import Owner
from core.clock import monotonic_seconds
from core.config import HeartbeatConfig, LagLimits, read_config
from core.errors import GreylagError
from core.protocols import NotifierPlugin, TickCommit
from core.telemetry import Telemetry
from core.types import Outbound
from pipeline.herald import NotifyRoute
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter
from tests.notify.receivers import AT, INCIDENT, Receiver, message, wait_for

LIMITS = LagLimits(120.0, 60.0, 300.0)
LATER = 400.0  # seconds: more than notify may be behind


class Door:
    """Takes what comes; `fails` is raised first, where there is one."""

    resend_seconds = 0.05

    def __init__(self) -> None:
        self.took: list[str] = []
        self.fails: BaseException | None = None

    def deliver(self, one: Outbound) -> None:
        if self.fails is not None:
            raise self.fails
        self.took.append(one.id)

    def stand(self, body: str | None, watchdog: bool) -> None:
        return


class Place:
    """A store, a door and a heartbeat over the couriers. ahead: how many seconds later it looks."""

    def __init__(self, folder: Path, url: str) -> None:
        self.store, self.door, self.telemetry = DuckStore(folder / "g.duckdb"), Door(), Telemetry()
        self.writer = StoreWriter(self.store)
        self.ahead = 0.0
        self.heart = Heartbeat(HeartbeatConfig(url, None, 60.0, LIMITS), self._lags, self.telemetry)
        self.outbox = self.couriers()

    def couriers(self, *routes: NotifyRoute, now_ms: int = AT) -> OutboxThread:
        """The couriers of a process that starts now."""
        self.outbox = OutboxThread(self.store, self.writer, {"hook": self.door}, self.telemetry, routes, 1, self.heart.well, lambda: now_ms)
        return self.outbox

    def _lags(self) -> dict[str, float | None]:
        return lags(AT, {"c0": 1.0}, AT, self.outbox.lag_seconds(monotonic_seconds() + self.ahead))

    def commit(self, *messages: Outbound) -> None:
        """A tick that tells these."""
        self.store.commit_tick(TickCommit(AT, outbox=messages))

    def well(self, ahead: float = 0.0) -> bool:
        """What the heartbeat says so many seconds later, without a courier's having done anything in between."""
        self.ahead = ahead
        self.heart.look(1000.0 * (1.0 + ahead))
        return self.heart.well()

    def close(self) -> None:
        self.outbox.stop()
        self.writer.close()
        self.store.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


@pytest.fixture
def place(tmp_path: Path, receiver: Receiver) -> Iterator[Place]:
    one = Place(tmp_path, receiver.url)
    yield one
    one.close()


def rounds(place: Place, now: float) -> None:
    """All that a courier has to do at `now`."""
    [one] = place.outbox._couriers
    one._clock = lambda: now
    while one.deliver(now):
        pass


# --- how old the oldest message is ------------------------------------------------------------------------------------
def test_a_message_grows_old_without_a_courier(place: Place) -> None:
    """Its age needs nobody to look."""
    place.door.fails = GreylagError("away")
    place.commit(message("a1"))
    rounds(place, 0.0)
    assert [place.outbox.lag_seconds(now) for now in (0.0, 10.0, 5000.0)] == [0.0, 10.0, 5000.0]


def test_a_message_is_as_old_as_its_tick(place: Place) -> None:
    """A restart does not make it young, nor does a wait behind another one in its lane."""
    place.commit(message("a1"), message("a2"))
    place.couriers(now_ms=AT + 600_000)
    place.door.fails = GreylagError("away")
    rounds(place, 0.0)
    first = place.outbox.lag_seconds(1.0)
    place.outbox._couriers[0].lanes._until.clear()
    place.door.deliver = lambda one: place.door.took.append(one.id) if one.id == "a1" else _away()  # type: ignore[method-assign]
    rounds(place, 50.0)
    assert (first, place.door.took, place.outbox.lag_seconds(51.0)) == (601.0, ["a1"], 601.0)


def _away() -> None:
    raise GreylagError("away")


def test_a_dead_letter_that_is_sent_again_waits_since_then(place: Place) -> None:
    """However old it is: a person has just asked for it."""
    place.commit(message("a1"))
    place.store.outbox_done("a1", "gave_up")
    place.couriers(now_ms=AT + 86_400_000)
    place.door.fails = GreylagError("away")
    place.outbox.resend("a1")
    rounds(place, 0.0)
    assert place.outbox.lag_seconds(7.0) == 7.0


def test_a_letter_that_cannot_be_sent_again_is_not_remembered(place: Place) -> None:
    """It may come again under the same id."""
    with pytest.raises(KeyError):
        place.outbox.resend("none")
    assert place.outbox._anew == set()


def test_couriers_that_work_are_not_behind(place: Place, receiver: Receiver) -> None:
    """What was delivered waits no more, and one that is told to end has not died."""
    place.commit(message("a1"))
    place.outbox.start()
    assert wait_for(lambda: place.door.took == ["a1"] and not place.outbox._couriers[0]._waits)
    assert (place.well(), len(receiver.got)) == (True, 1)
    place.outbox.stop()
    assert place.well()


# --- one that fails ---------------------------------------------------------------------------------------------------
def broken(place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The store's answers end in an error."""

    def heads(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(place.store, "outbox_heads", heads)


def test_an_unexpected_error_is_counted_and_the_courier_goes_on(place: Place, receiver: Receiver, monkeypatch: pytest.MonkeyPatch,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    """The heartbeat stops while it lasts; it is told once with its place in the code; then all is delivered and well."""
    broken(place, monkeypatch, RuntimeError("nobody expected this"))
    place.outbox.start()
    assert wait_for(lambda: place.telemetry.get("greylag_courier_errors_total", notifier="hook") >= 3)
    place.commit(message("a1"))
    assert (place.outbox.is_alive(), place.well(LATER), receiver.got) == (True, False, [])
    assert place.telemetry.get("greylag_lag_seconds", part="notify") > LATER
    monkeypatch.undo()
    assert wait_for(lambda: place.door.took == ["a1"])
    assert wait_for(place.well)
    said = capsys.readouterr().err
    assert (said.count("nobody expected this\n"), said.count("Traceback")) == (2, 1)


def test_a_store_that_says_no_is_behind_as_well(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that was expected counts as no unexpected one, and the lag grows all the same."""
    broken(place, monkeypatch, GreylagError("the store could not answer"))
    place.outbox.start()
    wait_for(lambda: place.outbox._couriers[0]._failing is not None)
    assert (place.well(LATER), place.telemetry.get("greylag_courier_errors_total", notifier="hook")) == (False, 0)


def test_one_that_cannot_say_what_fires_is_behind(place: Place) -> None:
    """Messages go on; what stands is not posted, and that is no health."""

    def render(notice: object, links: object) -> str:
        raise TypeError("no such field")

    place.couriers(NotifyRoute("hook", NotifierPlugin("hook", object, lambda p: place.door, render, standing=True)))
    place.outbox.stands(AT, {"hook": (INCIDENT,)})
    place.outbox.start()
    place.commit(message("a1"))
    assert wait_for(lambda: place.door.took == ["a1"])
    assert wait_for(lambda: place.telemetry.get("greylag_courier_errors_total", notifier="hook") >= 2)
    assert (place.well(), place.well(LATER)) == (True, False)
    place.outbox.stands(AT, {})
    assert wait_for(lambda: place.outbox._couriers[0]._failing is None)


# --- one that has died ------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_courier_is_not_well_at_once(place: Place, receiver: Receiver) -> None:
    """Nothing is known of what it should deliver: the heartbeat stops, and the number of before is not shown any more."""
    place.outbox.start()
    assert place.well()
    place.door.fails = SystemExit()
    place.commit(message("a1"))
    assert wait_for(lambda: not place.outbox.is_alive())
    assert (place.outbox.lag_seconds(monotonic_seconds()), place.well(0.1), len(receiver.got)) == (None, False, 1)
    shown = [dict(labels)["part"] for labels in place.telemetry.rows("greylag_lag_seconds")]
    assert sorted(shown) == ["detect", "ingest"]


# --- one that hangs ---------------------------------------------------------------------------------------------------
def hang(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The store answers no more, until what is given is called."""
    free, heads = threading.Event(), place.store.outbox_heads

    def waiting(*args: Any) -> Any:
        free.wait(30)
        return heads(*args)

    monkeypatch.setattr(place.store, "outbox_heads", waiting)
    return free.set


def test_a_store_that_hangs_stops_the_heartbeat(place: Place, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nothing was known to wait; it comes again once the store answers."""
    place.outbox.start()
    assert place.well()
    free = hang(place, monkeypatch)
    place.commit(message("a1"))
    try:
        threading.Event().wait(0.2)
        assert (place.well(LATER), len(receiver.got), place.door.took) == (False, 1, [])
    finally:
        free()
    assert wait_for(lambda: place.door.took == ["a1"])
    assert wait_for(place.well)


def test_a_measurement_that_hangs_is_not_well(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lags come from the same store: the watchdog does not go on with the last answer for ever."""
    assert place.well()
    later = monotonic_seconds() + STALE_SECONDS + 1
    monkeypatch.setattr(heartbeat, "monotonic_seconds", lambda: later)
    assert not place.heart.well()


# --- the owner ------------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_owner_judges_by_it(tmp_path: Path, receiver: Receiver) -> None:
    """Its own lags know a courier that works, and one that has died."""
    (tmp_path / "greylag.yaml").write_text("data_dir: data\nlisten: 127.0.0.1:0\n"
                                           f"notify: [{{name: alertmanager, id: hook, url: '{receiver.url}'}}]\n")
    owner = Owner(read_config(tmp_path / "greylag.yaml"))
    try:
        owner.outbox.start()
        [one] = owner.outbox._couriers
        assert 0.0 <= (owner.lags()["notify"] or 0.0) < 60.0
        one.round = lambda: (_ for _ in ()).throw(SystemExit())  # type: ignore[method-assign]
        assert wait_for(lambda: not one.is_alive())
        assert owner.lags()["notify"] is None
    finally:
        owner.outbox.stop()
        owner.writer.close()
        owner.store.close()
        owner.loop.close()
