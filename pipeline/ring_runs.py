"""Several scrapes of one target in one tick, written into the ring's rows together.

Data shape: at a scrape interval of 1 s a tick of 15 s holds 15 scrapes of each target, with some 1,000 signals each. Taken
one by one they cost two dozen numpy calls each (about 0.4 ms, 0.13 µs a sample of the page); as one array
[scrape, signal] the same calls run once for all of them. Only the newest value stays, but every counter is looked at in
every scrape: a reset between two ticks must not pass as a rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from core.derive import derive
from core.types import Floats, Scrape
from pipeline.ring_feeds import RESTART_COUNTERS, RESTART_SHARE, Compiled, Feed, Small, apply
from pipeline.ring_rows import GAP_INTERVALS, UNKNOWN_INTERVAL_MS, Rows


def take_runs(feed: Feed, tick: int) -> Iterator[list[Scrape]]:
    """Takes the waiting scrapes up to `tick` (ms) in time order; neighbours of one layout, all good, come together."""
    run: list[Scrape] = []
    for at in sorted(at for at in feed.pending if at <= tick):
        scrape = feed.pending.pop(at)
        if run and (scrape.layout_id != run[0].layout_id or scrape.error is not None or run[0].error is not None):
            yield run
            run = []
        run.append(scrape)
    if run:
        yield run


def apply_run(feed: Feed, scrapes: Sequence[Scrape], intervals: Sequence[float], shape: Compiled, rows: Rows) -> list[int]:
    """Writes good scrapes of one layout, in time order, as `apply` would one after the other. intervals: ms, of the target
    at each of them. Gives the times (ms) at which its exporter seems to have restarted."""
    together = _together(feed, scrapes, intervals, shape, rows) if len(scrapes) > 1 else None
    if together is not None:
        feed.interval = intervals[-1]
        return together
    out = []
    for scrape, interval in zip(scrapes, intervals, strict=True):
        feed.interval = interval
        if apply(feed, scrape, shape, rows):
            out.append(scrape.at)
    return out


def _together(feed: Feed, scrapes: Sequence[Scrape], intervals: Sequence[float], shape: Compiled, rows: Rows) -> list[int] | None:
    """The times of restarts; None, and nothing is written, where the scrapes do not all have the same signals."""
    raw = np.array([scrape.values for scrape in scrapes])[:, shape.index]
    with np.errstate(invalid="ignore", over="ignore"):
        values = raw * shape.scale
    for signal, positions in shape.ruled:
        values[:, positions] = derive(signal, raw[:, positions], shape.scale[positions])
    finite = np.isfinite(values)
    there = finite[0]
    if not np.array_equal(finite, np.broadcast_to(there, finite.shape)):
        return None
    everything = bool(there.all())
    if shape.layout.partial:
        rows.gone[shape.rows] = True
    elif not everything or len(shape.rows) != len(feed.rows):
        rows.gone[feed.rows.all()] = True
    where = shape.where if everything else shape.rows[there]
    counted = shape.counters if everything else shape.counters[there[shape.counters]]
    times = np.array([scrape.at for scrape in scrapes], np.float64)
    restarts = _count_all(rows, shape.rows[counted], values[:, counted], times, intervals) if len(counted) else []
    rows.gone[where] = False
    rows.value[where] = values[-1] if everything else values[-1, there]
    rows.at[where] = times[-1]
    rows.set_interval(where, intervals[-1])
    if not shape.started or not everything:
        rows.set_first(where, times[0])
    shape.started = everything
    shape.last_used = times[-1]
    feed.current = shape.layout.id
    return restarts


def _count_all(rows: Rows, which: Small, values: Floats, times: Floats, intervals: Sequence[float]) -> list[int]:
    """As `ring_feeds._count` for each of the scrapes; the times at which the exporter seems to have restarted."""
    base = rows.base_at[which]
    started = ~np.isnan(base)
    before = np.concatenate([rows.value[which][None], values[:-1]])
    gaps = GAP_INTERVALS * np.where(np.isnan(intervals), UNKNOWN_INTERVAL_MS, intervals)
    fell = values < before
    fell[0] &= started
    broken = fell.any(axis=0) | (started & (times[0] - rows.at[which] > gaps[0]))
    if (np.diff(times) > gaps[1:]).any():
        broken[:] = True
    if broken.any():
        rows.broken[which] |= broken
    if not started.all():
        new = which[~started]
        rows.base_value[new], rows.base_at[new] = values[0, ~started], times[0]
    falls = fell.sum(axis=1)
    suspect = np.flatnonzero(falls >= RESTART_COUNTERS)
    if not len(suspect):
        return []
    counting = before > 0
    counting[0] &= started
    return [int(times[i]) for i in suspect.tolist() if falls[i] >= RESTART_SHARE * int(counting[i].sum())]
