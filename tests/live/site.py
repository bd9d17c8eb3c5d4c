"""A real Greylag beside tests: `greylag run` with its own processes, a configuration in a folder, and the store it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from core.protocols import Matcher
from pipeline.store.duck import DuckStore
from tests import needs


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer of `condition`; an error of HTTP is a no. Fails naming what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.HTTPError, OSError, ValueError, KeyError, IndexError):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.1)


def children(pid: int) -> dict[str, int]:
    """The direct children of a process by their role (`owner`, `collector`)."""
    found: dict[str, int] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found[words[words.index(b"--role") + 1].decode()] = int(child)
    return found


def alive(pid: int) -> bool:
    """True while the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Greylag:
    """`greylag run` over a configuration in `folder`. Its log is `folder/greylag.log`."""

    def __init__(self, folder: Path, port: int, **config: Any) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.file = folder / "greylag.yaml"
        self.file.write_text(yaml.safe_dump({"data_dir": "data", "listen": f"127.0.0.1:{port}", **config}))
        self.http = httpx.Client(base_url=self.url, timeout=10.0, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Starts it and waits until the API answers."""
        with (self.folder / "greylag.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "run", "-c", str(self.file), *more], cwd=needs.ROOT, stdout=log, stderr=log)
        wait_for(self.healthy, 60, f"the start of Greylag (see {self.folder}/greylag.log)")

    def healthy(self) -> bool:
        """True where the API answers."""
        return self.http.get("/healthz").status_code == 200

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def child(self, role: str) -> int:
        """The pid of the owner or of the collector; waits while it is being started anew."""
        return int(wait_for(lambda: children(self.pid).get(role), 60, f"the start of the {role}"))

    def kill(self, role: str) -> None:
        """kill -9."""
        os.kill(self.child(role), signal.SIGKILL)

    def stop(self, how: int = signal.SIGTERM, seconds: float = 25.0) -> int:
        """Ends it; gives the exit status."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(seconds)

    def query(self, text: str) -> list[dict[str, Any]]:
        """The answer of an instant query."""
        return self.http.get("/api/v1/query", params={"query": text}).raise_for_status().json()["data"]["result"]

    def items(self, what: str) -> list[dict[str, Any]]:
        """All rows of a list of Greylag's own API."""
        return self.http.get(f"/api/greylag/v1/{what}", params={"limit": 1000}).raise_for_status().json()["items"]

    def log(self) -> str:
        return (self.folder / "greylag.log").read_text()

    def close(self) -> None:
        """Ends what still runs, by pid."""
        self.http.close()
        if self.process is None or self.process.poll() is not None:
            return
        pids = [self.process.pid, *children(self.process.pid).values()]
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)

    @contextmanager
    def store(self) -> Iterator[DuckStore]:
        """The store of a Greylag that has ended."""
        one = DuckStore(self.folder / "data" / "greylag.duckdb")
        try:
            yield one
        finally:
            one.close()


def named(name: str, **labels: str) -> list[Matcher]:
    """Matchers for a name and labels."""
    return [Matcher("__name__", "=", name), *(Matcher(key, "=", value) for key, value in labels.items())]
