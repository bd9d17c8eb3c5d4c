"""The network: paths, collisions, loss and links, as endpoints feel them and as both ends count them."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources.kernel_log import PLUGIN as KERNEL_LOG
from core.protocols import TargetInfo
from fleet.network import GIVES_UP_SECONDS, QUEUE_PAIRS, STALLED, Network, slowness_for
from fleet.nics import per_nic
from fleet.shape import JobShape
from fleet.transports import BACKGROUND, SRD, VERBS, counts
from tests.fleet.fleethelp import small
from tests.fleet.nethelp import EFA, INFINIBAND, ROCE, FakeJob, Rig

# Counters that only something unwell moves by more than a handful.
ERRORS = [*BACKGROUND, "receive_errors", "icrc_errors", "discards", "downed", "recoveries", "carrier_changes",
          "uncorrected_symbols", "retransmit_timeouts", "slow_restarts", "overruns", "integrity_errors", "pause_sent"]
CLOUD_ERRORS = ["rx_drops", "retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events",
                "rdma_read_wr_err", "rdma_write_wr_err", "carrier_changes", "downed"]


# --- healthy -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ROCE, INFINIBAND, EFA], ids=lambda k: k.fabric)
def test_healthy_endpoints_are_at_their_full_rate(kind):
    """No knob turned: every factor is exactly 1, nothing is lost, marked or stalled."""
    rig = Rig(kind)
    rig.run(60)
    assert (rig.network.endpoint == 1).all()
    assert (rig.bank.rate_bytes == kind.nic_bytes_per_second).all()
    assert (rig.bank.state == 4).all()
    assert (rig.bank.physical_state == 5).all()


RATES = [
    # signals.md §3.2, §3.3, §10: a second and port, over an hour
    ("out_of_sequence", 0, 0.1), ("ack_timeouts", 0, 0.01), ("symbol_errors", 0, 1 / 60), ("cnp_sent", 0.1, 200),
    ("wait_ticks", 1e3, 2e6), ("sequence_errors", 0, 0.1), ("corrected_bits", 10, 1e5), ("pause_sent", 0, 0), ("downed", 0, 0),
    ("receive_errors", 0, 0), ("icrc_errors", 0, 0), ("uncorrected_symbols", 0, 0), ("pause_received", 0, 5),
    ("sent_bytes", 5e9, 8e9),
]


@cache
def _half_an_hour() -> dict[str, np.ndarray]:
    return Rig().run(1800)


@pytest.mark.parametrize(("name", "low", "high"), RATES)
def test_healthy_counters_grow_as_real_ones_do(name, low, high):
    """Rates of a port under load, by signals.md's healthy ranges."""
    grown = _half_an_hour()[name] / 1800
    assert grown.min() >= low
    assert grown.max() <= high


@pytest.mark.parametrize(("kind", "names"), [(ROCE, ("sent_bytes", "received_bytes", "sent_packets")),
                                             (EFA, ("tx_bytes", "rx_bytes", "tx_pkts"))], ids=["roce", "efa"])
def test_siblings_carry_the_same_within_one_percent(kind, names):
    """The ports of a node differ by less than 1 %, but they are not copies of each other."""
    grown = Rig(kind).run(300)
    for name in names:
        spread = grown[name].max(axis=1) / grown[name].min(axis=1) - 1
        assert spread.min() > 0.0002
        assert spread.max() < 0.01


def test_efa_counters_agree_with_each_other():
    """Resends are about a millionth of the packets, writes carry the bytes, an old card reads and resends unseen."""
    new, old = Rig(EFA), Rig(replace(EFA, name="p4d.24xlarge"))
    grown, read = new.run(900), old.run(60)
    share = grown["retrans_pkts"].sum() / grown["tx_pkts"].sum()
    assert 3e-7 < share < 3e-6
    assert np.allclose(grown["rdma_write_bytes"] + grown["send_bytes"], grown["tx_bytes"])
    assert all(grown[name].max() == 0 for name in CLOUD_ERRORS)
    assert read["rdma_write_bytes"].max() == 0
    assert np.allclose(read["rdma_read_resp_bytes"] + read["send_bytes"], read["tx_bytes"])
    assert np.allclose(read["tx_bytes"] / read["tx_pkts"], 8000, rtol=1e-3)
    assert new.bank.counters["lifespan"].max() == 12


