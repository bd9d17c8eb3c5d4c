"""The webhook backend: what is signed and sent, what answers mean, call-backs that are believed once, and the nodes."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest

from core.clock import rfc3339
from core.errors import BadInput, ConfigError, Refused, Unavailable
from core.protocols import NodeView
from core.signing import key_of, signed_headers, unsigned_reason
from core.types import Action, Outcome, Target
from remediation.backends.webhook import WebhookDoor, WebhookParams, WebhookView, build
from tests.remediation.worlds import T0, World

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes, yes").decode()
KEY = key_of(SECRET, "x")
NAME = "inc-1/1/1"


def action(name: str = NAME, kind: str = "drain") -> Action:
    return Action(name, kind, Target("node", "n1"), {"wait_for": "checkpoint"}, 600.0, "act", "inc-1", 1, 1, T0, "policy")


def receiver(world: World, seen: list[httpx.Request] | None = None) -> httpx.MockTransport:
    """A receiver over a fake world, as the contract has it; it takes nothing that is not signed, of now."""

    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if world.down:
            raise httpx.ConnectError("refused")
        if unsigned_reason(KEY, {k.lower(): v for k, v in request.headers.items()}, request.content, world.now // 1000):
            return httpx.Response(401)
        path = request.url.raw_path.decode()
        if path == "/hands/nodes":
            return httpx.Response(200, json={"nodes": [
                {"node": v.node, "state": v.state, "held_by": v.held_by, "jobs": list(v.jobs), "maintenance": v.maintenance,
                 "checked_at": None if v.checked_at is None else rfc3339(v.checked_at)} for v in world.nodes().values()]})
        if request.method == "POST":
            data = json.loads(request.content)["data"]
            assert request.headers["idempotency-key"] == request.headers["webhook-id"] == data["id"]
            told = world.submit(Action(data["id"], data["kind"], Target(**data["target"]), data["args"], data["deadline_seconds"],
                                       "act", data["incident"], 0, 0, world.now, ""))
            if told.state == "REFUSED":
                return httpx.Response(409, json={"reason": told.reason})
        else:
            told = world.poll(unquote(path.removeprefix("/hands/actions/")))
            if told.reason == "unknown_operation":
                return httpx.Response(404, json={"reason": told.reason})
        status = 202 if told.state == "RUNNING" else 200
        return httpx.Response(status, json={"state": told.state, "reason": told.reason, "took_seconds": told.took_seconds,
                                            "at": "2027-01-15T08:00:00.000Z"})

    return httpx.MockTransport(answer)


def params(folder: Path, **changes: object) -> WebhookParams:
    (folder / "secret").write_text(SECRET)
    return replace(WebhookParams("http://hands/hands", str(folder / "secret"), "http://greylag:9470"), **changes)  # type: ignore[arg-type]


def over(world: World, folder: Path, **changes: object) -> tuple[WebhookDoor, WebhookView]:
    """Door and view over the fake receiver."""
    given = params(folder, **changes)
    client = httpx.Client(base_url=given.url, transport=receiver(world))
    return WebhookDoor(given, client, lambda: world.now), WebhookView(given, client, lambda: world.now)


class CalledBack:
    """A door whose receiver calls back whenever the door is asked, as a receiver does in its own time."""

    def __init__(self, door: WebhookDoor, world: World) -> None:
        self.door, self.world = door, world
        self.submit = door.submit

    def poll(self, action_id: str) -> Outcome:
        told = self.world.poll(action_id)
        if told.reason == "unknown_operation" and action_id not in self.world.arrived:
            return told  # with no poll it cannot be known: `RUNNING` is the door's word, tested by itself
        raw = json.dumps({"state": told.state, "reason": told.reason, "took_seconds": told.took_seconds}).encode()
        headers = signed_headers(KEY, f"{action_id} {told.state} {self.world.now}", self.world.now // 1000, raw)
        with suppress(Refused):
            self.door.recall(*self.door.read_callback(action_id, headers, raw))
        return self.door.poll(action_id)


def answering(folder: Path, response: httpx.Response, **changes: object) -> tuple[WebhookDoor, WebhookView]:
    given = params(folder, **changes)
    client = httpx.Client(base_url=given.url, transport=httpx.MockTransport(lambda request: response))
    return WebhookDoor(given, client, lambda: T0), WebhookView(given, client, lambda: T0)


# --- what is sent -----------------------------------------------------------------------------------------------------
def test_what_is_sent_is_the_contract(tmp_path: Path) -> None:
    """Kind, target, arguments, deadline, incident and where to call back, under the action's id."""
    seen: list[httpx.Request] = []
    given = params(tmp_path)
    WebhookDoor(given, httpx.Client(base_url=given.url, transport=receiver(World(), seen)), lambda: T0).submit(action())
    body = json.loads(seen[0].content)
    assert (str(seen[0].url), body["type"], set(body["data"])) == (
        "http://hands/hands/actions", "action", {"id", "kind", "target", "args", "deadline_seconds", "incident", "reason", "actor", "callback_url"})
    assert body["data"]["callback_url"] == "http://greylag:9470/api/greylag/v1/actions/inc-1/1/1/outcome"


