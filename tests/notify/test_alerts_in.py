"""What comes in: alerts of others as events and evidence, silences of an Alertmanager as marks; and what is none of it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import rfc3339
from core.errors import BadInput, SourceError
from core.faults import faults
from core.types import Batch, Event, Incident, Target
from pipeline.alerts_in import MEANS, evidence_for, read_alerts
from pipeline.marks import Mark, Marks
from pipeline.silences import LabelMatch, Silence, SilenceBook, read_silences
from tests.notify.receivers import AT, INCIDENT
from tests.pipeline.test_marks import HOT, brain, ticks
from tests.pipeline.worlds import finding, tick

NODES = {"n7", "n8", "gpu-1.cluster.local"}


def alert(status: str = "firing", starts: int = AT - 60_000, ends: int | None = None, **labels: str) -> dict[str, Any]:
    return {"status": status, "labels": {"alertname": "NodeDown", **labels}, "annotations": {"summary": "it is\n down"}, "startsAt": rfc3339(starts),
            "endsAt": "0001-01-01T00:00:00Z" if ends is None else rfc3339(ends), "fingerprint": "f1"}


def taken(*alerts: Any, **more: Any) -> list[Event]:
    return list(read_alerts({"version": "4", "alerts": list(alerts), **more}, AT, NODES, "am").events)


# --- alerts -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("labels", "target"), [
    ({"node": "n7"}, Target("node", "n7")), ({"instance": "n7:9100"}, Target("node", "n7")), ({"Hostname": "n7", "gpu": "3"}, Target("gpu", "n7", "3")),
    ({"instance": "n7.cluster.local:9100"}, Target("node", "n7")), ({"instance": "gpu-1.cluster.local:9400"}, Target("node", "gpu-1.cluster.local")),
    ({"node": "0", "instance": "n8:9100"}, Target("node", "n8")), ({"node": "n8", "interface": "eth0"}, Target("nic", "n8", "eth0")),
    ({"node": "n99"}, Target("fleet")), ({"job": "n7"}, Target("fleet")), ({}, Target("fleet"))])
def test_an_alert_is_on_the_part_that_it_names(labels: dict[str, str], target: Target) -> None:
    """A node of the inventory by any usual label; else it is the fleet's and nobody's evidence."""
    [event] = taken(alert(**labels))
    assert (event.target, event.kind) == (target, "alert")


@pytest.mark.parametrize(("labels", "fault"), [({"alertname": "NodeClockSkewDetected"}, "clock_skew"), ({"alertname": "Ours", "fault": "link_down"}, "link_down"),
                                               ({"alertname": "NodeClockSkewDetected", "fault": "link_down"}, "link_down"), ({"alertname": "Ours"}, None),
                                               ({"alertname": "Ours", "fault": "bad_luck"}, None)])
def test_what_an_alert_means(labels: dict[str, str], fault: str | None) -> None:
    """Its label `fault`, else the table by its name; a word that is no fault means nothing."""
    assert taken(alert(node="n7", **labels))[0].fields["fault"] == fault


def test_the_table_names_faults() -> None:
    """Each of the closed list."""
    assert set(MEANS.values()) <= set(faults())


@pytest.mark.parametrize(("one", "at"), [(alert(starts=AT - 60_000, node="n7"), AT - 60_000), (alert(starts=AT + 60_000, node="n7"), AT),
                                         (alert(starts=AT - 30 * 86_400_000, node="n7"), AT), (alert("resolved", ends=AT - 5_000, node="n7"), AT - 5_000)])
def test_an_alerts_time_lies_in_a_window(one: dict[str, Any], at: int) -> None:
    """When it began or ended; what fires for weeks, or by a clock that is ahead, fires now."""
    assert taken(one)[0].at == at


@pytest.mark.parametrize("changes", [{"generatorURL": "http://greylag:9470/api/greylag/v1/incidents/inc-0123456789ab"}, {"labels": {"alertname": "GreylagWatchdog"}}])
def test_our_own_alert_is_no_evidence(changes: dict[str, Any]) -> None:
    """It came back by somebody's route."""
    found = read_alerts({"version": "4", "alerts": [{**alert(node="n7"), **changes}]}, AT, NODES, "am")
    assert (found.events, found.reasons["own_alert"]) == ((), 1)


