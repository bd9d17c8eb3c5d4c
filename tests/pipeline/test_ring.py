"""The ring: what a window shows of the scrapes that came in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.derive import STALE_NAN
from core.inventory import Inventory
from core.types import Event, Target
from pipeline.ring import Ring
from pipeline.ring_bench import bench_ring
from pipeline.ring_exporters import FEED_NUMBER
from tests.pipeline.worlds import GPU, T0, batch, inventory, layout, scrape, tick

TEMP, ENERGY, NVLINK = "gpu.temperature_celsius", "gpu.energy_watts", "gpu.nvlink_bytes_per_second"
NAN = float("nan")


def last(ring: Ring, i: int, signal: str = TEMP, column: int = 0) -> float:
    values = ring.window(tick(i)).last(signal)
    return float(values[column]) if len(values) else NAN


def fed(*samples: tuple[float, float], counter: bool = False, signal: str = TEMP, part: Target = GPU) -> Ring:
    """A ring with one series; samples: (seconds after T0, value), None as value is a failed scrape."""
    one = layout([(signal, part, counter)])
    ring = Ring(Inventory())
    for seconds, value in samples:
        at = T0 + int(seconds * 1000)
        ring.feed(batch(scrape(one, at, error="timeout") if value is None else scrape(one, at, value), layouts=[one]))
    return ring


GAUGES = [
    ("a sample exactly on the tick belongs to it", [(0, 1), (15, 2)], 1, 2),
    ("a sample after the tick does not", [(0, 1), (16, 2)], 1, 1),
    ("the newest of several in a tick counts", [(1, 1), (6, 2), (11, 3)], 1, 3),
    ("a value is held for 1.5 intervals", [(0, 1), (30, 2)], 5, 2),
    ("and not longer", [(0, 1), (30, 2)], 6, NAN),
    ("before the interval is known 60 s are the bound", [(0, 1)], 4, 1),
    ("and no more than that", [(0, 1)], 5, NAN),
    ("a failed scrape leaves nothing at its time", [(0, 1), (15, None)], 1, NAN),
    ("and the next good one counts again", [(0, 1), (15, None), (30, 3)], 2, 3),
    ("an infinite value is no value", [(0, 1), (15, float("inf"))], 1, NAN),
    ("a stale marker is no value", [(0, 1), (15, STALE_NAN)], 1, NAN),
    ("samples of a second hold for their tick", [(i, i) for i in range(11)], 1, 10),
]


@pytest.mark.parametrize(("samples", "at", "value"), [g[1:] for g in GAUGES], ids=[g[0] for g in GAUGES])
def test_gauge(samples: list, at: int, value: float) -> None:
    """A gauge at a tick is the newest sample that is not too old."""
    np.testing.assert_equal(last(fed(*samples), at), value)


COUNTERS = [
    ("the first sample gives no rate", [(0, 100)], 0, NAN),
    ("then the rate between the two newest", [(0, 100), (15, 250)], 1, 10),
    ("a reset gives none", [(0, 100), (15, 250), (30, 10)], 2, NAN),
    ("and the next one does again", [(0, 100), (15, 250), (30, 10), (45, 25)], 3, 1),
    ("a missed scrape gives the rate across it", [(0, 0), (15, 15), (45, 45)], 3, 1),
    ("a gap of more than 3 intervals gives none", [(0, 0), (15, 15), (30, 30), (90, 90)], 6, NAN),
    ("after the gap it goes on", [(0, 0), (15, 15), (30, 30), (90, 90), (105, 120)], 7, 2),
    ("the rate runs over the whole tick", [(0, 0), (5, 10), (10, 10), (15, 30)], 1, 2),
    ("a reset inside a tick spoils it", [(0, 50), (5, 60), (10, 1), (15, 90)], 1, NAN),
    ("several samples in the first tick give its rate", [(5, 0), (10, 10)], 1, 2),
    ("with 60 s between scrapes the last rate is held", [(0, 0), (60, 60), (120, 120)], 9, 1),
    ("for 1.5 intervals", [(0, 0), (60, 60), (120, 120)], 15, NAN),
]


@pytest.mark.parametrize(("samples", "at", "value"), [c[1:] for c in COUNTERS], ids=[c[0] for c in COUNTERS])
def test_counter(samples: list, at: int, value: float) -> None:
    """A counter at a tick is a rate per second, missing where it cannot be known."""
    ring = fed(*samples, counter=True, signal=ENERGY)
    for i in range(at + 1):
        got = last(ring, i, ENERGY)
    np.testing.assert_allclose(got, value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(500, 40_000), st.floats(0, 1e6), st.booleans()), min_size=2, max_size=40))
def test_rates_are_never_negative(steps: list[tuple[int, float, bool]]) -> None:
    """Whatever resets and gaps a counter has, its rate is missing or what a plain reference says."""
    one = layout([(ENERGY, GPU, True)])
    ring, at, value = Ring(Inventory()), T0, 0.0
    samples: list[tuple[int, float]] = []
    for spacing, grow, reset in steps:
        at, value = at + spacing, grow if reset else value + grow
        samples.append((at, value))
        ring.feed(batch(scrape(one, at, value), layouts=[one]))
    ticks = (at - T0) // 15_000 + 1
    for i in range(ticks + 1):
        end = tick(i)
        got = last(ring, i, ENERGY)
        inside = [s for s in samples if end - 15_000 < s[0] <= end]
        before = [s for s in samples if s[0] <= end - 15_000][-1:]
        run = before + inside
        assert np.isnan(got) or got >= 0
        if inside and len(run) > 1 and not np.isnan(got):
            assert all(b[1] >= a[1] for a, b in itertools.pairwise(run))
            np.testing.assert_allclose(got, (run[-1][1] - run[0][1]) / (run[-1][0] - run[0][0]) * 1000, rtol=1e-9)


def test_scale() -> None:
    """A rate is of the scaled value."""
    one, ring = layout([(ENERGY, GPU, True)], scale=0.001), Ring(Inventory())
    for i in range(2):
        ring.feed(batch(scrape(one, tick(i), 1_000_000.0 * i), layouts=[one]))
        got = last(ring, i, ENERGY)
    assert got == pytest.approx(1000 / 15)


def test_sum_survives_a_reset_of_one_series() -> None:
    """Series of one sum add up; one that was reset is left out of it, not the sum."""
    one, ring = layout([(NVLINK, GPU, True), (NVLINK, GPU, True)], names=["tx", "rx"]), Ring(Inventory())
    got = []
    for i, values in enumerate([(0, 100), (150, 250), (300, 10), (450, 160)]):
        ring.feed(batch(scrape(one, tick(i), *values), layouts=[one]))
        got.append(last(ring, i, NVLINK))
    np.testing.assert_allclose(got, [NAN, 20, 10, 20])


def test_two_exporters_of_one_part() -> None:
    """Copies of a part in two targets count once: the first known value, the larger sum."""
    a = layout([(TEMP, GPU, False), (NVLINK, GPU, False)], "a")
    b = layout([(TEMP, GPU, False), (NVLINK, GPU, False)], "b")
    ring = Ring(Inventory())
    ring.feed(batch(scrape(b, T0, 70, 5), scrape(a, T0, NAN, 3), layouts=[b, a]))
    seen = ring.window(T0)
    assert (seen.last(TEMP)[0], seen.last(NVLINK)[0], len(seen.of_kind("gpu"))) == (70, 5, 1)


def test_what_a_rank_exposes_counts_before_its_log() -> None:
    """A log tells a step each n steps: the rank's own series is the newer word."""
    ring = Ring(inventory())
    rank = Target("rank", "n1", "0", job="j", rank=0)
    log = layout([("rank.step", rank, False)], "log/j/0/abc", None)
    own = layout([("rank.step", rank, False)], "trainers/n1:8000", "n1")
    ring.feed(batch(scrape(log, T0, 90.0), scrape(own, T0, 97.0), layouts=[log, own]))
    assert ring.window(T0).last("rank.step").tolist() == [97.0]


