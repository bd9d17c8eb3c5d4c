"""What each fault and each look-alike shows, and what it must not show (signals.md §11), against a calm twin.

Both worlds draw the same numbers, so what differs between them is the fault's doing. `up`, `down`: moves on the culprit.
`flat`: does not move there, the column "must not show". `spared`: does not rise on any other part. `victims`: rises on others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from fleet.exporters import Exporters
from fleet.plants import NEVER, Planted
from fleet.telemetry import TIERS, Telemetry
from fleet.world import World
from tests.fleet import faulthelp
from tests.fleet.faulthelp import FAULTS, LOOK_ALIKES, PIPELINE, PLUGINS, kind_for

Get = Callable[[World], np.ndarray]


def _job(world: World):
    return next(iter(world.jobs.values()))


def _nic(name: str) -> Get:
    return lambda w: w.nics.counters[name]


def _total(name: str) -> Get:
    return lambda w: w.hosts.totals[name]


def _one(get: Callable[[World], float]) -> Get:
    return lambda w: np.array([float(get(w))])


def _await(world: World) -> np.ndarray:
    """Milliseconds of the scratch disk for an operation, since the start."""
    disk = world.hosts.disk
    return 1000 * (disk["read_time"] + disk["write_time"])[:, 1] / (disk["reads"] + disk["writes"])[:, 1]


def _behind(world: World) -> np.ndarray:
    """Ranks that are behind in a hang; ranks that are read a moment apart do not count."""
    job = _job(world)
    return (job.seq.max() - job.seq) * (job.hung_rank is not None)


# name: (which parts it is of, getter, the least that counts as a move)
SIGNALS: dict[str, tuple[str, Get, float]] = {
    "gpu.temperature": ("gpu", lambda w: w.gpus.core, 3.0), "gpu.margin": ("gpu", lambda w: w.gpus.margin, 3.0),
    "gpu.clock": ("gpu", lambda w: w.gpus.clock, 60.0), "gpu.power": ("gpu", lambda w: w.gpus.power, 30.0),
    "gpu.limit": ("gpu", lambda w: w.gpus.power_limit, 5.0), "gpu.tensor": ("gpu", lambda w: w.gpus.tensor, 0.04),
    "gpu.util": ("gpu", lambda w: w.gpus.util, 5.0), "gpu.memory": ("gpu", lambda w: w.gpus.memory, 2000.0),
    "gpu.thermal_seconds": ("gpu", lambda w: w.gpus.sw_thermal_ns / 1e9, 4.0),
    "gpu.brake_seconds": ("gpu", lambda w: w.gpus.brake_ns / 1e9, 4.0),
    "gpu.cap_seconds": ("gpu", lambda w: w.gpus.power_ns / 1e9, 30.0),
    "gpu.width": ("gpu", lambda w: w.gpus.link_width, 0.5), "gpu.generation": ("gpu", lambda w: w.gpus.link_gen, 0.5),
    "gpu.replays": ("gpu", lambda w: w.gpus.pcie_replays, 3.0),
    "gpu.nvlink_errors": ("gpu", lambda w: w.gpus.nvlink_crc + w.gpus.nvlink_data_crc, 3.0),
    "gpu.correctable": ("gpu", lambda w: w.gpus.ecc_correctable, 3.0),
    "gpu.uncorrectable": ("gpu", lambda w: w.gpus.ecc_uncorrectable, 0.5),
    "gpu.bad_rows": ("gpu", lambda w: w.gpus.uncorrectable_rows, 0.5),
    "gpu.pending": ("gpu", lambda w: w.gpus.remap_pending, 0.5),
    "gpu.remap_failure": ("gpu", lambda w: w.gpus.remap_failure, 0.5),
    "gpu.xid": ("gpu", lambda w: w.gpus.xid, 0.5), "gpu.absent": ("gpu", lambda w: 1.0 - w.gpus.present, 0.5),
    "gpu.recovery": ("gpu", lambda w: w.gpus.recovery_action, 0.5),
    "nic.gaps": ("nic", _nic("out_of_sequence"), 20.0), "nic.naks": ("nic", _nic("sequence_errors"), 20.0),
    "nic.ack_timeouts": ("nic", _nic("ack_timeouts"), 6.0), "nic.retransmits": ("nic", _nic("retransmits"), 20.0),
    "nic.cnp": ("nic", _nic("cnp_sent"), 9000.0), "nic.symbols": ("nic", _nic("symbol_errors"), 5.0),
    "nic.downed": ("nic", _nic("downed"), 0.5), "nic.carrier": ("nic", _nic("carrier_changes"), 0.5),
    "nic.sent": ("nic", _nic("sent_bytes"), 2e9), "nic.state": ("nic", lambda w: w.nics.state, 0.5),
    "nic.rate": ("nic", lambda w: w.nics.rate_bytes, 1e9), "nic.pci_stalled": ("nic", lambda w: w.nics.pci_stalled, 10.0),
    "efa.resent": ("nic", _nic("retrans_pkts"), 50.0), "efa.drops": ("nic", _nic("rx_drops"), 50.0),
    "efa.impaired": ("nic", _nic("impaired_remote_conn_events"), 1.0),
    "host.inlet": ("node", lambda w: w.hosts.inlet, 1.0), "host.exhaust": ("node", lambda w: w.hosts.exhaust, 2.0),
    "host.load": ("node", lambda w: w.hosts.load1, 10.0), "host.cpu_waiting": ("node", _total("cpu_waiting"), 3.0),
    "host.io_waiting": ("node", _total("io_waiting"), 3.0), "host.memory_stalled": ("node", _total("memory_stalled"), 3.0),
    "host.major_faults": ("node", _total("major_faults"), 1000.0), "host.oom": ("node", _total("oom_kills"), 0.5),
    "host.throttles": ("node", _total("package_throttles"), 5.0), "host.hung_tasks": ("node", _total("hung_tasks"), 0.5),
    "host.hertz": ("node", lambda w: w.hosts.cpu_hertz, 2e8),
    "host.steal": ("node", lambda w: w.hosts.cpu[:, :, 5].mean(axis=1), 3.0),
    "host.available": ("node", lambda w: w.hosts.available, 1e11),
    "host.offset": ("node", lambda w: np.abs(w.hosts.clock_offset), 5e-4),
    "host.synchronised": ("node", lambda w: w.hosts.synchronised, 0.5),
    "host.services": ("node", lambda w: w.hosts.service_active.sum(axis=1), 0.5),
    "host.disk_await": ("node", _await, 2e-6), "host.disk_busy": ("node", lambda w: w.hosts.disk["io_time"][:, 1], 3.0),
    "host.scratch_free": ("node", lambda w: w.hosts.scratch_free, 1e12),
    "host.read_only": ("node", lambda w: w.hosts.read_only, 0.5),
    "storage.wait": ("target", lambda w: w.storage.wait_usec.mean(axis=0), 400.0),
    "storage.client_wait": ("node", lambda w: w.storage.wait_usec.mean(axis=1), 400.0),
    "storage.up": ("target", lambda w: w.storage.target_up, 0.5),
    "storage.written": ("node", lambda w: w.storage.counters["written_bytes"], 1e9),
    "rank.compute": ("rank", lambda w: _job(w).compute, 0.1), "rank.data": ("rank", lambda w: _job(w).data_wait, 0.1),
    "rank.comm": ("rank", lambda w: _job(w).comm_wait, 0.1), "rank.behind": ("rank", _behind, 0.9),
    "job.step_seconds": ("job", _one(lambda w: _job(w).step_seconds), 0.1), "job.steps": ("job", _one(lambda w: _job(w).step), 2.5),
    "job.alive": ("job", _one(lambda w: _job(w).alive), 0.5), "job.loss": ("job", _one(lambda w: _job(w).loss), 0.08),
    "job.grad": ("job", _one(lambda w: _job(w).grad_norm), 0.04), "job.nonfinite": ("job", _one(lambda w: _job(w).nonfinite), 2.5),
    "job.tokens": ("job", _one(lambda w: _job(w).tokens_per_second), 30.0),
}
# What hardware counts when it is ill: nothing of it may move for a fault of the software, or of another part.
MEMORY = "gpu.correctable gpu.uncorrectable gpu.bad_rows gpu.pending gpu.remap_failure"
COUNTED = f"{MEMORY} gpu.xid gpu.absent gpu.replays gpu.nvlink_errors gpu.thermal_seconds gpu.brake_seconds"
LOSSES = "nic.gaps nic.naks nic.symbols nic.downed nic.state nic.rate"
HOST = "host.inlet host.cpu_waiting host.memory_stalled host.steal host.throttles host.synchronised host.read_only"
QUIET = f"{COUNTED} {LOSSES} {HOST}"


def less(names: str, *gone: str) -> str:
    """The names without some of them."""
    return " ".join(n for n in names.split() if n not in gone)


@dataclass(frozen=True)
class Case:
    """One row. aged: seconds that it has been there before it is looked at (slow builders need no slow test). log: in the kernel log of a culprit's node since planting; no_log: not there on any node."""

    name: str
    seconds: int
    up: str = ""
    down: str = ""
    flat: str = ""
    spared: str = ""
    victims: str = ""
    log: str = ""
    no_log: str = "Xid|Link|Out of memory|blocked for"
    severity: float | None = 0.4
    aged: int = 0
    onset: str = "step"

    def __str__(self) -> str:
        return self.name


