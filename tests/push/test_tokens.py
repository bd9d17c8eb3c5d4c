"""Pushes where tokens are asked for: a sender's and an operator's pass, a viewer's and nobody's do not."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from core.config import TokenConfig
from tests.push.encode import snappy, write_request
from tests.push.site import START_MS, WRITE, drain, post, receiver

TOKENS = tuple(TokenConfig(name, role, hashlib.sha256(name.encode()).hexdigest()) for name, role in (("ada", "operator"), ("eve", "viewer"), ("am", "sender")))


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("mallory", 401), ("eve", 403), ("am", 204), ("ada", 204)])
def test_a_push_needs_a_token_that_allows_it(tmp_path: Path, token: str | None, status: int) -> None:
    """What is refused leaves nothing behind; the health of the port stays open."""
    async def go() -> None:
        async with receiver(tmp_path, tokens=TOKENS) as one:
            head = {**WRITE, **({"Authorization": f"Bearer {token}"} if token else {})}
            body = snappy(write_request([({"__name__": "a", "job": "j", "instance": "i:1"}, [(START_MS, 1.0)])]))
            assert (await post(one.port, "/api/v1/write", body, head))[0] == status
            results, _ = drain(one, START_MS + 10_000)
            assert len(results) == (status == 204)
            assert (await post(one.port, "/healthz", b"", {}, "GET"))[0] == 200
    asyncio.run(go())
