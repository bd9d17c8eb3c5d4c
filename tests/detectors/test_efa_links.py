"""EFA's links: the driver says that every port is up, so what counts is which devices are there and what each carries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, Target, Verdict
from tests.contract.windows import START, Cluster

PLUGINS = load_plugins("detectors")
WAYS = ("received", "transmitted")
CULPRIT, COLUMN = "nic:n001/rdmap3s0/1", 11
NODE = list(range(8, 16))


def efa(**more: object) -> Cluster:
    """A cluster whose devices carry alike within a few parts in a thousand, and whose driver tells of no link."""
    cluster = Cluster(nic="efa", **more)  # type: ignore[arg-type]
    del cluster.signals["nic.link_up"]
    for way in WAYS:
        noise = cluster.rng(f"alike {way}").normal(1, 0.0015, cluster.signals[f"nic.{way}_bytes_per_second"].shape)
        cluster.signals[f"nic.{way}_bytes_per_second"] = 8e9 * noise
    return cluster


def gone(cluster: Cluster, start: int, stop: int | None = None, columns: list[int] | None = None) -> Cluster:
    """The devices are on no page."""
    for name in cluster.signals:
        if name.startswith("nic."):
            cluster.put(name, np.nan, start, stop, [COLUMN] if columns is None else columns)
    return cluster


def carry(cluster: Cluster, share: float, start: int, stop: int | None = None, columns: list[int] | None = None,
          ways: tuple[str, ...] = WAYS) -> Cluster:
    """The devices carry so much of what they did."""
    for way in ways:
        part = cluster.signals[f"nic.{way}_bytes_per_second"][start:stop]
        part[:, [COLUMN] if columns is None else columns] *= share
    return cluster


def verdicts(cluster: Cluster, detector: str, **more: object) -> list[Verdict]:
    plugin = PLUGINS[detector]
    return [v for v in plugin.judge(cluster.window(**more), plugin.params()) if v.state == "faulty"]  # type: ignore[arg-type]


def flaps(c: Cluster) -> Cluster:
    for tick in (60, 76, 90):
        gone(c, tick, tick + 2)
    return c


def driver_lines(c: Cluster) -> Cluster:
    """Gone and back between two readings: only the kernel saw it."""
    c.events += [Event(START + 15_000 * t, Target("nic", "n001", "rdmap3s0/1"), "link_down", {}, "Unregister ib device")
                 for t in (60, 75, 90)]
    return c


@pytest.mark.parametrize("interval", [15, 30])
@pytest.mark.parametrize(("detector", "plant", "reason"), [
    ("link_down", lambda c: gone(c, 90), "device_gone"),
    ("link_flap", flaps, "flaps"),
    ("link_flap", driver_lines, "flaps"),
    ("link_slow", lambda c: carry(c, 0.88, 60), "below_siblings"),
    ("link_slow", lambda c: carry(c, 0.4, 0), "below_siblings"),
], ids=["gone", "comes and goes", "unseen by pages", "a little slow", "slow all the time"])
def test_is_found_on_the_right_device_only(interval: int, detector: str, plant: Callable[[Cluster], Cluster], reason: str) -> None:
    """A device that is gone, that comes and goes, and one that is slower than its siblings."""
    found = verdicts(plant(efa(interval=interval)), detector)
    assert [(v.target.key, v.reason) for v in found] == [(CULPRIT, reason)]


def test_says_how_much_less_it_carries_and_since_when() -> None:
    """The evidence holds the share, the bytes that its siblings carry, and the moment of the change."""
    cluster = carry(efa(), 0.5, 60)
    verdict = verdicts(cluster, "link_slow")[0]
    evidence = verdict.evidence[0]
    assert evidence.observed == pytest.approx(4e9, rel=0.01)
    assert evidence.expected == pytest.approx(8e9, rel=0.01)
    assert evidence.text == "it carries 50 % of what its siblings on the node do, in both directions"
    assert verdict.onset_at == int(cluster.window().times[60])


def uneven(c: Cluster) -> Cluster:
    """Experts of unlike load: each device of the node carries another amount."""
    for place, share in enumerate((1.0, 0.8, 1.1, 0.7, 1.2, 0.9, 1.05, 0.95)):
        carry(c, share, 0, None, [8 + place])
    return c


def loses(c: Cluster) -> Cluster:
    c.put("nic.retransmits_per_second", 900.0, 60, None, [COLUMN])
    return carry(c, 0.7, 60)


def handed_over(c: Cluster) -> Cluster:
    for way in WAYS:
        c.put(f"nic.{way}_bytes_per_second", 0.0, 0, None, [COLUMN])
    return gone(c, 80)


def unused(c: Cluster) -> Cluster:
    c.put("gpu.utilization_ratio", 0.0, 80, None, NODE)
    return gone(c, 90)


def idle(c: Cluster) -> Cluster:
    for way in WAYS:
        c.put(f"nic.{way}_bytes_per_second", 200.0, 0, None, NODE)
    return carry(c, 0.2, 60)


@pytest.mark.parametrize(("detector", "alike"), [
    ("link_down", lambda c: gone(c, 80, None, NODE)),
    ("link_down", lambda c: gone(c, 80, None, NODE[:4])),
    ("link_down", handed_over),
    ("link_down", unused),
    ("link_flap", lambda c: gone(gone(c, 70, 71), 90, 91)),
    ("link_flap", lambda c: gone(gone(gone(c, 60, 61, NODE), 75, 76, NODE), 90, 91, NODE)),
    ("link_slow", lambda c: carry(c, 0.7, 60, None, None, ("received",))),
    ("link_slow", lambda c: carry(c, 1.6, 60, None, [8, 9], ("transmitted",))),
    ("link_slow", lambda c: carry(c, 0.6, 0, None, list(range(3, 32, 8)))),
    ("link_slow", lambda c: carry(c, 0.5, 60, None, NODE)),
    ("link_slow", lambda c: carry(c, 0.5, 97, 99)),
    ("link_slow", lambda c: gone(c, 95)),
    ("link_slow", uneven), ("link_slow", loses), ("link_slow", idle),
], ids=["exporter restarts", "half a page", "handed to a container", "nobody used it", "two flaps", "scrapes that fail",
        "a neighbour of a slow one", "files over two", "less by design", "the whole node", "a moment", "gone", "uneven experts",
        "it loses packets", "an idle node"])
def test_stays_silent_on_look_alikes(detector: str, alike: Callable[[Cluster], Cluster]) -> None:
    """What only looks like the fault opens nothing."""
    assert verdicts(alike(efa()), detector) == []


@pytest.mark.parametrize("detector", ["link_down", "link_flap", "link_slow"])
def test_health_is_said_of_devices_at_work(detector: str) -> None:
    """A device that is there and carries its share is clear, so that an incident on it can end."""
    plugin = PLUGINS[detector]
    found = plugin.judge(efa().window(), plugin.params())
    assert [v.state for v in found] == ["clear"] * 32


def test_the_rate_that_the_driver_shows_clears_nobody() -> None:
    """While the siblings rest nothing is known of a device that was slow."""
    cluster = carry(efa(), 0.5, 40)
    for way in WAYS:
        cluster.put(f"nic.{way}_bytes_per_second", 0.0, 70)
    plugin = PLUGINS["link_slow"]
    assert [v.target.key for v in plugin.judge(cluster.window(), plugin.params())] == []


def test_a_narrow_slot_is_found_by_the_name_of_the_device() -> None:
    """EFA devices are named after their place on the PCI bus, as interfaces are."""
    cluster = efa()
    cluster.entities["link"] = tuple(
        Target("link", nic.node, f"0000:{index % 8:02x}:00.0") for index, nic in enumerate(cluster.entities["nic"]))
    cluster.signals["link.pcie_width"] = np.full((cluster.ticks, 32), 16.0)
    cluster.put("link.pcie_width", 8.0, 60, None, [COLUMN])
    assert [v.target.key for v in verdicts(cluster, "pcie_degraded")] == [CULPRIT]