@pytest.mark.parametrize(("body", "word"), [
    (None, "the body"), ([], "the body"), ({}, "version"), ({"version": "3", "alerts": []}, "version"), ({"version": "4"}, "alerts"), ({"version": "4", "alerts": "x"}, "alerts"),
    ({"version": "4", "alerts": [{}] * 1001}, "alerts"), ({"version": "4", "alerts": [3]}, "alerts[0].labels"), ({"version": "4", "alerts": [{"labels": {}}]}, "alerts[0].labels"),
    ({"version": "4", "alerts": [{**alert(), "status": "sad"}]}, "alerts[0].status"), ({"version": "4", "alerts": [{**alert(), "startsAt": "noon"}]}, "alerts[0]"),
    ({"version": "4", "alerts": [{**alert(), "labels": {"alertname": 3}}]}, "alerts[0].labels")])
def test_what_is_no_webhook_of_an_alertmanager_is_refused(body: Any, word: str) -> None:
    """One sentence, nothing stored."""
    with pytest.raises(BadInput) as caught:
        read_alerts(body, AT, NODES, "am")
    assert caught.value.where == word


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(), lambda inner: st.lists(inner, max_size=4)
                    | st.dictionaries(st.sampled_from(["version", "alerts", "labels", "status", "startsAt", "endsAt", "alertname", "annotations", "firing", "4"]), inner, max_size=5)))
def test_any_body_is_taken_or_refused(body: Any) -> None:
    """Never another error."""
    with contextlib.suppress(BadInput):
        read_alerts({"version": "4", "alerts": [body]} if not isinstance(body, dict) or "alerts" not in body else {**body, "version": "4"}, AT, NODES, "am")


# --- evidence ---------------------------------------------------------------------------------------------------------
N7 = Target("node", "n7")


def event(at: int = AT, target: Target = N7, status: str = "firing", fault: str | None = None, name: str = "A") -> Event:
    return Event(at, target, "alert", {"alertname": name, "status": status, "fault": fault, "fingerprint": name, "summary": None, "by": "am"})


@pytest.mark.parametrize(("events", "count"), [
    ([event()], 1), ([event(fault="thermal_throttle")], 1), ([event(fault="link_down")], 0), ([event(target=Target("node", "n8"))], 0), ([event(target=Target("fleet"))], 0),
    ([event(target=Target("gpu", "n7", "3"))], 1), ([event(target=Target("gpu", "n7", "4"))], 0), ([event(AT - 10**7, status="resolved")], 0), ([event(status="resolved")], 1),
    ([event(AT + 1)], 0), ([event(AT - 5), event(AT - 4, status="resolved"), event(AT - 3)], 1), ([event(name=f"A{i}") for i in range(9)], 4)])
def test_evidence_is_of_the_part_and_the_fault(events: list[Event], count: int) -> None:
    """Each alert once, of this part or its node, of this fault or of no known one, not over before the onset; four at most."""
    assert len(evidence_for(INCIDENT, events, AT)) == count


def test_an_incident_without_a_node_has_no_such_evidence() -> None:
    """Nothing says that they belong together."""
    assert evidence_for(replace(INCIDENT, culprit=None), [event()], AT) == ()


# --- silences ---------------------------------------------------------------------------------------------------------
def silence(name: str = "s1", end: int = AT + 600_000, start: int = 0, matchers: tuple[LabelMatch, ...] = (LabelMatch("fault", "thermal_throttle"),)) -> Silence:
    return Silence(name, "am", start, end, "ada", "fans on order", matchers)


@pytest.mark.parametrize(("match", "holds"), [
    (LabelMatch("fault", "thermal_throttle"), True), (LabelMatch("fault", "thermal_throttle", equal=False), False), (LabelMatch("fault", "thermal.*", regex=True), True),
    (LabelMatch("fault", "thermal", regex=True), False), (LabelMatch("target", "n7 GPU 3"), True), (LabelMatch("team", ""), True), (LabelMatch("team", "x"), False),
    (LabelMatch("team", "x", equal=False), True), (LabelMatch("fault", "(", regex=True), False), (LabelMatch("fault", "(", regex=True, equal=False), False)])
def test_a_silence_matches_as_alertmanager_does(match: LabelMatch, holds: bool) -> None:
    """A missing label is empty, a pattern matches the whole value, one that cannot be read matches nothing."""
    book = SilenceBook()
    book.replace("am", [silence(matchers=(match,))])
    assert book.holds(INCIDENT, AT) == holds


@pytest.mark.parametrize(("start", "end", "holds"), [(0, AT + 1, True), (0, AT, False), (AT, AT + 1, True), (AT + 1, AT + 2, False)])
def test_a_silence_holds_from_its_start_to_its_end(start: int, end: int, holds: bool) -> None:
    """By cluster time."""
    assert silence(start=start, end=end).holds({"fault": "thermal_throttle"}, AT) == holds


