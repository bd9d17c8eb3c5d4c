"""The past after a restart: the same minutes, medians and spreads as without one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from app import past
from app.warm import SPAN_MS, warm
from core.clock import TICK_MS
from core.derive import STALE_NAN
from core.inventory import Inventory
from core.protocols import TickCommit
from core.types import Batch, Finding, Layout, Scrape, Series, SignalRef, Target
from pipeline.ring import Ring
from pipeline.store.duck import DuckStore

T0 = 1_800_000_000_000 // 3_600_000 * 3_600_000
TEMP, LOST, LOSS = "gpu.temperature_celsius", "nic.packets_lost_per_second", "rank.loss"
SIX_HOURS = 6 * 3600
NODES = ("a", "b")


@pytest.fixture
def store(tmp_path) -> Iterator[DuckStore]:
    one = DuckStore(tmp_path / "greylag.duckdb", retention_ms=2**50)
    yield one
    one.close()


def gpu(node: str) -> Target:
    return Target("gpu", node, "0", f"GPU-{node}")


def node_layout(node: str, renamed: bool) -> Layout:
    """A GPU's temperature, and a NIC's losses, which are the sum of two counters."""
    more = (("hpc_job", "j"),) if renamed else ()
    names = (("temp", TEMP, gpu(node), False), ("drop", LOST, Target("nic", node, "eth0"), True),
             ("err", LOST, Target("nic", node, "eth0"), True))
    series = tuple(Series(name, tuple(sorted((("instance", node), *more))), "gauge") for name, *_ in names)
    refs = tuple(SignalRef(i, signal, part, 1.0, counter) for i, (_, signal, part, counter) in enumerate(names))
    return Layout(Layout.make_id(node, series, refs), node, series, refs, node)


def log_layout() -> Layout:
    series = (Series("loss", (("rank", "0"),), "gauge"),)
    refs = (SignalRef(0, LOSS, Target("rank", "a", "0", job="j", rank=0)),)
    return Layout(Layout.make_id("log/j", series, refs), "log/j", series, refs, "a", partial=True)


def live(ticks: int) -> Iterator[Batch]:
    """Values wander; scrapes are missing, series are absent, counters restart, a node's labels change at half time."""
    rng = np.random.default_rng(5)
    counts = np.zeros((2, 2))
    log = log_layout()
    for k in range(ticks):
        at, layouts, scrapes = T0 + (k + 1) * TICK_MS, [log], []
        for n, node in enumerate(NODES):
            one = node_layout(node, node == "a" and k >= ticks // 2)
            counts[n] = 0 if k % 301 == 300 else counts[n] + rng.integers(0, 20, 2)
            values = np.array([60 + 5 * np.sin(k / 200) + rng.normal(), *counts[n]])
            if k % 37 == 5:
                values[0] = STALE_NAN
            if node == "b" and k % 50 in (20, 21, 22, 23):
                continue
            layouts.append(one)
            scrapes.append(Scrape(one.id, node, at - 9000 + 1000 * n, values))
        if k % 2:
            scrapes.append(Scrape(log.id, "log/j", at - 4000, np.array([float(rng.normal(3, 0.1))])))
        yield Batch("w", 1, k + 1, at, tuple(layouts), tuple(scrapes))


def lived(store: DuckStore, ticks: int, ask_at: int, findings: tuple[Finding, ...] = ()) -> Ring:
    """A ring that lived through it, asked of its past from `ask_at` on; the store has it all, its old hours sealed."""
    ring = Ring(Inventory())
    ring.window(T0)
    held: list[Batch] = []
    for k, one in enumerate(live(ticks)):
        held.append(one)
        ring.feed(one)
        ring.window(one.watermark)
        ring.exclude([f for f in findings if f.opened_at <= one.watermark < (f.ended_at or 2**62)])
        if k == ask_at:
            for signal in (TEMP, LOST, LOSS):
                ring.baseline(signal, SIX_HOURS)
        if len(held) == 120 or k == ticks - 1:
            store.append(held)
            store.seal()
            held = []
    return ring


def again(store: DuckStore, asked: dict[str, int], last: int, seconds: float = 10.0) -> tuple[Ring, int]:
    ring = Ring(Inventory())
    warm(ring, store, last)
    return ring, past.recall(ring, store, last, asked, seconds)


def hot(target: Target, onset: int, opened: int, ended: int | None) -> Finding:
    return Finding(f"f{onset}", "d", "thermal_throttle", target, "open", 0.6, (), "hot", onset, opened, opened, ended)


@pytest.mark.parametrize(("ticks", "ask_at"), [(200, 100), (600, 30), (900, 400)])
def test_a_restart_changes_nothing(store, ticks, ask_at):
    """Gauges, sums of counters across resets and gaps, and what a log tells: equal minutes, whatever hour they lie in."""
    before = lived(store, ticks, ask_at)
    last = T0 + ticks * TICK_MS
    after, _ = again(store, before.asked(), last)
    for signal in (TEMP, LOST, LOSS):
        one, two = before.baseline(signal, SIX_HOURS), after.baseline(signal, SIX_HOURS)
        assert np.array_equal(one.n, two.n), signal
        assert one.n.max() > min(ticks - ask_at, 500) / 4
        for field in ("median", "mad", "slope_per_hour"):
            np.testing.assert_allclose(getattr(two, field), getattr(one, field), rtol=1e-9, atol=1e-9, err_msg=signal)


def test_the_time_of_findings_is_left_out(store):
    """Of a finding that ended, and of one that is still open."""
    ended = hot(gpu("a"), T0 + 100 * TICK_MS, T0 + 110 * TICK_MS, T0 + 301 * TICK_MS)
    still = hot(gpu("b"), T0 + 350 * TICK_MS, T0 + 360 * TICK_MS, None)
    before = lived(store, 500, 20, (ended, still))
    store.commit_tick(TickCommit(T0 + 500 * TICK_MS, findings=(ended, still)))
    after, _ = again(store, before.asked(), T0 + 500 * TICK_MS)
    counts = [ring.baseline(TEMP, SIX_HOURS).n.tolist() for ring in (before, after)]
    assert counts[0] == counts[1]
    assert max(counts[0]) < 90


def test_no_time_means_the_half_hour(store):
    """A bound that is over at once leaves what the ring itself holds, and says so."""
    before = lived(store, 400, 20)
    last = T0 + 400 * TICK_MS
    after, reached = again(store, before.asked(), last, seconds=0.0)
    assert reached == last
    assert 0 < after.baseline(TEMP, SIX_HOURS).n.max() <= SPAN_MS / 60_000


def test_what_nobody_asked_for_is_not_read(store):
    """No signal, no past; a text of another time is read as far as it is known."""
    lived(store, 10, 99)
    after, reached = again(store, past.read('{"no.such_signal": 5}'), T0 + 10 * TICK_MS)
    assert (after.asked(), reached) == ({}, T0 + 10 * TICK_MS)


def test_the_first_question_is_kept(store):
    """What is committed is when a signal was first asked for, through restarts that reached less far back."""
    before = lived(store, 300, 100)
    first = past.asked(before, {})
    after, _ = again(store, first, T0 + 300 * TICK_MS, seconds=0.0)
    assert past.asked(after, first) == first
