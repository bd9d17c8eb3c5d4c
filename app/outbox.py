"""Delivers what the ticks put into the outbox: at least once, in order for each notifier, with back-off.

A message leaves the outbox only when its receiver has taken it (or refused it for good); a restart goes on where it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from core.clock import monotonic_seconds
from core.errors import GreylagError, Refused
from core.protocols import Notifier
from core.telemetry import Telemetry
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0


class OutboxThread(threading.Thread):
    """One thread for all notifiers; a notifier that fails waits without holding the others back."""

    def __init__(self, store: DuckStore, writer: StoreWriter, notifiers: Mapping[str, Notifier],
                 telemetry: Telemetry) -> None:
        super().__init__(name="outbox", daemon=True)
        self._store, self._writer, self._notifiers, self._telemetry = store, writer, notifiers, telemetry
        self._wake = threading.Event()
        self._halt = threading.Event()
        self._pause = dict.fromkeys(notifiers, 0.0)
        self._not_before = dict.fromkeys(notifiers, 0.0)

    def wake(self) -> None:
        """There may be something new."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread; what is not delivered stays in the store."""
        self._halt.set()
        self._wake.set()
        if self.is_alive():
            self.join(10)

    def run(self) -> None:
        while not self._halt.is_set():
            for name, notifier in self._notifiers.items():
                if monotonic_seconds() >= self._not_before[name]:
                    self._deliver(name, notifier)
            self._wake.wait(FIRST_PAUSE_SECONDS)
            self._wake.clear()

    def _deliver(self, name: str, notifier: Notifier) -> None:
        pending = self._store.outbox_pending(name)
        self._telemetry.set("greylag_outbox_pending", len(pending), notifier=name)
        for message in pending:
            if self._halt.is_set():
                return
            try:
                notifier.deliver(message)
                result = "delivered"
            except Refused as error:
                result = "refused"
                print(f"greylag: {name} refused {message.id}: {error}", file=sys.stderr, flush=True)
            except GreylagError as error:
                self._pause[name] = min(max(self._pause[name] * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                self._not_before[name] = monotonic_seconds() + self._pause[name]
                self._telemetry.add("greylag_notifications_total", notifier=name, result="failed")
                print(f"greylag: {name} did not take {message.id} ({error}); next try in {self._pause[name]:g} s",
                      file=sys.stderr, flush=True)
                return
            self._pause[name] = 0.0
            self._writer.outbox_done(message.id, result).result()
            self._telemetry.add("greylag_notifications_total", notifier=name, result=result)
        self._telemetry.set("greylag_outbox_pending", len(self._store.outbox_pending(name)), notifier=name)