def test_no_traffic_no_loss_and_no_marks():
    """An idle port's transport counters stand still whatever is wrong with it; the physical layer goes on."""
    rig = Rig()
    rig.work.traffic[:] = 0
    rig.nic.loss_per_million[2, 4], rig.nic.congestion[3, 1] = 400.0, 1.0
    grown = rig.run(60)
    assert all(grown[name].max() == 0 for name in VERBS)
    assert grown["corrected_bits"].min() > 0


def test_a_job_of_one_node_sends_nothing_and_suffers_nothing():
    """Inside a node NVLink carries everything: the ports are quiet and their faults cost nothing."""
    rig = Rig(jobs=[FakeJob("lone", [0]), FakeJob("pair", [1, 2])])
    rig.nic.rate[0, 3], rig.nic.rate[1, 3] = 0.5, 0.5
    grown = rig.run()
    assert grown["sent_bytes"][0].max() == 0 < grown["sent_bytes"][1].min()
    assert (rig.network.endpoint[0, 3], rig.network.endpoint[1, 3]) == (1.0, 2.0)


def test_slow_links_get_less_to_do_and_not_longer_steps():
    """Where a node's links cannot take what a job of faster nodes sends, its job is smaller: no port beyond its rate."""
    rig = Rig(replace(ROCE, nic_bytes_per_second=1.25e10))
    rig.run()
    assert (rig.network.endpoint == 1).all()
    sent = JobShape().bytes_per_step * rig.network.volume
    assert (sent / JobShape().collective_seconds <= 1.25e10).all()


# --- paths ---------------------------------------------------------------------------------------------------------------
def _across(rig: Rig) -> int:
    """A leaf whose nodes send over a spine."""
    return rig.leaf(0, 4)


def test_a_lost_path_stalls_hashed_flows_for_as_long_as_they_live():
    """Some flows stand still and others are as well as before; that does not pass by itself."""
    rig = Rig(nodes=64)
    leaf = _across(rig)
    rig.run()
    rig.switch.paths_lost[leaf] = rig.network.share_that_hits(leaf)
    rig.run()
    hit = rig.network.stalled.copy()
    assert 0 < hit.sum() < 32
    assert set(rig.topology.leaf_of[hit].tolist()) <= {leaf, rig.leaf(63, 4)}
    assert (rig.network.endpoint[hit] == STALLED).all()
    assert (rig.network.endpoint[~hit] == 1).all()
    rig.run(30)
    assert np.array_equal(rig.network.stalled, hit)


def test_a_lost_path_costs_a_sprayed_flow_a_dip_and_no_more():
    """About 80 % of the rate at once, nearly all of it again within a minute, resends meanwhile, no stall."""
    rig = Rig(EFA, 64)
    rig.run()
    rig.switch.paths_lost[_across(rig)] = 0.1
    rates, resent = [], []
    for _ in range(14):
        resent.append(rig.run()["retrans_pkts"].sum())
        rates.append(1 / rig.network.endpoint.max())
    assert rates[0] == pytest.approx(0.8, abs=0.02)
    assert rates == sorted(rates)
    assert rates[11] > 0.98
    assert resent[0] > 5 * resent[-1]
    assert not rig.network.stalled.any()
    assert rig.network.broken == {}


def test_a_dip_comes_again_with_the_next_lost_path():
    """More paths lost: another dip. Paths that come back: none."""
    rig = Rig(EFA, 64)
    at = _across(rig)
    found = []
    for lost in (0.1, 0.1, 0.3, 0.0, 0.1):
        rig.switch.paths_lost[at] = lost
        rig.run()
        found.append(round(float(rig.network.endpoint.max()), 2))
        rig.run(115)
    assert found == [1.25, 1.0, 1.25, 1.0, 1.25]


def test_colliding_flows_slow_two_healthy_nodes_until_they_connect_anew():
    """Two flows on one path take turns; no counter of errors moves; a new start of the job hashes anew and ends it."""
    rig = Rig()
    rig.run()
    rig.network.collide(rig.jobs["train-1"], (1, 4), (3, 4))
    grown = rig.run(60)
    slow = np.argwhere(rig.network.endpoint > 1).tolist()
    assert slow == [[1, 4], [3, 4]]
    assert rig.network.endpoint[1, 4] == 2.0
    assert all(grown[name].max() < 10 for name in ERRORS)
    rig.jobs["train-1"].run += 1
    rig.run()
    assert (rig.network.endpoint == 1).all()


