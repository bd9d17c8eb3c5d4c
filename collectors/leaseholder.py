"""A worker's view of the leases: a heartbeat each second tells the owner how the worker is and brings the lease table back.

An owner that has no such door (an answer 404) issues no leases: then this worker reads everything. An owner that is away
changes nothing: the last table holds until it answers again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from collectors.handover import Handover
from collectors.shards import LeaseAnswer, LeaseTable
from core.errors import Unavailable

LEASES_PATH = "/internal/v1/leases"
HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 0.25


class Holder(Protocol):
    """What the heartbeat asks of the worker, and tells it."""

    def status(self) -> Mapping[str, Any]:
        """Numbers about the worker, as JSON types (see `app.crew`)."""
        ...

    def told(self, status: Mapping[str, Any]) -> None:
        """The owner has got this status."""
        ...

    def leased(self, before: LeaseTable, answer: LeaseAnswer) -> None:
        """An answer came; `before` is the table until now."""
        ...


class LeaseHolder:
    """Keeps `table` fresh. `first` waits for the first answer, `run` goes on until it is cancelled."""

    def __init__(self, worker: str, handover: Handover, holder: Holder) -> None:
        self._worker, self._handover, self._holder = worker, handover, holder
        self.table = LeaseTable()
        self._version = 0  # of what other workers learned
        self._poke = asyncio.Event()

    def newer(self, generation: int) -> None:
        """The owner has leases of this generation: asks for them at once where they are news."""
        if generation != self.table.generation:
            self._poke.set()

    async def first(self, stopped: Callable[[], bool]) -> LeaseAnswer | None:
        """The answer to a worker that starts; None where the owner issues no leases, or the worker is to stop."""
        while not stopped():
            try:
                return await self._beat(starting=True)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
        return None

    async def run(self) -> None:
        """A heartbeat each second, and at once where an answer to a batch named newer leases."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._poke.wait()
            except TimeoutError:
                pass
            self._poke.clear()
            try:
                await self._beat(starting=False)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _beat(self, starting: bool) -> LeaseAnswer | None:
        status = dict(self._holder.status())
        body = {**status, "worker": self._worker, "pid": os.getpid(), "starting": starting,
                "generation": self.table.generation, "version": self._version}
        answer = await self._handover.post(LEASES_PATH, json=body)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise Unavailable(f"the owner gave no leases (status {answer.status_code})")
        try:
            found = LeaseAnswer.of_json(answer.json())
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Unavailable("the owner's leases cannot be read") from None
        before, self.table = self.table, found.table
        self._version = max(self._version, found.version)
        self._holder.told(status)
        self._holder.leased(before, found)
        return found