@pytest.mark.parametrize("text", ["", "hunter2", "whsec_short"])
def test_without_a_usable_secret_nothing_is_sent(tmp_path: Path, text: str) -> None:
    """Unavailable, and the secret is in no error."""
    world = World()
    door, view = over(world, tmp_path)
    (tmp_path / "secret").write_text(text)
    for ask in (lambda: door.submit(action()), lambda: door.poll("x"), view.nodes):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert "hunter2" not in str(caught.value)
    assert world.executed == {}


@pytest.mark.parametrize("changes", [{"url": "hands:80"}, {"callback_base": "greylag"}, {"poll": False, "callback_base": ""}])
def test_a_backend_that_could_not_work_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    """An address that is none; neither polls nor call-backs."""
    with pytest.raises(ConfigError):
        build(params(tmp_path, **changes))


# --- what answers mean ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("response", "state", "reason"), [
    (httpx.Response(202), "RUNNING", "policy"), (httpx.Response(202, json={}), "RUNNING", "policy"), (httpx.Response(202, json={"state": "RUNNING"}), "RUNNING", "policy"),
    (httpx.Response(200, json={"state": "DONE"}), "DONE", "done"), (httpx.Response(200, json={"state": "FAILED", "reason": "diagnose_failed"}), "FAILED", "diagnose_failed"),
    (httpx.Response(200, json={"state": "FAILED", "reason": "our own word"}), "FAILED", "backend_failed"),
    (httpx.Response(409, json={"reason": "other_hand"}), "REFUSED", "other_hand"), (httpx.Response(409, json={"reason": "because"}), "REFUSED", "backend_refused"),
    (httpx.Response(400), "REFUSED", "backend_refused"), (httpx.Response(422, text="no"), "REFUSED", "backend_refused")])
def test_answers_to_an_action(tmp_path: Path, response: httpx.Response, state: str, reason: str) -> None:
    """Each with a reason of the closed list."""
    told = answering(tmp_path, response)[0].submit(action())
    assert (told.state, told.reason) == (state, reason)


@pytest.mark.parametrize("status", [301, 302, 401, 403, 408, 425, 429, 500, 502, 503])
def test_what_says_nothing_about_the_action_is_unavailable(tmp_path: Path, status: int) -> None:
    """Also a receiver that does not believe us: somebody mends the secret."""
    door, view = answering(tmp_path, httpx.Response(status, headers={"location": "http://elsewhere"}))
    for ask in (lambda: door.submit(action()), lambda: door.poll("x"), view.nodes):
        with pytest.raises(Unavailable):
            ask()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"state":"GREAT"}', b'{"state":"SIMULATED"}', b'{"state":"DONE","at":"noon"}', b'{"state":"DONE","took_seconds":"x"}'])
def test_nonsense_is_unavailable(tmp_path: Path, body: bytes) -> None:
    """An answer that cannot be read says nothing about the command."""
    door, _ = answering(tmp_path, httpx.Response(200, content=body))
    for ask in (lambda: door.submit(action()), lambda: door.poll("x")):
        with pytest.raises(Unavailable):
            ask()


def test_nodes_carry_maintenance_and_their_last_check(tmp_path: Path) -> None:
    """What the guards read."""
    world = World()
    world.states["n1"] = NodeView("n1", "drained", "ada", ("j1",), "reservation-7", T0)
    assert over(world, tmp_path)[1].nodes()["n1"] == world.states["n1"]


@pytest.mark.parametrize("body", [b"", b"3", b'[{"state":"spare"}]', b'["n1"]', b'{"nodes": null}', b'[{"node": "n1", "state": "spare", "checked_at": "noon"}]'])
def test_nonsense_for_the_nodes_is_unavailable(tmp_path: Path, body: bytes) -> None:
    """A list that cannot be read is no list of no nodes."""
    with pytest.raises(Unavailable):
        answering(tmp_path, httpx.Response(200, content=body))[1].nodes()


