"""Scrapes that are taken together leave the ring as scrapes that are taken one by one."""

from __future__ import annotations

import copy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.derive import STALE_NAN
from core.signals import SIGNALS
from core.types import Layout, Scrape, Series, SignalRef, Target
from pipeline import ring_runs
from pipeline.ring_feeds import Feed, Meanings, apply, compile_layout
from pipeline.ring_parts import Parts
from pipeline.ring_rows import Rows

SIGNAL_OF = ("gpu.temperature_celsius", "gpu.memory_temperature_celsius", "gpu.pcie_replays_per_second",
             "gpu.nvlink_errors_per_second", "gpu.xid", "rank.loss", "rank.loss_nonfinite", "nic.link_up",
             "gpu.ecc_correctable_per_second", "gpu.nvlink_bytes_per_second")
NAMES = tuple(name for name in SIGNAL_OF if name in SIGNALS)
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 40.0, -1.0, float("nan"), float("inf"), STALE_NAN])


def _scene(names, partial):
    """A feed with one layout of the signals, and empty rows."""
    parts = [Target(SIGNALS[name].kind, "n1", str(i), job="j" if SIGNALS[name].kind == "rank" else None,
                    rank=i if SIGNALS[name].kind == "rank" else None) for i, name in enumerate(names)]
    refs = tuple(SignalRef(i, name, part, 1.0, name.endswith("_per_second"))
                 for i, (name, part) in enumerate(zip(names, parts, strict=True)))
    series = tuple(Series(f"s{i}", (), "gauge") for i in range(len(names)))
    layout = Meanings.of(Layout("l", "t", series, refs, "n1", None, None, partial=partial))
    feed, rows = Feed("t", 1), Rows()
    feed.add_layout(layout)
    shape = compile_layout(feed, layout, rows, Parts())
    return feed, rows, shape


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_run_is_as_its_scrapes(data):
    """Values, times, counters' bases, breaks, absences and restarts are those of one scrape after the other."""
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6))
    alone = _scene(names, data.draw(st.booleans()))
    together = copy.deepcopy(alone)
    at = 0
    for _ in range(data.draw(st.integers(1, 3))):
        run, intervals = [], []
        calm = data.draw(st.booleans())
        row = data.draw(st.lists(VALUES, min_size=len(names), max_size=len(names)))
        for _ in range(data.draw(st.integers(1, 5))):
            at += data.draw(st.sampled_from([1000, 1000, 1000, 9000]))
            row = row if calm else data.draw(st.lists(VALUES, min_size=len(names), max_size=len(names)))
            run.append(Scrape("l", "t", at, np.array(row)))
            intervals.append(data.draw(st.sampled_from([1000.0, float("nan")])))
        restarts = []
        feed, rows, shape = alone
        for scrape, interval in zip(run, intervals, strict=True):
            feed.interval = interval
            restarts += [scrape.at] if apply(feed, scrape, shape, rows) else []
        feed, rows, shape = together
        assert ring_runs.apply_run(feed, run, intervals, shape, rows) == restarts
    for name in ("value", "at", "base_value", "base_at", "interval", "first_at", "gone", "broken"):
        np.testing.assert_array_equal(getattr(alone[1], name), getattr(together[1], name), name)
