"""node_exporter's families of the network adapters: infiniband (InfiniBand, RoCE and EFA ports alike), and netdev, netclass
and ethtool of the interfaces over RoCE and InfiniBand ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node, NodeType
from fleet.nics import LANES, netdev
from fleet.sheets.base import Family, Get
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

PREFIX, ETHTOOL = "node_infiniband_", "node_ethtool_"
# name, help, counter of the bank, shown on the demo's pages
COUNTS = (
    ("duplicate_requests_packets_total", "Number of received duplicate requests", "duplicate_requests", False),
    ("excessive_buffer_overrun_errors_total", "Number of times that receive buffers overran in a row", "overruns", False),
    ("implied_nak_seq_errors_total", "Number of times the sender took a later answer for a lost one", "implied_naks", False),
    ("link_downed_total", "Number of times the link failed to recover from an error state and went down", "downed", True),
    ("link_error_recovery_total", "Number of times the link successfully recovered from an error state", "recoveries", True),
    ("local_ack_timeout_errors_total", "Number of times the acknowledgement timer expired at the sender", "ack_timeouts", True),
    ("local_link_integrity_errors_total", "Number of times that local errors exceeded the threshold", "integrity_errors", False),
    ("np_cnp_packets_sent_total", "Number of congestion notification packets sent", "cnp_sent", True),
    ("np_ecn_marked_roce_packets_received_total", "Number of packets received with a mark of congestion", "ecn_marked", False),
    ("out_of_buffer_drops_total", "Number of drops for want of a receive buffer", "out_of_buffer", False),
    ("out_of_sequence_packets_received_total", "Number of packets received out of sequence", "out_of_sequence", True),
    ("packet_sequence_errors_total", "Number of NAK sequence error packets received", "sequence_errors", True),
    ("port_data_received_bytes_total", "Number of data octets received on all links", "received_bytes", True),
    ("port_data_transmitted_bytes_total", "Number of data octets transmitted on all links", "sent_bytes", True),
    ("port_discards_transmitted_total", "Number of outbound packets discarded by the port because the port is down or congested",
     "discards", True),
    ("port_errors_received_total", "Number of packets containing an error that were received on this port", "receive_errors",
     True),
    ("port_packets_received_total", "Number of packets received on all VLs by this port (including errors)", "received_packets",
     True),
    ("port_packets_transmitted_total", "Number of packets transmitted on all VLs from this port (including errors)",
     "sent_packets", True),
    ("port_transmit_wait_total", "Number of ticks during which the port had data to transmit but no data was sent",
     "wait_ticks", True),
    ("rnr_nak_retry_packets_received_total", "Number of answers that said the receiver was not ready", "receiver_not_ready",
     False),
    ("roce_adp_retransmits_timeout_total", "Number of adaptive retransmissions that timed out", "retransmit_timeouts", False),
    ("roce_adp_retransmits_total", "Number of adaptive retransmissions of RoCE traffic", "retransmits", True),
    ("roce_slow_restart_total", "Number of times that a slow restart was used", "slow_restarts", False),
    ("rp_cnp_packets_handled_total", "Number of congestion notification packets handled", "cnp_handled", False),
    ("rx_icrc_encapsulated_errors_total", "Number of RoCE packets received with an ICRC error", "icrc_errors", True),
    ("symbol_error_total", "Number of minor link errors detected on one or more physical lanes", "symbol_errors", True),
)
# What `ethtool -S` of an mlx5 port says, in node_exporter's spelling, by counter of the bank.
STATISTICS = (
    ("link_down_events_phy", "downed"), ("received_bytes_phy", "received_bytes"), ("received_corrected_bits_phy", "corrected_bits"),
    ("received_discards_phy", "receive_discards"), *((f"received_err_lane_{lane}_phy", f"lane_errors_{lane}") for lane in range(LANES)),
    ("received_out_of_buffer", "out_of_buffer"), ("received_packets_phy", "received_packets"),
    ("received_pcs_symbol_err_phy", "uncorrected_symbols"), ("received_prio3_pause", "pause_received"),
    ("received_prio3_pause_duration", "pause_received_duration"), ("received_symbol_err_phy", "symbol_errors"),
    ("transmitted_bytes_phy", "sent_bytes"), ("transmitted_discards_phy", "discards"),
    ("transmitted_packets_phy", "sent_packets"), ("transmitted_prio3_pause", "pause_sent"),
    ("transmitted_prio3_pause_duration", "pause_sent_duration"),
)
# Shown in the labels of a family: their settings' keys.
SETTINGS = ("firmware",)


def in_order(names: Sequence[str]) -> list[int]:
    """The places of the names, in the order in which Go's registry lists them as label values."""
    return sorted(range(len(names)), key=lambda i: f'{names[i]}"')


