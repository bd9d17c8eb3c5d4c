"""What each notifier sends: its receiver's form, that receiver's limits, signatures, and secrets that stand nowhere else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.clock import wall_ms
from core.errors import ConfigError, Refused, Unavailable
from core.plugins import load_plugins
from core.protocols import NotifierPlugin
from core.signing import key_of, read_secret, signature, unsigned_reason
from core.types import Evidence, Incident, Target
from pipeline.notify import alertmanager, pagerduty, slack, webhook
from pipeline.notify.posting import Busy, cut_bytes
from tests.notify.receivers import AT, INCIDENT, LINKS, Receiver, incident, message, notice

PLUGINS: dict[str, NotifierPlugin] = load_plugins("pipeline.notify")
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
HOSTILE = replace(INCIDENT, id="inc-ffffffffffff", fault="<!channel> & co", culprit=Target("gpu", "n" * 5000, "d" * 5000), jobs=tuple("j" * 900 for _ in range(300)),
                  evidence=tuple(Evidence("s" * 3000, "u" * 3000, float("nan"), 1.0, "c" * 3000) for _ in range(12)), owner="o" * 2000)
MANY = tuple(incident(i) for i in range(1200))
EVENTS = ("opened", "reopened", "proposed", "escalated", "acknowledged", "notify", "resolved", "merged")
STORMS = ("storm", "storm_updated", "storm_ended")


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    """A function that starts a receiver."""
    started: list[Receiver] = []

    def start(*statuses: int, **more: Any) -> Receiver:
        started.append(Receiver(*statuses, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def secret(folder: Path, text: str, name: str = "secret") -> str:
    path = folder / name
    path.write_text(text + "\n")
    return str(path)


def rendered(name: str, event: str, *incidents: Incident, **changes: object) -> Any:
    body = PLUGINS[name].render(notice(event, *incidents, **changes), LINKS)
    return None if body is None else json.loads(body)


# --- all of them ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("one", [INCIDENT, HOSTILE, replace(INCIDENT, culprit=None, evidence=(), jobs=())], ids=["usual", "hostile", "bare"])
def test_every_event_has_a_form_or_is_nothing(name: str, event: str, one: Incident) -> None:
    """JSON, or None where the receiver has no such thing; the same for the same notice."""
    closed = replace(one, state="resolved", resolved_at=AT) if event == "resolved" else one
    assert rendered(name, event, closed) == rendered(name, event, closed)


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("event", STORMS)
def test_a_storm_is_one_body(name: str, event: str) -> None:
    """1,200 incidents at once go in one message, within 512 KB (Alertmanager takes them as 1,200 alerts)."""
    members = tuple(replace(one, state="resolved", resolved_at=AT) for one in MANY) if event == "storm_ended" else MANY
    body = PLUGINS[name].render(notice(event, *members, key="storm-1"), LINKS)
    assert body is not None
    assert len(body) < 512 * 1024 or name == "alertmanager"


@pytest.mark.parametrize("name", ["pagerduty", "slack", "webhook"])
def test_the_end_of_a_storm_needs_no_members(name: str) -> None:
    """They ended at earlier ticks: the end is told all the same."""
    assert rendered(name, "storm_ended", key="storm-1", total=40, still_open=0) is not None


# --- Alertmanager -----------------------------------------------------------------------------------------------------
def test_an_alerts_labels_are_what_people_route_and_silence_by() -> None:
    """Fault, target, owner and class; the incident's id, its page and the fault's are annotations."""
    [alert] = rendered("alertmanager", "opened", INCIDENT)
    assert alert["labels"] == {"alertname": "thermal_throttle", "fault": "thermal_throttle", "target": "n7 GPU 3", "node": "n7", "owner": "infra",
                               "class": "page"}
    assert (alert["annotations"]["incident"], alert["annotations"]["runbook_url"], alert["annotations"]["link"]) == (
        "inc-0123456789ab", "http://greylag:9470/runbooks/thermal_throttle", "http://greylag:8501/incident?incident=inc-0123456789ab")
    assert "endsAt" not in alert


@pytest.mark.parametrize("changes", [{"state": "acting"}, {"confidence": 0.3}, {"id": "inc-ffffffffffff"}, {"jobs": ("a", "b")}, {"scope": "node"},
                                     {"victims": (Target("node", "n1"),)}])
def test_a_silence_survives_every_change_but_that_of_the_part(changes: dict[str, object]) -> None:
    """The labels stay, also for the next incident on the same part."""
    assert alertmanager.labels_of(replace(INCIDENT, **changes)) == alertmanager.labels_of(INCIDENT)  # type: ignore[arg-type]


def test_an_incident_that_ended_ends_its_alert() -> None:
    """endsAt is the resolution, and never before the start."""
    [alert] = rendered("alertmanager", "resolved", replace(INCIDENT, state="resolved", resolved_at=AT + 60_000))
    assert (alert["startsAt"], alert["endsAt"]) == ("2026-09-21T14:12:30.000Z", "2026-09-21T14:14:30.000Z")


def test_what_stands_is_posted_in_pieces_with_the_watchdog(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """450 alerts in three requests with the token, the one that always fires among them; not so while Greylag is not well."""
    one = receiver()
    door = alertmanager.Alertmanager(alertmanager.Params(one.url, secret(tmp_path, "tell-nobody")))
    body = PLUGINS["alertmanager"].render(notice("standing", *MANY[:450]), LINKS)
    door.stand(body, True)
    door.stand(None, False)
    names = [alert["labels"]["alertname"] for _, _, posted in one.got for alert in json.loads(posted)]
    assert ([path for path, _, _ in one.got], len(names), names.count("GreylagWatchdog")) == (["/api/v2/alerts"] * 3, 451, 1)
    assert {headers["authorization"] for _, headers, _ in one.got} == {"Bearer tell-nobody"}


@pytest.mark.parametrize("params", [{"url": "alertmanager:9093"}, {"url": "http://x", "resend_seconds": 300.0}, {"url": "http://x", "resend_seconds": 0.0}])
def test_a_bad_alertmanager_is_refused_at_the_start(params: dict[str, Any]) -> None:
    """An address that is none; a resend so rare that Alertmanager would end the alert."""
    with pytest.raises(ConfigError):
        alertmanager.Alertmanager(alertmanager.Params(**params))


# --- PagerDuty --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("event", "action"), [("opened", "trigger"), ("reopened", "trigger"), ("escalated", "trigger"), ("acknowledged", "acknowledge"),
                                               ("resolved", "resolve"), ("merged", "resolve"), ("storm", "trigger"), ("storm_ended", "resolve")])
def test_pagerduty_joins_events_by_the_incident(event: str, action: str) -> None:
    """Trigger, acknowledge and resolve carry one key."""
    found = rendered("pagerduty", event, INCIDENT)
    assert (found["event_action"], found["dedup_key"]) == (action, INCIDENT.id)


@pytest.mark.parametrize(("klass", "severity"), [("page", "critical"), ("ticket", "warning"), ("log", "info")])
def test_pagerdutys_severity_is_the_class(klass: str, severity: str) -> None:
    """So that a ticket wakes nobody."""
    assert rendered("pagerduty", "opened", replace(INCIDENT, klass=klass))["payload"]["severity"] == severity


@pytest.mark.parametrize(("event", "incidents"), [("opened", (HOSTILE,)), ("storm", MANY)])
def test_pagerduty_keeps_its_limits(event: str, incidents: tuple[Incident, ...]) -> None:
    """Summary, key, source and the whole event."""
    body = PLUGINS["pagerduty"].render(notice(event, *incidents), LINKS) or ""
    payload = json.loads(body)["payload"]
    assert (len(payload["summary"]) <= 1024, len(payload["source"]) <= 255, len(json.loads(body)["dedup_key"]) <= 255,
            len(body.encode()) < pagerduty.LARGEST_EVENT) == (True,) * 4


def test_pagerdutys_key_is_put_in_when_the_message_leaves(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """It is not in the store's body, and a new key needs no restart."""
    one, key = receiver(202, 202), "k" * 32
    body = PLUGINS["pagerduty"].render(notice("opened", INCIDENT), LINKS) or ""
    door = pagerduty.PagerDuty(pagerduty.Params(secret(tmp_path, key), one.url + "/v2/enqueue"))
    door.deliver(message("m", body=body))
    secret(tmp_path, "n" * 32)
    door.deliver(message("m", body=body))
    assert key not in body
    assert [json.loads(sent)["routing_key"] for _, _, sent in one.got] == [key, "n" * 32]


