"""Prometheus' node_exporter, and Lustre's client rows that sites serve beside it (signals.md §3–§5).

Which side of a loss a counter speaks of (signals.md §3.2, rules.md §3f):
- `nic.packets_lost`: this port did not get packets: arrivals out of sequence, implied NAKs (lost read responses),
  receive errors, discards and overruns. Benign drops of Ethernet (unknown protocols) are in it: detectors judge by rate
  and ratio.
- `nic.peer_loss`: NAKs from the other side (`packet_seq_err`): a peer lost what this port sent.
- `nic.retransmits`, `nic.timeouts`: the sender's repair of either.
- `nic.corrupt_packets`: symbol, integrity and ICRC errors at this port.
- CNP, ECN and transmit wait are congestion, no fault by themselves.
Left out on purpose: `out_of_buffer` and RNR (a slow host, no loss on the wire), `duplicate_request`, VL15 drops,
remote physical errors (marked bad upstream), `lifespan`, and the port state of EFA devices, whose driver always claims
ACTIVE (signals.md §0 fact 8).

node_exporter has no identity label: its own `node` label is a NUMA node.
"""

from __future__ import annotations

import re

from collectors.meaning import Meaning, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

STATE_ACTIVE = 4.0  # of node_infiniband_state_id; core.derive makes 1 of `4 / STATE_ACTIVE`


def _counter(signal: str, scale: float = 1.0) -> Meaning:
    return Meaning(signal, scale, True)


_LOST, _CORRUPT = _counter("nic.packets_lost_per_second"), _counter("nic.corrupt_packets_per_second")
_MARKS, _DISCARDS = _counter("nic.congestion_marks_per_second"), _counter("nic.discards_per_second")
_TX_BYTES, _RX_BYTES = _counter("nic.transmitted_bytes_per_second"), _counter("nic.received_bytes_per_second")
_TX_PACKETS, _RX_PACKETS = _counter("nic.transmitted_packets_per_second"), _counter("nic.received_packets_per_second")

# node_infiniband_<name>{device,port}
INFINIBAND: dict[str, Meaning] = {
    "port_data_transmitted_bytes_total": _TX_BYTES,
    "port_data_received_bytes_total": _RX_BYTES,
    "port_packets_transmitted_total": _TX_PACKETS,
    "port_packets_received_total": _RX_PACKETS,
    "state_id": Meaning("nic.link_up", 1.0 / STATE_ACTIVE),
    "rate_bytes_per_second": Meaning("nic.rate_bytes_per_second"),
    "link_downed_total": _counter("nic.link_downed_per_second"),
    "link_error_recovery_total": _counter("nic.link_recoveries_per_second"),
    "port_transmit_wait_total": _counter("nic.wait_ticks_per_second"),
    "out_of_sequence_packets_received_total": _LOST,
    "implied_nak_seq_errors_total": _LOST,
    "port_errors_received_total": _LOST,
    "port_discards_received_total": _LOST,
    "excessive_buffer_overrun_errors_total": _LOST,
    "packet_sequence_errors_total": _counter("nic.peer_loss_per_second"),
    "roce_adp_retransmits_total": _counter("nic.retransmits_per_second"),
    "local_ack_timeout_errors_total": _counter("nic.timeouts_per_second"),
    "roce_adp_retransmits_timeout_total": _counter("nic.timeouts_per_second"),
    "symbol_error_total": _CORRUPT,
    "local_link_integrity_errors_total": _CORRUPT,
    "rx_icrc_encapsulated_errors_total": _CORRUPT,
    "port_discards_transmitted_total": _DISCARDS,
    "np_cnp_packets_sent_total": _MARKS,
    "rp_cnp_packets_handled_total": _MARKS,
    "np_ecn_marked_roce_packets_received_total": _MARKS,
}

# node_network_<name>{device}
NETWORK: dict[str, Meaning] = {
    "transmit_bytes_total": _TX_BYTES,
    "receive_bytes_total": _RX_BYTES,
    "transmit_packets_total": _TX_PACKETS,
    "receive_packets_total": _RX_PACKETS,
    "receive_errs_total": _LOST,
    "receive_drop_total": _LOST,
    "receive_fifo_total": _LOST,
    "receive_frame_total": _CORRUPT,
    "transmit_errs_total": _DISCARDS,
    "transmit_drop_total": _DISCARDS,
    "carrier": Meaning("nic.link_up"),
    "carrier_changes_total": _counter("nic.carrier_changes_per_second"),
    "speed_bytes": Meaning("nic.rate_bytes_per_second"),
}

# node_ethtool_<name>{device}: only what the interface's own counters do not hold as well (mlx5's discards at the port).
ETHTOOL: dict[str, Meaning] = {
    "received_discards_phy": _LOST,
    "received_crc_errors_phy": _CORRUPT,
    "received_symbol_err_phy": _CORRUPT,
    "transmitted_discards_phy": _DISCARDS,
}