# --- without polls ----------------------------------------------------------------------------------------------------
def test_without_polls_an_action_runs_until_it_is_called_back(tmp_path: Path) -> None:
    """One whose sending got no answer is sent again under its id, which the receiver knows; after a restart nothing is."""
    world = World()
    door, _ = over(world, tmp_path, poll=False)
    world.down = True
    with pytest.raises(Unavailable):
        door.submit(action())
    lost = door.poll(NAME).reason
    world.down = False
    world.lasts["drain"] = 60
    sent = door.submit(action()).state
    again, _ = over(world, tmp_path, poll=False)
    assert (lost, sent, door.poll(NAME).state, again.poll(NAME).state) == ("unknown_operation", "RUNNING", "RUNNING", "RUNNING")


# --- call-backs -------------------------------------------------------------------------------------------------------
def call(door: WebhookDoor, body: object, message_id: str = "call-1", seconds: int = T0 // 1000, name: str = NAME) -> None:
    raw = json.dumps(body).encode() if not isinstance(body, bytes) else body
    message, outcome = door.read_callback(name, signed_headers(KEY, message_id, seconds, raw), raw)
    door.recall(message, outcome)


def test_a_call_back_is_the_outcome(tmp_path: Path) -> None:
    """Whatever a poll would say; RUNNING may come before the end."""
    door, _ = answering(tmp_path, httpx.Response(503))
    call(door, {"state": "RUNNING"})
    call(door, {"type": "outcome", "data": {"id": NAME, "state": "DONE", "took_seconds": 12.5}}, "call-2")
    assert (door.poll(NAME).state, door.poll(NAME).took_seconds, door.submit(action()).state) == ("DONE", 12.5, "DONE")


@pytest.mark.parametrize(("message_id", "seconds", "why"), [("call-1", T0 // 1000, "repeated_message"), ("call-2", T0 // 1000, "already_so"),
                                                            ("call-3", T0 // 1000 - 301, "old_message"), ("call-3", T0 // 1000 + 301, "old_message")])
def test_a_replayed_call_back_is_refused(tmp_path: Path, message_id: str, seconds: int, why: str) -> None:
    """The same message, an old one, or another end of the same action: the first end stays."""
    door, _ = answering(tmp_path, httpx.Response(503))
    call(door, {"state": "DONE"})
    with pytest.raises(Refused) as caught:
        call(door, {"state": "FAILED"}, message_id, seconds)
    assert (caught.value.reason, door.poll(NAME).state) == (why, "DONE")


def test_a_replay_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    """The store gives back what was believed."""
    first, _ = answering(tmp_path, httpx.Response(503))
    raw = b'{"state": "DONE"}'
    kept = first.read_callback(NAME, signed_headers(KEY, "call-1", T0 // 1000, raw), raw)
    again, _ = answering(tmp_path, httpx.Response(503))
    again.recall(*kept)
    with pytest.raises(Refused) as caught:
        call(again, {"state": "DONE"})
    assert (caught.value.reason, again.poll(NAME).state) == ("repeated_message", "DONE")


@pytest.mark.parametrize(("headers", "why"), [({}, "unsigned"), (signed_headers(b"x" * 32, "call-1", T0 // 1000, b'{"state":"DONE"}'), "bad_signature"),
                                              (signed_headers(KEY, "call-1", T0 // 1000, b'{"state":"FAILED"}'), "bad_signature")])
def test_a_call_back_of_others_is_refused(tmp_path: Path, headers: dict[str, str], why: str) -> None:
    """Unsigned, signed with another secret, or of another body."""
    door, _ = answering(tmp_path, httpx.Response(503))
    with pytest.raises(Refused) as caught:
        door.read_callback(NAME, headers, b'{"state":"DONE"}')
    assert caught.value.reason == why


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b'{"state": "SIMULATED"}', b'{"data": 3}', b'{"data": {"id": "inc-9/1/1", "state": "DONE"}}', b'{"state": "DONE", "at": "noon"}'])
def test_a_call_back_without_an_outcome_is_bad_input(tmp_path: Path, body: bytes) -> None:
    """Also that of another action than the address says. Nothing is remembered of it."""
    door, _ = answering(tmp_path, httpx.Response(404))
    with pytest.raises(BadInput):
        door.read_callback(NAME, signed_headers(KEY, "call-1", T0 // 1000, body), body)
    assert door.poll(NAME).reason == "unknown_operation"
