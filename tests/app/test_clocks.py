"""The fleet's clock as Greylag sees it: a commit is reported until it is heard, and time never goes back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app import clocks
from core.clock import WallClock
from core.errors import Unavailable

T = 1_800_000_000_000


class Fleet(ThreadingHTTPServer):
    """Answers as a paced fleet does; `answers` are the statuses of the next requests, then 200."""

    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        server: Fleet

        def do_GET(self) -> None:
            self.answer(self.next_status())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = self.next_status()
            self.server.heard.append((status, body["tick_ms"]))  # before the answer: who has it may look at once
            self.answer(status)

        def next_status(self) -> int:
            return self.server.answers.pop(0) if self.server.answers else 200

        def answer(self, status: int) -> None:
            body = json.dumps({"now_ms": self.server.now, "speed": None, "paced": True}).encode() if status == 200 else b"no"
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.now, self.answers, self.heard = T, [], []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def fleet(monkeypatch) -> Iterator[Fleet]:
    """A fleet's clock door; tries follow each other at once."""
    monkeypatch.setattr(clocks, "RETRY_SECONDS", 0.01)
    server = Fleet()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_commit_is_reported_until_it_is_heard(fleet):
    """A paced clock stands until then, and no later tick would come to tell it."""
    clock = clocks.make_clock(fleet.url)
    fleet.answers = [503, 500]
    fleet.now = T + 15_000
    asyncio.run(clock.committed(T))
    assert fleet.heard == [(503, T), (500, T), (200, T)]
    assert clock.now_ms() == T + 15_000


def test_time_never_goes_back(fleet):
    """An older answer that comes late changes nothing."""
    clock = clocks.make_clock(fleet.url)
    fleet.now = T - 60_000
    asyncio.run(clock.committed(T))
    assert clock.now_ms() == T


def test_sleeping_outlives_an_error_of_the_fleet(fleet):
    """The slot comes when the fleet answers again."""
    clock = clocks.make_clock(fleet.url)
    fleet.answers = [503]
    fleet.now = T + 15_000
    asyncio.run(clock.sleep_until(T + 15_000))
    assert clock.now_ms() == T + 15_000


def test_without_a_fleet_the_clock_is_the_systems():
    """A real cluster runs on the wall clock; a fleet that does not answer is said to be one."""
    assert isinstance(clocks.make_clock(None), WallClock)
    with pytest.raises(Unavailable, match="does not answer"):
        clocks.make_clock("http://127.0.0.1:9")
