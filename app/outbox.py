"""Delivers what the ticks put into the outbox: at least once, in order for each incident, with back-off.

A message leaves the outbox only when its receiver has taken it, or when it was given up as a dead letter; a restart goes on
where it was. Each notifier has a thread of its own, so one that hangs holds nobody back. What a standing notifier has to keep
firing is posted again by the same thread, so that it never overtakes the end of an incident.

How far notification is behind is told by clocks alone, never by what a courier does next: one that hangs, fails or has died is
further behind with every second.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from app.lanes import Lanes, pause_seconds
from core.clock import monotonic_seconds, wall_ms
from core.errors import GreylagError, Refused
from core.protocols import Notifier, StandingNotifier
from core.telemetry import Telemetry
from core.types import Incident, Notice, Outbound
from pipeline.herald import NotifyRoute
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter

LOOK_SECONDS = 0.5


class Courier(threading.Thread):
    """The thread of one notifier. clock: monotonic seconds."""

    def __init__(self, name: str, notifier: Notifier, outbox: OutboxThread, seed: int,
                 clock: Callable[[], float] = monotonic_seconds) -> None:
        super().__init__(name=f"outbox {name}", daemon=True)
        self.notifier_name, self._notifier, self._outbox = name, notifier, outbox
        self.lanes = Lanes(seed)
        self.wake = threading.Event()
        self._seed, self._clock = seed, clock
        self._waits: dict[str, float] = {}  # by message: since when it waits
        self._looked = clock()  # up to when the store has been asked what waits
        self._failing: float | None = None  # since when no round came to its end
        self._said = ""
        self._resend_at, self._stand_tries = 0.0, 0

    def run(self) -> None:
        while not self._outbox.halt.is_set():
            if not self.round():
                self.wake.wait(LOOK_SECONDS)
                self.wake.clear()

    def round(self) -> bool:
        """Delivers, and posts what stands. True where there may be more to do at once. No error ends the courier: nothing is lost,
        all of it is tried again."""
        began = self._clock()
        try:
            again = self.deliver(began)
            self.stand(self._clock())
        except Exception as error:
            self._failed(error, began)
            return False
        self._failing, self._said = None, ""
        return again

    def _failed(self, error: Exception, began: float) -> None:
        """Said with its place in the code where nobody expected it, and that once: it may come again with each round."""
        self._failing = began if self._failing is None else self._failing
        if isinstance(error, GreylagError):  # the store did not answer
            print(f"greylag: {self.notifier_name}: {error}", file=sys.stderr, flush=True)
            return
        self._outbox.telemetry.add("greylag_courier_errors_total", notifier=self.notifier_name)
        words = f"{type(error).__name__}: {error}"
        if words != self._said:
            print(f"greylag: {self.notifier_name}: unexpected, and tried again: {words}", file=sys.stderr, flush=True)
            traceback.print_exception(error)
        self._said = words

    def lag_seconds(self, now: float) -> float | None:
        """Since when the oldest message waits. What the store was not asked for since, or what no round came through with, counts as
        waiting: nobody knows better. None = the thread has ended and should not have."""
        if self.ident is not None and not self.is_alive() and not self._outbox.halt.is_set():
            return None
        since = [self._looked, *tuple(self._waits.values())]
        failing = self._failing
        return max(0.0, now - min(since if failing is None else [failing, *since]))

    # --- messages -----------------------------------------------------------------------------------------------------
    def deliver(self, now: float) -> bool:
        """One round over the first message of each lane. True where one was taken: its lane may have the next."""
        heads = self._outbox.store.outbox_heads(self.notifier_name)
        self._looked = now
        known = self._waits  # the first of each lane, and so the oldest of all
        self._waits = {one.id: known[one.id] if one.id in known else now - self._outbox.age_seconds(one) for one, _ in heads}
        oldest = max((now - since for since in self._waits.values()), default=0.0)
        self._outbox.telemetry.set("greylag_outbox_oldest_seconds", oldest, notifier=self.notifier_name)
        if not heads or not self.lanes.open(now):
            self._count()
            return False
        resting = self.lanes.resting(now)
        if resting:
            heads = self._outbox.store.outbox_heads(self.notifier_name, resting)
        taken = False
        failures: list[tuple[str, int, str]] = []
        for message, tries in heads:
            if self._outbox.halt.is_set() or not self.lanes.open(self._clock()):
                break
            taken |= self._try(message, tries + 1, failures)
        if failures:
            self._outbox.writer.call(lambda: self._outbox.store.outbox_failed(failures)).result()
        self._count()
        return taken

    def _try(self, message: Outbound, tries: int, failures: list[tuple[str, int, str]]) -> bool:
        name = self.notifier_name
        try:
            self._notifier.deliver(message)
        except Refused as error:
            failures.append((message.id, tries, str(error)))
            self._done(message, "receiver_refused")
            print(f"greylag: {name} refused {message.id}: {error}", file=sys.stderr, flush=True)
            return True
        except Exception as error:  # a receiver's nonsense must not end the delivering
            words = str(error) if isinstance(error, GreylagError) else type(error).__name__
            failures.append((message.id, tries, words))
            after = float(getattr(error, "retry_after_seconds", 0.0))
            gone = self.lanes.failed(message.incident, message.id, tries, self._clock(), after)
            self._outbox.telemetry.add("greylag_notifications_total", notifier=name, result="failed")
            print(f"greylag: {name} did not take {message.id} ({words}), try {tries}", file=sys.stderr, flush=True)
            if gone:
                self._done(message, "gave_up")
            return gone
        self.lanes.taken(message.incident)
        self._done(message, "delivered")
        return True

    def _done(self, message: Outbound, result: str) -> None:
        self._outbox.writer.outbox_done(message.id, result).result()
        self._waits.pop(message.id, None)
        self._outbox.telemetry.add("greylag_notifications_total", notifier=self.notifier_name, result=result)

    def _count(self) -> None:
        waiting, dead = self._outbox.store.outbox_counts().get(self.notifier_name, (0, 0))
        self._outbox.telemetry.set("greylag_outbox_pending", waiting, notifier=self.notifier_name)
        self._outbox.telemetry.set("greylag_outbox_dead", dead, notifier=self.notifier_name)

    # --- what stands --------------------------------------------------------------------------------------------------
    def stand(self, now: float) -> None:
        """Posts what fires again, where it is time."""
        route = self._outbox.standing_routes.get(self.notifier_name)
        if route is None or now < self._resend_at:
            return
        notifier = cast(StandingNotifier, self._notifier)
        at, incidents = self._outbox.standing_of(self.notifier_name)
        body = route.plugin.render(Notice("standing", at, "", incidents), route.links) if incidents else None
        try:
            notifier.stand(body, self._outbox.well())
        except Exception as error:
            self._stand_tries += 1
            self._resend_at = now + min(notifier.resend_seconds, pause_seconds(self._stand_tries + 2, self._seed, "stand"))
            words = str(error) if isinstance(error, GreylagError) else type(error).__name__
            self._outbox.telemetry.add("greylag_notifications_total", notifier=self.notifier_name, result="failed")
            print(f"greylag: {self.notifier_name} did not take what fires ({words})", file=sys.stderr, flush=True)
            return
        self._stand_tries, self._resend_at = 0, now + notifier.resend_seconds


class OutboxThread:
    """The couriers of all notifiers. routes: of the same names. seed: of the jitter. well: Greylag itself is well, for the alert
    that always fires. now_ms: the clock of the messages' ticks."""

    def __init__(self, store: DuckStore, writer: StoreWriter, notifiers: Mapping[str, Notifier], telemetry: Telemetry,
                 routes: Sequence[NotifyRoute] = (), seed: int = 0, well: Callable[[], bool] = lambda: False,
                 now_ms: Callable[[], int] = wall_ms) -> None:
        self.store, self.writer, self.telemetry, self.well = store, writer, telemetry, well
        self._now_ms = now_ms
        self._anew: set[str] = set()  # dead letters that somebody sent again
        self.halt = threading.Event()
        self.standing_routes = {route.name: route for route in routes if route.plugin.standing}
        self._standing: dict[str, tuple[Incident, ...]] = {}
        self._standing_at = 0
        self._lock = threading.Lock()
        self._couriers = [Courier(name, notifier, self, seed) for name, notifier in notifiers.items()]

    def start(self) -> None:
        """Starts delivering. What is for notifiers that are configured no more becomes dead letters, and is seen as such."""
        names = {one.notifier_name for one in self._couriers}
        for name, (waiting, _) in self.store.outbox_counts().items():
            if name not in names and waiting:
                for message in self.store.outbox_pending(name, waiting):
                    self.writer.outbox_done(message.id, "no_notifier").result()
        for name, (_, dead) in self.store.outbox_counts().items():
            self.telemetry.set("greylag_outbox_dead", dead, notifier=name)
        for one in self._couriers:
            one.start()

    def is_alive(self) -> bool:
        """True while any courier runs."""
        return any(one.is_alive() for one in self._couriers)

    def wake(self) -> None:
        """There may be something new."""
        for one in self._couriers:
            one.wake.set()

    def stop(self) -> None:
        """Ends the threads; what is not delivered stays in the store."""
        self.halt.set()
        self.wake()
        for one in self._couriers:
            if one.is_alive():
                one.join(10)

    def stands(self, at: int, standing: Mapping[str, tuple[Incident, ...]]) -> None:
        """What fires since tick `at`, by notifier; to be called once the tick is committed."""
        with self._lock:
            self._standing, self._standing_at = dict(standing), at

    def ended(self, incidents: Iterable[str]) -> None:
        """These fire no longer; to be called before the tick that ends them is committed, lest their end be overtaken."""
        gone = set(incidents)
        if gone:
            with self._lock:
                self._standing = {name: tuple(one for one in many if one.id not in gone) for name, many in self._standing.items()}

    def standing_of(self, name: str) -> tuple[int, tuple[Incident, ...]]:
        """The tick, and what the notifier has to keep firing since."""
        with self._lock:
            return self._standing_at, self._standing.get(name, ())

    def age_seconds(self, message: Outbound) -> float:
        """How old a message is that is seen waiting for the first time; one that was sent again waits since then."""
        return 0.0 if message.id in self._anew else max(0.0, (self._now_ms() - message.at) / 1000)

    def lag_seconds(self, now: float) -> float | None:
        """How long the oldest message of any notifier has been waiting; None = not known: a courier has died."""
        found = [one.lag_seconds(now) for one in self._couriers]
        return None if None in found else max((one for one in found if one is not None), default=0.0)

    def resend(self, message_id: str) -> None:
        """A dead letter is tried again. Raises KeyError, Refused."""
        self._anew.add(message_id)  # before a courier can see it
        try:
            self.writer.call(lambda: self.store.outbox_resend(message_id)).result()
        except BaseException:
            self._anew.discard(message_id)
            raise
        self.wake()
