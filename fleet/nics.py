"""All NIC ports of the fleet as arrays: traffic, and the counters that loss and congestion leave.

A fault turns the knob `loss_per_million`: packets lost per million that arrive at a port. What is lost there is seen as a gap by the
port itself; the peers that sent it are told so (NAK) and send again; acknowledgements that were on their way to the
port are lost as well, so that the port's own sender runs into its timer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import NodeType
from fleet.knobs import NicKnobs
from fleet.work import Work

# A full RoCE packet: 4 KiB of payload and 62 bytes of headers.
PACKET_BYTES = float((4 << 10) + 62)
# Of the NAKs for packets that a port lost, the share that goes to its ring neighbour; the rest spreads over the rail.
NEIGHBOUR_SHARE = 0.55
COUNTERS = (
    "sent_bytes", "received_bytes", "sent_packets", "received_packets", "wait_ticks", "symbol_errors", "recoveries",
    "downed", "receive_errors", "discards", "out_of_sequence", "sequence_errors", "ack_timeouts", "retransmits",
    "cnp_sent", "icrc_errors",
)


class NicBank:
    """Counters float64[node, nic] by the names in COUNTERS; rail = the NIC's index = its GPU's index."""

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator, knobs: NicKnobs) -> None:
        shape = (nodes, kind.nics)
        self.kind, self._rng, self.knobs = kind, rng, knobs
        self.counters: dict[str, Floats] = {name: np.zeros(shape) for name in COUNTERS}
        past = np.round(rng.uniform(8e14, 9e14, (nodes, 1)) * (1 + 0.002 * rng.normal(0, 1, shape)))
        for name in ("sent_bytes", "received_bytes"):
            self.counters[name] += past
        for name in ("sent_packets", "received_packets"):
            self.counters[name] += np.round(past / PACKET_BYTES)
        for name, mean in (("symbol_errors", 30.0), ("out_of_sequence", 60.0), ("sequence_errors", 55.0),
                           ("ack_timeouts", 9.0), ("retransmits", 40.0), ("cnp_sent", 4e5), ("wait_ticks", 3e9)):
            self.counters[name] += rng.poisson(mean, shape)
        self._burst = np.zeros(shape)

    def reset(self, row: int) -> None:
        """A reboot clears every counter of the node."""
        for values in self.counters.values():
            values[row] = 0.0

    def step(self, seconds: int, work: Work) -> None:
        """Moves all counters on by `seconds`."""
        rng, count = self._rng, self.counters
        shape = self.knobs.loss_per_million.shape
        spread = 1 + 0.0015 * rng.normal(0, 1, (2, *shape))
        sent = np.round(work.traffic * spread[0])
        received = np.round(work.traffic * spread[1])
        loaded = work.traffic > 0
        count["sent_bytes"] += sent
        count["received_bytes"] += received
        count["sent_packets"] += np.round(sent / PACKET_BYTES)
        count["received_packets"] += np.round(received / PACKET_BYTES)
        self._congestion(seconds, loaded)
        for name, per_second in (("out_of_sequence", 0.004), ("sequence_errors", 0.004), ("retransmits", 0.003),
                                 ("ack_timeouts", 0.0004)):
            count[name] += np.where(loaded, rng.poisson(per_second * seconds, shape), 0)
        count["symbol_errors"] += rng.poisson(0.0009 * seconds, shape)
        if self.knobs.loss_per_million.any():
            self._lose(received / PACKET_BYTES, work.rings)

    def _congestion(self, seconds: int, loaded: NDArray[np.bool_]) -> None:
        rng, shape = self._rng, self.knobs.loss_per_million.shape
        begins = rng.random(shape) < 0.05
        self._burst = np.where(begins, rng.exponential(40.0, shape), 0.6 * self._burst)
        self.counters["cnp_sent"] += np.where(loaded, rng.poisson((0.4 + self._burst) * seconds), 0)
        waits = np.round(seconds * (2e4 + 6e3 * self._burst) * rng.uniform(0.5, 1.5, shape))
        self.counters["wait_ticks"] += np.where(loaded, waits, 0)

    def _lose(self, packets: Floats, rings: list[NDArray[np.int64]]) -> None:
        rng, count = self._rng, self.counters
        for node, nic in np.argwhere(self.knobs.loss_per_million > 0):
            lost = float(rng.poisson(packets[node, nic] * self.knobs.loss_per_million[node, nic] * 1e-6))
            if lost == 0:
                continue
            corrupt = float(rng.binomial(int(lost), 0.08))
            count["out_of_sequence"][node, nic] += lost
            count["icrc_errors"][node, nic] += corrupt
            count["receive_errors"][node, nic] += float(rng.binomial(int(lost), 0.05))
            count["retransmits"][node, nic] += float(rng.binomial(int(lost), 0.3))
            count["ack_timeouts"][node, nic] += float(rng.binomial(int(lost), 0.06))
            self._tell_peers(int(node), int(nic), lost, rings)

    def _tell_peers(self, node: int, nic: int, lost: float, rings: list[NDArray[np.int64]]) -> None:
        ring = next((r for r in rings if node in r), None)
        if ring is None or len(ring) < 2:
            return
        place = int(np.flatnonzero(ring == node)[0])
        shares = np.full(len(ring), (1 - NEIGHBOUR_SHARE) / max(1, len(ring) - 2))
        shares[place] = 0.0
        shares[place - 1] = NEIGHBOUR_SHARE
        naks = self._rng.poisson(lost * shares)
        self.counters["sequence_errors"][ring, nic] += naks
        self.counters["retransmits"][ring, nic] += np.round(0.8 * naks)
