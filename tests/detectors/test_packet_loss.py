"""Packet loss: each fabric's traces, which end is named, and everything that only looks like loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.types import Event, JobState, Verdict
from core.window import NicPlace
from detectors.packet_loss import PLUGIN, Params
from tests.contract.windows import START, Cluster, lose

LOST, RESENT, NAKS = "nic.packets_lost_per_second", "nic.retransmits_per_second", "nic.peer_loss_per_second"
TIMEOUTS, CORRUPT = "nic.timeouts_per_second", "nic.corrupt_packets_per_second"


def judge(cluster: Cluster, upto: int | None = None, leaves: bool = True) -> list[Verdict]:
    return list(PLUGIN.judge(cluster.window(upto, leaves=leaves), Params()))


def faulty(verdicts: list[Verdict]) -> list[tuple[str | None, str | None]]:
    return [(v.target.node, (v.target.device or "").split("/")[0]) for v in verdicts if v.state == "faulty"]


def congestion(c: Cluster) -> None:
    c.add("nic.congestion_marks_per_second", 5e4, 40).add("nic.wait_ticks_per_second", 1e8, 40)
    c.add("nic.discards_per_second", 3, 40)


def incast_burst(c: Cluster) -> None:
    c.add(LOST, 5000, 97, 98, [3]).add(RESENT, 900, 97, 98)


def burst_of_a_minute(c: Cluster) -> None:
    c.add(LOST, 500, 92, 95, [3]).add(NAKS, 80, 92, 95)


def flap(c: Cluster) -> None:
    c.put("nic.link_up", 0, 90, 92, [3]).put("nic.link_downed_per_second", 1 / 15, 90, 91, [3])
    c.add(LOST, 300, 89, 94, [3]).add(NAKS, 300, 89, 94, [11, 19]).add(TIMEOUTS, 5, 89, 94, [11, 19])


def flap_by_event(c: Cluster) -> None:
    c.add(LOST, 300, 90, 93, [3])
    for kind, tick in (("link_down", 90), ("link_up", 92)):
        c.events.append(Event(START + 15_000 * tick, c.entities["nic"][3], kind))


def dead_link(c: Cluster) -> None:
    c.put("nic.link_up", 0, 70, None, [3]).add(TIMEOUTS, 3, 70, None, [11, 19]).add(RESENT, 30, 70, None, [11])
    for way in ("received", "transmitted"):
        c.put(f"nic.{way}_bytes_per_second", 0, 70, None, [3])


def noisy_symbols(c: Cluster) -> None:
    c.add(CORRUPT, 6, 0, None, [3])


def noisy_symbols_of_all(c: Cluster) -> None:
    c.add(CORRUPT, 6, 0).add(CORRUPT, 6, 50)


def slow_healthy_loss(c: Cluster) -> None:
    c.add(LOST, 0.2, 0, None, [3])


def all_resend_a_little(c: Cluster) -> None:
    c.add(RESENT, 3, 50).add(NAKS, 3, 50)


LOOK_ALIKES: list[Callable[[Cluster], None]] = [
    congestion, incast_burst, burst_of_a_minute, flap, flap_by_event, dead_link, noisy_symbols, noisy_symbols_of_all,
    slow_healthy_loss, all_resend_a_little,
]


# Shorter than a slow page's interval: it does not show them in this way.
SHORT = (incast_burst, burst_of_a_minute, flap, flap_by_event)
CASES = [(alike, 15) for alike in LOOK_ALIKES] + [(alike, 60) for alike in LOOK_ALIKES if alike not in SHORT]


@pytest.mark.parametrize(("alike", "interval"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_stays_silent_on_look_alikes(alike: Callable[[Cluster], None], interval: int) -> None:
    """What resembles loss, or is another fault's, is none at any moment."""
    cluster = Cluster(nodes=3, interval=interval)
    alike(cluster)
    for upto in range(8, 101, 3):
        assert not faulty(judge(cluster, upto)), upto


def test_one_sample_of_a_slow_page_is_no_fault() -> None:
    """A burst seen in one scrape of 60 s fills four ticks and is still one sample."""
    cluster = Cluster(nodes=3, interval=60).add(LOST, 5000, 88, 89, [3])
    assert not any(faulty(judge(cluster, upto)) for upto in range(88, 101))


