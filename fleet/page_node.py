"""The page of node_exporter, lean: families in sorted order, labels sorted, floats as Go prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.hosts import DISKS, MODES
from fleet.numbers import go_float
from fleet.world import World

Get = Callable[[World], Floats]
MEMORY_PAGE = 4 << 10
COLLECTORS = ("boottime", "cpu", "diskstats", "filesystem", "hwmon", "infiniband", "loadavg", "meminfo", "netdev", "netstat",
              "pressure", "time", "timex", "uname", "vmstat")


@dataclass(frozen=True, slots=True)
class _Family:
    """labels: of each series, in order, `%(node)s` filled with the node's name; get: float64[node, series] or [node]."""

    name: str
    help: str
    type: str
    labels: tuple[str, ...]
    get: Get


def _same(value: float, count: int = 1) -> Get:
    return lambda w: np.full((len(w.nodes), count), value)


def _one(name: str, text: str, kind: str, get: Get, labels: str = "") -> _Family:
    return _Family(name, text, kind, (labels,), get)


def _nic_families(nics: int) -> list[_Family]:
    ports = tuple(f'{{device="mlx5_{i}",port="1"}}' for i in range(nics))
    prefix = "node_infiniband_"

    def count(name: str) -> Get:
        return lambda w: w.nics.counters[name]

    rows = (
        ("link_downed_total", "Number of times the link failed to recover from an error state and went down", "downed"),
        ("link_error_recovery_total", "Number of times the link successfully recovered from an error state", "recoveries"),
        ("local_ack_timeout_errors_total", "Number of times the acknowledgement timer expired at the sender", "ack_timeouts"),
        ("np_cnp_packets_sent_total", "Number of congestion notification packets sent", "cnp_sent"),
        ("out_of_sequence_packets_received_total", "Number of packets received out of sequence", "out_of_sequence"),
        ("packet_sequence_errors_total", "Number of NAK sequence error packets received", "sequence_errors"),
        ("port_data_received_bytes_total", "Number of data octets received on all links", "received_bytes"),
        ("port_data_transmitted_bytes_total", "Number of data octets transmitted on all links", "sent_bytes"),
        ("port_discards_transmitted_total", "Number of outbound packets discarded by the port", "discards"),
        ("port_errors_received_total", "Number of packets containing an error that were received on this port",
         "receive_errors"),
        ("port_packets_received_total", "Number of packets received on all VLs by this port", "received_packets"),
        ("port_packets_transmitted_total", "Number of packets transmitted on all VLs from this port", "sent_packets"),
        ("port_transmit_wait_total", "Number of ticks during which the port had data to transmit but sent none",
         "wait_ticks"),
        ("roce_adp_retransmits_total", "Number of adaptive retransmissions of RoCE traffic", "retransmits"),
        ("rx_icrc_encapsulated_errors_total", "Number of RoCE packets received with an ICRC error", "icrc_errors"),
        ("symbol_error_total", "Number of minor link errors detected on one or more physical lanes", "symbol_errors"),
    )
    made = [_Family(prefix + name, text, "counter", ports, count(key)) for name, text, key in rows]
    info = tuple(f'{{board_id="MT_0000000838",device="mlx5_{i}",firmware_version="28.42.1000",hca_type="MT4129"}}'
                 for i in range(nics))
    made += [
        _Family(prefix + "info", "Non-numeric data of the device, value is always 1.", "gauge", info, _same(1, nics)),
        _Family(prefix + "physical_state_id", "Physical state of the port (2: polling, 5: link up)", "gauge", ports,
                lambda w: np.where(w.nics.knobs.up > 0, 5.0, 2.0)),
        _Family(prefix + "rate_bytes_per_second", "Maximum signal transfer rate", "gauge", ports,
                lambda w: np.full(w.nics.knobs.up.shape, w.kind.nic_bytes_per_second)),
        _Family(prefix + "state_id", "State of the port (1: down, 2: init, 3: armed, 4: active)", "gauge", ports,
                lambda w: np.where(w.nics.knobs.up > 0, 4.0, 1.0)),
    ]
    return made


