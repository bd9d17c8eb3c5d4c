"""Words and calls of `greylag incidents undelivered` and `resend`: messages that no receiver has taken."""

from __future__ import annotations

from typing import Any

import typer

from core.errors import GreylagError


def listed(answer: dict[str, Any]) -> list[str]:
    """Messages that no receiver took, a line each, and what the weekly budgets leave."""
    lines = [f"{row['state']:<16} {row['tries']:>3} tries  {row['at'][:19]}  {row['id']}" + (f"  ({row['error']})" if row["error"] else "")
             for row in answer["items"]]
    lines += [f"{name}: {left} pages of this week are left" for name, left in answer["pages_left"].items() if left is not None]
    return lines or ["every message was delivered"]


def resend(url: str, message: str) -> str:
    """Sends a dead letter, or all of them (`all`), again; a line that says what was done. Raises BadInput, Unavailable."""
    from app.client import Client

    client = Client(url)
    if message != "all":
        client.post(f"/api/greylag/v1/outbox/{message}/resend")
        return f"{message} is sent again"
    dead = [row["id"] for row in client.get("/api/greylag/v1/outbox", limit=1000)["items"] if row["state"] != "waiting"]
    done = 0
    for one in dead:
        try:
            client.post(f"/api/greylag/v1/outbox/{one}/resend")
            done += 1
        except GreylagError as error:
            typer.echo(f"{one} is not sent again: {error}", err=True)
    return f"{done} of {len(dead)} messages are sent again"
