"""The only place where a canonical signal and its unit are named.

A source maps an exporter's series to these; detectors speak nothing else. For counters the window holds the rate per
second of the raw value times the source's scale, and the name says so (`_per_second`, or `_ratio` where the raw
counter is seconds: seconds per second).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signal:
    """name `<kind>.<what>_<unit>`; unit as shown to people; kind of its entity.

    combine: what to do when several series of one target map to it: first (they are copies), sum or max.
    """

    name: str
    unit: str
    help: str
    combine: str = "first"

    @property
    def kind(self) -> str:
        return self.name.partition(".")[0]


_TABLE: tuple[tuple[str, str, str, str], ...] = (
    # GPU (signals.md §2)
    ("gpu.temperature_celsius", "°C", "core temperature", "first"),
    ("gpu.memory_temperature_celsius", "°C", "HBM temperature; 0 on parts without the sensor is dropped", "first"),
    ("gpu.thermal_margin_celsius", "°C", "distance to the nearest slowdown limit; 0 or less means slowdown", "first"),
    ("gpu.slowdown_temperature_celsius", "°C", "absolute slowdown limit where no margin is exposed", "first"),
    ("gpu.sm_clock_hertz", "Hz", "SM clock", "first"),
    ("gpu.memory_clock_hertz", "Hz", "memory clock", "first"),
    ("gpu.power_watts", "W", "board power, averaged by the driver", "first"),
    ("gpu.power_limit_watts", "W", "enforced (else management) power limit", "first"),
    ("gpu.energy_watts", "W", "rate of the energy counter: power that cannot freeze unseen", "first"),
    ("gpu.utilization_ratio", "ratio", "share of time with any kernel resident; stays 1 in a collective hang", "first"),
    ("gpu.graphics_active_ratio", "ratio", "DCGM profiling: graphics engine active", "first"),
    ("gpu.sm_active_ratio", "ratio", "DCGM profiling: SM active", "first"),
    ("gpu.tensor_active_ratio", "ratio", "DCGM profiling: tensor pipe active, the best proxy of useful work", "first"),
    ("gpu.dram_active_ratio", "ratio", "DCGM profiling: DRAM active", "first"),
    ("gpu.memory_used_bytes", "bytes", "frame buffer in use", "first"),
    ("gpu.memory_free_bytes", "bytes", "frame buffer free", "first"),
    ("gpu.throttle_reasons_bits", "bits", "instantaneous clock event bitmask (0x20 and 0x40 thermal, 0x80 brake)", "first"),
    ("gpu.thermal_violation_ratio", "ratio", "share of time below the application clock because of heat", "first"),
    ("gpu.power_violation_ratio", "ratio", "share of time held back by the power limit; normal under load", "first"),
    ("gpu.sw_thermal_ratio", "ratio", "share of time in software thermal slowdown", "first"),
    ("gpu.hw_thermal_ratio", "ratio", "share of time in hardware thermal slowdown", "first"),
    ("gpu.power_brake_ratio", "ratio", "share of time under hardware power brake", "first"),
    ("gpu.thermal_events_in_window", "count", "samples with a thermal clock event in the exporter's own window", "sum"),
    ("gpu.xid", "xid", "last XID number: sticky, never a rate", "first"),
    ("gpu.pcie_replays_per_second", "1/s", "PCIe replays", "first"),
    ("gpu.ecc_correctable_per_second", "1/s", "single-bit ECC errors (volatile, else lifetime counter)", "max"),
    ("gpu.ecc_uncorrectable_per_second", "1/s", "double-bit ECC errors (volatile, else lifetime counter)", "max"),
    ("gpu.nvlink_bytes_per_second", "bytes/s", "NVLink traffic, both ways where split", "sum"),
    ("gpu.pcie_bytes_per_second", "bytes/s", "PCIe traffic, both ways", "sum"),
    ("gpu.pcie_link_generation", "generation", "PCIe generation now; falls when the GPU is idle", "first"),
    ("gpu.pcie_link_width", "lanes", "PCIe lanes now; idle does not change it", "first"),
    ("gpu.pcie_max_link_generation", "generation", "the highest that GPU and slot allow", "first"),
    ("gpu.pcie_max_link_width", "lanes", "the most that GPU and slot allow", "first"),
    ("gpu.nvlink_errors_per_second", "1/s", "NVLink CRC, replay and receive errors, all links", "sum"),
    ("gpu.nvlink_recoveries_per_second", "1/s", "NVLinks retrained, all links", "sum"),
    ("gpu.uncorrectable_rows", "rows", "memory rows remapped after uncorrectable errors; stays with the board", "first"),
    ("gpu.correctable_rows", "rows", "memory rows remapped after correctable errors; stays with the board", "first"),
    ("gpu.row_remap_pending", "bool", "1 where a remap waits for a reset", "max"),
    ("gpu.row_remap_failed", "bool", "1 where rows can be remapped no more", "max"),
    ("gpu.recovery_action", "enum", "what the driver asks for: 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, 4 drain and reset",
     "first"),
    ("gpu.fabric_manager_state", "enum", "fabric manager: 0 not supported, 1 not started, 2 in progress, 3 done, 4 failed",
     "first"),
    # NIC: RoCE, InfiniBand, EFA and Ethernet meet here (signals.md §3)
    ("nic.transmitted_bytes_per_second", "bytes/s", "data sent", "first"),
    ("nic.received_bytes_per_second", "bytes/s", "data received", "first"),
    ("nic.transmitted_packets_per_second", "1/s", "packets sent", "first"),
    ("nic.received_packets_per_second", "1/s", "packets received", "first"),
    ("nic.packets_lost_per_second", "1/s", "loss seen here: out-of-sequence arrivals, receive drops and errors", "sum"),
    ("nic.corrupt_packets_per_second", "1/s", "ICRC, symbol and physical errors seen here", "sum"),
    ("nic.retransmits_per_second", "1/s", "packets this side sent again (the loss may be at its peers)", "sum"),
    ("nic.peer_loss_per_second", "1/s", "NAKs for lost packets: a peer of this side lost them", "sum"),
    ("nic.timeouts_per_second", "1/s", "transport timer expiries on the sending side", "sum"),
    ("nic.discards_per_second", "1/s", "packets dropped before sending", "sum"),
    ("nic.congestion_marks_per_second", "1/s", "CNP and ECN: congestion, no fault by itself", "sum"),
    ("nic.wait_ticks_per_second", "1/s", "ticks with data but no credits: congestion", "sum"),
    ("nic.link_up", "bool", "1 where the port is active or has carrier", "first"),
    ("nic.rate_bytes_per_second", "bytes/s", "negotiated link rate", "first"),
    ("nic.link_downed_per_second", "1/s", "link lost (counter)", "sum"),
    ("nic.link_recoveries_per_second", "1/s", "link retrained (counter)", "sum"),
    ("nic.carrier_changes_per_second", "1/s", "carrier up or down (counter)", "sum"),
    ("nic.remote_impaired_per_second", "1/s", "EFA: connections to a peer that is impaired or silent", "sum"),
    ("nic.pause_sent_per_second", "1/s", "pause frames sent, all priorities: this side cannot take more", "sum"),
    ("nic.pause_received_per_second", "1/s", "pause frames received, all priorities: the network holds this side back", "sum"),
    ("nic.corrected_bits_per_second", "bits/s", "bits that FEC corrected; never 0 on fast links, its growth tells", "sum"),
    ("nic.uncorrected_symbols_per_second", "1/s", "symbols that FEC could not correct", "sum"),
    ("nic.lane_errors_per_second", "bits/s", "raw errors of the lanes before FEC", "sum"),
    ("nic.pcie_stalled_ratio", "ratio", "share of time in which the port waited for the host's PCIe", "max"),
    # Links: ports of switches, NVLinks and PCIe links, each end a part of its own
    ("link.up", "bool", "1 where the port is up", "first"),
    ("link.rate_bytes_per_second", "bytes/s", "link rate", "first"),
    ("link.transmitted_bytes_per_second", "bytes/s", "data sent by this end", "first"),
    ("link.received_bytes_per_second", "bytes/s", "data received at this end", "first"),
    ("link.errors_per_second", "1/s", "errors at this end: CRC, symbol, integrity, replays of NVLink", "sum"),
    ("link.discards_per_second", "1/s", "packets dropped at this end", "sum"),
    ("link.recoveries_per_second", "1/s", "retrained (counter)", "sum"),
    ("link.downed_per_second", "1/s", "lost (counter)", "sum"),
    ("link.carrier_changes_per_second", "1/s", "up or down (counter)", "sum"),
    ("link.wait_ticks_per_second", "1/s", "ticks with data but no credits: congestion", "sum"),
    ("link.pause_sent_per_second", "1/s", "pause frames sent", "sum"),
    ("link.pause_received_per_second", "1/s", "pause frames received", "sum"),
    ("link.pcie_width", "lanes", "PCIe lanes now, of a NIC, GPU or NVMe drive by its PCI address", "first"),
    ("link.pcie_max_width", "lanes", "PCIe lanes that the device allows", "first"),
    ("link.pcie_transfers_per_second", "1/s", "PCIe transfers a second now; may fall when idle", "first"),
    ("link.pcie_max_transfers_per_second", "1/s", "PCIe transfers a second that the device allows", "first"),
    # Node
    ("node.boot_time_seconds", "s", "boot time since the epoch", "first"),
    ("node.time_seconds", "s", "the node's own clock", "first"),
    ("node.cpu_busy_ratio", "ratio", "busy CPU seconds per second, all CPUs added", "sum"),
    ("node.cpu_idle_ratio", "ratio", "idle CPU seconds per second, all CPUs added", "sum"),
    ("node.cpu_steal_ratio", "ratio", "stolen CPU seconds per second, all CPUs added", "sum"),
    ("node.load1", "load", "one-minute load average", "first"),
    ("node.memory_available_bytes", "bytes", "memory available without swapping", "first"),
    ("node.memory_total_bytes", "bytes", "memory installed", "first"),
    ("node.io_waiting_ratio", "ratio", "PSI: share of time with a task waiting for I/O", "first"),
    ("node.memory_stalled_ratio", "ratio", "PSI: share of time with all tasks stalled on memory", "first"),
    ("node.tcp_retransmits_per_second", "1/s", "TCP segments sent again", "first"),
    ("node.tcp_segments_per_second", "1/s", "TCP segments sent", "first"),
    ("node.inlet_temperature_celsius", "°C", "lowest hwmon temperature named as inlet or ambient", "first"),
    ("node.storage_bytes_per_second", "bytes/s", "shared file system traffic (Lustre client), both ways", "sum"),
    ("node.cpu_waiting_ratio", "ratio", "PSI: share of time with a task waiting for a CPU", "first"),
    ("node.cpu_throttles_per_second", "1/s", "thermal throttles of CPU packages (counter)", "sum"),
    ("node.major_faults_per_second", "1/s", "page faults that needed a disk", "first"),
    ("node.oom_kills_per_second", "1/s", "processes killed for memory (counter)", "first"),
    ("node.corrected_memory_errors_per_second", "1/s", "host memory errors that ECC corrected", "sum"),
    ("node.uncorrected_memory_errors_per_second", "1/s", "host memory errors that ECC could not correct", "sum"),
    ("node.clock_offset_seconds", "s", "the node's clock against its time source", "first"),
    ("node.clock_error_seconds", "s", "greatest error that the kernel thinks its clock can have", "first"),
    ("node.clock_synced", "bool", "1 while the clock follows a time source", "first"),
    ("node.hung_tasks_per_second", "1/s", "tasks that hung (counter)", "first"),
    ("node.nfs_retransmits_per_second", "1/s", "NFS calls sent again", "first"),
    ("node.lnet_drops_per_second", "1/s", "Lustre network messages dropped", "first"),
    ("node.lnet_errors_per_second", "1/s", "Lustre network errors", "first"),
    ("node.lustre_healthy", "bool", "1 while Lustre says so", "first"),
    ("node.collectors_working", "count", "node_exporter's collectors that succeeded", "sum"),
    ("node.power_watts", "W", "the node's power as its BMC measures it", "first"),
    ("node.event_log_entries", "count", "entries in the BMC's event log; it can be cleared", "first"),
    ("node.scheduler_state", "enum", "0 works, 1 gets no new work (drained, cordoned, maintenance), 2 down or silent", "max"),
    ("cooling.fan_rpm", "rpm", "speed of one fan", "first"),
    ("cooling.fan_ratio", "ratio", "speed of one fan as a share of its greatest", "first"),
    ("cooling.fan_state", "enum", "0 nominal, 1 warning, 2 critical", "max"),
    ("disk.reads_per_second", "1/s", "reads finished", "first"),
    ("disk.writes_per_second", "1/s", "writes finished", "first"),
    ("disk.read_time_ratio", "ratio", "seconds that reads took per second; over reads a second: their mean time", "first"),
    ("disk.write_time_ratio", "ratio", "seconds that writes took per second; over writes a second: their mean time", "first"),
    ("disk.busy_ratio", "ratio", "share of time with I/O under way; 1 is no limit on parallel drives", "first"),
    ("disk.read_bytes_per_second", "bytes/s", "bytes read", "first"),
    ("disk.written_bytes_per_second", "bytes/s", "bytes written", "first"),
    # Mounts (client side) and storage (server side)
    ("mount.available_bytes", "bytes", "space for users", "first"),
    ("mount.size_bytes", "bytes", "size", "first"),
    ("mount.inodes_free", "count", "inodes free", "first"),
    ("mount.inodes_total", "count", "inodes", "first"),
    ("mount.readonly", "bool", "1 where mounted, or fallen back to, read-only", "max"),
    ("mount.device_error", "bool", "1 where the file system does not answer", "max"),
    ("mount.reads_per_second", "1/s", "reads sent to shared storage", "sum"),
    ("mount.writes_per_second", "1/s", "writes sent to shared storage", "sum"),
    ("mount.read_bytes_per_second", "bytes/s", "bytes read from shared storage", "sum"),
    ("mount.written_bytes_per_second", "bytes/s", "bytes written to shared storage", "sum"),
    ("mount.read_time_ratio", "ratio", "seconds that reads took per second; over reads a second: their mean time", "sum"),
    ("mount.write_time_ratio", "ratio", "seconds that writes took per second; over writes a second: their mean time", "sum"),
    ("mount.timeouts_per_second", "1/s", "calls that ran into a major timeout", "sum"),
    ("storage.degraded", "bool", "1 where a Lustre target is degraded", "max"),
    ("storage.available_bytes", "bytes", "space left on a storage target", "first"),
    ("storage.size_bytes", "bytes", "size of a storage target", "first"),
    ("storage.read_bytes_per_second", "bytes/s", "bytes read from a storage target", "sum"),
    ("storage.written_bytes_per_second", "bytes/s", "bytes written to a storage target", "sum"),
    # Jobs. An inference endpoint is the job `<model>@<instance>`. Means of a histogram: its sum over its count.
    ("job.requests_running", "count", "requests being answered", "sum"),
    ("job.requests_waiting", "count", "requests in the queue", "sum"),
    ("job.requests_per_second", "1/s", "requests finished", "sum"),
    ("job.requests_failed_per_second", "1/s", "requests failed", "sum"),
    ("job.request_time_ratio", "ratio", "seconds that finished requests took per second", "sum"),
    ("job.queue_time_ratio", "ratio", "seconds that requests waited per second", "sum"),
    ("job.first_tokens_per_second", "1/s", "first tokens sent", "sum"),
    ("job.first_token_time_ratio", "ratio", "seconds to first tokens per second; over first tokens a second: the mean", "sum"),
    ("job.token_gaps_per_second", "1/s", "gaps between tokens measured", "sum"),
    ("job.token_time_ratio", "ratio", "seconds between tokens per second; over gaps a second: the mean", "sum"),
    ("job.tokens_per_second", "1/s", "tokens generated", "sum"),
    ("job.kv_cache_ratio", "ratio", "share of the key-value cache in use", "max"),
    ("job.preemptions_per_second", "1/s", "requests pushed out of the cache", "sum"),
    ("job.pods_running", "count", "pods of a training job that run", "sum"),
    ("job.pods_pending", "count", "pods of a training job that wait", "sum"),
    ("job.pods_failed", "count", "pods of a training job that failed", "sum"),
    ("job.restarts_per_second", "1/s", "container restarts of a training job (counter)", "sum"),
    ("fleet.nodes_drained", "count", "nodes that the scheduler has drained", "first"),
    ("fleet.nodes_in_maintenance", "count", "nodes in a maintenance reservation", "first"),
    ("fleet.nodes_down", "count", "nodes that the scheduler calls down", "first"),
    # Training ranks (DESIGN §2: trainer metrics)
    ("rank.step", "step", "last finished step", "first"),
    ("rank.last_step_timestamp_seconds", "s", "when the last step finished, since the epoch", "first"),
    ("rank.step_seconds", "s", "duration of the last step", "first"),
    ("rank.data_wait_seconds", "s", "of it: waiting for input data", "first"),
    ("rank.compute_seconds", "s", "of it: computing", "first"),
    ("rank.comm_wait_seconds", "s", "of it: waiting in collectives", "first"),
    ("rank.loss", "1", "training loss; NaN here means missing: a loss that is not finite is in loss_nonfinite", "first"),
    ("rank.loss_nonfinite", "bool", "1 where the logged loss is NaN or infinite", "first"),
    ("rank.grad_norm", "1", "gradient norm", "first"),
    ("rank.tokens_per_second", "1/s", "tokens a second", "first"),
    ("rank.nonfinite_per_second", "1/s", "non-finite values seen (counter)", "first"),
    ("rank.skipped_per_second", "1/s", "optimizer steps skipped (counter)", "first"),
    ("rank.last_checkpoint_step", "step", "step of the newest complete checkpoint", "first"),
    ("rank.collective_seq", "seq", "sequence number of the last collective entered", "first"),
    ("rank.phase_init", "bool", "1 while the trainer says so", "first"),
    ("rank.phase_warmup", "bool", "1 while the trainer says so", "first"),
    ("rank.phase_train", "bool", "1 while the trainer says so", "first"),
    ("rank.phase_eval", "bool", "1 while the trainer says so", "first"),
    ("rank.phase_checkpoint", "bool", "1 while the trainer says so", "first"),
    ("rank.phase_done", "bool", "1 while the trainer says so", "first"),
    # Greylag's own collectors
    ("collector.shed_level", "level", "how far the worker sheds load to stay within its budget", "first"),
    ("collector.shed_targets", "count", "targets that are over their own budgets", "first"),
    ("collector.targets", "count", "targets that the worker reads", "first"),
    ("collector.missed_slots_per_second", "1/s", "due readings that were not begun in time", "first"),
    ("collector.lag_seconds", "s", "time since up to which the worker has reported everything", "first"),
)

SIGNALS: dict[str, Signal] = {row[0]: Signal(*row) for row in _TABLE}


def unit_of(signal: str) -> str:
    """The signal's unit; `count` for names of event kinds."""
    return SIGNALS[signal].unit if signal in SIGNALS else "count"
