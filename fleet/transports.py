"""What the transports over the ports count: RoCE and InfiniBand verbs, and EFA's SRD.

A loss leaves traces at both ends. What is lost on the way to a port is seen as a gap there; the ports that sent it are told
so (NAK) and send again; acknowledgements on their way to the port are lost as well, so that its own sender runs into
its timer. Congestion marks, waits and pauses; it loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import NodeType
from fleet.knobs import NicKnobs
from fleet.network import CONGESTED, Network

# A full packet: 4 KiB of payload and 62 bytes of headers; EFA's packets hold twice as much.
ROCE_PACKET, EFA_PACKET = float((4 << 10) + 62), 8e3
# Of packets lost at a port: those that came and were damaged, that the port itself counts as errors, that the port resends
# for want of their acknowledgement, and of which the timer expires.
DAMAGED, ERRORS, RESENT, TIMED_OUT = 0.08, 0.05, 0.3, 0.06
RESENT_FOR_NAK = 0.8
# A flow that stands still runs into its timers so often a second, all its queue pairs together.
TIMEOUTS_OF_STALL = 1.9
# Ticks a second in which a port that is blocked all the time waits; congestion notifications at most (one each 50 us).
TICKS, MOST_CNP = 4e7, 2e4
# Pause frames a second from a port that holds the other side back all the time, and how long each lasts (us).
PAUSES, PAUSE_MICROSECONDS = 2.4e3, 6.0
# What each healthy port counts a second under load, all harmless.
BACKGROUND: Mapping[str, float] = {
    "out_of_sequence": 0.004, "sequence_errors": 0.004, "retransmits": 0.003, "ack_timeouts": 0.0004,
    "duplicate_requests": 0.0015, "implied_naks": 0.0003,
}
VERBS = (
    "sent_bytes", "received_bytes", "sent_packets", "received_packets", "wait_ticks", "receive_errors", "discards",
    "receive_discards", "out_of_sequence", "sequence_errors", "ack_timeouts", "retransmits", "retransmit_timeouts",
    "slow_restarts", "cnp_sent", "cnp_handled", "ecn_marked", "icrc_errors", "duplicate_requests", "implied_naks",
    "receiver_not_ready", "out_of_buffer", "integrity_errors", "overruns", "pause_sent", "pause_received",
    "pause_sent_duration", "pause_received_duration",
)
SRD = (
    "tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
    "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_read_wrs", "rdma_read_wr_err", "rdma_write_bytes",
    "rdma_write_recv_bytes", "rdma_write_wrs", "rdma_write_wr_err", "retrans_bytes", "retrans_pkts",
    "retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events", "lifespan",
)
# So many parts are quicker counted one by one.
FEW = 12
# EFA: bytes of a message read or written, and of a control message; healthy resends as a share of packets.
MESSAGE, CONTROL, CONTROL_SHARE, RESENDS = 3.06e5, 2e3, 0.0066, 1e-6


@dataclass(slots=True)
class Moved:
    """One sub-step's traffic, each [node, nic]: bytes and packets sent and received, whether there was work for the port,
    busy: the share of the time that its link needs for what it sent, pcie: the share of its rate that its slot carries."""

    sent: Floats
    received: Floats
    packets_out: Floats
    packets_in: Floats
    loaded: NDArray[np.bool_]
    busy: Floats
    pcie: Floats


def packet_bytes(kind: NodeType) -> float:
    """Bytes of a full packet on this kind's fabric."""
    return EFA_PACKET if kind.fabric == "efa" else ROCE_PACKET


def counts(mean: Floats, draw: Floats) -> Floats:
    """Poisson counts of these means, each from one uniform draw of its own (so the number of draws never changes). Beyond
    30 a logistic curve stands for the normal one."""
    out = np.zeros_like(mean)
    large = mean > 30.0
    if large.any():
        m, u = mean[large], np.clip(draw[large], 1e-9, 1 - 1e-9)
        out[large] = np.maximum(0.0, np.rint(m + np.sqrt(m) * np.log(u / (1 - u)) / 1.7))
    small = (mean > 0.0) & ~large
    if small.any():
        m, u = mean[small], draw[small]
        chance = np.exp(-m)
        below, found = chance.copy(), np.zeros_like(m)
        for k in range(1, 90):
            more = u > below
            if not more.any():
                break
            found += more
            chance = chance * m / k
            below += chance
        out[small] = found
    return out


def sprinkle(rng: np.random.Generator, counter: Floats, mean: float, where: NDArray[np.bool_] | None = None) -> None:
    """Adds rare events, `mean` for each part, to a counter [node, nic]; only where `where` holds."""
    flat = counter.reshape(-1)
    times = int(rng.poisson(mean * flat.size))
    if not times:
        return
    hit = rng.integers(0, flat.size, times)
    if where is not None:
        hit = hit[where.reshape(-1)[hit]]
    if len(hit) > FEW:
        np.add.at(flat, hit, 1.0)
        return
    for place in hit.tolist():
        flat[place] += 1.0