def test_series_that_vanishes() -> None:
    """A series that the next scrape lacks is missing from then on; its age shows since when."""
    other = Target("gpu", "n1", "1", "GPU-b")
    both, one = layout([(TEMP, GPU, False), (TEMP, other, False)]), layout([(TEMP, GPU, False)])
    ring = Ring(Inventory())
    ring.feed(batch(scrape(both, T0, 1, 2), scrape(one, tick(1), 3), layouts=[both, one]))
    ring.window(T0)
    seen = ring.window(tick(1))
    np.testing.assert_equal(seen.last(TEMP), [3, NAN])
    np.testing.assert_equal(seen.block(TEMP).age_seconds, [0, 15])


def test_counter_goes_on_across_layouts() -> None:
    """A new series in a page does not break the rates of the others."""
    other = Target("gpu", "n1", "1", "GPU-b")
    one, both = layout([(ENERGY, GPU, True)]), layout([(ENERGY, GPU, True), (ENERGY, other, True)])
    ring = Ring(Inventory())
    ring.feed(batch(scrape(one, T0, 0), scrape(both, tick(1), 15, 7), layouts=[one, both]))
    ring.window(T0)
    np.testing.assert_equal(ring.window(tick(1)).last(ENERGY), [1, NAN])


def test_block_facts() -> None:
    """Interval, age and first time are of the target's own rhythm."""
    ring = fed((1, 1), (31, 2), (61, 3))
    block = ring.window(tick(5)).block(TEMP)
    assert (block.interval_seconds[0], block.age_seconds[0], block.first_at[0]) == (30, 14, T0 + 1000)


