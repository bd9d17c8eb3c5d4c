"""Tokens and roles over a real owner: who may read, who may act, what collectors use, and whose name stands beside what was done."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.client import Client
from app.owner import Owner
from collectors.handover import Handover
from core.access import Tokens
from core.clock import wall_ms
from core.config import TokenConfig, check_listen, read_config
from core.errors import BadInput, ConfigError, Unavailable
from core.signing import key_of, signed_headers
from core.types import Action, Batch, Outcome, Target
from core.wire import encode_batch
from tests.api.test_people import HOT, hold, quick, tick
from tests.pipeline.worlds import finding
from tests.remediation.test_webhook import SECRET
from tests.store import build

API = "/api/greylag/v1"
TOKENS = {"eve": "viewer", "ada": "operator", "am": "sender"}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def listed(tokens: dict[str, str]) -> str:
    return "".join(f"- {{name: {name}, role: {role}, sha256: {digest(f'token of {name}')}}}\n" for name, role in tokens.items())


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """Two nodes, an incident on one of them, a webhook backend, three tokens."""
    folder = tmp_path_factory.mktemp("access")
    (folder / "hands.secret").write_text(SECRET)
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}, {name: n2}]\n")
    (folder / "greylag.yaml").write_text(
        "data_dir: data\nlisten: 0.0.0.0:0\ninventory: {file: inventory.yaml}\ntokens:\n" + listed(TOKENS)
        + "backend: {name: webhook, url: 'http://127.0.0.1:9', secret_file: hands.secret, callback_base: 'http://greylag:9470'}\n")
    made = Owner(read_config(folder / "greylag.yaml"))
    quick(made)
    hold(made, [finding(HOT, at=build.T0, onset=build.T0, observed=91.0)])
    for i in range(3):
        tick(made, i)
    yield made
    made.writer.close()
    made.store.close()
    made.loop.close()


@pytest.fixture(scope="module")
def api(owner: Owner) -> TestClient:
    return TestClient(owner.app())


def as_(name: str | None) -> dict[str, str]:
    return {} if name is None else {"Authorization": f"Bearer token of {name}"}


INCIDENT = f"{API}/incidents/ID"
READS = ["/metrics", "/readyz", "/docs", "/openapi.json", "/api/v1/labels", f"{API}/incidents", INCIDENT, f"{API}/outbox", f"{API}/silences", "/runbooks/link_down"]
ALERT = {"version": "4", "alerts": []}
ACTS = [(f"{API}/freeze", None), (f"{API}/resume", None), (f"{INCIDENT}/acknowledge", {}), (f"{INCIDENT}/silence", {"seconds": 1}), (f"{API}/actions/none/approve", None),
        (f"{API}/outbox/none/resend", None)]
SENDS = [(f"{API}/alerts/in", ALERT), (f"{API}/events", {"what": "driver", "nodes": ["n1"]})]


def status(api: TestClient, owner: Owner, name: str | None, method: str, path: str, body: Any = None) -> int:
    one = next(iter(owner.store.incident_records())).id
    return api.request(method, path.replace("ID", one), json=body, headers=as_(name)).status_code


@pytest.mark.parametrize("path", READS)
def test_reading_needs_a_viewer_or_an_operator(owner: Owner, api: TestClient, path: str) -> None:
    """Nobody and the unknown are 401, a sender is 403."""
    got = [status(api, owner, name, "GET", path) for name in (None, "mallory", "am", "eve", "ada")]
    assert got[:3] == [401, 401, 403]
    assert not {401, 403} & set(got[3:])


@pytest.mark.parametrize(("path", "body"), ACTS)
def test_acting_needs_an_operator(owner: Owner, api: TestClient, path: str, body: Any) -> None:
    """A viewer changes nothing."""
    got = [status(api, owner, name, "POST", path, body) for name in (None, "mallory", "am", "eve", "ada")]
    assert got[:4] == [401, 401, 403, 403]
    assert got[4] not in (401, 403)


@pytest.mark.parametrize(("path", "body"), SENDS)
def test_handing_in_needs_a_sender_or_an_operator(owner: Owner, api: TestClient, path: str, body: Any) -> None:
    """So that an Alertmanager needs no operator's token."""
    got = [status(api, owner, name, "POST", path, body) for name in (None, "mallory", "eve", "am", "ada")]
    assert got[:3] == [401, 401, 403]
    assert not {401, 403} & set(got[3:])