def test_sprayed_flows_do_not_collide():
    """A sprayed fabric has no one path to share."""
    rig = Rig(EFA)
    rig.run()
    rig.network.collide(rig.jobs["train-1"], (1, 4), (3, 4))
    rig.run()
    assert (rig.network.endpoint == 1).all()


def _pairs(pods: int) -> list[FakeJob]:
    """Jobs of two nodes each, all across two pods: every flow takes an up-link."""
    return [FakeJob(f"job-{i}", [i, pods + i]) for i in range(pods)]


def test_flows_that_share_a_link_are_those_with_the_same_leaf_and_path():
    """Sharing by the load of each up-link and down-link, added up here flow by flow; a full fabric has some."""
    rig = Rig(nodes=64, jobs=_pairs(32))
    rig.run()
    up: dict[tuple[int, int], float] = {}
    down: dict[tuple[int, int], float] = {}
    flows = [(int(f.ring[m]), int(f.to[m, pair]), nic, int(f.path[m, nic, pair]))
             for f in rig.network.connections for m in range(2) for nic in range(8) for pair in range(QUEUE_PAIRS)]
    for src, dst, nic, path in flows:
        up[rig.leaf(src, nic), path] = up.get((rig.leaf(src, nic), path), 0) + 1 / QUEUE_PAIRS
        down[rig.leaf(dst, nic), path] = down.get((rig.leaf(dst, nic), path), 0) + 1 / QUEUE_PAIRS
    wanted: dict[tuple[int, int], float] = {}
    for src, dst, nic, path in flows:
        load = max(1.0, up[rig.leaf(src, nic), path], down[rig.leaf(dst, nic), path])
        wanted[src, nic] = max(wanted.get((src, nic), 1.0), load)
    assert {place: rig.network.sharing[place] for place in wanted} == wanted
    assert max(wanted.values()) > 1.5


def test_a_ring_along_rails_does_not_collide():
    """One job over two pods crosses once a rail: every flow has its links for itself."""
    rig = Rig(nodes=64)
    rig.run()
    assert (rig.network.sharing == 1).all()
    assert sum(int(f.crosses.any(axis=2).sum()) for f in rig.network.connections) == 16


def test_pairwise_exchanges_meet_more_of_the_fabric():
    """Partners at growing distance: more flows over the spines than a ring has, each a part of the time."""
    rig = Rig(nodes=64)
    rig.network.patterns["train-1"] = "pairwise"
    rig.run()
    (flows,) = rig.network.connections
    assert flows.path.shape == (64, 8, 5 * QUEUE_PAIRS)
    assert flows.crosses.any(axis=2).sum() > 100
    assert rig.network.endpoint.max() < 2


def test_pipeline_stages_have_rings_of_their_own():
    """What a node loses is told to the nodes of its stage."""
    rig = Rig(jobs=[FakeJob("train-1", list(range(8)), pp=2)])
    rig.nic.loss_per_million[1, 4] = 300.0
    naks = rig.run(60)["sequence_errors"][:, 4]
    assert naks[[0, 2, 3]].min() > 100
    assert naks[4:].max() < 10


@pytest.mark.parametrize("turn", ["port", "path"])
def test_the_transport_gives_up_after_a_minute_and_names_a_node(turn):
    """A flow that stands still breaks its job; a shorter pause does not. The next start counts anew."""
    rig = Rig(nodes=16)
    rig.run()
    if turn == "port":
        rig.nic.up[2, 4] = 0
    else:
        rig.switch.paths_lost[_across(rig)] = 1.0
    rig.run(int(GIVES_UP_SECONDS) - 5)
    assert rig.job_knobs["train-1"].crash is None
    rig.run()
    assert "retry counter exceeded" in (rig.job_knobs["train-1"].crash or "")
    assert rig.job_knobs["train-1"].crash_rank is not None
    rig.jobs["train-1"].run += 1
    rig.run()
    assert rig.job_knobs["train-1"].crash is None


