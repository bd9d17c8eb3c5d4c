"""A receiver of the site's own that carries actions out: signed requests, an outcome that is called back or asked for.

Requests are signed as Standard Webhooks with the shared secret; `webhook-id` and `Idempotency-Key` are the action's id.

| request | answers |
|---|---|
| `POST <url>/actions` `{"type": "action", "timestamp": ..., "data": {id, kind, target, args, deadline_seconds, incident, reason, callback_url}}` | 200 with an outcome · 202: it runs · 409 `{"reason": ...}`: refused · other 4xx: refused for good · 408, 425, 429, 5xx: asked again |
| `GET <url>/actions/<id>` (where `poll` is true) | 200 with an outcome · 404: never seen |
| `GET <url>/nodes` | `{"nodes": [{"node", "state", "held_by", "jobs", "maintenance", "checked_at"}]}` |
| `POST <callback_url>` by the receiver, signed with the same secret | an outcome `{"state", "reason", "took_seconds"}` |

The receiver must answer the same id with the same outcome, and carry it out once. A call-back is believed once, within five
minutes of its time, for an action of ours that has no final outcome yet.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from core.clock import parse_rfc3339, rfc3339, wall_ms
from core.errors import BadInput, ConfigError, Refused, Unavailable
from core.protocols import BackendPlugin, ControlDoor, NodeView, WorldView
from core.reasons import ACTION_REASONS
from core.render import dumps, plain
from core.signing import ID, key_of, read_secret, signed_headers, unsigned_reason
from core.targets import ACTION_KINDS
from core.types import Action, Outcome

FINAL = frozenset({"DONE", "FAILED", "REFUSED"})
STATES = FINAL | {"RUNNING"}
FALLBACK = {"DONE": "done", "FAILED": "backend_failed", "REFUSED": "backend_refused", "RUNNING": "policy"}
WORTH_ANOTHER_TRY = frozenset({408, 425, 429})
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class WebhookParams:
    """url: of the receiver. secret_file: `whsec_` and base64, shared with it. callback_base: where the receiver reaches Greylag,
    such as http://greylag:9470; without it there are no call-backs. poll: the receiver answers `GET actions/<id>`.
    timeout_seconds: wall time that an answer may take."""

    url: str
    secret_file: str
    callback_base: str = ""
    poll: bool = True
    timeout_seconds: float = 10.0


class WebhookDoor:
    """ControlDoor over signed HTTP. Thread-safe: call-backs come from the API's threads. now_ms: the machine's clock."""

    def __init__(self, params: WebhookParams, client: httpx.Client, now_ms: Callable[[], int] = wall_ms) -> None:
        self._params, self._client, self._now_ms = params, client, now_ms
        self._lock = threading.Lock()
        self._told: dict[str, Outcome] = {}  # outcomes that were called back
        self._seen: dict[str, None] = {}  # ids of call-backs that were believed
        self._lost: set[str] = set()  # submitted in this process without an answer

    def submit(self, action: Action) -> Outcome:
        """RUNNING, or the outcome at once. Raises Unavailable where the receiver gave no usable answer."""
        with self._lock:
            if action.id in self._told:
                return self._told[action.id]
        data = {"id": action.id, "kind": action.kind, "target": plain(action.target), "args": plain(action.args), "incident": action.incident,
                "deadline_seconds": action.deadline_seconds, "reason": action.reason, "actor": action.actor,
                "callback_url": self._callback(action.id)}
        body = dumps({"type": "action", "timestamp": rfc3339(action.at), "data": data}).encode()
        try:
            answer = self._asked("POST", "/actions", action.id, body)
        except Unavailable:
            with self._lock:
                self._lost.add(action.id)
            raise
        with self._lock:
            self._lost.discard(action.id)
        if answer.status_code == 409:
            return Outcome(action.id, "REFUSED", _reason("REFUSED", _object(answer).get("reason")))
        if answer.status_code == 202:
            row = _object(answer, empty=True)
            return _outcome(action.id, row) if row.get("state") in STATES else Outcome(action.id, "RUNNING", "policy")
        if answer.status_code in (200, 201):
            return _outcome(action.id, _object(answer))
        return Outcome(action.id, "REFUSED", "backend_refused")

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far: what was called back, else what the receiver says. Without `poll` an action runs until it is called
        back; one whose sending got no answer is unknown, so that it is sent again under its id."""
        with self._lock:
            if action_id in self._told:
                return self._told[action_id]
            lost = action_id in self._lost
        if not self._params.poll:
            return Outcome(action_id, "REFUSED", "unknown_operation") if lost else Outcome(action_id, "RUNNING", "policy")
        answer = self._asked("GET", f"/actions/{quote(action_id, safe='')}", action_id)
        if answer.status_code == 404:
            return Outcome(action_id, "REFUSED", "unknown_operation")
        if answer.status_code == 409:
            return Outcome(action_id, "REFUSED", _reason("REFUSED", _object(answer).get("reason")))
        return _outcome(action_id, _object(answer))

    # --- call-backs ---------------------------------------------------------------------------------------------------
    def read_callback(self, action_id: str, headers: Mapping[str, str], body: bytes) -> tuple[str, Outcome]:
        """The message's id and the outcome of a call-back. headers: by lower-case name. Raises Refused where it is not to be
        believed (`core.reasons.SIGNATURE_REASONS`), BadInput where it holds no outcome."""
        key = key_of(read_secret(self._params.secret_file), self._params.secret_file)
        why = unsigned_reason(key, headers, body, self._now_ms() // 1000)
        if why is not None:
            raise Refused(why)
        message_id = headers[ID]
        with self._lock:
            self._new(message_id, action_id)
        try:
            row = json.loads(body)
            outcome = _outcome(action_id, row.get("data", row))
            named = row.get("data", row).get("id", action_id)
        except (ValueError, AttributeError, RecursionError, Unavailable):
            raise BadInput("the body", "", "no outcome", f"a JSON object with state ({', '.join(sorted(STATES))}) and reason is needed") from None
        if named != action_id:
            raise BadInput("id", "", named, f"the outcome of {action_id} is needed, to which the call was made")
        return message_id, outcome

    def recall(self, message_id: str, outcome: Outcome) -> None:
        """A call-back counts from now on: at its coming, and after a restart from what the store kept. Raises Refused where the
        message came before, or the action has another final outcome."""
        with self._lock:
            self._new(message_id, outcome.action_id)
            self._seen[message_id] = None
            self._told[outcome.action_id] = outcome
            self._lost.discard(outcome.action_id)
            for kept in (self._seen, self._told):
                while len(kept) > MOST_REMEMBERED:
                    del kept[next(iter(kept))]

    def _new(self, message_id: str, action_id: str) -> None:
        """Raises Refused where the message came before, or the action has a final outcome."""
        before = self._told.get(action_id)
        if message_id in self._seen:
            raise Refused("repeated_message", f"the message {message_id} was taken before")
        if before is not None and before.state in FINAL:
            raise Refused("already_so", f"{action_id} is {before.state} already")

    # --- requests -----------------------------------------------------------------------------------------------------
    def _callback(self, action_id: str) -> str | None:
        base = self._params.callback_base.rstrip("/")
        return f"{base}/api/greylag/v1/actions/{quote(action_id, safe='/')}/outcome" if base else None

    def _asked(self, method: str, path: str, message_id: str, body: bytes = b"") -> httpx.Response:
        """Raises Unavailable where there is no answer, or one that says nothing."""
        return asked(self._client, self._params, self._now_ms(), method, path, message_id, body)


class WebhookView:
    """WorldView over signed HTTP."""

    def __init__(self, params: WebhookParams, client: httpx.Client, now_ms: Callable[[], int] = wall_ms) -> None:
        self._params, self._client, self._now_ms = params, client, now_ms

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name. Raises Unavailable."""
        now = self._now_ms()
        answer = asked(self._client, self._params, now, "GET", "/nodes", f"nodes-{now}", b"")
        if answer.status_code != 200:
            raise Unavailable(f"the receiver's list of nodes: HTTP {answer.status_code}")
        try:
            rows = answer.json()
            rows = rows["nodes"] if isinstance(rows, dict) else rows
            return {str(row["node"]): _node(row) for row in rows}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Unavailable("the receiver's list of nodes could not be read") from None


def asked(client: httpx.Client, params: WebhookParams, now_ms: int, method: str, path: str, message_id: str, body: bytes) -> httpx.Response:
    """A signed request. Raises Unavailable where there is no answer, or one that says nothing about what was asked."""
    try:
        key = key_of(read_secret(params.secret_file), params.secret_file)
    except ConfigError as error:
        raise Unavailable(str(error)) from None
    headers = {"Idempotency-Key": message_id, **signed_headers(key, message_id, now_ms // 1000, body)}
    if body:
        headers["Content-Type"] = "application/json"
    try:
        answer = client.request(method, path, content=body or None, headers=headers)
    except httpx.HTTPError as error:
        raise Unavailable(f"the receiver did not answer ({type(error).__name__})") from None
    # 401 and 403: the secrets differ, which somebody mends; nothing is known of the action.
    if answer.status_code >= 500 or answer.status_code in WORTH_ANOTHER_TRY or answer.status_code in (401, 403) or answer.is_redirect:
        raise Unavailable(f"the receiver answered HTTP {answer.status_code}")
    return answer


def _node(row: Mapping[str, Any]) -> NodeView:
    checked = row.get("checked_at")
    return NodeView(str(row["node"]), str(row["state"]), row.get("held_by"), tuple(str(job) for job in row.get("jobs") or ()),
                    row.get("maintenance"), parse_rfc3339(checked) if isinstance(checked, str) else checked)


def _object(answer: httpx.Response, empty: bool = False) -> dict[str, Any]:
    if empty and not answer.content.strip():
        return {}
    try:
        row = answer.json()
    except ValueError:
        raise Unavailable("the receiver's answer is no JSON") from None
    if not isinstance(row, dict):
        raise Unavailable("the receiver's answer is no JSON object")
    return row


def _reason(state: str, reason: Any) -> str:
    return str(reason) if reason in ACTION_REASONS else FALLBACK[state]


def _outcome(action_id: str, row: Mapping[str, Any]) -> Outcome:
    """The outcome that a row tells. Raises Unavailable where it tells none."""
    state, at, took = row.get("state"), row.get("at"), row.get("took_seconds")
    if state not in STATES:
        raise Unavailable(f"the receiver's answer to {action_id} has no state")
    try:
        moment = parse_rfc3339(at) if isinstance(at, str) else int(at or 0)
        return Outcome(action_id, str(state), _reason(str(state), row.get("reason")), max(0.0, float(took or 0.0)), moment)
    except (ValueError, TypeError, OverflowError):
        raise Unavailable(f"the receiver's answer to {action_id} could not be read") from None


def build(params: WebhookParams) -> tuple[ControlDoor, WorldView]:
    """Door and view over one client. Raises ConfigError for an address that is none."""
    for name, url in (("url", params.url), ("callback_base", params.callback_base or params.url)):
        if not url.startswith(("http://", "https://")):
            raise ConfigError("backend", name, url, "an http:// or https:// address is needed")
    if not params.poll and not params.callback_base:
        raise ConfigError("backend", "poll", False, "callback_base is needed where outcomes cannot be asked for")
    client = httpx.Client(base_url=params.url.rstrip("/"), timeout=params.timeout_seconds, trust_env=False, follow_redirects=False)
    return WebhookDoor(params, client), WebhookView(params, client)


PLUGIN = BackendPlugin("webhook", WebhookParams, ACTION_KINDS, build)
