"""Prometheus' node_exporter (signals.md §3–§5).

Which side of a loss a counter speaks of (signals.md §3.2, rules.md §3f):
- `nic.packets_lost`: this port did not get packets: arrivals out of sequence, implied NAKs (lost read responses),
  receive errors, discards and overruns. Benign drops of Ethernet (unknown protocols) are in it: detectors judge by rate
  and ratio.
- `nic.peer_loss`: NAKs from the other side (`packet_seq_err`): a peer lost what this port sent.
- `nic.retransmits`, `nic.timeouts`: the sender's repair of either.
- `nic.corrupt_packets`: symbol, integrity and ICRC errors at this port.
- CNP, ECN and transmit wait are congestion, no fault by themselves.
- `nic.pause_sent`: this side asks its peer to wait (a slow receiver: PCIe, NUMA, host); `nic.pause_received`: the network
  asks this side to. All priorities are added. Corrected bits and lane errors come before loss; they are never 0.
Left out on purpose: `out_of_buffer` and RNR (a slow host, no loss on the wire), `duplicate_request`, VL15 drops,
remote physical errors (marked bad upstream), `lifespan`, and the port state of EFA devices, whose driver always claims
ACTIVE (signals.md §0 fact 8).

Of EDAC only the controllers' totals count: rows and channels repeat them. A file system on shared storage is named by its
share (`10.0.0.1:/data`; Lustre by its file system's name), so that nodes that mount it speak of the same; any other by
its mount point. Disks carry their serial number, which is not their identity: virtual disks share theirs.

node_exporter has no identity label: its own `node` label is a NUMA node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from collectors.services import watched
from core.protocols import Join, SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

STATE_ACTIVE = 4.0  # of node_infiniband_state_id; core.derive makes 1 of `4 / STATE_ACTIVE`


_LOST, _CORRUPT = counter("nic.packets_lost_per_second"), counter("nic.corrupt_packets_per_second")
_MARKS, _DISCARDS = counter("nic.congestion_marks_per_second"), counter("nic.discards_per_second")
_TX_BYTES, _RX_BYTES = counter("nic.transmitted_bytes_per_second"), counter("nic.received_bytes_per_second")
_TX_PACKETS, _RX_PACKETS = counter("nic.transmitted_packets_per_second"), counter("nic.received_packets_per_second")

# node_infiniband_<name>{device,port}
INFINIBAND: dict[str, Meaning] = {
    "port_data_transmitted_bytes_total": _TX_BYTES,
    "port_data_received_bytes_total": _RX_BYTES,
    "port_packets_transmitted_total": _TX_PACKETS,
    "port_packets_received_total": _RX_PACKETS,
    "state_id": gauge("nic.link_up", 1.0 / STATE_ACTIVE),
    "rate_bytes_per_second": gauge("nic.rate_bytes_per_second"),
    "link_downed_total": counter("nic.link_downed_per_second"),
    "link_error_recovery_total": counter("nic.link_recoveries_per_second"),
    "port_transmit_wait_total": counter("nic.wait_ticks_per_second"),
    "out_of_sequence_packets_received_total": _LOST,
    "implied_nak_seq_errors_total": _LOST,
    "port_errors_received_total": _LOST,
    "port_discards_received_total": _LOST,
    "excessive_buffer_overrun_errors_total": _LOST,
    "packet_sequence_errors_total": counter("nic.peer_loss_per_second"),
    "roce_adp_retransmits_total": counter("nic.retransmits_per_second"),
    "local_ack_timeout_errors_total": counter("nic.timeouts_per_second"),
    "roce_adp_retransmits_timeout_total": counter("nic.timeouts_per_second"),
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
    "carrier": gauge("nic.link_up"),
    # Of a port that was taken down the kernel tells no carrier, neither yes nor no: only the state is left (second choice,
    # because drivers that keep no state show a port that works as not up).
    "up": gauge("nic.link_up"),
    "carrier_changes_total": counter("nic.carrier_changes_per_second"),
    "speed_bytes": gauge("nic.rate_bytes_per_second"),
    "mtu_bytes": gauge("nic.mtu_bytes"),
}

# node_ethtool_<name>{device}: only what the interface's own counters do not hold as well (mlx5's names).
ETHTOOL: dict[str, Meaning] = {
    "received_discards_phy": _LOST,
    "received_crc_errors_phy": _CORRUPT,
    "received_symbol_err_phy": _CORRUPT,
    "transmitted_discards_phy": _DISCARDS,
    "link_down_events_phy": counter("nic.link_downed_per_second"),
    "received_corrected_bits_phy": counter("nic.corrected_bits_per_second"),
    "received_pcs_symbol_err_phy": counter("nic.uncorrected_symbols_per_second"),
    "outbound_pci_stalled_wr": gauge("nic.pcie_stalled_ratio", 0.01),
    "outbound_pci_stalled_rd": gauge("nic.pcie_stalled_ratio", 0.01),
}
# The same with a number in the name: pause frames by priority (mlx5, then bnxt) or of the whole link, errors by lane.
_ETHTOOL_NUMBERED: tuple[tuple[str, Meaning], ...] = (
    (r"transmitted_(?:prio\d|global)_pause|transmitted_pfc_ena_frames_pri\d", counter("nic.pause_sent_per_second")),
    (r"received_(?:prio\d|global)_pause|received_pfc_ena_frames_pri\d", counter("nic.pause_received_per_second")),
    (r"received_err_lane_\d_phy", counter("nic.lane_errors_per_second")),
)
_NUMBERED = tuple((re.compile(pattern), meaning) for pattern, meaning in _ETHTOOL_NUMBERED)

NODE: dict[str, Meaning] = {
    "node_boot_time_seconds": gauge("node.boot_time_seconds"),
    "node_time_seconds": gauge("node.time_seconds"),
    "node_load1": gauge("node.load1"),
    "node_memory_MemAvailable_bytes": gauge("node.memory_available_bytes"),
    "node_memory_MemTotal_bytes": gauge("node.memory_total_bytes"),
    "node_pressure_cpu_waiting_seconds_total": counter("node.cpu_waiting_ratio"),
    "node_pressure_io_waiting_seconds_total": counter("node.io_waiting_ratio"),
    "node_pressure_memory_stalled_seconds_total": counter("node.memory_stalled_ratio"),
    "node_cpu_package_throttles_total": counter("node.cpu_throttles_per_second"),
    "node_edac_correctable_errors_total": counter("node.corrected_memory_errors_per_second"),
    "node_edac_uncorrectable_errors_total": counter("node.uncorrected_memory_errors_per_second"),
    "node_timex_offset_seconds": gauge("node.clock_offset_seconds"),
    "node_timex_maxerror_seconds": gauge("node.clock_error_seconds"),
    "node_timex_sync_status": gauge("node.clock_synced"),
    "node_kernel_hung_tasks_total": counter("node.hung_tasks_per_second"),
    "node_nfs_rpc_retransmissions_total": counter("node.nfs_retransmits_per_second"),
    "node_scrape_collector_success": gauge("node.collectors_working"),
    # netstat and vmstat families are exposed as untyped, though they only grow.
    "node_netstat_Tcp_RetransSegs": counter("node.tcp_retransmits_per_second"),
    "node_netstat_Tcp_OutSegs": counter("node.tcp_segments_per_second"),
    "node_vmstat_oom_kill": counter("node.oom_kills_per_second"),
    "node_vmstat_pgmajfault": counter("node.major_faults_per_second"),
}

# Waiting for I/O is idle time of the CPU; guest time is already in user and nice.
CPU_MODES = {
    "user": "node.cpu_busy_ratio", "nice": "node.cpu_busy_ratio", "system": "node.cpu_busy_ratio",
    "irq": "node.cpu_busy_ratio", "softirq": "node.cpu_busy_ratio", "steal": "node.cpu_steal_ratio",
    "idle": "node.cpu_idle_ratio", "iowait": "node.cpu_idle_ratio",
}
DISK: dict[str, Meaning] = {
    "node_disk_read_bytes_total": counter("disk.read_bytes_per_second"),
    "node_disk_written_bytes_total": counter("disk.written_bytes_per_second"),
    "node_disk_reads_completed_total": counter("disk.reads_per_second"),
    "node_disk_writes_completed_total": counter("disk.writes_per_second"),
    "node_disk_read_time_seconds_total": counter("disk.read_time_ratio"),
    "node_disk_write_time_seconds_total": counter("disk.write_time_ratio"),
    "node_disk_io_time_seconds_total": counter("disk.busy_ratio"),
}
FILESYSTEM: dict[str, Meaning] = {
    "node_filesystem_avail_bytes": gauge("mount.available_bytes"),
    "node_filesystem_size_bytes": gauge("mount.size_bytes"),
    "node_filesystem_files_free": gauge("mount.inodes_free"),
    "node_filesystem_files": gauge("mount.inodes_total"),
    "node_filesystem_readonly": gauge("mount.readonly"),
    "node_filesystem_device_error": gauge("mount.device_error"),
}
# NFS, by share. The times are those from the call to its answer, waiting in the queue included.
NFS: dict[str, Meaning] = {
    "node_mountstats_nfs_total_read_bytes_total": counter("mount.read_bytes_per_second"),
    "node_mountstats_nfs_total_write_bytes_total": counter("mount.written_bytes_per_second"),
    "node_mountstats_nfs_operations_major_timeouts_total": counter("mount.timeouts_per_second"),
}
NFS_OPERATIONS: dict[tuple[str, str], Meaning] = {
    ("node_mountstats_nfs_operations_requests_total", "READ"): counter("mount.reads_per_second"),
    ("node_mountstats_nfs_operations_requests_total", "WRITE"): counter("mount.writes_per_second"),
    ("node_mountstats_nfs_operations_request_time_seconds_total", "READ"): counter("mount.read_time_ratio"),
    ("node_mountstats_nfs_operations_request_time_seconds_total", "WRITE"): counter("mount.write_time_ratio"),
}
PCI: dict[str, Meaning] = {
    "node_pcidevice_current_link_width": gauge("link.pcie_width"),
    "node_pcidevice_max_link_width": gauge("link.pcie_max_width"),
    "node_pcidevice_current_link_transfers_per_second": gauge("link.pcie_transfers_per_second"),
    "node_pcidevice_max_link_transfers_per_second": gauge("link.pcie_max_transfers_per_second"),
}
# How a node is set up: which label of which series is which fact (`{board_id}`: of that kind of board only).
FACTS: dict[str, tuple[str, str]] = {
    "node_uname_info": ("kernel", "release"),
    "node_dmi_info": ("bios of {product_name}", "bios_version"),
    "node_infiniband_info": ("firmware of {board_id}", "firmware_version"),
    "node_nvme_info": ("firmware of {model}", "firmware_revision"),
}
_FACT, _CHOSEN = gauge("label.present"), gauge("label.chosen")
_GOVERNOR, _FIRST_CPU = "node_cpu_scaling_governor", "0"
# What systemd says of a unit. The other states (activating, deactivating, inactive) are told by these two being 0.
UNIT_STATES: dict[str, Meaning] = {"active": gauge("service.active"), "failed": gauge("service.failed")}
_UNIT = "node_systemd_unit_state"
_PCI_CLASSES = ("0x02", "0x0108", "0x03")  # network, NVMe, GPU: bridges and the rest are no part that is watched
_INLET_TEMPERATURE, _FAN = gauge("node.inlet_temperature_celsius"), gauge("cooling.fan_rpm")

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
# File systems that hold nothing of their own, and mounts of containers, which repeat the host's.
# A tmpfs somebody mounted (/tmp, a RAM disk for checkpoints) holds work and can be full; the system's own are left out by place.
_NO_STORAGE = re.compile(r"ramfs|devtmpfs|overlay|squashfs|iso9660|rootfs|autofs|nsfs|proc|sysfs|cgroup2?|efivarfs|"
                         r"fuse\.lxcfs|fuse\.portal|erofs")
_CONTAINERS = re.compile(r"/(dev|proc|run|sys|snap|var/lib/(docker|containers|containerd|kubelet|rancher))($|/.*)")
_SHARED = re.compile(r"nfs\d?|lustre|beegfs.*|gpfs|ceph|fuse\.(ceph|juicefs|s3fs|gcsfuse|mount-s3).*|wekafs|cifs|smb\d?|9p")


def _nic(labels: dict[str, str], target: TargetInfo) -> Target | None:
    device, port = labels.get("device"), labels.get("port")
    if not device:
        return None
    return Target("nic", target.node, f"{device}/{port}" if port else device)


def _ethtool(name: str) -> Meaning | None:
    found = ETHTOOL.get(name)
    if found is not None or ("pause" not in name and "_pri" not in name and "lane" not in name):
        return found
    return next((meaning for pattern, meaning in _NUMBERED if pattern.fullmatch(name)), None)


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
        meaning = NETWORK.get(name) if family == "network" else _ethtool(name)
    nic = _nic(labels, target) if meaning else None
    return meaning.ref(nic) if meaning and nic else None


def shared_name(device: str, fstype: str) -> str:
    """What the nodes that mount a share call it alike: its device; of Lustre the file system's name."""
    return device.rpartition(":/")[2] or device if fstype == "lustre" else device