def test_window_is_read_only_and_stays() -> None:
    """A window cannot be written, and later ticks do not change it."""
    ring = fed(*[(15 * i, i) for i in range(200)])
    early = ring.window(tick(100))
    kept = early.values(TEMP).copy()
    for i in range(101, 200):
        ring.window(tick(i))
    np.testing.assert_equal(early.values(TEMP), kept)
    with pytest.raises(ValueError):
        early.values(TEMP)[0] = 0


def test_window_has_a_bound_and_no_holes() -> None:
    """Half an hour of ticks, those that nobody asked for included."""
    ring = fed(*[(15 * i, i) for i in range(200)])
    ring.window(T0)
    seen = ring.window(tick(199))
    assert len(seen.times) == 120
    np.testing.assert_equal(seen.values(TEMP)[:, 0], np.arange(80.0, 200.0))


def test_a_long_pause_starts_a_new_window() -> None:
    """After hours without a tick the window holds nothing of the time before."""
    ring = fed((0, 1))
    ring.window(T0)
    seen = ring.window(tick(2000))
    assert not len(seen.of_kind("gpu"))
    assert seen.times[-1] == tick(2000)


@pytest.mark.parametrize("bad", [T0 + 1, T0 - 15_000])
def test_wrong_ticks_are_refused(bad: int) -> None:
    """A tick off the grid or before a judged one is a bug of the caller."""
    ring = fed((0, 1))
    ring.window(T0)
    with pytest.raises(ValueError):
        ring.window(bad)


def test_counts() -> None:
    """Late, repeated, contradicting and unmapped samples are counted and not judged."""
    one, ring = layout([(TEMP, GPU, False)]), Ring(Inventory())
    stray = layout([(ENERGY, GPU, True)], "stray")
    first = ring.feed(batch(scrape(one, T0, 1), layouts=[one]))
    ring.window(T0)
    second = ring.feed(batch(scrape(one, T0, 1), scrape(one, T0, 2), scrape(one, T0 - 5, 9), scrape(stray, tick(1), 1)))
    assert (first.samples, second.samples, second.duplicate, second.conflict, second.late, second.unmapped) \
        == (1, 0, 1, 1, 1, 1)
    assert last(ring, 0) == 1


