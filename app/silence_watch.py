"""Reads the silences of each Alertmanager that Greylag sends to. One that does not answer keeps what it last said."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

from core.clock import monotonic_seconds
from core.errors import GreylagError
from core.protocols import Notifier
from core.telemetry import Telemetry
from pipeline.notify.alertmanager import Alertmanager
from pipeline.silences import SilenceBook, read_silences


class SilenceWatch(threading.Thread):
    """One thread for all of them; `look` reads those that are due. now_ms: cluster time."""

    def __init__(self, notifiers: Mapping[str, Notifier], book: SilenceBook, telemetry: Telemetry, now_ms: Callable[[], int]) -> None:
        super().__init__(name="silences", daemon=True)
        self._doors = {name: one for name, one in notifiers.items() if isinstance(one, Alertmanager) and one.polls_silences}
        self._book, self._telemetry, self._now_ms = book, telemetry, now_ms
        self._next = dict.fromkeys(self._doors, 0.0)
        self._failed: set[str] = set()
        self._halt = threading.Event()

    def begin(self) -> None:
        """Starts, where there is an Alertmanager to ask."""
        if self._doors:
            self.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._halt.set()
        if self.is_alive():
            self.join(12)

    def run(self) -> None:
        while not self._halt.is_set():
            self.look(monotonic_seconds())
            self._halt.wait(max(0.2, min(self._next.values()) - monotonic_seconds()))

    def look(self, now: float) -> None:
        """Reads the silences of those that are due. now: monotonic seconds."""
        for name, door in self._doors.items():
            if now < self._next[name]:
                continue
            self._next[name] = now + door.poll_seconds
            try:
                found = read_silences(door.silences(), name)
            except GreylagError as error:
                if name not in self._failed:
                    print(f"greylag: the silences of {name} could not be read ({error}); the last ones stay", file=sys.stderr, flush=True)
                self._failed.add(name)
                continue
            self._failed.discard(name)
            self._book.replace(name, found)
            at = self._now_ms()
            self._telemetry.set("greylag_silences", sum(one.start <= at < one.end for one in found), notifier=name)
