"""Who may ask the owner what: a gate before the API, which knows tokens and roles, and the collectors' own secret.

| what | viewer | operator | sender | nobody |
|---|---|---|---|---|
| `GET /healthz` | yes | yes | yes | yes |
| reads (also Prometheus' and plan by POST) | yes | yes | | |
| `POST` of alerts/in and events | | yes | yes | |
| every other `POST` | | yes | | |
| `POST actions/<id>/outcome` | by the signature of the webhook backend, which the door itself checks | | | |
| `/internal/...` | the collectors, by the secret in `<data_dir>/internal.secret` | | | |

Without tokens everything is allowed, and only loopback is listened on.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from app.workerfiles import INTERNAL_FILE
from core.access import LOCAL, Tokens
from core.render import dumps
from core.signing import read_secret
from core.telemetry import Telemetry

OPEN = frozenset({"/healthz"})
READS_BY_POST = frozenset({"/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/labels",
                           "/api/greylag/v1/plan"})
SENT = frozenset({"/api/greylag/v1/alerts/in", "/api/greylag/v1/events"})
SIGNED = re.compile(r"/api/greylag/v1/actions/.+/outcome")
MAY_READ, MAY_SEND, MAY_ACT = frozenset({"viewer", "operator"}), frozenset({"operator", "sender"}), frozenset({"operator"})

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def internal_secret(data_dir: Path) -> str:
    """The collectors' secret: the one of the last start where there is one, so that collectors that go on need not read it anew."""
    path = data_dir / INTERNAL_FILE
    if not path.is_file() or path.stat().st_size == 0:
        fresh = path.with_suffix(".tmp")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        fresh.replace(path)
    return read_secret(str(path))


def roles_for(method: str, path: str) -> frozenset[str]:
    """The roles that may ask this."""
    if method in ("GET", "HEAD", "OPTIONS") or (method == "POST" and path in READS_BY_POST):
        return MAY_READ
    return MAY_SEND if path in SENT else MAY_ACT


class Gate:
    """An ASGI application before another. Whoever was let in stands in the request's state as `actor`."""

    def __init__(self, app: Asgi, tokens: Tokens, internal: str, telemetry: Telemetry) -> None:
        self._app, self._tokens, self._telemetry = app, tokens, telemetry
        self._internal = f"Bearer {internal}".encode()

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, words, actor = self._judge(scope)
        if status:
            self._telemetry.add("greylag_requests_denied_total", status=str(status))
            await _deny(send, status, words)
            return
        scope.setdefault("state", {})["actor"] = actor
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> tuple[int, str, str]:
        """(0, nothing, who) where it may pass, else (status, sentence, nobody)."""
        path, method = str(scope["path"]), str(scope["method"])
        if not self._tokens.asked or path in OPEN:
            return 0, "", LOCAL
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if path.startswith("/internal/"):
            if hmac.compare_digest(given, self._internal):
                return 0, "", "collector"
            return 401, f"the collectors' secret is needed, which stands in {INTERNAL_FILE} in data_dir", ""
        if method == "POST" and SIGNED.fullmatch(path):
            return 0, "", "backend"
        holder = self._tokens.holder(given.decode("latin-1"))
        if holder is None:
            return 401, "a token is needed: `Authorization: Bearer TOKEN`, on the command line GREYLAG_TOKEN or --token-file", ""
        if holder.role not in roles_for(method, path):
            return 403, f"the role {holder.role} of {holder.name} does not allow {method} {path}", ""
        return 0, "", holder.name


async def _deny(send: Callable[[Any], Awaitable[None]], status: int, words: str) -> None:
    body = dumps({"status": "error", "errorType": "unauthorized" if status == 401 else "forbidden", "error": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b'Bearer realm="greylag"')] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