DIES = {"down": "job.alive gpu.memory", "severity": None}
MEM = {"flat": "gpu.nvlink_errors gpu.thermal_seconds " + LOSSES, "no_log": "Link|fallen off"}
CASES = [
    # --- gpu
    Case("thermal_throttle", 160, "gpu.temperature gpu.thermal_seconds rank.compute", "gpu.margin gpu.clock",
         less(QUIET, "gpu.thermal_seconds"), "gpu.temperature gpu.thermal_seconds", "rank.comm", aged=100),
    Case("thermal_node", 160, "gpu.temperature gpu.thermal_seconds host.exhaust", "gpu.margin gpu.clock",
         less(QUIET, "gpu.thermal_seconds"), "gpu.temperature gpu.thermal_seconds host.exhaust host.inlet", "rank.comm", aged=120),
    Case("power_brake", 60, "gpu.brake_seconds", "gpu.clock gpu.power", less(QUIET, "gpu.brake_seconds"), "gpu.brake_seconds",
         "rank.comm", severity=0.8),
    Case("power_cap", 120, "gpu.cap_seconds rank.compute", "gpu.clock gpu.power gpu.limit", QUIET, "gpu.cap_seconds", "rank.comm"),
    Case("clock_loss", 60, "rank.compute", "gpu.clock gpu.power", f"{QUIET} gpu.cap_seconds gpu.limit", "", "rank.comm"),
    Case("gpu_slow", 60, "rank.compute", "", f"{QUIET} gpu.clock gpu.util gpu.limit gpu.width", "gpu.temperature gpu.power", "rank.comm"),
    Case("ecc_correctable_storm", 150, "gpu.correctable gpu.xid", "", f"gpu.uncorrectable gpu.thermal_seconds gpu.absent {LOSSES}",
         "gpu.correctable gpu.xid", log=r"Xid \(PCI:.*\): 92,", no_log="Link", severity=0.05),
    Case("xid_48", 30, "gpu.uncorrectable gpu.bad_rows gpu.pending gpu.xid gpu.recovery", spared="gpu.uncorrectable gpu.xid",
         log=r"Xid \(PCI:.*\): 48,[\s\S]*: 63,", **DIES, **MEM),
    Case("xid_94", 30, "gpu.uncorrectable gpu.bad_rows gpu.pending gpu.xid", spared="gpu.uncorrectable gpu.xid",
         log=r"Xid \(PCI:.*\): 94,.*Contained", **DIES, **MEM),
    Case("xid_95", 30, "gpu.uncorrectable gpu.bad_rows gpu.pending gpu.xid", spared="gpu.uncorrectable gpu.xid",
         log=r"Xid \(PCI:.*\): 95,.*Uncontained", **DIES, **MEM),
    Case("xid_64", 30, "gpu.uncorrectable gpu.remap_failure gpu.xid", spared="gpu.remap_failure gpu.xid",
         log=r"Xid \(PCI:.*\): 64,", **DIES, **MEM),
    Case("row_remap_failure", 30, "gpu.remap_failure", "", f"{less(QUIET, 'gpu.remap_failure')} job.alive job.step_seconds",
         "gpu.remap_failure", severity=None),
    Case("ecc_uncorrectable", 30, "gpu.uncorrectable", spared="gpu.uncorrectable", flat="gpu.xid gpu.pending " + LOSSES, **DIES),
    Case("xid_79", 30, "gpu.absent", spared="gpu.absent", log=r"Xid \(PCI:.*\): 79,.*fallen off", no_log="Link",
         flat=MEMORY + " gpu.xid", **DIES),
    Case("gpu_lost", 30, "gpu.absent", spared="gpu.absent", log="fallen off the bus", no_log="Xid|Link", flat=MEMORY, **DIES),
    Case("xid_119", 60, "gpu.recovery", "", f"{MEMORY} gpu.xid job.alive job.step_seconds {LOSSES}", "gpu.recovery",
         log=r"Xid \(PCI:.*\): 119,.*GSP", no_log="Link", severity=None),
    Case("xid_62", 30, "", flat=f"{MEMORY} gpu.xid {LOSSES}", log=r"Xid \(PCI:.*\): 62,", no_log="Link", **DIES),
    Case("xid_fatal", 30, "gpu.xid", flat=f"{MEMORY} {LOSSES}", spared="gpu.xid", log=r"Xid \(PCI:.*\): 109,", no_log="Link", **DIES),
    Case("nvlink_errors", 120, "gpu.nvlink_errors job.step_seconds rank.comm", "", less(QUIET, "gpu.nvlink_errors")),
    Case("xid_74", 30, "gpu.nvlink_errors gpu.xid", flat=f"{MEMORY} {LOSSES}", spared="gpu.xid", log=r"Xid \(PCI:.*\): 74,.*NVLink",
         no_log="Link", **DIES),
    Case("xid_145", 30, "gpu.nvlink_errors gpu.xid", flat=MEMORY, spared="gpu.xid", log=r"Xid \(PCI:.*\): 145, .*Fatal.*Link",
         no_log="mlx5", **DIES),
    Case("pcie_degraded", 60, "gpu.replays rank.compute", "gpu.width", f"{less(QUIET, 'gpu.replays')} gpu.clock gpu.generation",
         "gpu.replays", "rank.comm"),
    Case("pcie_generation", 60, "rank.compute", "gpu.generation", f"{QUIET} gpu.clock gpu.width", "", "rank.comm"),
    Case("pcie_nic", 60, "nic.pci_stalled job.step_seconds", "", f"{QUIET} gpu.width gpu.clock", "nic.pci_stalled"),
    Case("gpu_memory_leaked", 30, "gpu.memory", "", f"{QUIET} job.alive job.step_seconds", "gpu.memory", severity=None),
    Case("silent_corruption", 60, "job.grad", "", f"{QUIET} job.step_seconds rank.compute gpu.clock", severity=None),
    # --- network
    Case("packet_loss", 60, "nic.gaps nic.ack_timeouts nic.retransmits job.step_seconds", "",
         less(QUIET, "nic.gaps", "nic.naks") + " rank.compute nic.cnp", "nic.gaps", "nic.naks rank.comm"),
    Case("srd_loss", 60, "efa.drops job.step_seconds", "", "nic.state nic.downed gpu.xid rank.compute", "efa.drops", "efa.resent"),
    Case("link_decay", 60, "nic.symbols", "", less(QUIET, "nic.symbols", "nic.gaps"), "nic.symbols", onset="ramp", aged=60),
    Case("link_flap", 120, "nic.downed nic.carrier", "job.steps", f"{COUNTED} {HOST} nic.symbols", "nic.downed nic.carrier",
         log="Link (down|DOWN)", no_log="Xid"),
    Case("link_down", 100, "nic.downed nic.carrier", "nic.state job.alive", f"{MEMORY} nic.symbols", "nic.downed",
         log="Link (down|DOWN)", no_log="Xid", severity=None),
    Case("link_slow", 60, "job.step_seconds", "nic.rate", f"{less(QUIET, 'nic.rate')} rank.compute", "", "rank.comm"),
    Case("leaf_loss", 60, "nic.gaps job.step_seconds", "", less(QUIET, "nic.gaps", "nic.naks"), "", "rank.comm"),
    Case("leaf_slow", 60, "nic.cnp job.step_seconds", "", QUIET, "", "rank.comm"),
    Case("leaf_down", 30, "nic.downed", "nic.state", f"{MEMORY} nic.symbols", "nic.downed", log="Link (down|DOWN)", no_log="Xid",
         severity=None),
    Case("spine_path_lost", 40, "nic.ack_timeouts", "job.steps", f"{MEMORY} nic.downed nic.state nic.rate", severity=None),
    # --- job
    Case("stalled_loss", 60, "rank.behind", "job.steps gpu.power gpu.tensor nic.sent", f"{QUIET} gpu.util job.alive", "rank.behind",
         severity=None),
    Case("stalled_nic", 60, "rank.behind", "job.steps gpu.power nic.sent", f"{QUIET} gpu.util job.alive", "rank.behind", severity=None),
    Case("stalled_frozen", 60, "", "", f"{QUIET} job.steps job.step_seconds gpu.power nic.sent", severity=None),
    Case("nonfinite_loss", 60, "job.nonfinite", "", f"{QUIET} job.steps gpu.power gpu.clock", severity=None),
    Case("loss_spike", 60, "job.loss job.grad", "", f"{QUIET} job.steps gpu.power job.nonfinite", severity=None),
    Case("loss_divergence", 120, "job.loss job.grad", "", f"{QUIET} job.steps gpu.power job.nonfinite", severity=None),
    Case("straggler", 60, "rank.compute", "", f"{QUIET} gpu.clock gpu.util", "", "rank.comm"),
    Case("data_stall", 60, "rank.data job.step_seconds", "gpu.power", f"{QUIET} rank.compute host.io_waiting storage.wait"),
    Case("data_stall_cpu", 60, "rank.data job.step_seconds", "", f"{QUIET} rank.compute host.disk_await storage.wait", "rank.data",
         "rank.comm"),
    Case("data_stall_disk", 60, "rank.data host.disk_busy host.io_waiting", "", f"{QUIET} rank.compute storage.wait",
         "rank.data host.disk_busy", "rank.comm"),
    Case("throughput_drop", 60, "rank.compute job.step_seconds", "job.tokens", f"{QUIET} gpu.clock rank.data"),
    Case("job_crash_loop", 100, "", flat=COUNTED + " " + LOSSES, **DIES),
    Case("crash_loop_hardware", 30, "", flat=COUNTED + " " + LOSSES, **DIES),
    # --- host
    Case("cpu_starved", 90, "host.cpu_waiting host.load rank.data", "", less(QUIET, "host.cpu_waiting") + " gpu.clock",
         "host.cpu_waiting rank.data", "rank.comm"),
    Case("cpu_steal", 60, "host.steal rank.data", "", less(QUIET, "host.steal", "host.cpu_waiting"), "host.steal rank.data", "rank.comm"),
    Case("cpu_frequency", 330, "host.throttles rank.data", "host.hertz", less(QUIET, "host.throttles", "host.cpu_waiting"),
         "host.throttles", log="cpu clock throttled"),
    Case("memory_pressure", 70, "host.memory_stalled host.major_faults rank.data", "host.available",
         less(QUIET, "host.memory_stalled", "host.cpu_waiting"), "host.memory_stalled"),
    Case("clock_skew", 60, "host.offset", "host.synchronised", less(QUIET, "host.synchronised") + " job.step_seconds", "host.offset",
         severity=None),
    Case("disk_slow", 60, "host.disk_await rank.data host.io_waiting", "", f"{QUIET} storage.wait rank.compute",
         "host.disk_await rank.data", "rank.comm", no_log="Xid|Link"),
    Case("disk_full", 20, "", "host.scratch_free", f"{MEMORY} host.read_only job.alive", severity=None, aged=1800),
    Case("disk_readonly", 20, "host.read_only", "", less(QUIET, "host.read_only") + " job.alive job.step_seconds", "host.read_only",
         log="read-only", severity=None),
    Case("config_drift", 60, "rank.compute", "", f"{QUIET} gpu.clock", severity=0.2),
    Case("config_drift_vbios", 60, "rank.compute", "gpu.clock", QUIET, severity=0.2),
    Case("config_drift_governor", 60, "rank.data", "host.hertz", QUIET.replace("host.cpu_waiting", ""), severity=0.15),
    Case("config_drift_mtu", 60, "job.step_seconds", "", f"{QUIET} gpu.clock", "", "rank.comm", severity=0.2),
    Case("config_drift_ecc", 60, "", "", f"{QUIET} job.step_seconds gpu.clock", severity=None),
    Case("config_drift_power_limit", 90, "gpu.cap_seconds", "gpu.limit gpu.clock", QUIET, "gpu.cap_seconds"),
    Case("config_drift_locked_clock", 60, "rank.compute", "gpu.clock", f"{QUIET} gpu.cap_seconds"),
    Case("service_down", 20, "", "host.services", f"{QUIET} job.alive job.step_seconds", log="Failed with result", severity=None),
    Case("service_down_persistence", 20, "", "host.services", f"{QUIET} job.alive", log="Failed with result", severity=None),
    Case("service_down_chrony", 60, "host.offset", "host.services host.synchronised", less(QUIET, "host.synchronised"), "host.offset",
         log="Failed with result", severity=None),
    # --- shared
    Case("storage_slow", 90, "storage.wait rank.data host.io_waiting", "", f"{COUNTED} {LOSSES} rank.compute", "storage.wait"),
    Case("storage_slow_all", 90, "storage.wait rank.data host.io_waiting", "", f"{COUNTED} {LOSSES} rank.compute"),
    Case("storage_lost", 60, "host.io_waiting", "storage.up job.steps", f"{COUNTED} {LOSSES}", log="Connection to scratch-OST", no_log="Xid",
         severity=None),
    Case("mount_slow", 60, "storage.client_wait rank.data host.io_waiting", "", f"{QUIET} rank.compute", "rank.data storage.client_wait",
         "rank.comm"),
    Case("mount_hung", 140, "rank.behind", "job.steps", f"{COUNTED} {LOSSES} job.alive", "rank.behind", log="blocked for more than 122",
         no_log="Xid|Link", severity=None),
    Case("pdu_brake", 60, "gpu.brake_seconds", "gpu.clock", less(QUIET, "gpu.brake_seconds"), "gpu.brake_seconds", severity=0.8),
    Case("rack_power_cap", 90, "gpu.cap_seconds", "gpu.limit gpu.clock", QUIET, "gpu.cap_seconds"),
    Case("cooling_fault", 160, "gpu.temperature gpu.thermal_seconds", "gpu.margin gpu.clock", less(QUIET, "gpu.thermal_seconds"),
         "gpu.temperature gpu.thermal_seconds host.inlet", aged=240),
    Case("hot_rack", 160, "gpu.temperature gpu.thermal_seconds host.inlet host.exhaust", "gpu.margin",
         less(QUIET, "gpu.thermal_seconds", "host.inlet"), "gpu.temperature gpu.thermal_seconds host.inlet", aged=300),
    Case("firmware_wave", 160, "gpu.temperature gpu.thermal_seconds host.exhaust", "gpu.margin", less(QUIET, "gpu.thermal_seconds"),
         "gpu.temperature gpu.thermal_seconds", aged=180),
    Case("driver_rollout", 60, "", "gpu.clock", f"{QUIET} gpu.cap_seconds"),
    Case("clock_skew_fleet", 200, "host.offset", "host.synchronised", f"{COUNTED} {LOSSES} job.step_seconds", severity=None),
    Case("network_slow_fleet", 60, "nic.cnp job.step_seconds rank.comm", "", f"{QUIET} rank.compute"),
    # --- nothing to do
    Case("checkpoint_pause", 20, "storage.written", "gpu.power gpu.tensor job.steps", f"{QUIET} job.alive gpu.util", severity=None),
    Case("evaluation_pause", 20, "", "job.steps", f"{QUIET} job.alive gpu.util gpu.memory", severity=None),
    Case("compile_pause", 30, "rank.compute", "job.steps", f"{QUIET} job.alive gpu.util", severity=None),
    Case("job_start_end", 60, "", "gpu.memory gpu.power job.alive", QUIET, severity=None),
    Case("pcie_gen1_idle", 60, "", "gpu.generation job.alive", QUIET, severity=None),
    Case("xid45_echo", 30, "gpu.xid", "gpu.memory job.alive", f"{MEMORY} {LOSSES}", log=r"Xid \(PCI:.*\): 45,", no_log="Link",
         severity=None),
    Case("planned_drain", 30, "", "gpu.memory job.alive", QUIET, severity=None),
    Case("reboot_wave", 30, "", "gpu.memory job.alive", QUIET, severity=None),
    Case("switch_reboot", 90, "nic.downed", "nic.state job.alive", f"{MEMORY} nic.symbols", "nic.downed", no_log="Xid", severity=None),
    Case("hot_day", 60, "host.inlet", "", f"{COUNTED} {LOSSES}", severity=0.015, aged=1800),
    Case("congestion", 60, "nic.cnp", "", QUIET, severity=0.08),
    Case("hash_collision", 60, "job.step_seconds rank.comm", "", f"{QUIET} rank.compute", severity=None),
    Case("usual_power_cap", 90, "gpu.cap_seconds", "gpu.clock", f"{QUIET} gpu.limit job.step_seconds", severity=None),
    Case("data_mix_jump", 30, "job.loss", "", f"{QUIET} job.grad job.steps gpu.power", severity=None),
    Case("amp_overflow", 60, "", "", f"{QUIET} job.nonfinite job.steps gpu.power", severity=None),
    Case("sticky_xid", 30, "gpu.xid", "", f"{MEMORY} {LOSSES} gpu.recovery job.alive job.step_seconds", "gpu.xid",
         log=r"Xid \(PCI:.*\): (13|31|43),", no_log="Link", severity=None),
    Case("counter_reset", 30, "", "nic.sent", f"{COUNTED} {HOST} job.step_seconds nic.state nic.rate", severity=None),
    Case("clock_step", 10, "host.offset", "", f"{QUIET} job.step_seconds", "host.offset", severity=None),
    Case("cluster_slow", 60, "job.step_seconds rank.compute", "", f"{QUIET} gpu.clock", severity=0.3),
    Case("last_stage_uneven", 60, "rank.compute", "", f"{QUIET} gpu.clock", severity=0.15),
    Case("sequence_variance", 60, "rank.compute", "", f"{QUIET} gpu.clock rank.data"),
    Case("gc_pauses", 200, "", "job.steps", f"{QUIET} gpu.clock rank.data", severity=0.08),
    Case("hot_experts", 60, "rank.compute", "", f"{QUIET} gpu.clock rank.data", severity=0.3),
    Case("batch_ramp", 60, "job.step_seconds rank.compute", "", f"{COUNTED} {LOSSES} rank.data", severity=0.8, aged=1200),
    Case("user_profiler", 60, "rank.compute", "", f"{QUIET} gpu.clock", "", "rank.comm"),
]
BY_NAME = {case.name: case for case in CASES}
# What is told by the exporters' answers alone, or takes a job with checkpoints of its own: further down.
OTHERWISE = {
    "exporter_stale", "exporter_partial", "exporter_empty", "exporter_half", "exporter_error", "exporter_hung", "target_down",
    "exporter_upgrade_broken", "collector_starved", "collector_slow_targets", "checkpoint_stale", "checkpoint_slow",
    "inference_slow", "exporter_restart", "exporter_upgrade"}