# --- loss ----------------------------------------------------------------------------------------------------------------
def test_loss_shows_at_both_ends():
    """Gaps, damage and timers at the port; NAKs and resends at its peers, most at its neighbour; other rails are quiet."""
    rig = Rig()
    rig.nic.loss_per_million[2, 4] = 120.0
    grown = rig.run(120)
    gaps, naks = grown["out_of_sequence"], grown["sequence_errors"]
    assert gaps[2, 4] > 5_000
    assert np.delete(gaps[:, 4], 2).max() < 10
    assert naks[1, 4] == max(naks[:, 4])
    assert np.delete(naks[:, 4], 2).min() > 200
    assert naks[2, 4] < 10
    assert naks.sum() == pytest.approx(gaps.sum(), rel=0.1)
    for name in ("icrc_errors", "ack_timeouts", "retransmits"):
        assert grown[name][2, 4] > 100
    assert (grown["retransmits"][[0, 1, 3], 4] > 100).all()
    for name in ERRORS:
        assert np.delete(grown[name], 4, axis=1).max() < 10
    for name in ("downed", "carrier_changes", "symbol_errors", "uncorrected_symbols"):
        assert grown[name].max() < 5
    assert grown["cnp_sent"][2, 4] < 5 * np.median(grown["cnp_sent"])


def test_loss_on_efa_shows_at_both_ends():
    """Drops at the device; resends, timers and impaired connections at its peers; its share of the bytes falls."""
    rig = Rig(EFA)
    rig.nic.loss_per_million[2, 4] = 900.0
    grown = rig.run(300)
    assert grown["rx_drops"][2, 4] > 1000
    assert np.delete(grown["rx_drops"].ravel(), 2 * 32 + 4).max() == 0
    share = grown["retrans_pkts"] / grown["tx_pkts"]
    assert share[1, 4] > 1e-4
    assert np.delete(share, 4, axis=1).max() < 1e-5
    peers = grown["impaired_remote_conn_events"][:, 4]
    assert peers[1] > 0
    assert peers[2] == 0
    assert grown["retrans_timeout_events"][1, 4] > 10
    assert grown["tx_bytes"][2, 4] < 0.9 * np.median(grown["tx_bytes"][2])
    assert (rig.bank.state == 4).all()


def test_sprayed_fabrics_hide_more_loss():
    """The same loss costs a hashed flow several times as much."""
    cost = {}
    for kind in (ROCE, EFA):
        rig = Rig(kind)
        rig.nic.loss_per_million[2, 4] = 200.0
        rig.run()
        cost[kind.fabric] = rig.network.endpoint[2, 4] - 1
    assert cost["roce"] > 5 * cost["efa"] > 0


def test_what_a_fault_says_of_its_slowness_stands_for_its_other_knobs():
    """With `slowness` given, loss and rate are evidence and not a second cost."""
    rig = Rig()
    rig.nic.loss_per_million[2, 4], rig.nic.rate[2, 4], rig.nic.slowness[2, 4] = 500.0, 0.5, 1.2
    rig.run()
    assert rig.network.endpoint[2, 4] == pytest.approx(1.2)
    rig.switch.congestion[rig.leaf(0, 0)] = 1.0
    rig.switch.rate[rig.leaf(5, 5)] = 0.5
    rig.run()
    assert rig.network.endpoint[2, 4] == pytest.approx(1.2)
    rig.switch.rate[rig.leaf(2, 4)] = 0.25
    rig.run()
    assert rig.network.endpoint[2, 4] == pytest.approx(4.0)


@pytest.mark.parametrize("factor", [1.05, 1.5, 2.2])
@pytest.mark.parametrize("kind", [ROCE, EFA], ids=lambda k: k.fabric)
@pytest.mark.parametrize("knob", ["loss", "rate", "congestion", "switch_rate"])
def test_helpers_turn_a_factor_into_a_knob(knob, kind, factor):
    """What a fault asks for is what the endpoint gets."""
    rig = Rig(kind)
    if knob == "loss":
        rig.nic.loss_per_million[2, 4] = rig.network.loss_for(factor)
    elif knob == "rate":
        rig.nic.rate[2, 4] = rig.network.rate_for(factor)
    elif knob == "congestion":
        rig.nic.congestion[2, 4] = rig.network.congestion_for(factor)
    else:
        rig.switch.rate[rig.leaf(2, 4)] = rig.network.rate_for(factor)
    rig.run()
    assert rig.network.endpoint[2, 4] == pytest.approx(factor, rel=0.01)


# --- links ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "states"), [(ROCE, [1, 1, 4, 4]), (INFINIBAND, [1, 1, 2, 4]), (EFA, [4, 4, 4, 4])],
                         ids=lambda v: getattr(v, "fabric", ""))
