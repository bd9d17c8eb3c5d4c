"""What people tell Greylag: that an incident is seen, to be quiet, or wrong; and what they changed on the cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from core.errors import BadInput
from pipeline.answering import LARGEST_FORM_BYTES, NotKnown, actor_of, json_answer
from pipeline.marks import WORDS

MARKS = {
    "acknowledge": "Somebody looks after the incident; nothing else changes. Body: {\"note\": text}.",
    "silence": "Messages of an opening or reopening of this fault on this part are kept back. Body: {\"seconds\": 14400, \"note\": text};"
               " 0 seconds ends a silence.",
    "wrong": "It is no fault: the incident is abandoned, does not open again while its findings stay, and no action begins."
             " Body: {\"note\": text}.",
}
CHANGE = ("A change of the cluster (driver, image, firmware, job configuration), shown in the timeline of incidents that follow."
          " Body: {\"what\": \"driver\", \"old\": \"550\", \"new\": \"570\", \"nodes\": [\"n1\"], \"job\": null, \"at\": null, \"by\": null};"
          " only `what` is needed, and neither nodes nor job means the whole fleet.")


class People(Protocol):
    """The part of `pipeline.api.House` that people speak to."""

    def command(self, what: str, params: Mapping[str, Any]) -> Any:
        """acknowledge, silence, wrong with id and body; change with body. Raises KeyError, BadInput."""
        ...


async def body_of(request: Request) -> Any:
    """The JSON body; no body is an empty object. Raises BadInput."""
    raw = await request.body()
    if len(raw) > LARGEST_FORM_BYTES:
        raise BadInput("the body", "", f"{len(raw)} bytes", f"at most {LARGEST_FORM_BYTES} are allowed")
    try:
        return json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError):
        raise BadInput("the body", "", "text that is no JSON", "a JSON object is needed") from None


def add_people(app: FastAPI, house: People) -> None:
    """POST incidents/{id}/{acknowledge,silence,wrong} and POST events."""

    def mark(word: str) -> Callable[[str, Request], Awaitable[Response]]:
        async def handle(incident: str, request: Request) -> Response:
            body = await body_of(request)
            try:
                return json_answer(await asyncio.to_thread(house.command, word, {"id": incident, "body": body, "actor": actor_of(request)}))
            except KeyError:
                raise NotKnown("the incident", incident) from None

        return handle

    for word in WORDS:
        app.add_api_route(f"/api/greylag/v1/incidents/{{incident}}/{word}", mark(word), methods=["POST"], name=word, tags=["Greylag"],
                          description=MARKS[word], response_model=None)

    async def change(request: Request) -> Response:
        body = await body_of(request)
        return json_answer(await asyncio.to_thread(house.command, "change", {"body": body, "actor": actor_of(request)}), 201)

    app.add_api_route("/api/greylag/v1/events", change, methods=["POST"], name="change", tags=["Greylag"], description=CHANGE,
                      response_model=None)