@cache
def _calm(kind: str, work: str, seconds: int) -> World:
    world = deepcopy(faulthelp._built(kind, work))
    world.advance(world.now_ms + seconds * 1000)
    return world


@cache
def _pair(name: str) -> tuple[World, World, Planted]:
    """(calm, struck, what was planted) after the case's time. Not to be changed by tests."""
    case = BY_NAME[name]
    work = "pipeline" if name in PIPELINE else "training"
    struck = faulthelp.world_for(name)
    planted = struck.inject(name, severity=case.severity, seed=3, onset=case.onset)
    planted.heals_at = NEVER
    planted.at -= 1000 * case.aged
    struck.advance(struck.now_ms + case.seconds * 1000)
    return _calm(kind_for(name), work, case.seconds), struck, planted


def _mask(world: World, planted: Planted, part: str, shape: tuple[int, ...]) -> np.ndarray:
    """Which of the signal's parts are the culprit's."""
    place, rows, plugin = planted.place, list(planted.place.rows), PLUGINS[planted.plugin.name].place
    mask = np.zeros(shape, bool)
    if part == "job":
        mask[:] = True
    elif part == "target":
        mask[place.index if plugin == "storage" else slice(None)] = True
    elif part == "rank":
        job = _job(world)
        gpus = [place.index[1]] if plugin in ("gpu", "rank", "nic") else range(world.kind.gpus)
        ranks = [job.rank_of(row, gpu) for row in rows for gpu in gpus]
        mask[[r for r in ranks if r is not None]] = True
    elif part == "nic" and plugin in ("switch", "spine"):
        mask[:] = world.topology.leaf_of == place.index[0] if plugin == "switch" else True
    elif part in ("gpu", "nic") and plugin in ("gpu", "rank", "nic") and (part == "nic") == (plugin == "nic"):
        mask[place.index] = True
    else:
        mask[rows] = True
    return mask


