"""What other programs tell Greylag: alerts of an Alertmanager, outcomes of a webhook backend; and dead letters sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from core.errors import BadInput, Refused
from pipeline.answering import LARGEST_FORM_BYTES, NotKnown, actor_of, json_answer
from pipeline.api_people import body_of

ALERTS = ("Alerts as Alertmanager's webhook (version 4) posts them. One that names a node of the inventory becomes an event there, and"
          " evidence for an open incident of that part; it opens no incident and lets no action begin.")
OUTCOME = ("The outcome of an action, from the receiver of the webhook backend, signed as Standard Webhooks with the shared secret."
           " Body: {\"state\": \"DONE\", \"reason\": \"done\", \"took_seconds\": 12.5}. A message that came before is refused.")
RESEND = "A message that was given up is tried again; refused where a later one of its incident was delivered."
STATUS = {"unsigned": 401, "bad_signature": 401, "old_message": 401, "repeated_message": 409}


class Ears(Protocol):
    """The part of `pipeline.api.House` that programs speak to."""

    def command(self, what: str, params: Mapping[str, Any]) -> Any:
        """alerts with body; outcome with id, headers and raw; resend with id. Raises KeyError, BadInput, Refused."""
        ...


def _refused(error: Refused, status: int) -> JSONResponse:
    return JSONResponse({"status": "error", "errorType": error.reason, "error": error.detail or error.reason}, status)


def add_alerts(app: FastAPI, house: Ears) -> None:
    """POST alerts/in, actions/{id}/outcome and outbox/{id}/resend."""

    async def alerts(request: Request) -> Response:
        body = await body_of(request)
        return json_answer(await asyncio.to_thread(house.command, "alerts", {"body": body, "actor": actor_of(request)}))

    async def outcome(action: str, request: Request) -> Response:
        raw = await request.body()
        if len(raw) > LARGEST_FORM_BYTES:
            raise BadInput("the body", "", f"{len(raw)} bytes", f"at most {LARGEST_FORM_BYTES} are allowed")
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            return json_answer(await asyncio.to_thread(house.command, "outcome", {"id": action, "headers": headers, "raw": raw}))
        except KeyError:
            raise NotKnown("the action", action) from None
        except Refused as error:
            return _refused(error, STATUS.get(error.reason, 409))

    async def resend(message: str, request: Request) -> Response:
        try:
            return json_answer(await asyncio.to_thread(house.command, "resend", {"id": message, "actor": actor_of(request)}))
        except KeyError:
            raise NotKnown("the message", message) from None
        except Refused as error:
            return _refused(error, 409)

    for path, name, handler, words in (("alerts/in", "alerts_in", alerts, ALERTS), ("actions/{action:path}/outcome", "outcome", outcome, OUTCOME),
                                       ("outbox/{message:path}/resend", "resend", resend, RESEND)):
        app.add_api_route(f"/api/greylag/v1/{path}", handler, methods=["POST"], name=name, tags=["Greylag"], description=words,
                          response_model=None)