# --- Slack ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("event", "incidents"), [("opened", (INCIDENT,)), ("opened", (HOSTILE,)), ("storm", MANY), ("storm_ended", ())])
def test_slack_keeps_its_limits(event: str, incidents: tuple[Incident, ...]) -> None:
    """Blocks, header, sections, buttons, and all of them together."""
    found = rendered("slack", event, *incidents)
    blocks = found["blocks"]
    assert len(blocks) <= 50
    assert len(json.dumps(blocks, ensure_ascii=False)) <= slack.MOST_TEXT + 1000
    for block in blocks:
        limit = {"header": 150, "section": 3000}.get(block["type"])
        assert limit is None or len(block["text"]["text"]) <= limit
    marked = [found["text"], *(block["text"]["text"] for block in blocks if block.get("text", {}).get("type") == "mrkdwn")]
    assert not any("<" in text for text in marked)


def test_a_page_mentions_and_a_ticket_does_not(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """The mention is the configuration's own markup."""
    one = receiver()
    door = slack.Slack(slack.Params(secret(tmp_path, one.url + "/services/T/B/x"), "<!here>"))
    for klass in ("page", "ticket"):
        door.deliver(message(klass, body=PLUGINS["slack"].render(notice("opened", replace(INCIDENT, klass=klass)), LINKS) or ""))
    first, second = (json.loads(body) for _, _, body in one.got)
    assert (first["text"].startswith("<!here> "), "<!here>" in json.dumps(second), "page" in first) == (True, False, False)


def test_a_slack_address_is_in_no_error(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """It is the secret: neither a refusal nor a lost connection shows it."""
    one = receiver(404)
    for url in (one.url + "/services/T/B/tell-nobody", "http://127.0.0.1:9/services/tell-nobody"):
        door = slack.Slack(slack.Params(secret(tmp_path, url), timeout_seconds=1.0))
        with pytest.raises((Refused, Unavailable)) as caught:
            door.deliver(message("m", body=PLUGINS["slack"].render(notice("opened", INCIDENT), LINKS) or ""))
        assert "tell-nobody" not in str(caught.value)


# --- signed JSON ------------------------------------------------------------------------------------------------------
def test_a_signature_is_that_of_the_specification() -> None:
    """Its published example."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "example")
    body = b'{"test": 2432232314}'
    assert signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_signed_json_is_believed_by_a_receiver(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """The id is the message's at each try, the signature of this body and of now."""
    one = receiver(503)
    door = webhook.Webhook(webhook.Params(one.url, secret(tmp_path, SECRET)))
    body = PLUGINS["webhook"].render(notice("opened", INCIDENT), LINKS) or ""
    with pytest.raises(Unavailable):
        door.deliver(message("m1", body=body))
    door.deliver(message("m1", body=body))
    key = key_of(SECRET, "x")
    assert [unsigned_reason(key, headers, sent, wall_ms() // 1000) for _, headers, sent in one.got] == [None, None]
    assert [headers["webhook-id"] for _, headers, _ in one.got] == ["m1", "m1"]
    assert (json.loads(body)["type"], json.loads(body)["data"]["incidents"][0]["class"]) == ("incident.opened", "page")


@pytest.mark.parametrize(("headers", "body", "now", "why"), [
    ({}, b"{}", 1000, None), ({"webhook-signature": ""}, b"{}", 1000, "unsigned"), ({"webhook-id": ""}, b"{}", 1000, "unsigned"),
    ({"webhook-timestamp": "soon"}, b"{}", 1000, "unsigned"), ({}, b"{ }", 1000, "bad_signature"), ({"webhook-id": "m2"}, b"{}", 1000, "bad_signature"),
    ({"webhook-timestamp": "1001"}, b"{}", 1000, "bad_signature"), ({"webhook-signature": "v1,AAAA"}, b"{}", 1000, "bad_signature"),
    ({}, b"{}", 1301, "old_message"), ({}, b"{}", 699, "old_message"), ({}, b"{}", 1300, None)])
def test_what_is_not_believed_has_a_name(headers: dict[str, str], body: bytes, now: int, why: str | None) -> None:
    """Changed, foreign, unsigned, or of another time."""
    key = b"k" * 32
    good = {"webhook-id": "m1", "webhook-timestamp": "1000", "webhook-signature": "v1,zzzz " + signature(key, "m1", 1000, b"{}")}
    assert unsigned_reason(key, {**good, **headers}, body, now) == why


def test_a_large_body_leaves_incidents_out_and_says_so() -> None:
    """Within 256 KB."""
    body = PLUGINS["webhook"].render(notice("storm", *(replace(HOSTILE, id=f"inc-{i}") for i in range(100))), LINKS) or ""
    data = json.loads(body)["data"]
    assert (len(body.encode()) <= webhook.LARGEST_BODY, data["left_out"] + len(data["incidents"])) == (True, 100)


# --- secrets and answers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["", "whsec_", "whsec_short", "not base64!", "whsec_" + "A" * 400])
def test_a_secret_of_another_form_is_named_without_its_text(text: str, tmp_path: Path) -> None:
    """One sentence with the file; nothing is sent."""
    door = webhook.Webhook(webhook.Params("http://127.0.0.1:9", secret(tmp_path, text)))
    with pytest.raises((ConfigError, Unavailable)) as caught:
        door.deliver(message("m"))
    assert "secret" in str(caught.value)
    assert len(text) < 8 or text not in str(caught.value)


def test_a_secret_that_cannot_be_read_is_worth_another_try(tmp_path: Path) -> None:
    """Somebody may mend it; the message waits."""
    with pytest.raises(Unavailable):
        read_secret(str(tmp_path / "none"))


@pytest.mark.parametrize(("status", "error"), [(500, Unavailable), (503, Unavailable), (429, Unavailable), (408, Unavailable), (302, Refused), (400, Refused), (410, Refused)])
def test_answers_mean_the_same_to_all(receiver: Callable[..., Receiver], tmp_path: Path, status: int, error: type[Exception]) -> None:
    """5xx, 408 and 429 are worth another try, all else is final."""
    with pytest.raises(error):
        webhook.Webhook(webhook.Params(receiver(status).url, secret(tmp_path, SECRET))).deliver(message("m"))


def test_a_busy_receiver_says_when(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """Retry-After is heeded."""
    one = receiver(429, headers={"Retry-After": "7"})
    with pytest.raises(Busy) as caught:
        webhook.Webhook(webhook.Params(one.url, secret(tmp_path, SECRET))).deliver(message("m"))
    assert caught.value.retry_after_seconds == 7.0


def test_cutting_keeps_characters_whole() -> None:
    """At most so many bytes, no half letter."""
    assert [cut_bytes("°" * 10, 9), cut_bytes("abc", 9)] == ["°°°…", "abc"]
