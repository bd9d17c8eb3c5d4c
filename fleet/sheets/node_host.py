"""node_exporter's families of the host itself: CPU, memory, pressure, Ethernet, clock, sensors, the exporter's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.hosts import MODES
from fleet.sheets.base import Family, Get, family
from fleet.sheets.node_nics import in_order, interfaces
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

MEMORY_PAGE = 4 << 10
ETH = "eth0"
GOVERNORS = ("ondemand", "performance", "powersave", "schedutil")
IPMI = "platform_ipmi_0"


def total(key: str) -> Get:
    """A counter of the host bank, microseconds kept."""
    return lambda w: np.round(w.hosts.totals[key], 6)


def cpu_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The cpu, cpufreq and loadavg collectors."""
    modes = tuple(f'{{cpu="{c}",mode="{m}"}}' for c in range(world.kind.cpus) for m in MODES)
    made = [
        family("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", "counter",
               lambda w: np.round(w.hosts.cpu.reshape(len(w.nodes), -1), 2), modes),
        family("node_load1", "1m load average.", "gauge", lambda w: np.round(w.hosts.load1, 2)),
    ]
    return made if telemetry.lean else made + _frequencies(world)


def _frequencies(world: World) -> list[Family]:
    cpus = in_order([str(c) for c in range(world.kind.cpus)])
    blocks, packages = tuple(f'{{cpu="{c}"}}' for c in cpus), ('{package="0"}', '{package="1"}')
    spread = 1 - 0.004 * np.arange(len(cpus))

    def governors(node: Node) -> Sequence[str]:
        return [f'{{cpu="{c}",governor="{one}"}}' for c in cpus for one in GOVERNORS]

    def chosen(w: World) -> Floats:
        out = np.zeros((len(w.nodes), len(cpus), len(GOVERNORS)))
        out[:, :, GOVERNORS.index(w.kind.settings["governor"])] = 1.0
        for (row, what), value in w.knobs.settings.items():
            if what == "governor":
                out[row] = [float(one == value) for one in GOVERNORS]
        return out.reshape(len(out), -1)

    return [
        family("node_cpu_package_throttles_total", "Number of times this CPU package has been throttled.", "counter",
               lambda w: np.stack([w.hosts.totals["package_throttles"]] * 2, axis=1), packages),
        family("node_cpu_scaling_frequency_hertz", "Current scaled CPU thread frequency in hertz.", "gauge",
               lambda w: np.rint(w.hosts.cpu_hertz[:, None] * spread / 1e3) * 1e3, blocks),
        family("node_cpu_scaling_frequency_max_hertz", "Maximum scaled CPU thread frequency in hertz.", "gauge",
               lambda w: w.kind.cpu_hertz, blocks),
        Family("node_cpu_scaling_governor", "Current enabled CPU frequency governor.", "gauge", governors,
               len(cpus) * len(GOVERNORS), chosen),
    ]