def _filesystem(series: Series, target: TargetInfo) -> SignalRef | None:
    labels = labels_of(series)
    point, fstype, device = labels.get("mountpoint", ""), labels.get("fstype", ""), labels.get("device", "")
    if not point or _NO_STORAGE.fullmatch(fstype):
        return None
    if _SHARED.fullmatch(fstype) and device:
        point = shared_name(device, fstype)
    elif _CONTAINERS.fullmatch(point):
        return None
    return FILESYSTEM[series.name].ref(Target("mount", target.node, point))


def _nfs(series: Series, target: TargetInfo) -> SignalRef | None:
    meaning = NFS.get(series.name) or NFS_OPERATIONS.get((series.name, series.label("operation")))
    share = series.label("export")
    return meaning.ref(Target("mount", target.node, share)) if meaning and share else None


def _disk(series: Series, target: TargetInfo) -> SignalRef | None:
    device = series.label("device")
    if not device or _PARTITION.fullmatch(device):
        return None
    return DISK[series.name].ref(Target("disk", target.node, device, serial=series.label("serial") or None))


def _pci(series: Series, target: TargetInfo) -> SignalRef | None:
    labels = labels_of(series)
    if not labels.get("class_id", "").startswith(_PCI_CLASSES):
        return None
    address = f"{labels.get('segment', '0000')}:{labels.get('bus')}:{labels.get('device')}.{labels.get('function', '0')}"
    return PCI[series.name].ref(Target("link", target.node, address.lower()))


