"""The pages of faults over HTTP, as plain text: a link of an alert works at three in the morning and without internet."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from core.faults import faults
from pipeline.answering import NotKnown
from pipeline.runbooks import INDEX, runbook


def add_runbooks(app: FastAPI) -> None:
    """`/runbooks` and `/runbooks/{fault}`; `{fault}.md` is the same page."""

    @app.get("/runbooks", tags=["Greylag"], response_class=PlainTextResponse)
    async def index() -> PlainTextResponse:
        """All faults, with what each means and who is told."""
        return PlainTextResponse(runbook(INDEX) or "\n".join(faults()) + "\n")

    @app.get("/runbooks/{fault}", tags=["Greylag"], response_class=PlainTextResponse)
    async def page(fault: str) -> PlainTextResponse:
        """One fault: what it means, how to confirm it by hand, what to do, how the part comes back."""
        text = runbook(fault.removesuffix(".md"))
        if text is None:
            raise NotKnown("the page", fault)
        return PlainTextResponse(text)