def memory_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The meminfo, pressure, vmstat, edac and kernel_hung collectors."""
    made = [
        family("node_memory_MemAvailable_bytes", "Memory information field MemAvailable_bytes.", "gauge",
               lambda w: np.rint(w.hosts.available / MEMORY_PAGE) * MEMORY_PAGE),
        family("node_memory_MemTotal_bytes", "Memory information field MemTotal_bytes.", "gauge",
               lambda w: w.kind.host_memory_bytes),
        family("node_pressure_cpu_waiting_seconds_total", "Total time in seconds that processes have waited for CPU time",
               "counter", total("cpu_waiting")),
        family("node_pressure_io_stalled_seconds_total",
               "Total time in seconds no process could make progress due to IO congestion", "counter", total("io_stalled")),
        family("node_pressure_io_waiting_seconds_total",
               "Total time in seconds that processes have waited due to IO congestion", "counter", total("io_waiting")),
        family("node_pressure_memory_stalled_seconds_total",
               "Total time in seconds no process could make progress due to memory congestion", "counter",
               total("memory_stalled")),
        family("node_pressure_memory_waiting_seconds_total", "Total time in seconds that processes have waited for memory",
               "counter", total("memory_waiting")),
        family("node_vmstat_oom_kill", "/proc/vmstat information field oom_kill.", "untyped", total("oom_kills")),
        family("node_vmstat_pgmajfault", "/proc/vmstat information field pgmajfault.", "untyped", total("major_faults")),
    ]
    if not telemetry.lean:
        controller = ('{controller="0"}',)
        made += [
            family("node_edac_correctable_errors_total", "Total correctable memory errors.", "counter", total("edac_corrected"),
                   controller),
            family("node_edac_uncorrectable_errors_total", "Total uncorrectable memory errors.", "counter",
                   total("edac_uncorrected"), controller),
            family("node_kernel_hung_tasks_total",
                   "Total number of tasks that have been detected as hung since the system booted.", "counter",
                   total("hung_tasks")),
        ]
    return made


def net_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The netclass, netdev and netstat collectors: the management Ethernet, and (not on lean pages) the interfaces over RoCE
    and InfiniBand ports. What RDMA moves passes these by."""
    names = [ETH] + ([] if telemetry.lean else interfaces(world.kind))
    order = in_order(names)
    blocks, take = [f'{{device="{names[i]}"}}' for i in order], np.array(order)
    ports = len(names) - 1

    def both(eth: Get, port: Get = lambda w: 0.0) -> Get:
        """Values of eth0, and of the ports: [node], [node, nic] or one number."""
        def of_all(w: World) -> Floats:
            out = np.empty((len(w.nodes), len(names)))
            out[:, 0] = eth(w)
            if ports:
                out[:, 1:] = port(w)
            return out[:, take]
        return of_all

    def up(w: World) -> Floats:
        return (w.nics.physical_state >= 5).astype(float)

    def speed(w: World) -> Floats:
        return np.where(up(w) > 0, w.nics.rate_bytes, np.nan)

    rows: list[tuple[str, str, str, Get]] = [
        ("carrier", "Network device property: carrier", "gauge", both(lambda w: 1.0, up)),
        ("carrier_changes_total", "Network device property: carrier_changes_total", "counter",
         both(lambda w: 2.0, lambda w: 1 + w.nics.counters["carrier_changes"])),
        ("receive_bytes_total", "Network device statistic receive_bytes.", "counter",
         both(total("eth_in"), lambda w: np.rint(1e-9 * w.nics.counters["received_bytes"]) + 1048576.0)),
        ("receive_drop_total", "Network device statistic receive_drop.", "counter", _nothing),
        ("receive_errs_total", "Network device statistic receive_errs.", "counter", _nothing),
        ("receive_packets_total", "Network device statistic receive_packets.", "counter",
         both(total("eth_in_packets"), lambda w: np.rint(1e-11 * w.nics.counters["received_bytes"]) + 9e3)),
        ("speed_bytes", "Network device property: speed_bytes", "gauge", both(lambda w: 1.25e10, speed)),
        ("transmit_bytes_total", "Network device statistic transmit_bytes.", "counter",
         both(total("eth_out"), lambda w: np.rint(1e-9 * w.nics.counters["sent_bytes"]) + 1048576.0)),
        ("transmit_drop_total", "Network device statistic transmit_drop.", "counter", _nothing),
        ("transmit_errs_total", "Network device statistic transmit_errs.", "counter", _nothing),
        ("transmit_packets_total", "Network device statistic transmit_packets.", "counter",
         both(total("eth_out_packets"), lambda w: np.rint(1e-11 * w.nics.counters["sent_bytes"]) + 9e3)),
    ]
    if not telemetry.lean:
        rows += [("mtu_bytes", "Network device property: mtu_bytes", "gauge", both(lambda w: 9001.0, _mtu)),
                 ("up", "Value is 1 if operstate is 'up', 0 otherwise.", "gauge", both(lambda w: 1.0, up))]
    made = [Family(f"node_network_{name}", text, kind, lambda node: blocks, len(blocks), get) for name, text, kind, get in rows]
    return [
        *made,
        family("node_netstat_Tcp_OutSegs", "Statistic TcpOutSegs.", "untyped", total("tcp_out")),
        family("node_netstat_Tcp_RetransSegs", "Statistic TcpRetransSegs.", "untyped", total("tcp_again")),
    ]


