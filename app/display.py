"""The demo's face: JSON lines, a live display in a terminal, or plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from app.client import Client
from app.story import Teller, part
from core.clock import monotonic_seconds
from core.errors import GreylagError
from core.render import dumps
from core.targets import CLOSED_STATES

STATUS_EVERY_SECONDS = 1.0
COLOURS = (("OPENED", "bold red"), ("REOPENED", "bold red"), ("PLANTED", "magenta"), ("RESOLVED", "bold green"),
           ("ESCALATED", "bold yellow"), ("PROVEN", "bold green"), ("SLOWER", "bold yellow"), ("NOT MEASURED", "bold yellow"),
           ("✓", "green"), ("✗", "red"), ("→", "cyan"))


class Display:
    """Prints records as they come. A context manager: the live line exists only inside it."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._told = 0.0
        self._teller = Teller()
        self._incidents: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Display:
        if not self._json and self._console.is_terminal:
            self._live = Live(Text(""), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, at_ms: int) -> None:
        """Cluster time at the start: what happened long before is no news."""
        self._teller = Teller(at_ms)

    def note(self, text: str) -> None:
        """A line of the demo itself; on standard error when the output is JSON."""
        if self._json:
            print(text, file=sys.stderr, flush=True)
        else:
            self._console.print(Text(text, style="dim"))
            sys.stdout.flush()

    def record(self, record: dict[str, Any]) -> None:
        """One record of the story."""
        if record["type"] == "incident":
            self._incidents[record["incident"]["id"]] = record["incident"]
        if self._json:
            sys.stdout.write(dumps(record) + "\n")
            sys.stdout.flush()
            return
        for line in self._teller.lines(record):
            style = next((s for mark, s in COLOURS if mark in line), "")
            self._console.print(Text(line, style=style))
        sys.stdout.flush()

    def status(self, client: Client, wall_seconds: float) -> None:
        """Refreshes the live line: cluster time, the job, open incidents."""
        if self._live is None or monotonic_seconds() - self._told < STATUS_EVERY_SECONDS:
            return
        self._told = monotonic_seconds()
        with suppress(GreylagError):
            records = client.get("/api/greylag/v1/records", cursor=2**53, limit=1)
            step = client.get("/api/v1/query", query='greylag_train_step{rank="0"}')["data"]["result"]
            words = [(records.get("tick") or "no tick yet")[:19].replace("T", " ")]
            # A job may tell its step twice: by its metrics and by its log.
            steps = sorted((str(row["metric"].get("job")), float(row["value"][1])) for row in step)
            words += [f"{job} at step {at:.0f}" for job, at in dict(steps).items()]
            still = [i for i in self._incidents.values() if i["state"] not in CLOSED_STATES]
            words += [f"{i['fault']} on {part(i['culprit'])}: {i['state']}" for i in still[:2]] or ["no open incident"]
            self._live.update(Text(f" {'  │  '.join(words)}  │  {wall_seconds:.0f} s of wall time ", style="reverse"))