NODE: dict[str, Meaning] = {
    "node_boot_time_seconds": Meaning("node.boot_time_seconds"),
    "node_time_seconds": Meaning("node.time_seconds"),
    "node_load1": Meaning("node.load1"),
    "node_memory_MemAvailable_bytes": Meaning("node.memory_available_bytes"),
    "node_memory_MemTotal_bytes": Meaning("node.memory_total_bytes"),
    "node_pressure_io_waiting_seconds_total": _counter("node.io_waiting_ratio"),
    "node_pressure_memory_stalled_seconds_total": _counter("node.memory_stalled_ratio"),
    # netstat families are exposed as untyped, though they only grow.
    "node_netstat_Tcp_RetransSegs": _counter("node.tcp_retransmits_per_second"),
    "node_netstat_Tcp_OutSegs": _counter("node.tcp_segments_per_second"),
}

# Waiting for I/O is idle time of the CPU; guest time is already in user and nice.
CPU_MODES = {
    "user": "node.cpu_busy_ratio", "nice": "node.cpu_busy_ratio", "system": "node.cpu_busy_ratio",
    "irq": "node.cpu_busy_ratio", "softirq": "node.cpu_busy_ratio", "steal": "node.cpu_steal_ratio",
    "idle": "node.cpu_idle_ratio", "iowait": "node.cpu_idle_ratio",
}
DISK = {"node_disk_read_bytes_total": _counter("disk.read_bytes_per_second"),
        "node_disk_written_bytes_total": _counter("disk.written_bytes_per_second")}
LUSTRE = ("lustre_read_bytes_total", "lustre_write_bytes_total")

# Interfaces without a cable of their own: loopback, containers, bridges, tunnels, bonds and VLANs (their members are
# counted), and IPoIB (its port is counted as node_infiniband).
_VIRTUAL = re.compile(
    r"lo|(veth|docker|cali|cni|virbr|br-|br\d|bond|team|dummy|tun|tap|flannel|kube|nodelocaldns|lxc|lxd|wg|ifb|sit|gre|"
    r"erspan|ip6|tunl|cilium|ovs|genev|vxlan|vnet|weave|podman|antrea|azv|eni[0-9a-f]{8}|gif|ib\d|ibp|ibs|bonding)"
    r".*|.*[.@:].*"
)
_PARTITION = re.compile(r"(loop|ram|zram|sr|fd|dm-).*|(nvme\d+n\d+|mmcblk\d+)p\d+|(sd|vd|xvd|hd)[a-z]+\d+")
_EFA = re.compile(r"(rdmap\d+s\d+|efa_?\d+).*")
_INLET = re.compile(r"inlet|ambient", re.IGNORECASE)


def _nic(labels: dict[str, str], target: TargetInfo) -> Target | None:
    device, port = labels.get("device"), labels.get("port")
    if not device:
        return None
    return Target("nic", target.node, f"{device}/{port}" if port else device)


def _network(series: Series, target: TargetInfo) -> SignalRef | None:
    """Meaning of node_infiniband_*, node_network_* and node_ethtool_*."""
    labels = labels_of(series)
    device = labels.get("device", "")
    _, family, name = series.name.split("_", 2)
    if family == "infiniband":
        if name == "state_id" and _EFA.fullmatch(device):
            return None
        legacy = name.startswith("legacy_")
        meaning = INFINIBAND.get(name.replace("legacy_", "port_", 1) if legacy else name)
    elif _VIRTUAL.fullmatch(device):
        return None
    else:
        meaning = (NETWORK if family == "network" else ETHTOOL).get(name)
    nic = _nic(labels, target) if meaning else None
    return meaning.ref(nic) if meaning and nic else None


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a node_exporter (or Lustre client) series."""
    name = series.name
    if name.startswith(("node_infiniband_", "node_network_", "node_ethtool_")):
        return _network(series, target)
    host = Target("node", target.node)
    if name in NODE:
        return NODE[name].ref(host)
    if name == "node_cpu_seconds_total":
        signal = CPU_MODES.get(series.label("mode"))
        return _counter(signal).ref(host) if signal else None
    if name in DISK:
        device = series.label("device")
        skip = not device or _PARTITION.fullmatch(device)
        return None if skip else DISK[name].ref(Target("disk", target.node, device))
    if name == "node_hwmon_temp_celsius":
        named = any(_INLET.search(series.label(label)) for label in ("chip", "sensor", "label"))
        return Meaning("node.inlet_temperature_celsius").ref(host) if named else None
    if name in LUSTRE and series.label("component") == "client":
        return _counter("node.storage_bytes_per_second").ref(host)
    return None


PLUGIN = SourcePlugin("node_exporter", map_series=map_series)