def test_a_flap_steps_the_links_counters_and_its_state(kind, states):
    """Down and up again: two carrier changes, one downed, one recovery, a gap in its bytes; EFA only vanishes."""
    rig = Rig(kind)
    rig.run(30)
    before = {name: rig.bank.counters[name].copy() for name in ("carrier_changes", "downed", "recoveries")}
    sent = "tx_bytes" if kind is EFA else "sent_bytes"
    seen, gaps, present = [], [], []
    for up in (0, 0, 1, 1):
        rig.nic.up[2, 4] = up
        gaps.append(float(rig.run()[sent][2, 4]))
        seen.append(float(rig.bank.state[2, 4]))
        present.append(bool(rig.bank.present[2, 4]))
    assert seen == states
    assert present == [kind is not EFA] * 2 + [True] * 2
    assert gaps[:2] == [0, 0]
    assert min(gaps[2:]) > 0
    steps = {name: (rig.bank.counters[name] - before[name]) for name in before}
    assert {name: values[2, 4] for name, values in steps.items()} == {"carrier_changes": 2, "downed": 1, "recoveries": 1}
    assert all(np.delete(values.ravel(), 2 * kind.nics + 4).max() == 0 for values in steps.values())


def test_peers_of_a_port_that_is_down_run_into_their_timers():
    """Who sends to it hears nothing; nobody counts gaps."""
    rig = Rig()
    rig.nic.up[2, 4] = 0
    grown = rig.run(40)
    assert grown["ack_timeouts"][1, 4] > 20
    assert grown["retransmit_timeouts"][1, 4] > 20
    assert grown["out_of_sequence"].max() < 5
    assert np.delete(grown["ack_timeouts"], 4, axis=1).max() < 5
    assert grown["received_bytes"][3, 4] < 0.6 * np.median(grown["received_bytes"])  # the next one in the ring
    assert rig.network.endpoint[2, 4] == STALLED


def test_peers_of_an_efa_device_that_is_gone_call_it_unresponsive():
    """The counter is the peers', not the device's."""
    rig = Rig(EFA)
    rig.nic.up[2, 4] = 0
    grown = rig.run(40)["unresponsive_remote_events"]
    assert grown[1, 4] > 0
    assert grown[2, 4] == 0
    assert np.delete(grown, 4, axis=1).max() == 0


def test_the_kernel_says_that_a_link_changed_in_words_that_are_read():
    """The driver's line and the RDMA core's, on the node that it is about and on no other."""
    rig = Rig()
    rig.run()
    rig.nic.up[2, 4] = 0
    rig.run(20)
    rig.nic.up[2, 4] = 1
    rig.run()
    lines = [line for line in rig.log(2).splitlines() if "Link" in line]
    assert [line.split("kernel: ")[1] for line in lines] == [
        "mlx5_core 0000:58:00.0 enp88s0np0: Link down", "mlx5_core 0000:58:00.0 mlx5_4: Port: 1 Link DOWN",
        "mlx5_core 0000:58:00.0 enp88s0np0: Link up", "mlx5_core 0000:58:00.0 mlx5_4: Port: 1 Link ACTIVE"]
    read = [e for line in lines for e in KERNEL_LOG.parse_line(line, None, {}, TargetInfo("n03", {})).events]
    assert [(e.kind, e.target.device) for e in read] == [
        ("link_down", "enp88s0np0"), ("link_down", "mlx5_4/1"), ("link_up", "enp88s0np0"), ("link_up", "mlx5_4/1")]
    assert not any("Link" in rig.log(n) for n in range(8) if n != 2)


def test_infiniband_goes_through_init():
    """The subnet manager makes a port active."""
    rig = Rig(INFINIBAND)
    for up in (0, 1):
        rig.nic.up[2, 4] = up
        rig.run()
    assert [line.split()[-1] for line in rig.log(2).splitlines() if "Link" in line] == ["DOWN", "INIT", "ACTIVE"]


def test_an_efa_device_is_taken_away_and_set_up_anew():
    """EFA's driver says nothing of a link: only that a device goes, by its name, and that one is set up."""
    rig = Rig(EFA)
    for up in (0, 1):
        rig.nic.up[2, 4] = up
        rig.run()
    name, pci = EFA.nic_names[4], EFA.nic_pci(4)
    lines = rig.log(2).splitlines()[-2:]
    assert [line.split("kernel: ")[1] for line in lines] == [
        f"efa {pci} {name}: Unregister ib device", f"efa {pci}: Setup irq:efa-mgmnt@pci:{pci}"]
    read = [e for line in lines for e in KERNEL_LOG.parse_line(line, None, {}, TargetInfo("n03", {})).events]
    assert [(e.kind, e.target.device) for e in read] == [("link_down", f"{name}/1")]