class Verbs:
    """RoCE and InfiniBand; on InfiniBand credits hold senders back, so nothing is marked and nobody pauses."""

    constants: Mapping[str, float] = {}

    def __init__(self, kind: NodeType, shape: tuple[int, int], rng: np.random.Generator, counters: dict[str, Floats]) -> None:
        self._rng, self.counters = rng, counters
        self._pauses = kind.fabric == "roce"
        counters.update({name: np.zeros(shape) for name in VERBS})
        past = np.rint(rng.uniform(8e14, 9e14, (shape[0], 1)) * (1 + 0.002 * rng.normal(0, 1, shape)))
        for name in ("sent_bytes", "received_bytes"):
            counters[name] += past
        for name in ("sent_packets", "received_packets"):
            counters[name] += np.rint(past / ROCE_PACKET)
        for name, mean in (("out_of_sequence", 60.0), ("sequence_errors", 55.0), ("ack_timeouts", 9.0), ("retransmits", 40.0),
                           ("wait_ticks", 3e9), ("duplicate_requests", 20.0), ("implied_naks", 5.0)):
            counters[name] += rng.poisson(mean, shape)
        if self._pauses:
            marks = rng.poisson(4e5, shape).astype(float)
            for name, share in (("cnp_sent", 1.0), ("cnp_handled", 0.96), ("ecn_marked", 14.0), ("pause_received", 0.002)):
                counters[name] += np.rint(share * marks)
        self._burst = np.zeros(shape)

    def step(self, seconds: int, moved: Moved, network: Network, knobs: NicKnobs) -> None:
        """Counts what this sub-step's traffic met."""
        rng, count = self._rng, self.counters
        draws = rng.random((5, *moved.sent.shape))
        count["sent_bytes"] += moved.sent
        count["received_bytes"] += moved.received
        count["sent_packets"] += moved.packets_out
        count["received_packets"] += moved.packets_in
        for name, rate in BACKGROUND.items():
            sprinkle(rng, count[name], rate * seconds, moved.loaded)
        self._crowd(seconds, moved, network, knobs)
        if network.quiet:
            return
        if network.loss.any():
            self._lose(moved, network, draws)
        if network.stalled.any() or not network.up.all():
            self._stand_still(seconds, moved, network, draws[4])

    def _crowd(self, seconds: int, moved: Moved, network: Network, knobs: NicKnobs) -> None:
        """Bursts that every fabric has, and what congestion and slow ends add."""
        rng, count, loaded = self._rng, self.counters, moved.loaded
        shape = moved.sent.shape
        begins, wobble = rng.random(shape) < 0.05, rng.standard_normal(shape)
        height, waits = rng.exponential(40.0, shape), rng.uniform(0.5, 1.5, shape)
        self._burst = burst = np.where(begins, height, 0.6 * self._burst)
        crowd = network.congestion
        share = network.share if network.quiet else np.minimum(network.share, 1.0 - CONGESTED * crowd**2)
        held = moved.busy * (1.0 / np.maximum(share, 0.05) - 1.0)
        count["wait_ticks"] += np.rint(seconds * loaded * ((2e4 + 6e3 * burst) * waits + TICKS * np.minimum(1.0, held)))
        if not self._pauses:
            return
        mean = seconds * (0.4 + burst + MOST_CNP * crowd)
        marks = np.where(loaded, np.maximum(0.0, np.rint(mean + np.sqrt(mean) * wobble)), 0.0)
        count["cnp_sent"] += marks
        count["ecn_marked"] += np.rint(marks * (13.0 + waits))
        quiet = np.where(loaded & (burst > 60.0), np.rint(0.2 * burst), 0.0)
        if network.quiet:
            count["cnp_handled"] += np.rint(0.97 * network.to_senders(marks))
            self._pause("pause_received", quiet)
            return
        # What a slow end takes too long for stands in the queue before it: at its slot, or in the switch.
        here = moved.busy * (1.0 / moved.pcie - 1.0)
        before = moved.busy * (1.0 / np.maximum(knobs.rate, 0.05) - 1.0) + crowd**2 * moved.busy
        told = network.to_senders(np.stack([marks, np.minimum(1.0, here + before)]))
        count["cnp_handled"] += np.rint(0.97 * told[0])
        self._pause("pause_sent", np.rint(seconds * PAUSES * np.minimum(1.0, here) * waits))
        self._pause("pause_received", quiet + np.rint(seconds * PAUSES * told[1] * waits))
        count["receive_discards"] += np.floor(0.1 * seconds * np.minimum(1.0, here) * waits)

    def _pause(self, name: str, frames: Floats) -> None:
        self.counters[name] += frames
        self.counters[f"{name}_duration"] += np.rint(PAUSE_MICROSECONDS * frames)

    def _lose(self, moved: Moved, network: Network, draws: Floats) -> None:
        count = self.counters
        lost = counts(moved.packets_in * network.loss * 1e-6, draws[0])
        naks = counts(network.to_senders(lost), draws[1])
        count["out_of_sequence"] += lost
        count["icrc_errors"] += np.floor(DAMAGED * lost + draws[2])
        count["receive_errors"] += np.floor(ERRORS * lost + draws[3])
        count["retransmits"] += np.floor(RESENT * lost + draws[1]) + np.rint(RESENT_FOR_NAK * naks)
        count["ack_timeouts"] += np.floor(TIMED_OUT * lost + draws[4])
        count["sequence_errors"] += naks
        count["slow_restarts"] += np.floor(0.1 * naks)

    def _stand_still(self, seconds: int, moved: Moved, network: Network, draw: Floats) -> None:
        """Senders on a lost path, or to a port that is gone, hear nothing and run into their timers."""
        working = network.linked[:, None]
        unheard = network.to_senders((~network.up & working).astype(float)) + network.stalled
        expired = counts(seconds * TIMEOUTS_OF_STALL * np.minimum(1.0, unheard), draw)
        self.counters["ack_timeouts"] += expired
        self.counters["retransmit_timeouts"] += expired
        self.counters["discards"] += np.where(~network.up & working, np.rint(3.0 * seconds * draw), 0.0)


