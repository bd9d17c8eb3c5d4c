"""A signal's past from the store: what the window held then, bounded, with its cuts said."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.derive import STALE_NAN
from core.errors import BadInput
from core.types import Batch, Floats, Layout, Scrape, Series, SignalRef, Target
from pipeline import history as past
from pipeline.ring import Ring
from pipeline.store.duck import DuckStore
from tests.pipeline.worlds import inventory, tick

TEMP, LOST, UP = "gpu.temperature_celsius", "nic.packets_lost_per_second", "nic.link_up"


def shape(node: str) -> Layout:
    """A node's page: two GPUs in tenths of a degree, the second twice over; a NIC with two counters of loss and a state."""
    gpus, nic = [Target("gpu", node, str(i), f"GPU-{node}-{i}") for i in range(2)], Target("nic", node, "mlx5_0/1")
    series = tuple(Series(name, (("instance", node), ("n", str(i)))) for i, name in enumerate(
        ["temp", "temp", "temp", "sequence_total", "drops_total", "state"]))
    refs = (SignalRef(0, TEMP, gpus[0], 0.1), SignalRef(1, TEMP, gpus[1], 0.1), SignalRef(2, TEMP, gpus[1], 0.1),
            SignalRef(3, LOST, nic, 1.0, True), SignalRef(4, LOST, nic, 1.0, True), SignalRef(5, UP, nic, 0.25))
    return Layout(Layout.make_id(node, series, refs), node, series, refs, node)


def recording(seed: int, ticks: int, nodes: int = 3) -> list[Batch]:
    """Scrapes that are missed, that fail, that lack values; counters that fall."""
    chance = random.Random(seed)
    shapes = [shape(f"n{i}") for i in range(nodes)]
    counters = {one.id: [0.0, 0.0] for one in shapes}
    out = []
    for i in range(ticks):
        scrapes = []
        for one in shapes:
            count = counters[one.id]
            for j in range(2):
                count[j] = 0.0 if chance.random() < 0.05 else count[j] + chance.randrange(50)
            luck = chance.random()
            if i > 3 and luck < 0.1:
                continue
            values = np.array([chance.randrange(300, 900), chance.randrange(300, 900), chance.randrange(300, 900), *count,
                               chance.choice([1.0, 4.0, 5.0])])
            if i > 3:
                values[[chance.random() < 0.1 for _ in values]] = STALE_NAN
            failed = i > 3 and luck < 0.2
            scrapes.append(Scrape(one.id, one.target_id, tick(i), np.zeros(0) if failed else values,
                                  error="timeout" if failed else None))
        out.append(Batch("w", 1, i + 1, tick(i), tuple(shapes) if not i else (), tuple(scrapes)))
    return out


def by_part(parts: tuple[Target, ...], values: Floats) -> dict[str, list[float]]:
    return {part.key: np.round(values[:, column], 6).tolist() for column, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(3))
def test_the_past_is_what_the_window_held(seed: int) -> None:
    """The same batches through the ring, live, and through the store, later: the same values, the same gaps."""
    store, ring = DuckStore(None), Ring(inventory())
    batches = recording(seed, 60)
    store.append(batches)
    for i, one in enumerate(batches):
        ring.feed(one)
        window = ring.window(tick(i))
    for signal in (TEMP, LOST, UP):
        block = window.block(signal)
        found = past.history(store, signal, tick(0), tick(59))
        live, late = by_part(block.entities, block.values[-50:]), by_part(found.parts, found.values[-50:])
        assert live.keys() == late.keys()
        for key, values in live.items():
            np.testing.assert_allclose(late[key], values, err_msg=f"{signal} {key}")
    store.close()


@pytest.fixture(scope="module")
def store() -> DuckStore:
    made = DuckStore(None)
    for one in recording(1, 12, nodes=5):
        made.append([one])
    return made


def test_points_are_bounded_and_the_cut_is_said() -> None:
    """A month is at most 2,000 points; the step says how far they are apart."""
    times, step = past.grid(tick(0), tick(0) + 30 * 86_400_000)
    assert len(times) <= past.MOST_POINTS
    assert step % 15_000 == 0


def test_parts_are_bounded_those_of_the_asked_node_first(store: DuckStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more parts are stored than are read, the node that was asked for is among them."""
    monkeypatch.setattr(past, "MOST_PARTS", 3)
    monkeypatch.setattr(past, "FEWEST_PARTS", 3)
    found = past.history(store, TEMP, tick(0), tick(11), node="n4")
    assert [t.node for t in found.parts[:2]] == ["n4", "n4"]
    assert (len(found.parts), found.cut) == (3, "only 3 parts are read")


def test_a_long_time_has_fewer_parts_and_fewer_points(store: DuckStore) -> None:
    """Reading stays bounded whatever is asked for."""
    found = past.history(store, TEMP, tick(0), tick(0) + 400 * 86_400_000)
    assert len(found.times) <= past.MOST_POINTS
    assert found.cut is not None


def test_nothing_stored_is_an_empty_answer(store: DuckStore) -> None:
    """Before the first sample there are times and no parts."""
    answer = past.document(past.history(store, TEMP, tick(-900), tick(-890)), {})
    assert (len(answer["times"]), answer["series"], answer["parts"]) == (11, [], 0)


def test_the_document_filters_series_and_keeps_the_median_of_all(store: DuckStore) -> None:
    """A culprit's line comes with the median over every part, not over its own node."""
    everything = past.document(past.history(store, TEMP, tick(0), tick(11)), {})
    one = past.document(past.history(store, TEMP, tick(0), tick(11), "n2"), {"node": "n2", "device": "1"})
    assert [row["target"]["id"] for row in one["series"]] == ["GPU-n2-1"]
    assert one["median"] == everything["median"]


@pytest.mark.parametrize(("signal", "start", "end"), [("gpu.heat", 0, 1), (TEMP, 15_000, 0)])
def test_bad_questions_are_one_sentence(store: DuckStore, signal: str, start: int, end: int) -> None:
    """A name that is no signal, an end before the start."""
    with pytest.raises(BadInput):
        past.history(store, signal, start, end)


def test_sealed_hours_and_a_restart_answer_the_same(tmp_path: object) -> None:
    """What was written to segments, read by a later process, is the same past."""
    path = tmp_path / "g.duckdb"  # type: ignore[operator]
    made = DuckStore(path)
    batches = recording(2, 300)
    for at in range(0, 300, 50):
        made.append(batches[at : at + 50])
    before = past.history(made, LOST, tick(0), tick(299))
    assert made.seal() > 0
    made.close()
    again = DuckStore(path)
    after = past.history(again, LOST, tick(0), tick(299))
    again.close()
    np.testing.assert_array_equal(before.values, after.values)