def _disk_families() -> list[_Family]:
    devices = tuple(f'{{device="{d}"}}' for d in DISKS)

    def of(key: str) -> Get:
        return lambda w: np.round(w.hosts.disk[key], 3)

    rows = (
        ("io_time_seconds_total", "Total seconds spent doing I/Os.", "io_time"),
        ("read_bytes_total", "The total number of bytes read successfully.", "read_bytes"),
        ("read_time_seconds_total", "The total number of seconds spent by all reads.", "read_time"),
        ("reads_completed_total", "The total number of reads completed successfully.", "reads"),
        ("write_time_seconds_total", "The total number of seconds spent by all writes.", "write_time"),
        ("writes_completed_total", "The total number of writes completed successfully.", "writes"),
        ("written_bytes_total", "The total number of bytes written successfully.", "written_bytes"),
    )
    made = [_Family(f"node_disk_{name}", text, "counter", devices, of(key)) for name, text, key in rows]
    mounts = ('{device="/dev/nvme0n1p2",fstype="ext4",mountpoint="/"}', '{device="/dev/nvme1n1",fstype="xfs",mountpoint="/scratch"}')
    sizes = np.array([9.4e11, 1.53e13])

    def free(w: World) -> Floats:
        left = np.maximum(0.0, sizes[1] - w.hosts.scratch_used)
        return np.stack([np.full(len(w.nodes), 6.7e11), np.round(left)], axis=1)

    made += [
        _Family("node_filesystem_avail_bytes", "Filesystem space available to non-root users in bytes.", "gauge", mounts, free),
        _Family("node_filesystem_readonly", "Filesystem read-only status.", "gauge", mounts, _same(0, 2)),
        _Family("node_filesystem_size_bytes", "Filesystem size in bytes.", "gauge", mounts,
                lambda w: np.tile(sizes, (len(w.nodes), 1))),
    ]
    return made


def _net_families() -> list[_Family]:
    eth = '{device="eth0"}'

    def total(key: str) -> Get:
        return lambda w: np.round(w.hosts.totals[key], 6)

    return [
        _one("node_network_carrier", "Network device property: carrier", "gauge", _same(1), eth),
        _one("node_network_carrier_changes_total", "Network device property: carrier_changes_total", "counter", _same(2), eth),
        _one("node_network_receive_bytes_total", "Network device statistic receive_bytes.", "counter", total("eth_in"), eth),
        _one("node_network_receive_drop_total", "Network device statistic receive_drop.", "counter", _same(0), eth),
        _one("node_network_receive_errs_total", "Network device statistic receive_errs.", "counter", _same(0), eth),
        _one("node_network_receive_packets_total", "Network device statistic receive_packets.", "counter",
             total("eth_in_packets"), eth),
        _one("node_network_speed_bytes", "Network device property: speed_bytes", "gauge", _same(1.25e10), eth),
        _one("node_network_transmit_bytes_total", "Network device statistic transmit_bytes.", "counter", total("eth_out"), eth),
        _one("node_network_transmit_drop_total", "Network device statistic transmit_drop.", "counter", _same(0), eth),
        _one("node_network_transmit_errs_total", "Network device statistic transmit_errs.", "counter", _same(0), eth),
        _one("node_network_transmit_packets_total", "Network device statistic transmit_packets.", "counter",
             total("eth_out_packets"), eth),
        _one("node_netstat_Tcp_OutSegs", "Statistic TcpOutSegs.", "untyped", total("tcp_out")),
        _one("node_netstat_Tcp_RetransSegs", "Statistic TcpRetransSegs.", "untyped", total("tcp_again")),
        _one("node_pressure_cpu_waiting_seconds_total", "Total time in seconds that processes have waited for CPU time",
             "counter", total("cpu_waiting")),
        _one("node_pressure_io_stalled_seconds_total", "Total time in seconds no process could make progress due to IO",
             "counter", total("io_stalled")),
        _one("node_pressure_io_waiting_seconds_total", "Total time in seconds that processes have waited due to IO",
             "counter", total("io_waiting")),
        _one("node_pressure_memory_stalled_seconds_total",
             "Total time in seconds no process could make progress due to memory", "counter", total("memory_stalled")),
        _one("node_pressure_memory_waiting_seconds_total", "Total time in seconds that processes have waited for memory",
             "counter", total("memory_waiting")),
        _one("node_vmstat_oom_kill", "/proc/vmstat information field oom_kill.", "untyped", _same(0)),
        _one("node_vmstat_pgmajfault", "/proc/vmstat information field pgmajfault.", "untyped", total("major_faults")),
    ]


