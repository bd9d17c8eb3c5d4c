"""The bundled fleet, over its control API (`/control/v1/operations`, `/control/v1/nodes`).

A command is sent once for each id: the same id gives the same answer. Time-outs are wall time, whatever the fleet's
clock does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from core.clock import parse_rfc3339
from core.errors import ConfigError, Unavailable
from core.protocols import BackendPlugin, ControlDoor, NodeView, WorldView
from core.render import plain
from core.targets import ACTION_KINDS, OUTCOME_STATES
from core.types import Action, Outcome

OPERATIONS = "/control/v1/operations"
NODES = "/control/v1/nodes"


@dataclass(frozen=True, slots=True)
class FleetParams:
    """url: where the fleet listens. timeout_seconds: wall time that an answer may take."""

    url: str
    timeout_seconds: float = 5.0


class FleetDoor:
    """ControlDoor over HTTP. Raises Unavailable where the fleet gave no usable answer."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def submit(self, action: Action) -> Outcome:
        """202: RUNNING, or the outcome that the answer carries. 409: REFUSED with the fleet's reason."""
        body = {"id": action.id, "verb": action.kind, "target": plain(action.target), "args": plain(action.args),
                "deadline_seconds": action.deadline_seconds}
        answer = _asked(self._client, "POST", OPERATIONS, body)
        if answer.status_code == 409:
            reason = _json(answer).get("reason")
            return Outcome(action.id, "REFUSED", str(reason or "backend_refused"))
        if answer.status_code in (200, 201, 202):
            row = _json(answer)
            return _outcome(action.id, row) if row.get("state") in OUTCOME_STATES else Outcome(action.id, "RUNNING", "policy")
        return Outcome(action.id, "REFUSED", "backend_refused")  # 4xx: it will not like it better next time

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far; 404: REFUSED `unknown_operation`."""
        answer = _asked(self._client, "GET", f"{OPERATIONS}/{quote(action_id, safe='')}")
        if answer.status_code == 404:
            return Outcome(action_id, "REFUSED", "unknown_operation")
        row = _json(answer)
        if answer.status_code == 409:
            return Outcome(action_id, "REFUSED", str(row.get("reason") or "backend_refused"))
        if row.get("state") not in OUTCOME_STATES:
            raise Unavailable(f"the fleet's answer to {action_id} has no state")
        return _outcome(action_id, row)


class FleetView:
    """WorldView over HTTP."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name. Raises Unavailable."""
        answer = _asked(self._client, "GET", NODES)
        try:
            rows = answer.json()
            rows = rows["nodes"] if isinstance(rows, dict) else rows
            return {str(r["node"]): NodeView(str(r["node"]), str(r["state"]), r.get("held_by"), tuple(r.get("jobs") or ()),
                                             r.get("maintenance"), _moment(r.get("checked_at"))) for r in rows}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Unavailable("the fleet's list of nodes could not be read") from None


def _moment(value: Any) -> int | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if known else None


def _asked(client: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    try:
        answer = client.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise Unavailable(f"the fleet did not answer ({type(error).__name__})") from None
    if answer.status_code >= 500 or answer.status_code in (408, 425, 429):
        raise Unavailable(f"the fleet answered {answer.status_code}")
    return answer


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        row = answer.json()
    except ValueError:
        raise Unavailable("the fleet's answer is no JSON") from None
    if not isinstance(row, dict):
        raise Unavailable("the fleet's answer is no JSON object")
    return row


def _outcome(action_id: str, row: Mapping[str, Any]) -> Outcome:
    at, took = row.get("at"), row.get("took_seconds")
    try:
        moment = parse_rfc3339(at) if isinstance(at, str) else int(at or 0)
        detail = row.get("detail")
        return Outcome(action_id, str(row["state"]), str(row.get("reason") or ""), float(took or 0.0), moment,
                       str(detail) if detail else None)
    except (ValueError, TypeError):
        raise Unavailable(f"the fleet's answer to {action_id} could not be read") from None


def build(params: FleetParams) -> tuple[ControlDoor, WorldView]:
    """Door and view over one client. Raises ConfigError for a URL that is none."""
    if not params.url.startswith(("http://", "https://")):
        raise ConfigError("backend", "url", params.url, "an http:// or https:// address is needed")
    client = httpx.Client(base_url=params.url.rstrip("/"), timeout=params.timeout_seconds, trust_env=False)
    return FleetDoor(client), FleetView(client)


PLUGIN = BackendPlugin("fleet", FleetParams, ACTION_KINDS, build)