def test_a_link_at_half_its_rate_waits_and_counts_no_error():
    """The rate is shown, the collective takes twice as long, the port waits, nothing else moves."""
    rig = Rig()
    rig.nic.rate[2, 4] = 0.5
    grown = rig.run(120)
    assert rig.bank.rate_bytes[2, 4] == 2.5e10
    assert rig.network.endpoint[2, 4] == 2.0
    assert grown["wait_ticks"][2, 4] > 10 * np.median(grown["wait_ticks"])
    assert all(grown[name].max() < 10 for name in ERRORS)
    assert grown["pause_received"][1, 4] > 3 * np.median(grown["pause_received"])


def test_a_narrow_slot_makes_the_port_pause_its_senders():
    """Eight lanes instead of sixteen: pauses sent by the culprit, received by those that send to it, stalls at its PCIe."""
    rig = Rig()
    rig.nic.pcie_width[2, 4] = 8
    grown = rig.run(120)
    assert grown["pause_sent"][2, 4] > 1000
    assert np.delete(grown["pause_sent"].ravel(), 20).max() == 0
    assert grown["pause_sent_duration"][2, 4] > grown["pause_sent"][2, 4]
    assert np.argmax(grown["pause_received"][:, 4]) == 1
    assert rig.bank.pci_stalled[2, 4] > 20
    assert np.delete(rig.bank.pci_stalled.ravel(), 20).max() == 0
    assert rig.bank.rate_bytes[2, 4] == 5e10
    assert 1.4 < rig.network.endpoint[2, 4] < 2


def test_a_decaying_cable_shows_in_error_correction_before_anything_is_lost():
    """Repaired bits on one lane and symbol errors climb; packets are not lost."""
    rig = Rig()
    well = rig.run(120)
    rig.nic.symbol_errors_per_second[2, 4] = 25.0
    grown = rig.run(120)
    assert grown["corrected_bits"][2, 4] > 3 * well["corrected_bits"][2, 4]
    assert grown["symbol_errors"][2, 4] == pytest.approx(3000, rel=0.15)
    assert grown["lane_errors_2"][2, 4] > 5 * grown["lane_errors_1"][2, 4]
    assert 0 < grown["uncorrected_symbols"][2, 4] < 200
    assert grown["out_of_sequence"].max() < 10


# --- congestion and switches -----------------------------------------------------------------------------------------------
def test_congestion_marks_many_ports_in_one_direction_and_loses_nothing():
    """Marks arrive on all ports of the leaf, their senders are told; elsewhere and in the error counters all is quiet."""
    rig = Rig(nodes=16)
    leaf = rig.leaf(0, 4)
    under = rig.topology.leaf_of == leaf
    rig.switch.congestion[leaf] = 0.6
    grown = rig.run(120)
    assert under.sum() == 8
    elsewhere = ~under
    elsewhere[8, 4] = False  # it gets what the last node of this pod sends
    assert grown["cnp_sent"][under].min() > 20 * grown["cnp_sent"][elsewhere].max()
    assert grown["ecn_marked"][under].min() > 20 * grown["ecn_marked"][elsewhere].max()
    assert grown["cnp_handled"][:, 4].min() > 10 * np.delete(grown["cnp_handled"], 4, axis=1).max()
    assert grown["pause_received"][:8, 4].min() > 0
    assert all(grown[name].max() < 10 for name in ERRORS)
    assert (rig.network.endpoint[under] > 1.2).all()
    assert (rig.network.endpoint[elsewhere] == 1).all()


def test_infiniband_waits_for_credits_and_marks_nothing():
    """Congestion on InfiniBand is waiting; there are no marks and no pauses."""
    rig = Rig(INFINIBAND)
    rig.nic.congestion[2, 4] = 0.8
    grown = rig.run(60)
    assert grown["wait_ticks"][2, 4] > 5 * np.median(grown["wait_ticks"])
    assert all(grown[name].max() == 0 for name in ("cnp_sent", "ecn_marked", "cnp_handled", "pause_received", "pause_sent"))