def _fact(series: Series, target: TargetInfo) -> SignalRef | None:
    labels = labels_of(series)
    if series.name == _GOVERNOR:  # all CPUs of a node have the same: the first one speaks for them
        value = labels.get("governor") if labels.get("cpu") == _FIRST_CPU else None
        return _CHOSEN.ref(Target("label", target.node, f"governor={value}")) if value else None
    what, label = FACTS[series.name]
    if label not in labels:
        return None
    what = re.sub(r"\{(\w+)\}", lambda m: labels.get(m[1], ""), what)
    return _FACT.ref(Target("label", target.node, f"{what}={labels[label]}"))


def _unit(series: Series, target: TargetInfo) -> SignalRef | None:
    name, meaning = series.label("name"), UNIT_STATES.get(series.label("state"))
    return meaning.ref(Target("service", target.node, name)) if meaning and watched(name) else None


def _cpu(series: Series, target: TargetInfo) -> SignalRef | None:
    signal = CPU_MODES.get(series.label("mode"))
    return counter(signal).ref(Target("node", target.node)) if signal else None


def _sensor(series: Series, target: TargetInfo) -> SignalRef | None:
    if series.name == "node_hwmon_fan_rpm":
        chip, sensor = series.label("chip"), series.label("sensor")
        return _FAN.ref(Target("cooling", target.node, f"{chip}/{sensor}")) if chip and sensor else None
    named = any(_INLET.search(series.label(label)) for label in ("chip", "sensor", "label"))
    return _INLET_TEMPERATURE.ref(Target("node", target.node)) if named else None