@pytest.mark.parametrize("drops", [0.4, 3.0, 8.0])
def test_a_constant_background_of_ethernet_drops_is_clear(drops: float) -> None:
    """Drops that were there from the start and do nothing are healthy, also on one port alone."""
    cluster = Cluster(nodes=3, nic="ethernet").add(LOST, drops, 0, None, [3])
    assert not any(faulty(judge(cluster, upto)) for upto in range(8, 101, 4))


@pytest.mark.parametrize("rate", [2.0, 40.0, 5000.0])
@pytest.mark.parametrize("nic", ["rdma", "efa", "ethernet"])
@pytest.mark.parametrize("nodes", [2, 5])
def test_names_the_port_that_loses(nic: str, nodes: int, rate: float) -> None:
    """Receiving side in full, its peers' repair in shares: the port is named alone, on each fabric."""
    cluster = lose(Cluster(nodes=nodes, nic=nic), 11, 50, rate)
    assert [node for node, _ in faulty(judge(cluster))] == ["n001"]


@pytest.mark.parametrize("nic", ["rdma", "efa"])
def test_names_the_sender_whose_packets_get_lost(nic: str) -> None:
    """One port repairs what several peers lose of its packets: it is the culprit, they are not."""
    cluster = Cluster(nodes=5, nic=nic).add(RESENT, 400, 50, None, [11])
    if nic == "rdma":
        cluster.add(NAKS, 400, 50, None, [11]).add(LOST, 100, 50, None, [3, 19, 27, 35])
    found = judge(cluster)
    assert [node for node, _ in faulty(found)] == ["n001"]
    assert next(v.reason for v in found if v.state == "faulty") == "retransmits_stand_out"


def test_corruption_breaks_the_tie_between_two_ends() -> None:
    """Two ports lose alike, both ways; the one with bad checksums is named."""
    cluster = Cluster(nodes=2).add(LOST, 50, 50, None, [3, 11]).add(NAKS, 50, 50, None, [3, 11])
    cluster.add(RESENT, 50, 50, None, [3, 11]).add(CORRUPT, 20, 50, None, [11])
    assert faulty(judge(cluster)) == [("n001", "mlx5_3")]


