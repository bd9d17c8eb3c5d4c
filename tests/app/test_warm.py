"""The ring after a restart: what the store gives back is what the ring held before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from app.warm import warm
from core.derive import STALE_NAN
from core.inventory import Inventory
from core.types import Batch, Event, Floats, Layout, Scrape, Series, SignalRef, Target
from pipeline.ring import Ring
from pipeline.store.duck import DuckStore

T0 = 1_800_000_000_000 // 15_000 * 15_000
STEP = 15_000


@pytest.fixture
def store(tmp_path) -> Iterator[DuckStore]:
    one = DuckStore(tmp_path / "greylag.duckdb")
    yield one
    one.close()


def layout(node: str, gpus: int, job: str | None = None, partial: bool = False) -> Layout:
    """A node's GPUs: temperature and a counter each; series take a job's name where there is one."""
    more = (("hpc_job", job),) if job else ()
    series, refs = [], []
    for gpu in range(gpus):
        part = Target("gpu", node, str(gpu), f"GPU-{node}-{gpu}")
        labels = (("gpu", str(gpu)), *more, ("instance", node))
        for name, signal, counter in (("temp", "gpu.temperature_celsius", False), ("rx", "nic.received_bytes_per_second", True)):
            target = part if not counter else Target("nic", node, f"eth{gpu}")
            refs.append(SignalRef(len(series), signal, target, 1.0, counter))
            series.append(Series(name, tuple(sorted(labels)), "gauge"))
    # A series that means nothing stands first: the store's layout is longer than what is read back.
    series.insert(0, Series("other", (("instance", node),), "gauge"))
    refs = [SignalRef(ref.index + 1, ref.signal, ref.target, ref.scale, ref.counter) for ref in refs]
    rows, meanings = tuple(series), tuple(refs)
    return Layout(Layout.make_id(node, rows, meanings), node, rows, meanings, node, partial=partial)


def batches(ticks: int) -> Iterator[Batch]:
    """Two nodes; a job starts on one, a value is absent, a scrape is missing, counters restart."""
    rng = np.random.default_rng(7)
    for k in range(ticks):
        at, layouts, scrapes = T0 + k * STEP, [], []
        for node in ("a", "b"):
            one = layout(node, 2, "j1" if node == "a" and k >= ticks // 2 else None)
            values: Floats = np.round(rng.normal(60, 3, 5), 2)
            values[2::2] = 1e6 * (k % 9) + rng.integers(0, 9, 2)
            if k == 5:
                values[1] = STALE_NAN
            if node == "b" and k in (7, 8):
                continue
            layouts.append(one)
            scrapes.append(Scrape(one.id, node, at + 2000, values))
        yield Batch("w", 1, k + 1, at, tuple(layouts), tuple(scrapes))


@pytest.mark.parametrize("ticks", [3, 20, 140])
def test_the_window_is_what_it_was(store, ticks):
    """All signals of the last 30 minutes stand at the same ticks with the same values, through relabelling and gaps."""
    before, after = Ring(Inventory()), Ring(Inventory())
    before.window(T0)
    for batch in batches(ticks):
        store.append([batch])
        before.feed(batch)
        window = before.window(batch.watermark)
    warm(after, store, window.end)
    again = after.window(window.end)
    shown = {name: block for name, block in window.blocks.items() if name != "exporter.series"}  # what means nothing is not read back
    assert set(again.blocks) == set(window.blocks)
    for name, block in shown.items():
        n = min(len(block.values), len(again.blocks[name].values), 119)
        assert np.array_equal(block.values[-n:], again.blocks[name].values[-n:], equal_nan=True), name
        assert block.entities == again.blocks[name].entities


def test_a_target_that_speaks_in_parts_is_held_as_before(store):
    """Two lines of a log tell different series in turn: neither ends the other."""
    part = Target("gpu", "a", "0", "GPU-a")
    names = {"temp": "gpu.temperature_celsius", "power": "gpu.power_watts"}
    layouts = []
    for some in (("temp",), ("power",), ("temp", "power")):
        series = tuple(Series(name, (("instance", "a"),), "gauge") for name in some)
        refs = tuple(SignalRef(i, names[name], part) for i, name in enumerate(some))
        layouts.append(Layout(Layout.make_id("log", series, refs), "log", series, refs, "a", partial=True))
    before, after = Ring(Inventory()), Ring(Inventory())
    before.window(T0)
    for k in range(60):
        shape = layouts[0] if k % 20 == 0 else layouts[2] if k % 7 == 0 else layouts[1 if k % 2 else 0]
        scrapes = tuple(Scrape(one.id, "log", T0 + k * STEP + 2000 + 3000 * i, np.full(len(one.series), float(k)))
                        for i, one in enumerate((shape, layouts[1])) if i == 0 or k % 5 == 0)
        batch = Batch("w", 1, k + 1, T0 + k * STEP + 10, tuple(layouts), scrapes)
        store.append([batch])
        before.feed(batch)
        window = before.window(T0 + (k + 1) * STEP)
    warm(after, store, window.end)
    again = after.window(window.end)
    for name in names.values():
        assert np.isfinite(window.values(name)[-58:]).sum() > 20
        assert np.array_equal(window.values(name)[-58:], again.values(name)[-58:], equal_nan=True), name


def test_events_come_back(store):
    """What happened in the last days is known after a restart."""
    event = Event(T0 - 3_600_000, Target("gpu", "a", "0"), "xid", {"code": 79})
    store.append([Batch("w", 1, 1, T0, (), (), (event,))])
    ring = Ring(Inventory())
    warm(ring, store, T0)
    assert [one.kind for one in ring.window(T0).events] == ["xid"]


def test_an_empty_store_gives_an_empty_ring(store):
    """Nothing stored: nothing read, and the ring starts as ever."""
    assert warm(Ring(Inventory()), store, T0) == 0


def test_life_goes_on_after_it(store):
    """The scrape of the next tick is judged, with rates against what was read back."""
    live = list(batches(5))
    store.append(live[:4])
    ring = Ring(Inventory())
    warm(ring, store, live[3].watermark)
    assert ring.feed(live[4]).late == 0
    blocks = ring.window(live[4].watermark + STEP).blocks
    assert np.isfinite(blocks["nic.received_bytes_per_second"].values[-1]).all()
    read = np.concatenate([scrape.values[1::2] for scrape in live[4].scrapes])
    assert blocks["gpu.temperature_celsius"].values[-1].tolist() == read.tolist()