def test_prometheus_reads_by_post(owner: Owner, api: TestClient) -> None:
    """A query that is POSTed is a read."""
    assert api.post("/api/v1/query", data={"query": "up"}, headers=as_("eve")).status_code == 200


def test_health_is_open(api: TestClient) -> None:
    """For whoever starts and stops processes."""
    assert api.get("/healthz").status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dG9rZW4gb2YgYWRh", "token of ada", "Bearer " + "x" * 5000, "Bearer token of ada x", "Bearer \xff\xfe"])
def test_what_is_no_token_is_nobody(api: TestClient, header: str) -> None:
    """One sentence, and how to ask."""
    answer = api.get(f"{API}/incidents", headers={"Authorization": header.encode("latin-1")})  # type: ignore[dict-item]
    assert (answer.status_code, answer.headers["www-authenticate"], "a token is needed" in answer.json()["error"]) == (401, 'Bearer realm="greylag"', True)


def test_who_acted_is_the_tokens_name(owner: Owner, api: TestClient) -> None:
    """On a mark, on a change, and in the audit of a freeze."""
    one = next(iter(owner.store.incident_records())).id
    api.post(f"{API}/incidents/{one}/acknowledge", json={"note": "mine"}, headers=as_("ada"))
    changed = api.post(f"{API}/events", json={"what": "image"}, headers=as_("am")).json()
    api.post(f"{API}/freeze", headers=as_("ada"))
    assert {m.actor for m in owner.brain.marks.of(one) if m.note == "mine"} == {"ada"}
    assert changed["items"][0]["fields"]["by"] == "am"
    assert "ada" in str(owner.brain.said[-1])


# --- collectors -------------------------------------------------------------------------------------------------------
def test_collectors_hand_over_with_their_own_secret(owner: Owner, api: TestClient) -> None:
    """Not with a person's token; the file is for this user only, and the same at the next start."""
    path = owner.data_dir / "internal.secret"
    secret = path.read_text()
    got = [api.post("/internal/v1/epoch", json={"worker": "collector-9"}, headers=head).status_code
           for head in ({}, as_("ada"), {"Authorization": f"Bearer {secret}x"}, {"Authorization": f"Bearer {secret}"})]
    assert got == [401, 401, 401, 200]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    owner.app()
    assert path.read_text() == secret


def test_a_collector_reads_the_secret_by_itself(owner: Owner) -> None:
    """A hand-over with the file is granted an epoch; one with an old secret reads the file again."""

    async def register() -> list[int | None]:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=owner.app()), base_url="http://owner")
        handover = Handover("http://owner", "collector-8", client=client, secret_file=owner.data_dir / "internal.secret")
        handover._secret = "of another life"
        with pytest.raises(Unavailable):
            await handover.register()
        await handover.register()
        await client.aclose()
        return [handover.epoch]

    assert asyncio.run(register()) == [1]


def test_without_the_secret_no_batch_is_taken(owner: Owner, api: TestClient) -> None:
    """Nobody writes samples into the store."""
    batch = encode_batch(Batch("collector-9", 1, 1, build.T0))
    got = [api.post("/internal/v1/batch", content=batch, headers=head).status_code for head in ({}, as_("ada"), as_("am"))]
    assert got == [401, 401, 401]


# --- call-backs -------------------------------------------------------------------------------------------------------
def call_back(api: TestClient, name: str, body: bytes, message_id: str, secret: str = SECRET) -> int:
    headers = signed_headers(key_of(secret, "x"), message_id, wall_ms() // 1000, body)
    return api.post(f"{API}/actions/{name}/outcome", content=body, headers=headers).status_code


def test_an_outcome_is_called_back_by_its_signature(owner: Owner, api: TestClient) -> None:
    """No token is asked for, but the shared secret; taken once, stored, and only for an action of ours."""
    name = "inc-000000000001/1/1"
    action = Action(name, "drain", Target("node", "n1"), {}, 60.0, "act", "inc-000000000001", 1, 1, build.T0, "policy")
    ticked = owner.brain.tick(build.T0 + 10 * build.STEP).commit
    owner.store.commit_tick(replace(ticked, actions=((action, Outcome(name, "PENDING", "policy")),)))
    other = "whsec_" + "QUFB" * 11
    body = b'{"state": "DONE", "reason": "done", "took_seconds": 3}'
    got = [api.post(f"{API}/actions/{name}/outcome", content=body).status_code, call_back(api, name, body, "call-1", other),
           call_back(api, name, b"{}", "call-0"), call_back(api, "inc-000000000009/1/1", body, "call-9"), call_back(api, name, body, "call-1"),
           call_back(api, name, body, "call-1"), call_back(api, name, body, "call-2")]
    assert got == [401, 401, 400, 404, 200, 409, 409]
    assert owner.hands.door.poll(name).state == "DONE"
    [stored] = [e for e in owner.store.events(0, 2**52, ("action",)) if e.fields.get("message_id") == "call-1"]
    assert (stored.fields["state"], stored.target.node) == ("DONE", "n1")


# --- the configuration ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("listen", "tokens", "allowed"), [("127.0.0.1:1", False, True), ("0.0.0.0:1", False, False), ("0.0.0.0:1", True, True), ("10.0.0.7:1", True, True),
                                                          ("[::1]:1", False, True), ("greylag.example:1", False, False)])
