"""A receiver for tests, and an incident to tell it of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from core.clock import monotonic_seconds
from core.types import Evidence, Incident, Notice, Outbound, Target

AT = 1_790_000_010_000
LINKS = {"external_url": "http://greylag:9470", "explorer_url": "http://greylag:8501", "runbook_url": ""}
GPU = Target("gpu", "n7", "3", "GPU-7-3")
INCIDENT = Incident(
    id="inc-0123456789ab", fault="thermal_throttle", scope="device", culprit=GPU, confidence=0.95, suspects=(), victims=(),
    findings=("fnd-1",), evidence=(Evidence("gpu.temperature_celsius", "°C", 88.0, 61.0, "median of 127 peers"),),
    jobs=("train-1",), lost_gpu_hours=1.25, owner="infra", klass="page", state="open", reason="opened_by_finding",
    merged_into=None, onset_at=AT - 60_000, opened_at=AT, updated_at=AT)


def incident(number: int, **changes: object) -> Incident:
    """One more incident, on a node of its own."""
    one = replace(INCIDENT, id=f"inc-{number:012x}", culprit=Target("gpu", f"n{number}", "0", f"GPU-{number}"))
    return replace(one, **changes)  # type: ignore[arg-type]


def notice(event: str, *incidents: Incident, **changes: object) -> Notice:
    """A notice about them."""
    key = incidents[0].id if incidents else "storm-1"
    one = Notice(event, AT, key, tuple(incidents), total=max(1, len(incidents)), still_open=len(incidents))
    return replace(one, **changes)  # type: ignore[arg-type]


def message(name: str, lane: str = "inc-1", body: str = "{}", notifier: str = "hook") -> Outbound:
    """A message of a lane."""
    return Outbound(name, notifier, lane, AT, body)


def wait_for(condition: Callable[[], object], seconds: float = 8.0) -> bool:
    """True once the condition holds, False after so long."""
    end = monotonic_seconds() + seconds
    while monotonic_seconds() < end:
        if condition():
            return True
        threading.Event().wait(0.02)
    return bool(condition())


class Receiver:
    """Answers with the given statuses, then with 200; keeps (path, headers by lower-case name, body)."""

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None) -> None:
        self.statuses, self.got = list(statuses), []
        receiver, more = self, headers or {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                for name, value in more.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self.server.shutdown()
        self.server.server_close()