def taken(get: Get, order: Sequence[int]) -> Get:
    """The columns in another order."""
    if list(order) == sorted(order):
        return get
    take = np.array(order)

    def of_all(world: World) -> Floats | float:
        found = get(world)
        return found if isinstance(found, float) else found[:, take]
    return of_all


def count(key: str) -> Get:
    """A counter of the NIC bank."""
    return lambda w: w.nics.counters[key]


def devices(node: Node) -> list[tuple[str, str]]:
    """(device, port) of each NIC."""
    found = [node.nic(i).partition("/") for i in range(node.kind.nics)]
    return [(device, port or "1") for device, _, port in found]


def nic_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The infiniband collector. An EFA device has no counters there, and none at all when it is gone."""
    ports = devices(world.nodes[0])
    order = in_order([device for device, _ in ports])
    blocks = tuple(f'{{device="{ports[i][0]}",port="{ports[i][1]}"}}' for i in order)

    def nics(name: str, text: str, kind: str, get: Get) -> Family:
        return Family(PREFIX + name, text, kind, lambda node: blocks, len(blocks), taken(get, order))

    def info(node: Node) -> Sequence[str]:
        firmware = world.knobs.settings.get((node.index, "firmware"), node.kind.nic_firmware)
        return [f'{{board_id="MT_0000000838",device="{ports[i][0]}",firmware_version="{firmware}",'
                f'hca_type="{node.kind.nic_model}"}}' for i in order]

    rows = [] if world.nics.efa else [row for row in COUNTS if row[3] or not telemetry.lean]
    return [
        *(nics(name, text, "counter", count(key)) for name, text, key, _ in rows),
        Family(PREFIX + "info", "Non-numeric data from /sys/class/infiniband/<device>, value is always 1.", "gauge", info,
               len(blocks), taken(lambda w: _there(w, np.ones(w.nics.present.shape)), order)),
        nics("physical_state_id", "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, "
             "4: shift, 5: link up, 6: link error recover, 7: phytest)", "gauge", lambda w: _there(w, w.nics.physical_state)),
        nics("rate_bytes_per_second", "Maximum signal transfer rate", "gauge", lambda w: _there(w, w.nics.rate_bytes)),
        nics("state_id", "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
             "gauge", lambda w: _there(w, w.nics.state)),
    ]


def _there(world: World, values: Floats) -> Floats:
    return np.where(world.nics.present, values, np.nan)


def interfaces(kind: NodeType) -> list[str]:
    """The network interfaces over the ports; EFA devices have none."""
    return [] if kind.fabric == "efa" else [netdev(kind, i) for i in range(kind.nics)]


def ethtool_families(world: World) -> list[Family]:
    """The ethtool collector: the physical layer, pauses and the PCIe side of the ports."""
    names = interfaces(world.kind)
    if not names:
        return []
    order = in_order(names)
    blocks = tuple(f'{{device="{names[i]}"}}' for i in order)
    rows = [*((name, count(key)) for name, key in STATISTICS), ("outbound_pci_stalled_wr", lambda w: w.nics.pci_stalled)]
    return [Family(ETHTOOL + name, f"Network interface {name.replace('received_', 'rx_').replace('transmitted_', 'tx_')}",
                   "untyped", lambda node: blocks, len(blocks), taken(get, order)) for name, get in rows]
