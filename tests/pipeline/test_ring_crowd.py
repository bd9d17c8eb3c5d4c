"""Scrapes of many targets that are written together leave the ring as those that are written one by one."""

from __future__ import annotations

import copy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.signals import SIGNALS
from core.types import Layout, Scrape, Series, SignalRef, Target
from pipeline.ring_crowd import Crowd, Reading
from pipeline.ring_feeds import Feed, Meanings, apply, compile_layout
from pipeline.ring_parts import Parts
from pipeline.ring_rows import Rows
from tests.pipeline.test_ring_runs import NAMES, VALUES


def _scene(pages):
    """Feeds with a layout each of the signals of a page, and the rows that they share; the second knows rows of another page."""
    rows, parts, feeds = Rows(), Parts(), []
    for number, names in enumerate(pages, 1):
        refs = tuple(SignalRef(i, name, Target(SIGNALS[name].kind, f"n{number}", str(i), job="j", rank=10 * number + i), 1.0,
                               name.endswith("_per_second")) for i, name in enumerate(names))
        series = tuple(Series(f"s{i}", (), "gauge") for i in range(len(names)))
        feed = Feed(f"t{number}", number)
        layout = Meanings.of(Layout("l", feed.target_id, series, refs, f"n{number}"))
        feed.add_layout(layout)
        feeds.append((feed, compile_layout(feed, layout, rows, parts)))
    feed = feeds[0][0]
    other = Meanings.of(Layout("o", feed.target_id, (Series("x", (), "gauge"),), (
        SignalRef(0, NAMES[0], Target(SIGNALS[NAMES[0]].kind, "n1", "far"), 1.0, False),), "n1"))
    compile_layout(feed, other, rows, parts)
    return rows, feeds


def _told(rows, feeds):
    table = [getattr(rows, name)[:len(rows)] for name in (
        "value", "at", "base_value", "base_at", "interval", "first_at", "gone", "broken")]
    return table, [(feed.current, shape.started, shape.last_used) for feed, shape in feeds]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_crowd_is_as_one_after_the_other(data):
    """Values, times, counters' bases, breaks, absences and restarts are the same, tick after tick."""
    pages = data.draw(st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), min_size=1, max_size=4))
    alone = _scene(pages)
    together = copy.deepcopy(alone)
    crowd, at = Crowd(), 0
    for feed, _ in (*alone[1], *together[1]):
        feed.current = "l"
    for _ in range(data.draw(st.integers(1, 4))):
        at += data.draw(st.sampled_from([15_000, 15_000, 300_000]))
        readings, restarts = [], set()
        for (feed, shape), (twin, twin_shape), names in zip(alone[1], together[1], pages, strict=True):
            values = np.array(data.draw(st.lists(VALUES, min_size=len(names), max_size=len(names))))
            feed.interval = data.draw(st.sampled_from([15_000.0, float("nan")]))
            when = at - data.draw(st.sampled_from([0, 500]))
            if apply(feed, Scrape("l", feed.target_id, when, values), shape, alone[0]):
                restarts.add(feed.target_id)
            readings.append(Reading(twin, Scrape("l", twin.target_id, when, values), twin_shape, feed.interval))
        found = {one.feed.target_id for one in crowd.apply(readings[::-1], together[0])}
        assert found == restarts
        for mine, theirs in zip(_told(*alone)[0], _told(*together)[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert _told(*alone)[1] == _told(*together)[1]
        alone[0].close_tick(at, 15_000.0, np.zeros(8, bool))
        together[0].close_tick(at, 15_000.0, np.zeros(8, bool))
