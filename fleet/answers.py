"""Exporters' answers over HTTP: pages, and the ways in which there is none.

A process that is not there closes the connection without a word; one that hangs says nothing until who asks gives up.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleet.exporters import Answer
from fleet.pages import CONTENT_TYPE

_PLAIN = "text/plain; charset=utf-8"


class _Silence(Response):
    """Says nothing until the other side is gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class _Closed(Response):
    """Closes the connection without an answer; where the server does not let us, status 503."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # ASGI has no word for this: uvicorn's request owns the transport, and its `receive` is bound to it.
        transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)
        if transport is None:
            await Response("nobody listens\n", 503, media_type="text/plain")(scope, receive, send)
            return
        transport.abort()
        await _Silence()(scope, receive, send)


def respond(answer: Answer) -> Response:
    """The response for what an exporter answers."""
    if answer.kind == "page":
        return Response(answer.body, headers={"content-type": CONTENT_TYPE})
    if answer.kind == "empty":
        return Response(b"", headers={"content-type": CONTENT_TYPE})
    if answer.kind == "hung":
        return _Silence()
    if answer.kind == "down":
        return _Closed()
    # What dcgm-exporter and Go's handlers say when a collector fails.
    return Response("An error has occurred while serving metrics\n", 500, headers={"content-type": _PLAIN})
