"""A real Prometheus with a configuration of a test's own, and what it says of its targets."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.processes import free_port
from tests import needs


@contextmanager
def prometheus(config: Path, data: Path) -> Iterator[httpx.Client]:
    """A client of a Prometheus that runs with this file; it is ended by its id."""
    program, port = needs.program("prometheus"), free_port()
    log = data.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen([program, f"--config.file={config}", f"--storage.tsdb.path={data}",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=out, stderr=out)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10.0) as client:
                wait_for(lambda: _ready(client, process, log), "Prometheus")
                yield client
        finally:
            process.terminate()
            process.wait(10)


def _ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(holds: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """What `holds` gives, once it is true."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"no {what} within {seconds:g} s"
        time.sleep(0.05)
    return found


def targets_once(client: httpx.Client, complete: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """`/api/v1/targets`, once it is complete."""

    def look() -> dict[str, Any] | None:
        data: dict[str, Any] = client.get("/api/v1/targets").json()["data"]
        return data if complete(data) else None

    found: dict[str, Any] = wait_for(look, "complete list of targets")
    return found
