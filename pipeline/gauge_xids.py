"""XIDs that only dcgm-exporter's gauge tells, as events: one at each change to a code.

The gauge keeps its last value until its exporter starts again, so what stands in it, and its fall to 0, are no events. What the
detectors make of the gauge they read from the gauge itself; the event is for people: in the replay, the store and the timelines.
"""

from __future__ import annotations

import numpy as np

from core.types import Event
from core.window import Window

SAME_MS = 120_000  # the kernel's line came before: the exporter reads every 30 s, a slow scrape 60 s more
SOURCE = "gauge"


def gauge_xids(window: Window) -> list[Event]:
    """The changes that the window's last tick shows, without those that a kernel's line has told."""
    block = window.block("gpu.xid")
    if len(window.times) < 2 or not len(block.entities):
        return []
    now, before = block.values[-1], block.values[-2]
    told: set[tuple[str | None, object]] | None = None
    out: list[Event] = []
    for e in np.flatnonzero((now > 0) & (now != before)):
        last = _last_known(block.values[:-1, e])
        if now[e] == last or (np.isnan(last) and not _watched(window, int(e))):
            continue
        if told is None:
            told = {(x.target.node, x.fields.get("xid")) for x in window.events_of("xid", since=window.end - SAME_MS)}
        part, code = block.entities[e], int(now[e])
        if (part.node, code) not in told:
            out.append(Event(window.end, part, "xid", {"xid": code, "source": SOURCE}))
    return out


def _last_known(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else float("nan")


def _watched(window: Window, e: int) -> bool:
    """The GPU was shown before its gauge: the series begins with the first XID, else it may have stood there for days."""
    first = window.block("gpu.xid").first_at[e]
    seen = window.block("gpu.temperature_celsius").first_at[e]
    return bool(seen < first and window.end - first <= SAME_MS)
