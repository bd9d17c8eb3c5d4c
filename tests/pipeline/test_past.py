"""Baselines, identity of parts, and coverage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from core.protocols import DetectorPlugin
from core.types import Target
from pipeline.baseline import KEPT_MINUTES, MINUTE_MS, Minutes, summarise
from pipeline.coverage import Coverage
from pipeline.ring import Ring
from pipeline.ring_parts import Parts, natural
from pipeline.topology import pci_key
from tests.pipeline.worlds import GPU, T0, batch, finding, inventory, layout, scrape, tick, window

TEMP = "gpu.temperature_celsius"
NAN = float("nan")


# --- baseline -----------------------------------------------------------------------------------------------------------
def test_summary_is_robust() -> None:
    """Median and MAD do not follow a spike; the slope is per hour; what is missing does not count."""
    ends = np.arange(1, 6, dtype=np.int64) * MINUTE_MS
    means = np.array([[1, NAN], [2, NAN], [3, 7], [4, NAN], [100, NAN]], np.float64)
    got = summarise(ends, means)
    np.testing.assert_allclose(got.n, [5, 1])
    np.testing.assert_allclose(got.median, [3, 7])
    np.testing.assert_allclose(got.mad, [1, 0])
    assert got.slope_per_hour[0] > 60
    assert np.isnan(got.slope_per_hour[1])


def test_slope() -> None:
    """One unit a minute is 60 an hour."""
    ends = np.arange(1, 31, dtype=np.int64) * MINUTE_MS
    np.testing.assert_allclose(summarise(ends, np.arange(30.0)[:, None]).slope_per_hour, [60])


def test_minutes_are_bounded() -> None:
    """A day of minutes is kept, no more than two are held."""
    minutes = Minutes(1)
    for i in range(1, 2 * KEPT_MINUTES + 100):
        minutes.add(i * MINUTE_MS, np.array([[float(i)]]))
    last = 2 * KEPT_MINUTES + 99
    assert minutes.summary((last - KEPT_MINUTES) * MINUTE_MS, last * MINUTE_MS).n[0] == KEPT_MINUTES
    assert len(minutes._ends) <= 2 * KEPT_MINUTES


def ring_of(n: int) -> Ring:
    one, ring = layout([(TEMP, GPU, False)]), Ring(inventory())
    for i in range(n):
        ring.feed(batch(scrape(one, tick(i), 50 + i % 4), layouts=[one] if not i else []))
    return ring


def test_baseline_is_of_minutes() -> None:
    """The first question is answered from the ring, and later ones from what was kept since."""
    ring = ring_of(60)
    ring.window(T0)
    first = ring.window(tick(30)).baseline(TEMP, 3600)
    later = ring.window(tick(59)).baseline(TEMP, 3600)
    assert 6 <= first.n[0] <= 8
    assert later.n[0] > first.n[0]
    assert later.median[0] == pytest.approx(51.5)


def test_open_findings_are_left_out() -> None:
    """The time since the onset of an open finding is no part of the past."""
    ring = ring_of(60)
    ring.window(T0)
    ring.window(tick(59))
    everything = ring.baseline(TEMP, 3600).n[0]
    ring.exclude([finding(GPU, onset=tick(30))])
    assert 0 < ring.baseline(TEMP, 3600).n[0] < everything


def test_baseline_of_a_signal_never_seen() -> None:
    """Nothing is known of it: n = 0 for each entity."""
    seen = ring_of(8).window(tick(7))
    assert seen.baseline("gpu.power_watts", 3600).n.tolist() == [0.0]


# --- parts --------------------------------------------------------------------------------------------------------------
def test_natural_order() -> None:
    """Numbers inside names count as numbers."""
    assert sorted(["n10", "n2", "a", "n1b"], key=natural) == ["a", "n1b", "n2", "n10"]


SAME = [
    ("an id that becomes known", Target("gpu", "n1", "0"), GPU, True),
    ("an id that is not told", GPU, Target("gpu", "n1", "0"), True),
    ("an index that changed", GPU, Target("gpu", "n1", "5", "GPU-a"), True),
    ("another board in the slot", GPU, Target("gpu", "n1", "0", "GPU-b"), False),
    ("another index", Target("gpu", "n1", "0"), Target("gpu", "n1", "1"), False),
    ("a rank that moved", Target("rank", "n1", "0", job="j", rank=3), Target("rank", "n7", "2", job="j", rank=3), True),
    ("another job's rank", Target("rank", "n1", "0", job="j", rank=3), Target("rank", "n1", "0", job="k", rank=3), False),
]


@pytest.mark.parametrize(("first", "second", "same"), [s[1:] for s in SAME], ids=[s[0] for s in SAME])
def test_identity(first: Target, second: Target, same: bool) -> None:
    """By id where known, else by place."""
    parts = Parts()
    number = parts.resolve(first)
    assert (parts.resolve(second) == number) is same
    newest = parts.targets[parts.resolve(second)]
    assert newest is not None
    assert (newest.node, newest.device) == (second.node, second.device)


def test_the_past_goes_with_the_id() -> None:
    """After a loss the other GPUs take new indexes and keep their histories."""
    other = Target("gpu", "n1", "1", "GPU-b")
    before = layout([(TEMP, GPU, False), (TEMP, other, False)])
    after = layout([(TEMP, Target("gpu", "n1", "0", "GPU-b"), False)])
    ring = Ring(inventory())
    ring.feed(batch(scrape(before, T0, 10, 20), scrape(after, tick(1), 21), layouts=[before, after]))
    ring.window(T0)
    seen = ring.window(tick(1))
    column = [t.id for t in seen.of_kind("gpu")].index("GPU-b")
    np.testing.assert_equal(seen.values(TEMP)[:, column], [20, 21])


@pytest.mark.parametrize(("text", "key"), [
    ("0000:b3:00.0", "0000:b3:00"), ("00000000:B3:00.0", "0000:b3:00"), ("b3:00", "0000:b3:00"), ("3", None), (None, None),
    ("mlx5_0/1", None),
])
def test_pci(text: str | None, key: str | None) -> None:
    """All spellings of an address are one; what is none is none."""
    assert pci_key(text) == key


# --- coverage -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NoParams:
    """Nothing to set."""


def plugins(*needs: tuple[str, ...]) -> dict[str, DetectorPlugin]:
    return {"one": DetectorPlugin("one", "thermal_throttle", lambda w, p: (), NoParams, needs)}


def states(cover: Coverage, signal: str) -> dict[str, str]:
    return {r["node"]: r["state"] for r in cover.rows() if r["signal"] == signal}


def test_three_kinds_of_missing() -> None:
    """Never seen, no such part, and lost are different words, and none of them is fresh."""
    inv = inventory(nodes=[{"name": "n1"}, {"name": "n2"}])
    one, ring = layout([(TEMP, GPU, False)]), Ring(inv)
    cover = Coverage(plugins((TEMP,), ("gpu.power_watts",)))
    ring.feed(batch(scrape(one, T0, 1), scrape(one, tick(1), 1), layouts=[one]))
    cover.update(ring.window(tick(1)))
    assert states(cover, TEMP) == {"n1": "fresh", "n2": "not_applicable"}
    assert states(cover, "gpu.power_watts")["n1"] == "not_configured"
    cover.update(ring.window(tick(9)))
    assert states(cover, TEMP)["n1"] == "lost"


def test_coverage_tells_changes_once() -> None:
    """A line when something is lost, a line when it is back, none in between."""
    one, ring = layout([(TEMP, GPU, False)]), Ring(inventory())
    cover = Coverage(plugins((TEMP,)))
    lines = []
    for i in range(12):
        if not 3 <= i < 8:
            ring.feed(batch(scrape(one, tick(i), 1), layouts=[one] if not i else []))
        lines += [row["state"] for row in cover.update(ring.window(tick(i)))]
    assert lines == ["lost", "fresh"]


def test_a_blind_detector_is_told_once() -> None:
    """A detector that cannot speak is one line, and one when it can."""
    cover = Coverage(plugins((TEMP,)))
    first, second = cover.update(window(T0)), cover.update(window(tick(1)))
    third = cover.update(window(tick(2), {TEMP: ([GPU], [[1.0]])}))
    assert [r["state"] for r in first] == ["not_configured"]
    assert not second
    assert [r["state"] for r in third] == ["fresh"]
