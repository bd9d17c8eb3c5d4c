"""`greylag run --role collector`: the process that scrapes and follows logs, and hands batches to the owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path

from app.clocks import make_clock
from app.lean import lean
from app.workerfiles import INTERNAL_FILE, OWNER_FILE
from collectors.worker import run_worker
from core.clock import monotonic_seconds
from core.config import GreylagConfig
from core.errors import Unavailable
from core.telemetry import Telemetry

OWNER_WAIT_SECONDS = 30.0


def owner_url(config: GreylagConfig) -> str:
    """Where the owner listens: from the file that it writes at its start (its port may be a free one)."""
    path = Path(config.resolve(config.data_dir)) / OWNER_FILE
    return str(json.loads(path.read_text(encoding="utf-8"))["url"])


async def wait_for_owner(config: GreylagConfig) -> str:
    """The owner's address once it has written it. Raises Unavailable after 30 s of wall time."""
    deadline = monotonic_seconds() + OWNER_WAIT_SECONDS
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return owner_url(config)
        if monotonic_seconds() > deadline:
            raise Unavailable(f"no owner has started in {config.data_dir} within {OWNER_WAIT_SECONDS:g} s")
        await asyncio.sleep(0.1)


async def _run(config: GreylagConfig, worker: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    url = await wait_for_owner(config)
    clock = make_clock(config.clock)
    await run_worker(config, clock, url, worker, stop, Telemetry(), Path(config.resolve(config.data_dir)) / INTERNAL_FILE)


def run_collector(config: GreylagConfig, worker: str = "collector-0") -> int:
    """Runs until SIGTERM or SIGINT."""
    lean()
    asyncio.run(_run(config, worker))
    return 0
