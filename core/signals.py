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
    ("gpu.ecc_correctable_per_second", "1/s", "volatile single-bit ECC errors", "first"),
    ("gpu.ecc_uncorrectable_per_second", "1/s", "volatile double-bit ECC errors", "first"),
    ("gpu.nvlink_bytes_per_second", "bytes/s", "NVLink traffic, both ways where split", "sum"),
    ("gpu.pcie_bytes_per_second", "bytes/s", "PCIe traffic, both ways", "sum"),
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
    ("disk.read_bytes_per_second", "bytes/s", "bytes read", "first"),
    ("disk.written_bytes_per_second", "bytes/s", "bytes written", "first"),
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
)

SIGNALS: dict[str, Signal] = {row[0]: Signal(*row) for row in _TABLE}


def unit_of(signal: str) -> str:
    """The signal's unit; `count` for names of event kinds."""
    return SIGNALS[signal].unit if signal in SIGNALS else "count"