def test_a_leafs_loss_shows_on_all_its_ports_and_on_no_others():
    """Every NIC under the switch sees gaps, at once and about alike; other leaves' NICs see none."""
    rig = Rig(nodes=16)
    leaf = rig.leaf(0, 4)
    under = rig.topology.leaf_of == leaf
    rig.run()
    rig.switch.loss_per_million[leaf] = 100.0
    gaps = rig.run()["out_of_sequence"]
    assert gaps[under].min() > 100
    assert gaps[under].max() < 2 * gaps[under].min()
    crossing = np.zeros_like(under)
    crossing[8, 4] = True  # the first node of the other pod gets what the last one of this pod sends
    assert gaps[crossing].min() > 100
    assert gaps[~under & ~crossing].max() < 5


def test_a_spines_loss_shows_only_on_what_crosses_it():
    """Few NICs on several leaves, always the same ones."""
    rig = Rig(nodes=64, jobs=_pairs(32))
    rig.switch.loss_per_million[len(rig.topology.leaves())] = 200.0
    gaps = rig.run(20)["out_of_sequence"] > 50
    over = np.zeros((64, 8), bool)
    for flows in rig.network.connections:
        for member in range(2):
            spine = rig.topology.spine_of(flows.path[member]) == len(rig.topology.leaves())
            over[flows.to[member, 0]] |= spine.any(axis=1)
    assert np.array_equal(gaps, over)
    assert 0 < over.sum() < over.size


def test_a_dead_leaf_takes_the_carrier_of_all_its_ports_at_once():
    """One moment, one leaf, one port of each of its nodes; each of their kernels says so."""
    rig = Rig(nodes=16)
    leaf = rig.leaf(0, 4)
    rig.run()
    rig.switch.up[leaf] = 0
    downed = rig.run()["downed"]
    assert np.array_equal(downed > 0, rig.topology.leaf_of == leaf)
    assert all("mlx5_4: Port: 1 Link DOWN" in rig.log(n) for n in range(8))
    assert not any("Link DOWN" in rig.log(n) for n in range(8, 16))


def test_a_dead_spine_is_routed_around():
    """What crosses has half of the paths left; nothing stands still and no port loses its carrier."""
    rig = Rig(nodes=16)
    rig.switch.up[-1] = 0
    rig.run()
    (flows,) = rig.network.connections
    assert (rig.network.endpoint[flows.ring][flows.crosses.any(axis=2)] == 2).all()
    assert (rig.network.endpoint == 1).sum() == 16 * 8 - 16
    assert rig.network.up.all()
    assert not rig.network.stalled.any()


# --- laws ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ROCE, EFA], ids=lambda k: k.fabric)
def test_the_same_seed_gives_the_same_counters(kind):
    """Bit for bit, and another seed does not."""
    one, same, other = (Rig(kind, seed=s).run(120) for s in (3, 3, 4))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["tx_bytes" if kind is EFA else "sent_bytes"], other["tx_bytes" if kind is EFA else "sent_bytes"])


@pytest.mark.parametrize("kind", [ROCE, EFA], ids=lambda k: k.fabric)
def test_a_fault_leaves_other_rails_bit_for_bit_as_they_would_have_been(kind):
    """The number of draws does not depend on what is wrong."""
    calm, struck = Rig(kind), Rig(kind)
    struck.nic.loss_per_million[2, 4], struck.nic.symbol_errors_per_second[2, 4] = 300.0, 10.0
    struck.nic.congestion[3, 4] = 0.7
    one, other = calm.run(120), struck.run(120)
    apart = [i for i in range(kind.nics) if i != 4]
    nodes = [n for n in range(8) if n not in (2, 3)]
    for name in one:
        assert np.array_equal(one[name][np.ix_(nodes, apart)], other[name][np.ix_(nodes, apart)]), name


def test_a_reboot_clears_the_nodes_counters_and_no_others():
    """All counters of the row are those of a fresh driver."""
    rig = Rig()
    rig.run(60)
    before = {name: values.copy() for name, values in rig.bank.counters.items()}
    rig.bank.reset(3)
    for name, values in rig.bank.counters.items():
        assert values[3].max() == (1 if name == "carrier_changes" else 0)
        assert np.array_equal(np.delete(values, 3, axis=0), np.delete(before[name], 3, axis=0))