def told(book: SilenceBook, marks: Marks, at: int, incident: Incident = INCIDENT) -> bool:
    """One tick: takes over the marks; whether the incident is silenced."""
    for mark in book.marks(at, [incident], marks.all()):
        marks.add(mark)
    return marks.silenced(incident, at)


def test_a_silence_becomes_one_mark_and_ends_there() -> None:
    """Made, made longer, ended early; each is told once."""
    book, marks = SilenceBook(), Marks()
    book.replace("am", [silence()])
    got = [told(book, marks, AT), told(book, marks, AT + 1)]
    book.replace("am", [silence(end=AT + 900_000)])
    got += [told(book, marks, AT + 2), told(book, marks, AT + 700_000)]
    book.replace("am", [])
    got += [told(book, marks, AT + 700_001), told(book, marks, AT + 700_002)]
    assert got == [True, True, True, True, False, False]
    assert [m.actor for m in marks.all()] == ["alertmanager:ada"] * 3


def test_a_persons_later_word_wins() -> None:
    """Who ends the silence at Greylag has the last word, until another silence is made there."""
    book, marks = SilenceBook(), Marks()
    book.replace("am", [silence()])
    told(book, marks, AT)
    marks.add(Mark(AT + 1, INCIDENT.id, "silence", "eve", "", AT + 1, INCIDENT.fault, INCIDENT.culprit.key))  # type: ignore[union-attr]
    ended = told(book, marks, AT + 2)
    book.replace("am", [silence("s2")])
    assert (ended, told(book, marks, AT + 3)) == (False, True)


def test_a_silence_of_a_person_here_is_not_ended_by_there_being_none_there() -> None:
    """Only what came from there ends there."""
    book, marks = SilenceBook(), Marks()
    marks.add(Mark(AT, INCIDENT.id, "silence", "eve", "", AT + 600_000, INCIDENT.fault, None))
    assert told(book, marks, AT + 1)


def test_silences_survive_a_restart() -> None:
    """Also while their Alertmanager does not answer."""
    book, again = SilenceBook(), SilenceBook()
    book.replace("am", [silence()])
    again.load(book.dump())
    assert again.all() == book.all()


ROW = {"id": "s1", "status": {"state": "active"}, "startsAt": "2026-01-01T00:00:00.000Z", "endsAt": "2026-01-02T00:00:00.000Z", "createdBy": "ada", "comment": "c",
       "matchers": [{"name": "a", "value": "b", "isRegex": False, "isEqual": True}]}


def test_what_alertmanager_answers_is_read() -> None:
    """Active ones hold whatever the clocks say, expired ones are left out, old ones lack isEqual."""
    rows = [ROW, {**ROW, "id": "s2", "status": {"state": "expired"}}, {**ROW, "id": "s3", "status": {"state": "pending"}, "matchers": [{"name": "a", "value": "b", "isRegex": True}]}]
    found = read_silences(json.loads(json.dumps(rows)), "am")
    assert [(one.id, one.start, one.matchers) for one in found] == [("s1", 0, (LabelMatch("a", "b"),)), ("s3", 1_767_225_600_000, (LabelMatch("a", "b", True),))]


@pytest.mark.parametrize("answer", [None, 3, {}, [3], [{}], [{**ROW, "endsAt": "x"}], [{**ROW, "matchers": [{}]}], [{**ROW, "matchers": None}]])
def test_what_cannot_be_read_changes_nothing(answer: Any) -> None:
    """An error by name; `{}` is an empty list to Alertmanager's own clients too."""
    if answer == {}:
        assert read_silences(answer, "am") == ()
        return
    with pytest.raises(SourceError):
        read_silences(answer, "am")


# --- through a brain --------------------------------------------------------------------------------------------------
def test_an_alert_opens_nothing_and_joins_what_is_open() -> None:
    """By itself it is an event; beside a finding it is one more line of evidence, and confidence and culprit are as without it."""
    fired = event(tick(0), Target("node", HOT.node))
    with_alert, without = brain(), brain()
    with_alert.feed(Batch("am", 1, 0, tick(0), (), (), (fired,)))
    alone = ticks(with_alert, 0, 2), with_alert.book.open()
    for site in (with_alert, without):
        ticks(site, 3, 4, finding(HOT, at=tick(3)))
    [one], [other] = with_alert.book.open(), without.book.open()
    assert alone == ([], ())
    assert ([e.signal for e in one.evidence if e not in other.evidence], replace(one, evidence=()), len(one.evidence)) == (
        ["alert"], replace(other, evidence=()), len(other.evidence) + 1)
