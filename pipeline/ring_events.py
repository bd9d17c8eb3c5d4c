"""The events of the last 7 days, sorted, each once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import replace

from core.types import Event, Target
from pipeline.topology import Hardware

KEPT_MS = 7 * 24 * 3600 * 1000
MOST_EVENTS = 100_000

Row = tuple[int, str, str, str, str]


def _row(event: Event) -> Row:
    """Order and identity of an event: equal rows are one event."""
    fields = "\x00".join(f"{k}={event.fields[k]!r}" for k in sorted(event.fields))
    return event.at, event.kind, event.target.key, event.line or "", fields


class EventLog:
    """Bounded by age and number; the oldest go first."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._rows: list[Row] = []
        self._events: dict[Row, Event] = {}
        self._most = most
        self._cache: tuple[int, int, tuple[Event, ...]] | None = None
        self._changes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, event: Event) -> bool:
        """False where exactly this event is known already."""
        row = _row(event)
        if row in self._events:
            return False
        self._events[row] = event
        if not self._rows or row > self._rows[-1]:
            self._rows.append(row)
        else:
            insort(self._rows, row)
        if len(self._rows) > self._most:
            self._drop(len(self._rows) - self._most)
        self._changes += 1
        return True

    def _drop(self, n: int) -> None:
        for row in self._rows[:n]:
            del self._events[row]
        del self._rows[:n]

    def until(self, end: int) -> tuple[Event, ...]:
        """All events of the 7 days up to and including `end` (ms)."""
        old = bisect_left(self._rows, (end - KEPT_MS, "", "", "", ""))
        if old:
            self._drop(old)
            self._changes += 1
        n = bisect_right(self._rows, (end, "\U0010ffff", "", "", ""))
        if self._cache is None or self._cache[:2] != (n, self._changes):
            self._cache = (n, self._changes, tuple(self._events[row] for row in self._rows[:n]))
        return self._cache[2]

    def since(self, start: int, end: int) -> Iterable[Event]:
        """Events with start < at <= end (ms)."""
        a = bisect_right(self._rows, (start, "\U0010ffff", "", "", ""))
        b = bisect_right(self._rows, (end, "\U0010ffff", "", "", ""))
        return [self._events[row] for row in self._rows[a:b]]


def placed(event: Event, hardware: Hardware) -> Event:
    """The event with its GPU named as people name it, where the inventory knows the PCI address that the log gives."""
    target = event.target
    if target.kind != "gpu":
        return event
    known = hardware.gpu_at(target.node, target.device)
    if known is None or (None not in (target.id, known.id) and target.id != known.id):
        return event  # another board stands there than the inventory says
    return replace(event, target=replace(target, device=known.device, id=known.id or target.id, serial=known.serial))


def boot_event(node: Target, boot_seconds: float, seen_at: int, earliest: int) -> Event:
    """A boot that the boot time of a node tells of. Its time is the boot's own where that lies between the two samples
    that show it, else the sample's: a node's clock may be off."""
    at = int(boot_seconds * 1000)
    if not earliest <= at <= seen_at:
        at = seen_at
    return Event(at, Target("node", node.node), "boot", {"boot_time_seconds": boot_seconds})
