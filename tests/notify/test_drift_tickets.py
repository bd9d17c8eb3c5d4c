"""Slow drift is told as a ticket with the days that are left: once, by every notifier, until it is over for days."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.brain import Brain
from core.clock import TICK_MS
from core.inventory import Inventory
from core.plugins import load_plugins
from core.protocols import NotifierPlugin
from core.types import Incident, Notice, Target
from pipeline.drift import DriftReport, DriftTicket
from pipeline.drift_told import GONE_MS, DriftBook, as_told
from pipeline.herald import NotifyRoute
from pipeline.runbooks import runbook
from tests.notify.receivers import AT, LINKS

HOUR = 3_600_000
PLUGINS: dict[str, NotifierPlugin] = load_plugins("pipeline.notify")
GPU = Target("gpu", "n1", "3", "GPU-1")
TEXT = "gpu.pcie_replays_per_second of n1 GPU 3 went from 1e-05 to 0.0029 1/s in 30 days: DCGM's PCIe health watch in 21 days (19 to 24)"
TICKET = DriftTicket("drift-0123456789ab", GPU, "gpu.pcie_replays_per_second", "1/s", 0.0029, 1e-5, 1e-4, 8 / 60, "DCGM's PCIe health watch",
                     21.3, 19.0, 24.0, "exponential", 1e-9, 30, 1, 1.2e-5, AT, TEXT)
OTHER = replace(TICKET, id="drift-ba9876543210", target=Target("fleet", None, "H100"), parts=40)


def report(hours: float, *tickets: DriftTicket) -> DriftReport:
    return DriftReport(AT + round(hours * HOUR), tickets)


@pytest.mark.parametrize(("reports", "told"), [
    ([None], [[]]),
    ([report(0, TICKET)], [["opened"]]),
    ([report(0, TICKET), report(0, TICKET)], [["opened"], []]),
    ([report(0, TICKET), report(1, TICKET)], [["opened"], ["updated"]]),
    ([report(0, TICKET), report(1), report(2, TICKET)], [["opened"], [], ["updated"]]),
    ([report(0, TICKET), report(71)], [["opened"], []]),
    ([report(0, TICKET), report(72)], [["opened"], ["resolved"]]),
    ([report(0, TICKET), report(72), report(73, TICKET)], [["opened"], ["resolved"], ["opened"]]),
    ([report(0, TICKET), None, report(1, TICKET, OTHER)], [["opened"], [], ["updated", "opened"]]),
], ids=["no report yet", "new", "the same report", "an hour later", "missing for an hour", "missing for less than three days",
        "missing for three days", "it comes back", "a second one"])
def test_a_ticket_is_told_once_and_ends_when_it_was_missing_for_days(reports: list[DriftReport | None], told: list[list[str]]) -> None:
    """A report is taken once; one that misses a ticket does not end it yet."""
    book = DriftBook()
    assert [[word for word, _ in book.update(AT, one)] for one in reports] == told
    assert GONE_MS == 72 * HOUR


def test_a_restart_forgets_no_ticket() -> None:
    """What was told before is not told again, and its beginning stays."""
    book, again = DriftBook(), DriftBook()
    book.update(AT, report(0, TICKET))
    again.load(book.dump())
    ((word, one),) = again.update(AT + HOUR, report(1, TICKET))
    assert (word, one.opened_at, again.open()) == ("updated", AT, (one,))


def body(name: str, one: Incident, event: str = "opened") -> str:
    text = PLUGINS[name].render(Notice(event, AT, one.id, (one,)), LINKS)
    return text or ""


@pytest.mark.parametrize("name", PLUGINS)
def test_every_notifier_tells_the_part_the_days_and_where_to_read_on(name: str) -> None:
    """In the ticket's own words; the link is the list of drift, for there is no incident; the page is about drift."""
    told = json.dumps(json.loads(body(name, as_told(AT, TICKET))), ensure_ascii=False)
    assert [text for text in ("slow_drift", "in 21 days (19 to 24)", "/api/greylag/v1/drift", "/runbooks/slow_drift") if text not in told] == []
    assert "/incidents/" not in told


def test_an_alert_of_drift_is_a_ticket_of_the_infrastructure() -> None:
    """Labels as those of any alert, so that routes and silences of people hold."""
    (row,) = json.loads(body("alertmanager", as_told(AT, TICKET)))
    assert {key: row["labels"][key] for key in ("alertname", "fault", "class", "owner", "node")} == {
        "alertname": "slow_drift", "fault": "slow_drift", "class": "ticket", "owner": "infra", "node": "n1"}


def test_the_page_is_there() -> None:
    """The link of a message leads to what drift is."""
    assert (runbook("slow_drift") or "").startswith("# Slow drift")


def told_by(brain: Brain, at: int) -> list[tuple[str, str]]:
    """(event, class) of the messages of a tick."""
    out = []
    for message in brain.tick(at).commit.outbox:
        row = json.loads(message.body)
        out.append((row["event"], row["class"]))
    return out


def render(notice: Notice, links: Mapping[str, str]) -> str:
    return json.dumps({"event": notice.event, "class": notice.incidents[0].klass})


def brain_with(standing: bool = False) -> Brain:
    plugin = NotifierPlugin("n", object, lambda params: None, render, standing)  # type: ignore[arg-type]
    return Brain({}, {}, Inventory(), routes=(NotifyRoute("n", plugin),))


def test_the_tick_tells_what_the_newest_report_has() -> None:
    """Into the outbox, once; it keeps firing at a receiver that forgets; a restart tells nothing again; the end is told."""
    brain, again = brain_with(standing=True), brain_with(standing=True)
    at = AT // TICK_MS * TICK_MS
    brain.drift_report = report(0, TICKET)
    first, second = told_by(brain, at), told_by(brain, at + TICK_MS)
    assert (first, second, [one.id for one in brain.standing()["n"]]) == ([("opened", "ticket")], [], [TICKET.id])
    again.load(brain.dump().get)
    again.drift_report = report(1, TICKET)
    assert (told_by(again, at + 2 * TICK_MS), brain.open_incidents()) == ([], ())
    again.drift_report = report(80)
    assert (told_by(again, at + 3 * TICK_MS), again.standing()["n"]) == ([("resolved", "ticket")], ())
