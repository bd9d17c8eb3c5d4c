"""What the ring knows of its targets themselves: whether each answers, and how many series its page shows.

A part of kind `exporter` for each target that has answered once (node, and the target's id as device). A page that comes in
sections is one exporter: its series add up. Pushes and logs are no targets: nobody asks them.
"""

from __future__ import annotations

from array import array

import numpy as np

from core.types import Scrape, Target
from pipeline.ring_feeds import Feed, Meanings
from pipeline.ring_parts import Parts
from pipeline.ring_rows import SIGNAL_NUMBER, Rows

FEED_NUMBER = 0  # the rows of exporters are a feed of their own, which never fails
ANSWERS, BROKEN, DOWN = 0.0, 1.0, 2.0
# What a failed reading says of the target. Other reasons are of our own making (limits, leases, secrets) and say nothing.
STATE_OF = {
    **dict.fromkeys(("connect_failed", "timeout", "http_status", "redirect_refused", "tls_failed"), DOWN),
    **dict.fromkeys(("truncated", "empty_body", "bad_syntax", "bad_encoding", "bad_openmetrics", "line_too_long"), BROKEN),
}
# Layouts of what is read back from the store hold only series that mean something: their number is not the page's.
READ_BACK = "warm/"
STATE, SERIES = SIGNAL_NUMBER["exporter.state"], SIGNAL_NUMBER["exporter.series"]


def whole_target(target_id: str) -> str:
    """The target's id without the name of a page's section."""
    return target_id.partition("#")[0]


class ExporterRows:
    """Rows of `exporter.state` and `exporter.series` by target (each section has its own)."""

    def __init__(self, rows: Rows, parts: Parts) -> None:
        self._rows, self._parts = rows, parts
        self._known: dict[str, tuple[int, int]] = {}
        self._news = array("d")  # row, value, at and interval of one after the other

    def note(self, feed: Feed, scrape: Scrape, layout: Meanings | None) -> None:
        """Takes a reading of a target, before its interval is learned from it."""
        if layout is None or layout.partial or layout.node is None or layout.ranks or feed.target_id.startswith("log/"):
            return  # a trainer's own page ends with its process: what becomes of a job is not read from its exporter
        state = ANSWERS if scrape.error is None else STATE_OF.get(scrape.error)
        if state is None or (state != ANSWERS and feed.target_id not in self._known):
            return  # one that never answered is not configured yet: nothing is lost with it
        of_state, of_series = self._rows_of(feed.target_id, layout.node)
        at, interval = float(scrape.at), feed.interval
        self._news.extend((of_state, state, at, interval))
        if state == ANSWERS and not layout.id.startswith(READ_BACK):
            shown = len(scrape.values) - int(np.count_nonzero(np.isnan(scrape.values)))
            self._news.extend((of_series, shown, at, interval))

    def _rows_of(self, target_id: str, node: str) -> tuple[int, int]:
        found = self._known.get(target_id)
        if found is None:
            part = self._parts.resolve(Target("exporter", node, whole_target(target_id)))
            numbers = self._rows.add(np.array([part, part]), np.array([STATE, SERIES]), np.zeros(2, np.bool_), FEED_NUMBER,
                                     np.zeros(2, np.int64))
            found = self._known[target_id] = (int(numbers[0]), int(numbers[1]))
        return found

    def flush(self) -> None:
        """Writes what was noted since the last call into the rows."""
        if not self._news:
            return
        table = np.array(self._news).reshape(-1, 4)
        which, rows = table[:, 0].astype(np.int64), self._rows
        rows.value[which], rows.at[which] = table[:, 1], table[:, 2]
        rows.set_interval(which, table[:, 3])
        rows.set_first(which, table[:, 2])
        rows.gone[which] = False
        self._news = array("d")

    def forget(self, target_id: str) -> None:
        """Drops a target that was long silent."""
        found = self._known.pop(target_id, None)
        if found is not None:
            self._rows.free(np.array(found, np.int64))