def _moves(name: str, signal: str) -> tuple[np.ndarray, np.ndarray]:
    """How far the signal moved, in units of the least that counts: on the culprit, and on all other parts."""
    calm, struck, planted = _pair(name)
    part, get, least = SIGNALS[signal]
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num((get(struck) - get(calm)) / least, nan=0.0, posinf=1e9, neginf=-1e9)
    mask = _mask(struck, planted, part, moved.shape)
    return moved[mask], moved[~mask]


def _rows(column: str) -> list[tuple[str, str]]:
    return [(case.name, signal) for case in CASES for signal in getattr(case, column).split()]


def test_every_plugin_has_a_signature():
    """None is left out, here or in the tests of the exporters' answers."""
    assert sorted({*BY_NAME, *OTHERWISE}) == sorted({*FAULTS, *LOOK_ALIKES})


@pytest.mark.parametrize(("name", "signal"), _rows("up"))
def test_it_rises_on_the_culprit(name, signal):
    """A primary signal that grows."""
    assert _moves(name, signal)[0].max() >= 1


@pytest.mark.parametrize(("name", "signal"), _rows("down"))
def test_it_falls_on_the_culprit(name, signal):
    """A primary signal that shrinks."""
    assert _moves(name, signal)[0].min() <= -1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_must_not_move_does_not(case):
    """The column "must not show": the signals that tell this from its neighbours."""
    moved = {signal: float(np.abs(_moves(case.name, signal)[0]).max(initial=0)) for signal in case.flat.split()}
    assert {signal: size for signal, size in moved.items() if size >= 1} == {}