def _host_families(cpus: int) -> list[_Family]:
    modes = tuple(f'{{cpu="{c}",mode="{m}"}}' for c in range(cpus) for m in MODES)
    collectors = tuple(f'{{collector="{c}"}}' for c in COLLECTORS)
    sensors = ('{chip="platform_ipmi_0",sensor="exhaust"}', '{chip="platform_ipmi_0",sensor="inlet"}')
    uname = ('{domainname="(none)",machine="x86_64",nodename="%(node)s",release="6.8.0-1021-hpc",sysname="Linux",'
             'version="#23-Ubuntu SMP"}')
    spread = 0.0004 * (1 + np.arange(len(COLLECTORS)))
    return [
        _one("node_boot_time_seconds", "Node boot time, in unixtime.", "gauge",
             lambda w: np.array([n.boot_ms // 1000 for n in w.nodes], float)),
        _Family("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", "counter", modes,
                lambda w: np.round(w.hosts.cpu.reshape(len(w.nodes), -1), 2)),
        _one("node_exporter_build_info", "Build information of the exporter, value is always 1.", "gauge", _same(1),
             '{branch="HEAD",goarch="amd64",goos="linux",goversion="go1.25.3",revision="unknown",version="1.12.1"}'),
        _Family("node_hwmon_temp_celsius", "Hardware monitor for temperature (input)", "gauge", sensors,
                lambda w: np.asarray(np.round(np.stack([w.hosts.exhaust, w.hosts.inlet], axis=1)), np.float64)),
        _one("node_load1", "1m load average.", "gauge", lambda w: np.round(w.hosts.load1, 2)),
        _one("node_memory_MemAvailable_bytes", "Memory information field MemAvailable_bytes.", "gauge",
             lambda w: np.round(w.hosts.available / MEMORY_PAGE) * MEMORY_PAGE),
        _one("node_memory_MemTotal_bytes", "Memory information field MemTotal_bytes.", "gauge",
             lambda w: np.full(len(w.nodes), w.kind.host_memory_bytes)),
        _Family("node_scrape_collector_duration_seconds", "Duration of a collector scrape.", "gauge", collectors,
                lambda w: np.tile(spread, (len(w.nodes), 1)) + np.round(1e-6 * (w.hosts.load1[:, None] % 1), 9)),
        _Family("node_scrape_collector_success", "Whether a collector succeeded.", "gauge", collectors,
                _same(1, len(COLLECTORS))),
        _one("node_textfile_scrape_error", "1 if there was an error opening or reading a file, 0 otherwise", "gauge", _same(0)),
        _one("node_time_seconds", "System time in seconds since epoch (1970).", "gauge",
             lambda w: w.now_ms / 1000 + w.hosts.clock_offset),
        _one("node_timex_offset_seconds", "Time offset in between local system and reference clock.", "gauge",
             lambda w: np.round(w.hosts.clock_offset, 9)),
        _one("node_timex_sync_status", "Is clock synchronized to a reliable server (1 = yes, 0 = no).", "gauge", _same(1)),
        _one("node_uname_info", "Labeled system information as provided by the uname system call.", "gauge", _same(1), uname),
    ]


class NodePages:
    """Pages of all nodes; the text around the values is made once."""

    def __init__(self, world: World) -> None:
        self._world = world
        kind = world.kind
        every = [*_nic_families(kind.nics), *_disk_families(), *_net_families(), *_host_families(kind.cpus)]
        self.families = sorted(every, key=lambda f: f.name)
        self._templates: dict[int, str] = {}
        self._revision = -1
        self._values = np.zeros((0, 0))

    def page(self, node: Node) -> bytes:
        """The node's page as of now."""
        world = self._world
        if self._revision != world.revision:
            columns = [np.asarray(f.get(world), float).reshape(len(world.nodes), -1) for f in self.families]
            self._values = np.concatenate(columns, axis=1)
            self._revision = world.revision
        template = self._templates.get(node.index)
        if template is None:
            template = self._templates[node.index] = self._template(node)
        return (template % tuple(map(go_float, self._values[node.index].tolist()))).encode()

    def _template(self, node: Node) -> str:
        lines = []
        for one in self.families:
            lines += [f"# HELP {one.name} {one.help}".replace("%", "%%"), f"# TYPE {one.name} {one.type}"]
            for labels in one.labels:
                lines.append(f"{one.name}{labels.replace('%(node)s', node.name)} %s")
        return "\n".join(lines) + "\n"