_Reader = Callable[[Series, TargetInfo], SignalRef | None]
_READERS: dict[str, _Reader] = {
    "node_cpu_seconds_total": _cpu, "node_hwmon_temp_celsius": _sensor, "node_hwmon_fan_rpm": _sensor,
    **dict.fromkeys(DISK, _disk), **dict.fromkeys(FILESYSTEM, _filesystem), **dict.fromkeys(PCI, _pci),
    _GOVERNOR: _fact, _UNIT: _unit, **dict.fromkeys(FACTS, _fact),
    **dict.fromkeys(NFS, _nfs), **dict.fromkeys((name for name, _ in NFS_OPERATIONS), _nfs),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a node_exporter series."""
    name = series.name
    if name in NODE:
        return NODE[name].ref(Target("node", target.node))
    if name.startswith(("node_infiniband_", "node_network_", "node_ethtool_")):
        return _network(series, target)
    reader = _READERS.get(name)
    return reader(series, target) if reader is not None else None


def _spelled(patterns: str) -> Iterator[str]:
    """The names of `_ETHTOOL_NUMBERED` as people write them."""
    for pattern in re.split(r"\|(?=transmitted|received)", patterns):
        yield from (pattern.replace(r"(?:prio\d|global)", form).replace(r"\d", "<n>")
                    for form in (("prio<n>", "global") if "(?:" in pattern else ("",)))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(name, meaning, "node") for name, meaning in NODE.items())
    yield from (Row(f'node_cpu_seconds_total{{mode="{mode}"}}', counter(signal), "node, CPUs added")
                for mode, signal in CPU_MODES.items())
    for family, table, part in (("infiniband", INFINIBAND, "NIC (`device`/`port`)"), ("network", NETWORK, "NIC (`device`)"),
                                ("ethtool", ETHTOOL, "NIC (`device`)")):
        yield from (Row(f"node_{family}_{name}", meaning, part) for name, meaning in table.items())
    yield from (Row(f"node_ethtool_{name}", meaning, "NIC (`device`)") for patterns, meaning in _ETHTOOL_NUMBERED
                for name in _spelled(patterns))
    yield from (Row(name, meaning, "disk (`device`), whole disks only") for name, meaning in DISK.items())
    yield from (Row(name, meaning, "mount (shared: `device`, else `mountpoint`)") for name, meaning in FILESYSTEM.items())
    yield from (Row(name, meaning, "mount (`export`)") for name, meaning in NFS.items())
    yield from (Row(f'{name}{{operation="{operation}"}}', meaning, "mount (`export`)")
                for (name, operation), meaning in NFS_OPERATIONS.items())
    yield from (Row(name, meaning, "PCIe link (PCI address) of a NIC, NVMe drive or GPU") for name, meaning in PCI.items())
    yield from (Row(name, _FACT, f"node's label `{what}` (`{label}`)") for name, (what, label) in FACTS.items())
    yield Row(_GOVERNOR, _CHOSEN, "node's label `governor`, of the first CPU")
    yield from (Row(f'{_UNIT}{{state="{state}"}}', meaning, "service (`name`), those that GPU work needs")
                for state, meaning in UNIT_STATES.items())
    yield Row("node_hwmon_temp_celsius (named inlet or ambient)", _INLET_TEMPERATURE, "node")
    yield Row("node_hwmon_fan_rpm", _FAN, "fan (`chip`/`sensor`)")


PLUGIN = SourcePlugin(
    "node_exporter", map_series=map_series, prefixes=("node_",), second_choice=frozenset({"node_network_up"}),
    joins=(
        Join("node_hwmon_temp_celsius", "node_hwmon_sensor_label", ("chip", "sensor"), ("label",)),
        Join("node_disk_", "node_disk_info", ("device",), ("serial",)),
        Join("node_pcidevice_", "node_pcidevice_info", ("segment", "bus", "device", "function"), ("class_id",)),
    ),
)