@pytest.mark.parametrize(("name", "signal"), _rows("spared"))
def test_other_parts_are_spared(name, signal):
    """Peers do not show what the culprit shows."""
    assert _moves(name, signal)[1].max(initial=0) < 1


@pytest.mark.parametrize(("name", "signal"), _rows("victims"))
def test_victims_show_it(name, signal):
    """What others suffer: they wait, or are told of losses."""
    here, others = _moves(name, signal)
    assert others.max() >= 1
    if signal == "rank.comm" and PLUGINS[name].place in ("gpu", "rank"):
        assert here.max() < 1, "the culprit does not wait"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_log_says_what_it_should(case):
    """The lines of the fault on a culprit's node, and no others anywhere."""
    calm, struck, planted = _pair(case.name)
    news = {n.index: struck.kernel.of(n.index).read(len(calm.kernel.of(n.index).read())).decode() for n in struck.nodes}
    if case.log:
        text = "".join(struck.kernel.of(row).read().decode() for row in planted.place.rows)
        assert re.search(case.log, text)
    unwanted = [text for row, text in news.items() if re.search(case.no_log, text) and not (case.log and row in planted.place.rows)]
    assert unwanted == []


def test_a_leaf_hurts_its_own_rail_only():
    """What a leaf loses or marks is seen on its rail; ports on other rails are as they were."""
    for name, signal in (("leaf_loss", "nic.gaps"), ("leaf_slow", "nic.cnp")):
        calm, struck, planted = _pair(name)
        _, get, least = SIGNALS[signal]
        rails = (struck.topology.leaf_of == planted.place.index[0]).any(axis=0)
        assert ((get(struck) - get(calm))[:, ~rails] < least).all()