def test_events_are_sorted_and_unique() -> None:
    """Equal events are one; a window shows those up to its end, in time order."""
    ring = Ring(Inventory())
    a, b = Event(T0 + 5, Target("node", "n1"), "oom"), Event(T0 - 5, Target("node", "n1"), "oom")
    later = Event(tick(1), Target("node", "n2"), "boot")
    assert ring.feed(batch(events=[a, b, a, later])).events == 3
    assert ring.window(T0).events == (b,)
    assert ring.window(tick(1)).events == (b, a, later)


def test_pci_address_becomes_the_gpu() -> None:
    """A log names a GPU by its PCI address; the inventory knows which one that is."""
    inv = inventory(nodes=[{"name": "n1", "gpus": [{"index": 3, "uuid": "GPU-x", "pci": "00000000:B3:00.0"}]}])
    ring = Ring(inv)
    ring.feed(batch(events=[Event(T0, Target("gpu", "n1", "0000:b3:00"), "xid", {"xid": 79})]))
    target = ring.window(T0).events[0].target
    assert (target.device, target.id) == ("3", "GPU-x")


def test_boot_time_that_grows_is_a_boot() -> None:
    """The start of a recording is no boot; a boot time that jumps forward is."""
    ring = fed((0, 1000), (15, 1001), (30, (T0 + 20_000) / 1000), signal="node.boot_time_seconds",
               part=Target("node", "n1"))
    assert not [ring.window(tick(i)) for i in range(2)][-1].events
    boot, = ring.window(tick(2)).events
    assert (boot.kind, boot.at, boot.target) == ("boot", T0 + 20_000, Target("node", "n1"))


def test_many_counters_that_fall_at_once_are_a_restart() -> None:
    """An exporter whose counters all start again has restarted."""
    gpus = [Target("gpu", "n1", str(i), f"GPU-{i}") for i in range(4)]
    one, ring = layout([(ENERGY, g, True) for g in gpus]), Ring(Inventory())
    ring.feed(batch(scrape(one, T0, 9, 9, 9, 9), scrape(one, tick(1), 1, 1, 1, 1), layouts=[one]))
    assert [e.kind for e in ring.window(tick(1)).events] == ["exporter_restart"]


def test_order_of_input_does_not_matter() -> None:
    """Columns stand in natural order, n2 before n10, whichever came first."""
    parts = [Target("gpu", f"n{n}", str(d), f"GPU-{n}-{d}") for n in (10, 2, 1) for d in (1, 0)]
    shapes = [layout([(TEMP, p, False)], p.key, p.node) for p in parts]
    seen = []
    for order in (shapes, shapes[::-1]):
        ring = Ring(Inventory())
        for one in order:
            ring.feed(batch(scrape(one, T0, float(shapes.index(one))), layouts=[one]))
        window = ring.window(T0)
        seen.append(([(t.node, t.device) for t in window.of_kind("gpu")], window.last(TEMP).tolist()))
    assert seen[0] == seen[1]
    assert seen[0][0] == [("n1", "0"), ("n1", "1"), ("n2", "0"), ("n2", "1"), ("n10", "0"), ("n10", "1")]


def test_late_column_keeps_the_past_of_the_others() -> None:
    """A part that joins in the middle moves columns, not histories."""
    ring, other = fed((0, 1), (15, 2), (30, 3)), Target("gpu", "n0", "0", "GPU-z")
    for i in range(2):
        ring.window(tick(i))
    more = layout([(TEMP, other, False)], "n0:9400", "n0")
    ring.feed(batch(scrape(more, tick(2), 9), layouts=[more]))
    np.testing.assert_equal(ring.window(tick(2)).values(TEMP), [[NAN, 1], [NAN, 2], [9, 3]])