@given(st.lists(st.floats(0, 1e5), min_size=8, max_size=8))
@settings(max_examples=40, deadline=None)
def test_what_receivers_see_falls_to_senders_without_loss(seen):
    """The sum of what is told is the sum of what was seen, and nobody tells himself."""
    network = _linked()
    values = np.zeros((8, 8))
    values[:, 3] = seen
    told = network.to_senders(values)
    assert told.sum() == pytest.approx(sum(seen), rel=1e-9, abs=1e-6)
    alone = np.zeros((8, 8))
    alone[2, 3] = 1.0
    assert network.to_senders(alone)[2, 3] == 0
    assert told[:, [0, 1, 2, 4, 5, 6, 7]].max() == 0


def _linked() -> Network:
    rig = Rig()
    rig.run()
    return rig.network


@given(st.sampled_from([(8, 8), (8, 32), (8, 4), (4, 4), (8, 3), (16, 16)]), st.floats(1, 1e11))
@settings(max_examples=30, deadline=None)
def test_no_byte_is_lost_between_gpus_and_nics(sizes, amount):
    """However many NICs a GPU has, or GPUs a NIC, the node sends what its GPUs send."""
    gpus, nics = sizes
    traffic = amount * (1 + np.arange(3 * gpus, dtype=float).reshape(3, gpus))
    found = per_nic(traffic, nics)
    assert found.shape == (3, nics)
    assert np.allclose(found.sum(axis=1), traffic.sum(axis=1))


@pytest.mark.parametrize("mean", [0.02, 1.0, 25.0, 31.0, 4000.0])
def test_counts_are_poisson_from_one_draw_each(mean):
    """Mean and spread of a Poisson count, whole numbers, more for a larger draw."""
    draws = np.random.default_rng(5).random(20_000)
    found = counts(np.full(draws.shape, mean), draws)
    assert found.mean() == pytest.approx(mean, rel=0.08)
    assert found.std() == pytest.approx(mean**0.5, rel=0.12)
    assert np.array_equal(found, np.round(found))
    ordered = np.sort(draws)
    assert (np.diff(counts(np.full(draws.shape, mean), ordered)) >= 0).all()


def test_efa_names_are_the_drivers():
    """Names as the driver's hw_counters have them: real pages list the same ones."""
    assert {"retrans_pkts", "impaired_remote_conn_events", "rdma_write_recv_bytes", "rx_drops"} <= set(SRD)
    assert set(SRD) <= set(Rig(EFA).bank.counters)
    assert not set(SRD) & set(Rig(ROCE).bank.counters)


def _calls(rig: Rig) -> int:
    """How many functions a sub-step calls, those in C included."""
    found = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    rig.network.step(rig.jobs, 5, rig.job_knobs)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        rig.network.step(rig.jobs, 5, rig.job_knobs)
        rig.bank.step(5, rig.work, rig.network)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("turn", ["well", "ill"])
@pytest.mark.parametrize("kind", [ROCE, EFA], ids=lambda k: k.fabric)
def test_a_sub_step_takes_no_more_calls_for_more_nodes(kind, turn):
    """No loop over nodes: ten times the nodes are the same calls on larger arrays, faults or not."""
    taken = []
    for nodes in (40, 400):
        rig = Rig(kind, nodes)
        if turn == "ill":
            rig.nic.loss_per_million[:, 4], rig.switch.paths_lost[0], rig.switch.congestion[1] = 200.0, 0.2, 0.5
        taken.append(_calls(rig))
    assert taken[1] < 1.15 * taken[0]


def test_slowness_for_a_severity_is_what_lengthens_the_step():
    """The factor times the time on the links is the severity's share of the step."""
    world, _ = small()
    impact = world.jobs["train-1"].impact
    factor = slowness_for(world, 0.2, row=1)
    assert (factor - 1) * impact.link_seconds == pytest.approx(0.2 * impact.step_seconds)


def test_a_healthy_world_has_nothing_to_count_and_its_job_full_rate():
    """The bundled job on the default fleet: no error, no factor, siblings alike."""
    world, _ = small()
    before = {name: values.copy() for name, values in world.nics.counters.items()}
    world.advance(world.now_ms + 300_000)
    assert (world.network.endpoint == 1).all()
    assert all((world.nics.counters[name] - before[name]).max() < 10 for name in ERRORS)
    sent = (world.nics.counters["sent_bytes"] - before["sent_bytes"])[:4]
    assert (sent.max(axis=1) / sent.min(axis=1) < 1.01).all()
    assert (world.nics.counters["sent_bytes"] - before["sent_bytes"])[4].max() == 0