def _nothing(world: World) -> float:
    return 0.0


def _mtu(world: World) -> Floats:
    out = np.full((len(world.nodes), 1), float(world.kind.settings["mtu"]))
    for (row, what), value in world.knobs.settings.items():
        if what == "mtu":
            out[row] = float(value)
    return out


def clock_families(world: World, telemetry: Telemetry) -> list[Family]:
    """The time, timex, uname and hwmon collectors, and when the node booted."""
    sensors = (f'{{chip="{IPMI}",sensor="exhaust"}}', f'{{chip="{IPMI}",sensor="inlet"}}')
    fans = [f'{{chip="{IPMI}",sensor="fan{i + 1}"}}' for i in range(world.kind.fans)]

    def uname(node: Node) -> Sequence[str]:
        kernel = world.knobs.settings.get((node.index, "kernel"), node.kind.kernel)
        return (f'{{domainname="(none)",machine="{node.kind.architecture}",nodename="{node.name}",release="{kernel}",sysname="Linux",'
                'version="#23-Ubuntu SMP"}',)

    made = [
        family("node_boot_time_seconds", "Node boot time, in unixtime.", "gauge",
               lambda w: np.array([n.boot_ms // 1000 for n in w.nodes], float)),
        family("node_hwmon_temp_celsius", "Hardware monitor for temperature (input)", "gauge", _air, sensors),
        family("node_time_seconds", "System time in seconds since epoch (1970).", "gauge",
               lambda w: w.now_ms / 1000 + w.hosts.clock_offset),
        family("node_timex_offset_seconds", "Time offset in between local system and reference clock.", "gauge",
               lambda w: np.round(w.hosts.clock_offset, 9)),
        family("node_timex_sync_status", "Is clock synchronized to a reliable server (1 = yes, 0 = no).", "gauge",
               lambda w: w.hosts.synchronised),
        Family("node_uname_info", "Labeled system information as provided by the uname system call.", "gauge", uname, 1,
               lambda w: 1.0),
    ]
    if not telemetry.lean:
        made += [
            family("node_hwmon_chip_names", "Annotation metric for human-readable chip names", "gauge", lambda w: 1.0,
                   (f'{{chip="{IPMI}",chip_name="ipmi"}}',)),
            family("node_hwmon_fan_rpm", "Hardware monitor for fan revolutions per minute (input)", "gauge",
                   lambda w: np.rint(w.hosts.fan_rpm / 40) * 40, fans),
            family("node_timex_maxerror_seconds", "Maximum error in seconds.", "gauge",
                   lambda w: np.round(w.hosts.clock_error, 6)),
        ]
    return made


def _air(world: World) -> Floats:
    return np.asarray(np.rint(np.stack([world.hosts.exhaust, world.hosts.inlet], axis=1)), np.float64)


def own_families(world: World, collectors: Sequence[str]) -> list[Family]:
    """What the exporter says of itself. collectors: those that it runs."""
    names = tuple(f'{{collector="{one}"}}' for one in sorted(collectors))
    spread = 0.0004 * (1 + np.arange(len(names)))
    build = ('{branch="HEAD",goarch="amd64",goos="linux",goversion="go1.25.3",revision="unknown",tags="unknown",'
             'version="1.12.1"}',)
    return [
        family("node_exporter_build_info",
               "A metric with a constant '1' value labeled by version, revision, branch, goversion from which node_exporter "
               "was built, and the goos and goarch for the build.", "gauge", lambda w: 1.0, build),
        family("node_scrape_collector_duration_seconds", "node_exporter: Duration of a collector scrape.", "gauge",
               lambda w: spread + np.round(1e-6 * (w.hosts.load1[:, None] % 1), 9), names),
        family("node_scrape_collector_success", "node_exporter: Whether a collector succeeded.", "gauge", lambda w: 1.0,
               names),
        family("node_textfile_scrape_error", "1 if there was an error opening or reading a file, 0 otherwise", "gauge",
               lambda w: 0.0),
    ]
