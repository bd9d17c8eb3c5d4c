"""The sign of life: it stops when ingest, detect or notify is beyond its limit or unknown, and so does the watchdog alert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.heartbeat import Heartbeat, behind, lags
from app.silence_watch import SilenceWatch
from core.config import HeartbeatConfig, LagLimits
from core.telemetry import Telemetry
from pipeline.notify.alertmanager import Alertmanager, Params
from pipeline.silences import SilenceBook
from tests.notify.receivers import AT, Receiver

LIMITS = LagLimits(120.0, 60.0, 300.0)
WELL = {"ingest": 1.0, "detect": 1.0, "notify": 0.0}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


@pytest.mark.parametrize(("workers", "tick", "waiting", "late"), [
    ({"c0": 5.0}, AT - 15_000, 0.0, []), ({"c0": 5.0, "c1": 121.0}, AT, 0.0, ["ingest"]), ({"c0": 5.0}, AT - 61_000, 0.0, ["detect"]), ({"c0": 5.0}, AT, 301.0, ["notify"]),
    ({}, AT, 0.0, ["ingest"]), ({"c0": 5.0}, None, 0.0, ["detect"]), ({"c0": 120.0}, AT - 60_000, 300.0, []), ({"c0": 500.0}, None, 999.0, ["ingest", "detect", "notify"]),
    ({"c0": 5.0}, AT + 90_000, 0.0, [])])
def test_a_part_is_late_beyond_its_limit(workers: dict[str, float], tick: int | None, waiting: float, late: list[str]) -> None:
    """The slowest collector counts; nothing known is not well."""
    assert behind(lags(AT, workers, tick, waiting), LIMITS) == late


def test_it_beats_at_its_interval_while_all_is_well(receiver: Receiver) -> None:
    """Not more often than asked, not while anything is late, and again once it is not."""
    now = dict(WELL)
    heart = Heartbeat(HeartbeatConfig(receiver.url + "/ping/id", None, 60.0, LIMITS), lambda: now, Telemetry())
    seen = []
    for at, detect in ((100.0, 1.0), (130.0, 1.0), (160.0, 1.0), (220.0, 61.0), (400.0, 61.0), (410.0, 1.0)):
        now["detect"] = detect
        heart.look(at)
        seen.append((len(receiver.got), heart.well()))
    assert seen == [(1, True), (1, True), (2, True), (2, False), (2, False), (3, True)]


def test_what_cannot_be_measured_is_not_well(receiver: Receiver) -> None:
    """An error of the measuring stops the heart, not the thread."""

    def broken() -> dict[str, float | None]:
        raise RuntimeError("no store")

    heart = Heartbeat(HeartbeatConfig(receiver.url, None, 60.0, LIMITS), broken, Telemetry())
    heart.look(100.0)
    assert (heart.well(), receiver.got) == (False, [])


def test_a_receiver_that_fails_is_counted_and_its_address_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The address may be the secret."""
    (tmp_path / "url").write_text("http://127.0.0.1:9/tell-nobody\n")
    telemetry = Telemetry()
    heart = Heartbeat(HeartbeatConfig(None, "url", 60.0, LIMITS), lambda: WELL, telemetry, lambda name: tmp_path / name)
    heart.look(100.0)
    assert telemetry.get("greylag_heartbeats_total", result="failed") == 1
    assert "tell-nobody" not in capsys.readouterr().err
    assert telemetry.get("greylag_lag_seconds", part="ingest") == 1.0


def test_it_is_not_well_before_the_first_look() -> None:
    """The watchdog alert does not fire for a Greylag that has judged nothing."""
    assert not Heartbeat(HeartbeatConfig(), lambda: WELL, Telemetry()).well()


def test_an_alertmanager_that_does_not_answer_keeps_its_silences(capsys: pytest.CaptureFixture[str]) -> None:
    """What it last said holds; it is said once that it does not answer."""
    book = SilenceBook()
    door = Alertmanager(Params("http://127.0.0.1:9", poll_seconds=1.0, timeout_seconds=0.5))
    watch = SilenceWatch({"am": door}, book, Telemetry(), lambda: AT)
    book.load('{"am": [{"id": "s", "source": "am", "start": 0, "end": 9, "by": "ada", "comment": "", "matchers": []}]}')
    for now in (1.0, 1.5, 2.5):
        watch.look(now)
    assert ([one.id for one in book.all()], capsys.readouterr().err.count("could not be read")) == (["s"], 1)