def test_only_loopback_without_tokens(listen: str, tokens: bool, allowed: bool) -> None:
    """Anything else needs one."""
    if allowed:
        assert check_listen("f", listen, tokens=tokens)[1] == 1
    else:
        with pytest.raises(ConfigError):
            check_listen("f", listen, tokens=tokens)


GOOD = "{name: ada, role: operator, sha256: " + digest("x") + "}"


@pytest.mark.parametrize(("text", "word"), [
    ("tokens: [{name: ada, role: admin, sha256: " + digest("x") + "}]", "tokens[0].role"), ("tokens: [{name: ada, role: viewer, sha256: secret}]", "tokens[0].sha256"),
    ("tokens: [{name: '', role: viewer, sha256: " + digest("x") + "}]", "tokens[0].name"), (f"tokens: [{GOOD}, {GOOD}]", "tokens[1].name"),
    ("tokens: [{name: ada, role: viewer, token: x}]", "tokens[0].token"), (f"tokens: [{GOOD}]\nsyslog_listen: 0.0.0.0:514", "syslog_listen"),
    ("heartbeat: {url: x}", "heartbeat.url"), ("heartbeat: {url: 'http://x', url_file: f}", "heartbeat"), ("heartbeat: {interval_seconds: 0}", "heartbeat.interval_seconds"),
    ("heartbeat: {limits: {notify_seconds: 1}}", "heartbeat.limits.notify_seconds")])
def test_a_wrong_key_is_named_and_no_token_is_shown(tmp_path: Path, text: str, word: str) -> None:
    """One sentence."""
    (tmp_path / "greylag.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "greylag.yaml")
    assert word in str(caught.value)
    assert "secret" not in str(caught.value)


def test_hashes_in_capitals_are_the_same() -> None:
    """As some tools print them."""
    tokens = Tokens([TokenConfig("ada", "operator", digest("x").upper())])
    assert (tokens.holder("bearer x"), tokens.holder("Bearer y")) == (tokens._known[0][1], None)


# --- the command line -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("env", "header"), [({"GREYLAG_TOKEN": "a"}, "Bearer a"), ({"GREYLAG_TOKEN": "a", "GREYLAG_TOKEN_FILE": "FILE"}, "Bearer b"), ({}, None)])
def test_the_client_sends_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], header: str | None) -> None:
    """From the file where one is named, else from the environment; the explorer uses the same client."""
    (tmp_path / "token").write_text("b\n")
    for name in ("GREYLAG_TOKEN", "GREYLAG_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value.replace("FILE", str(tmp_path / "token")))
    client = Client("http://127.0.0.1:9")
    assert client._http.headers.get("authorization") == header
    client.close()


def test_a_token_file_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence with its path."""
    monkeypatch.setenv("GREYLAG_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(BadInput, match="token-file"):
        Client("http://127.0.0.1:9")


def test_an_alert_becomes_an_event(owner: Owner, api: TestClient) -> None:
    """Stored before it is answered; on the node that it names, by the token that handed it in."""
    alert = {"status": "firing", "labels": {"alertname": "NodeClockSkewDetected", "instance": "n2:9100"}, "annotations": {}, "startsAt": "2027-01-15T08:00:00Z"}
    answer = api.post(f"{API}/alerts/in", content=json.dumps({"version": "4", "alerts": [alert]}), headers=as_("am"))
    assert answer.json() == {"taken": {"stored": 1, "own_alert": 0, "unknown_part": 0}}
    [event] = [e for e in owner.store.events(0, 2**52, ("alert",)) if e.target.node == "n2"]
    assert (event.fields["fault"], event.fields["by"]) == ("clock_skew", "am")