def test_parts_that_are_long_gone_are_dropped() -> None:
    """What was not seen for longer than a window leaves the axis, and its memory is given back."""
    ring, other = fed((0, 1)), Target("gpu", "n2", "0", "GPU-b")
    more = layout([(TEMP, other, False)], "n2:9400", "n2")
    for i in range(300):
        ring.feed(batch(scrape(more, tick(i), 1), layouts=[more] if not i else []))
        seen = ring.window(tick(i))
    assert [t.node for t in seen.of_kind("gpu")] == ["n2"]
    assert int((ring._rows.alive & (ring._rows.feed != FEED_NUMBER)).sum()) == 1
    assert [t.node for t in seen.of_kind("exporter")] == ["n2"]


def test_a_signal_that_nobody_tells_any_more_is_missing() -> None:
    """Also where its part goes on with other signals for longer than a window, and buffers were made anew meanwhile."""
    ring = fed((0, 1))
    more = layout([("gpu.power_watts", GPU, False)], "n2:9400")
    for i in range(300):
        ring.feed(batch(scrape(more, tick(i), i), layouts=[more] if not i else []))
        seen = ring.window(tick(i))
    assert np.isnan(seen.values(TEMP)).all()
    np.testing.assert_equal(seen.values("gpu.power_watts")[:, 0], np.arange(180.0, 300.0))


def test_pages_of_one_target_in_turn() -> None:
    """Two pages of one target at their own offsets both give gauges and rates."""
    other = Target("gpu", "n1", "1", "GPU-b")
    a, b = layout([(ENERGY, GPU, True), (TEMP, GPU, False)]), layout([(ENERGY, other, True), (TEMP, other, False)])
    ring = Ring(Inventory())
    for i in range(6):
        ring.feed(batch(scrape(a, tick(i) - 9000, 15 * i, 50), scrape(b, tick(i) - 1000, 30 * i, 60), layouts=[a, b]))
        seen = ring.window(tick(i))
    np.testing.assert_allclose(seen.last(ENERGY), [1, 2])
    np.testing.assert_allclose(seen.last(TEMP), [50, 60])


@pytest.mark.parametrize(("raw", "loss", "nonfinite"), [
    (2.5, 2.5, 0), (NAN, NAN, 1), (float("inf"), NAN, 1), (STALE_NAN, NAN, NAN),
], ids=["finite", "nan", "inf", "absent"])
def test_a_loss_that_is_not_finite(raw: float, loss: float, nonfinite: float) -> None:
    """A NaN loss is evidence, an absent one is not."""
    rank, ring = Target("rank", "n1", "0", job="j", rank=0), Ring(Inventory())
    one = layout([("rank.loss", rank, False), ("rank.loss_nonfinite", rank, False), ("rank.step", rank, False)])
    ring.feed(batch(scrape(one, T0, raw, raw, 1), layouts=[one]))
    seen = ring.window(T0)
    np.testing.assert_equal([seen.last("rank.loss")[0], seen.last("rank.loss_nonfinite")[0]], [loss, nonfinite])


def test_signals_of_another_kind_are_left_out() -> None:
    """A layout that gives a node's signal to a GPU does not stop the tick."""
    one, ring = layout([("node.load1", GPU, False), (TEMP, GPU, False)]), Ring(Inventory())
    ring.feed(batch(scrape(one, T0, 1, 2), layouts=[one]))
    assert sorted(ring.window(T0).blocks) == ["exporter.series", "exporter.state", TEMP]


def test_silence() -> None:
    """A node of which nothing comes is silent; one whose other input goes on is not."""
    node = layout([("node.load1", Target("node", "n1"), False)], "n1:9100")
    ring = fed((0, 1))
    for i in range(6):
        ring.feed(batch(scrape(node, tick(i), 1), layouts=[node] if not i else []))
        seen = ring.window(tick(i))
    assert not seen.silent_nodes
    assert ring.window(tick(12)).silent_nodes == {"n1"}


def test_bench_runs() -> None:
    """The benchmark of the ring gives its figures."""
    assert bench_ring(2, 2)["values_per_tick"] > 0