class Srd:
    """EFA: counters by the names of its hw_counters. writes: RDMA writes and the counters of resending exist (newer Nitro
    cards); older ones read."""

    constants: Mapping[str, float] = {"lifespan": 12.0}

    def __init__(self, kind: NodeType, shape: tuple[int, int], rng: np.random.Generator, counters: dict[str, Floats]) -> None:
        self._rng, self.counters = rng, counters
        self.writes = not kind.name.startswith("p4d")
        counters.update({name: np.full(shape, self.constants.get(name, 0.0)) for name in SRD})
        past = np.rint(rng.uniform(8e13, 9e13, (shape[0], 1)) * (1 + 0.002 * rng.normal(0, 1, shape)))
        self._move(Moved(past, np.rint(past * 1.0006), past, past, past > 0, past, past))
        counters["retrans_pkts"] += rng.poisson(RESENDS * past / EFA_PACKET)
        counters["retrans_bytes"] += EFA_PACKET * counters["retrans_pkts"]

    def step(self, seconds: int, moved: Moved, network: Network, knobs: NicKnobs) -> None:
        """Counts what this sub-step's traffic met."""
        count, draws = self.counters, self._rng.random((5, *moved.sent.shape))
        self._move(moved)
        resent = RESENDS * moved.packets_out
        timeouts, impaired = np.zeros_like(moved.sent), np.zeros_like(moved.sent)
        if network.loss.any():
            lost = counts(moved.packets_in * network.loss * 1e-6, draws[0])
            near = np.minimum(1.0, network.loss / 2e3) * (0.2 * seconds)
            told = network.to_senders(np.stack([lost, near * moved.loaded]))
            count["rx_drops"] += np.floor(RESENT * lost + draws[1])
            resent = resent + told[0] + RESENT * lost
            timeouts, impaired = TIMED_OUT * (told[0] + lost), told[1]
        if network.detour.any():
            gone = 2e-3 * network.detour * moved.packets_out
            resent, timeouts = resent + gone, timeouts + 0.02 * gone
        if not network.up.all():
            unheard = network.to_senders((~network.up & network.linked[:, None]).astype(float))
            count["unresponsive_remote_events"] += counts(0.3 * seconds * unheard, draws[4])
            timeouts = timeouts + TIMEOUTS_OF_STALL * seconds * unheard
        packets = counts(resent, draws[2])
        count["retrans_pkts"] += packets
        count["retrans_bytes"] += EFA_PACKET * packets
        count["retrans_timeout_events"] += counts(timeouts, draws[3])
        count["impaired_remote_conn_events"] += counts(impaired, draws[4])

    def _move(self, moved: Moved) -> None:
        """Bytes, packets and work requests. With reads the data comes as answers, which are no packets of the receiver's."""
        count, sent, received = self.counters, moved.sent, moved.received
        control_out, control_in = np.rint(CONTROL_SHARE * sent), np.rint(CONTROL_SHARE * received)
        count["tx_bytes"] += sent
        count["rx_bytes"] += received
        count["tx_pkts"] += np.rint(sent / EFA_PACKET)
        count["send_bytes"] += control_out
        count["recv_bytes"] += control_in
        count["send_wrs"] += np.rint(control_out / CONTROL)
        count["recv_wrs"] += np.rint(control_in / CONTROL)
        out, arrived = sent - control_out, received - control_in
        if self.writes:
            count["rx_pkts"] += np.rint(received / EFA_PACKET)
            count["rdma_write_bytes"] += out
            count["rdma_write_wrs"] += np.rint(out / MESSAGE)
            count["rdma_write_recv_bytes"] += arrived
            return
        count["rx_pkts"] += np.rint(2.0 * control_in / CONTROL)
        count["rdma_read_resp_bytes"] += out
        count["rdma_read_bytes"] += arrived
        count["rdma_read_wrs"] += np.rint(arrived / MESSAGE)
