"""XIDs that only dcgm-exporter's gauge tells, as events: one at each change to a code.

What the detectors make of the gauge they read from the gauge itself; the event is for people: in the replay, the store and the timelines.
"""

from __future__ import annotations

from core.types import Event
from core.window import Window
from core.xid_gauge import SAME_MS, changes

SOURCE = "gauge"


def gauge_xids(window: Window) -> list[Event]:
    """The changes that the window's last tick shows, without those that a kernel's line has told."""
    newest = [(part, code) for at, part, code in changes(window) if at == window.end]
    if not newest or len(window.times) < 2:
        return []
    told = {(x.target.node, x.fields.get("xid")) for x in window.events_of("xid", since=window.end - SAME_MS)}
    return [Event(window.end, part, "xid", {"xid": code, "source": SOURCE}) for part, code in newest if (part.node, code) not in told]