# --- tiers --------------------------------------------------------------------------------------------------------------
# `tests/fleet/test_tiers.py` asks the whole product whether a tier shows a fault; here, whether it adds anything that moves.
RICHER = [name for name in FAULTS if PLUGINS[name].tier > "A"]


def _shown(world: World, tier: str, rows: list[int]) -> dict[tuple[str, str], tuple[list[float], ...]]:
    """Of each exporter's families at a tier what the nodes show: values, and the labels that they stand at."""
    exporters, found = Exporters(world, Telemetry(tier, dcgm_cycle_seconds=0)), {}
    for name in exporters.names:
        sheet, values = exporters.sheets[name], np.nan_to_num(exporters.read(name).values, nan=-1.0)
        for one, (start, end) in zip(sheet.families, sheet.spans, strict=True):
            has = set(sheet.rows())
            found[name, one.name] = tuple((values[row, start:end].tolist(), list(one.labels(world.nodes[row]))) for row in rows if row in has)
    return found


def _only(world: World, tier: str) -> set[tuple[str, str]]:
    """The families that a tier has and no poorer one."""
    telling: list[set[tuple[str, str]]] = []
    for each in (tier, TIERS[TIERS.index(tier) - 1]):
        exporters = Exporters(world, Telemetry(each, dcgm_cycle_seconds=0))
        telling.append({(name, one.name) for name in exporters.names for one in exporters.sheets[name].families})
    return telling[0] - telling[1]


@pytest.mark.parametrize("name", [name for name in RICHER if name in BY_NAME])
def test_the_declared_tier_adds_what_tells(name):
    """What a poorer tier has not (families, kernel and job logs) is what moves on the culprit."""
    calm, struck, planted = _pair(name)
    tier, rows = PLUGINS[name].tier, list(planted.place.rows)
    told: set[object] = set()
    if tier == "B":
        told |= {row for row in rows if struck.kernel.of(row).read() != calm.kernel.of(row).read()}
        told |= {job.name for job in struck.jobs.values() if job.log.read() != calm.jobs[job.name].log.read()}
    else:
        here, twin = _shown(struck, tier, rows), _shown(calm, tier, rows)
        told = {family for family in _only(struck, tier) if here[family] != twin[family]}
    assert told


def test_what_has_no_twin_is_left_to_the_whole_product():
    """Checkpoints and endpoints, whose jobs are others."""
    assert [name for name in RICHER if name not in BY_NAME] == ["checkpoint_slow", "checkpoint_stale", "inference_slow"]
