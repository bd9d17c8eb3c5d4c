"""Loss on plain Ethernet by what TCP sends again: rates as measured between network namespaces (see tests/lab)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import Verdict
from detectors.packet_loss import PLUGIN, Params
from tests.contract.windows import Cluster

AGAIN, SENT = "node.tcp_retransmits_per_second", "node.tcp_segments_per_second"
SINCE = 70
# Segments sent again a second and sent, by node: healthy, and after the relay in the cable of the first node drops 5 % both ways.
BEFORE = ([2.1, 1.7, 1.0, 1.6], [349, 339, 339, 337])
RELAY = ([14.7, 7.9, 0.8, 7.8], [310, 295, 275, 300])
# After `tbf` lets 4 Mb/s leave the first node and drops the rest: it repairs alone.
TBF = ([346.0, 0.3, 0.1, 0.3], [1148, 395, 338, 377])
Plant = Callable[[Cluster], Cluster]


def cluster(after: tuple[list[float], list[float]], nodes: int = 4) -> Cluster:
    """A job on plain Ethernet; each node has one port with traffic."""
    c = Cluster(nodes=nodes, nic="ethernet")
    for way in ("received", "transmitted"):
        quiet = [e for e in range(c.width("nic")) if e % 8 != 2]
        c.put(f"nic.{way}_bytes_per_second", 2000.0, 0, None, quiet)
    for name, before, now in zip((AGAIN, SENT), BEFORE, after, strict=True):
        usual = np.resize(before, nodes).astype(float)
        c.signals[name] = usual * c.rng(name).lognormal(0, 0.2, (c.ticks, nodes))
        c.signals[name][SINCE:] = np.resize(now, nodes) * c.rng(f"{name} now").lognormal(0, 0.1, (c.ticks - SINCE, nodes))
    return c


def faulty(c: Cluster) -> list[Verdict]:
    return [v for v in PLUGIN.judge(c.window(), Params()) if v.state == "faulty"]


def slower(c: Cluster) -> Cluster:
    return c.add("rank.step_seconds", 6.0, SINCE)


@pytest.mark.parametrize(("after", "more"), [(RELAY, lambda c: c), (TBF, slower)], ids=["relay", "tbf"])
def test_the_port_that_loses_is_named(after: tuple[list[float], list[float]], more: Plant) -> None:
    """Its node repairs most, its peers what they send there, together about as much; or it alone, and the job waits."""
    (found,) = faulty(more(cluster(after)))
    assert (found.target.node, found.target.device, found.reason) == ("n000", "eth2", "retransmits_stand_out")
    assert abs(found.onset_at - cluster(after).window().times[SINCE]) <= 30_000
    assert found.evidence[0].signal == AGAIN


def no_port_stands_out(c: Cluster) -> Cluster:
    for way in ("received", "transmitted"):
        c.put(f"nic.{way}_bytes_per_second", 1e6, 0)
    return c


def test_without_a_busiest_port_the_node_is_named() -> None:
    """Which of several busy ports loses cannot be told by the node's counter."""
    (found,) = faulty(no_port_stands_out(cluster(RELAY)))
    assert found.target.key == "node:n000/"


def far_end(c: Cluster) -> Cluster:
    return c


def always(c: Cluster) -> Cluster:
    for name in (AGAIN, SENT):
        c.signals[name][:] = c.signals[name][SINCE]
    return c


def congestion(c: Cluster) -> Cluster:
    return c.put(AGAIN, 12.0, SINCE)


def burst(c: Cluster) -> Cluster:
    return c.put(AGAIN, 1.0, SINCE).put(AGAIN, 300.0, 96, 98, [0])


def link_lost(c: Cluster) -> Cluster:
    return c.put("nic.link_up", 0.0, 95, None, [2])


def two_nodes(c: Cluster) -> Cluster:
    for name in (AGAIN, SENT):
        c.signals[name][SINCE:, 2:] = c.signals[name][:1, 2:]
    return c.put(AGAIN, 12.0, SINCE, None, [1])


@pytest.mark.parametrize(("after", "alike"), [
    (TBF, far_end), (RELAY, always), (RELAY, congestion), (BEFORE, burst), (RELAY, link_lost), (RELAY, two_nodes),
], ids=lambda x: getattr(x, "__name__", ""))
def test_what_only_looks_like_a_lossy_port(after: tuple[list[float], list[float]], alike: Plant) -> None:
    """A bad line to a far end that slows no job, a habit, nodes that repair alike, a burst, a link that is down, one peer."""
    assert faulty(alike(cluster(after))) == []


def test_a_node_that_repairs_is_not_called_well() -> None:
    """Nobody is named, yet what it sends again is lost somewhere: its port is neither faulty nor clear."""
    verdicts = {v.target.key for v in PLUGIN.judge(congestion(cluster(RELAY)).window(), Params()) if v.state == "clear"}
    assert not any(key.startswith(("nic:n000/", "nic:n001/")) for key in verdicts)