def test_ports_of_a_leaf_are_each_named() -> None:
    """Loss on many ports of a leaf gives a verdict for each: what they share is found elsewhere."""
    columns = [c for c in range(64) if (c // 8) % 2 == 0 and c % 8 < 4]
    cluster = Cluster(nodes=8).add(NAKS, 3, 50)
    cluster.add(LOST, np.linspace(20, 50, len(columns)), 50, None, columns)
    assert len(faulty(judge(cluster))) == len(columns)


def railed(cluster: Cluster, jobs: tuple[JobState, ...] | None = None) -> list[Verdict]:
    """Judged where NIC i of each node hangs on the leaf of rail i. jobs: others than the one of all nodes."""
    window = cluster.window()
    nics = {(t.node or "", t.device or ""): NicPlace(t.node or "", t.device or "", c % 8, f"leaf-r{c % 8}")
            for c, t in enumerate(window.of_kind("nic"))}
    return list(PLUGIN.judge(replace(window, topology=replace(window.topology, nics=nics), jobs=jobs or window.jobs), Params()))


@pytest.mark.parametrize("nodes", [3, 6])
@pytest.mark.parametrize("rate", [3.0, 400.0])
def test_a_leaf_whose_ports_lose_and_repair_alike_is_named_whole(nodes: int, rate: float) -> None:
    """Each port of the rail loses what comes to it and repairs what it sent: none of them is at fault."""
    rail = list(range(3, 8 * nodes, 8))
    found = [v for v in railed(Cluster(nodes=nodes).add(LOST, rate, 50, None, rail).add(NAKS, 0.9 * rate, 50, None, rail)) if v.state == "faulty"]
    assert [(v.target.device, v.reason) for v in found] == [("mlx5_3/1", "leaf_loses")] * nodes


def test_a_leaf_is_named_when_its_ports_stood_alike_for_the_whole_span() -> None:
    """Before that the page of the port that does it to all of them may not have been read, and nobody is named."""
    rail, ticks = list(range(3, 48, 8)), len(Cluster().window().times)
    waits = Params().window_seconds / Cluster().window().step_seconds
    for began in (3, 5, 7, 9, 12):
        found = railed(Cluster(nodes=6).add(LOST, 400, ticks - began, None, rail).add(NAKS, 360, ticks - began, None, rail))
        assert bool(faulty(found)) is (began - 1 >= waits), began


@pytest.mark.parametrize(("rail", "seen", "told"), [
    ([3, 11, 19], [100, 55, 45], [100, 55, 45]), ([3, 11, 19], [0, 50, 50], [100, 5, 5]),
    ([3, 11, 19], [100, 5, 5], [10, 55, 45]), ([3, 11, 19, 27, 35], [90, 50, 14, 13, 13], [90, 50, 14, 13, 13]),
], ids=["loses both ways", "what it sends", "what comes to it", "both ways, of five"])
def test_a_port_whose_peers_show_the_other_end_is_named_alone(rail: list[int], seen: list[int], told: list[int]) -> None:
    """It has as much of the traces as all its peers together."""
    cluster = Cluster(nodes=5)
    for column, lost, naks in zip(rail, seen, told, strict=True):
        cluster.add(LOST, lost, 50, None, [column]).add(NAKS, naks, 50, None, [column])
    assert faulty(railed(cluster)) == [("n000", "mlx5_3")]


def test_a_port_elsewhere_is_named_beside_a_leaf() -> None:
    """Two faults stay two, where no job runs over both."""
    rail = [3, 11, 19]
    cluster = Cluster(nodes=6).add(LOST, 50, 50, None, rail).add(NAKS, 45, 50, None, rail)
    lose(cluster, 29, 50, 200)
    halves = tuple(replace(cluster.job, id=name, nodes=tuple(nodes)) for name, nodes in (("a", cluster.names[:3]), ("b", cluster.names[3:])))
    assert faulty(railed(cluster, halves)) == [("n000", "mlx5_3"), ("n001", "mlx5_3"), ("n002", "mlx5_3"), ("n003", "mlx5_5")]


def test_retransmits_spread_over_many_name_nobody() -> None:
    """All ports of a rail repair loss and nobody saw it: no culprit, and no good news of a port that lost."""
    cluster = Cluster(nodes=8).add(RESENT, 30, 50, None, list(range(3, 64, 8)))
    assert not faulty(judge(cluster))


def test_corruption_that_begins_is_loss() -> None:
    """Bad checksums that were not there before are a fault of the port."""
    found = judge(Cluster(nodes=2).add(CORRUPT, 30, 50, None, [3]))
    assert faulty(found) == [("n000", "mlx5_3")]
    assert next(v.reason for v in found if v.state == "faulty") == "errors_stand_out"


def test_loss_from_the_first_minute_is_found() -> None:
    """Peers are enough where the port has no healthy past."""
    cluster = lose(Cluster(nodes=3), 3, 0, 20)
    assert faulty(judge(cluster, 20)) == [("n000", "mlx5_3")]


def test_a_flap_in_lasting_loss_does_not_hide_it() -> None:
    """Loss that goes on minutes after a flap is loss."""
    cluster = lose(Cluster(nodes=3), 3, 50)
    cluster.put("nic.link_up", 0, 70, 71, [3])
    assert faulty(judge(cluster)) == [("n000", "mlx5_3")]


def test_an_unused_port_excuses_nobody() -> None:
    """A port that never had a link does not hide a sender's repair."""
    cluster = Cluster(nodes=5).add(RESENT, 400, 50, None, [11]).put("nic.link_up", 0, 0, None, [4])
    assert faulty(judge(cluster)) == [("n001", "mlx5_3")]


def test_a_port_without_traffic_is_unknown() -> None:
    """No packets, no word on their loss."""
    cluster = Cluster(nodes=2)
    for way in ("received", "transmitted"):
        cluster.put(f"nic.{way}_bytes_per_second", 0, 0, None, slice(0, 8))
    assert {v.target.node for v in judge(cluster)} == {"n001"}


def test_peers_are_victims_and_clear() -> None:
    """The ports that repair the culprit's loss are clear."""
    found = judge(lose(Cluster(nodes=2), 11, 50))
    assert sum(v.state == "clear" for v in found) == 15
    assert {v.reason for v in found if v.target.device == "mlx5_3/1" and v.state == "clear"} == {"victim"}
