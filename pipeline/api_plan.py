"""What would happen to each open incident now: asked of the policy in force, or of one that is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from core.errors import BadInput
from pipeline.answering import json_answer
from pipeline.api_people import body_of

PLAN = ("What would happen to each open incident at the next tick, and why; nothing is changed by asking. GET: under the policy in"
        " force. POST: under the one in the body, {\"policy\": the YAML text}.")


class Planner(Protocol):
    """The part of `pipeline.api.House` that is asked."""

    def read(self, what: str, params: Mapping[str, Any]) -> Any:
        """plan, with the policy's text, None = the one in force. Raises BadInput."""
        ...


def add_plan(app: FastAPI, house: Planner) -> None:
    """GET and POST plan."""

    async def ask(text: str | None) -> Response:
        return json_answer(await asyncio.to_thread(house.read, "plan", {"policy": text}))

    async def plan() -> Response:
        return await ask(None)

    async def plan_of(request: Request) -> Response:
        body = await body_of(request)
        text = body.get("policy") if isinstance(body, Mapping) else None
        if not isinstance(text, str):
            raise BadInput("policy", "", text, "the text of a policy is needed")
        return await ask(text)

    for method, door in (("GET", plan), ("POST", plan_of)):
        app.add_api_route("/api/greylag/v1/plan", door, methods=[method], tags=["Greylag"], name=f"plan_{method.lower()}", description=PLAN,
                          response_model=None)
