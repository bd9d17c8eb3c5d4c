"""NVIDIA's dcgm-exporter, in its old and new spellings (signals.md §0 fact 6, §2).

DCGM 4.6 renames many fields and keeps the old names as aliases, version 1.x of the exporter wrote lower-case names, and
sites choose their own subset by CSV: all spellings of a field stand in one table. Units: MHz, °C, W, mJ, MiB, %, ns
(violations are nanoseconds whatever an old CSV says). `GPU_UTIL_RATIO` is an alias of `GPU_UTIL` and so a
percentage, while the `PROF_…_RATIO` fields are ratios.

A MIG instance is its own part (`<GPU UUID>/<GPU_I_ID>`) only for what is measured inside it (activity, memory).
Temperature, clocks, power, throttling and errors are the physical GPU's even where each instance repeats them. An NVLink
is a part of its own (`<GPU UUID>/nvlink<n>`, kind link) where its counters come one by one; the GPU's own totals are the
`…_TOTAL` fields, so nothing is added up twice.

Left out: `NVLINK_BANDWIDTH_TOTAL` and its kin (their unit is stated nowhere), `DCGM_EXP_XID_ERRORS_COUNT` (the kernel log
tells each XID, and the time of it), health watches (verdicts of others), and NVSwitches (the kernel log has their SXids).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from collectors.meaning import Meaning, Row, counter, gauge, labels_of, node_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

IDENTITY = ("Hostname", "hostname", "kubernetes_node")

MHZ, MIB, PERCENT, NANO = 1e6, 1024.0 * 1024.0, 0.01, 1e-9
MILLIWATT = 1e-3  # the rate of a counter of mJ is mW

_Rows = tuple[tuple[tuple[str, ...], Meaning], ...]

# Fields of the whole board. Names without `DCGM_FI_`; aliases share a row.
_BOARD: _Rows = (
    (("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS"), gauge("gpu.temperature_celsius")),
    (("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS"), gauge("gpu.memory_temperature_celsius")),
    (("DEV_GPU_TEMP_LIMIT", "DEV_GPU_TEMP_MARGIN_CELSIUS"), gauge("gpu.thermal_margin_celsius")),
    (("DEV_SLOWDOWN_TEMP", "DEV_GPU_TEMP_SLOWDOWN_CELSIUS"), gauge("gpu.slowdown_temperature_celsius")),
    (("DEV_SM_CLOCK",), gauge("gpu.sm_clock_hertz", MHZ)),
    (("DEV_MEM_CLOCK",), gauge("gpu.memory_clock_hertz", MHZ)),
    (("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS", "DEV_POWER_USAGE_INSTANT", "DEV_BOARD_POWER_RAW_WATTS"),
     gauge("gpu.power_watts")),
    (("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "DEV_POWER_MGMT_LIMIT",
      "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"), gauge("gpu.power_limit_watts")),
    (("DEV_TOTAL_ENERGY_CONSUMPTION",), counter("gpu.energy_watts", MILLIWATT)),
    (("DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS"), gauge("gpu.throttle_reasons_bits")),
    (("DEV_THERMAL_VIOLATION",), counter("gpu.thermal_violation_ratio", NANO)),
    (("DEV_POWER_VIOLATION", "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"), counter("gpu.power_violation_ratio", NANO)),
    (("DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",), counter("gpu.sw_thermal_ratio", NANO)),
    (("DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",), counter("gpu.hw_thermal_ratio", NANO)),
    (("DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",), counter("gpu.power_brake_ratio", NANO)),
    (("DEV_XID_ERRORS", "DEV_XID_ERROR"), gauge("gpu.xid")),
    (("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"), counter("gpu.pcie_replays_per_second")),
    (("DEV_PCIE_LINK_GEN",), gauge("gpu.pcie_link_generation")),
    (("DEV_PCIE_LINK_WIDTH",), gauge("gpu.pcie_link_width")),
    (("DEV_PCIE_MAX_LINK_GEN",), gauge("gpu.pcie_max_link_generation")),
    (("DEV_PCIE_MAX_LINK_WIDTH",), gauge("gpu.pcie_max_link_width")),
    (("DEV_ECC_SBE_VOL_TOTAL", "DEV_ECC_SBE_AGG_TOTAL"), counter("gpu.ecc_correctable_per_second")),
    (("DEV_ECC_DBE_VOL_TOTAL", "DEV_ECC_DBE_AGG_TOTAL"), counter("gpu.ecc_uncorrectable_per_second")),
    # Persistent and rare: a level and its growth say more than a rate that is there for one tick.
    (("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"), gauge("gpu.uncorrectable_rows")),
    (("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"), gauge("gpu.correctable_rows")),
    (("DEV_ROW_REMAP_PENDING",), gauge("gpu.row_remap_pending")),
    (("DEV_ROW_REMAP_FAILURE", "DEV_ROW_REMAP_FAILED"), gauge("gpu.row_remap_failed")),
    (("DEV_GPU_RECOVERY_ACTION",), gauge("gpu.recovery_action")),
    (("DEV_FABRIC_MANAGER_STATUS",), gauge("gpu.fabric_manager_state")),
    (("DEV_ECC_CURRENT",), gauge("gpu.ecc_enabled")),
    (("DEV_PERSISTENCE_MODE",), gauge("gpu.persistence_enabled")),
    (("DEV_MIG_MODE",), gauge("gpu.mig_enabled")),
    (("DEV_APP_SM_CLOCK",), gauge("gpu.application_clock_hertz", MHZ)),
    (("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
      "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", "DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
      "DEV_NVLINK_REPLAY_ERROR_TOTAL"), counter("gpu.nvlink_errors_per_second")),
    (("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_RECOVERY_ERROR_TOTAL"),
     counter("gpu.nvlink_recoveries_per_second")),
    # Profiling rates of links: some CSVs declare them counters, the field is a rate either way (signals.md §2).
    (("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"), gauge("gpu.pcie_bytes_per_second")),
    (("PROF_NVLINK_TX_BYTES", "PROF_NVLINK_RX_BYTES"), gauge("gpu.nvlink_bytes_per_second")),
)

# Fields that a MIG instance has of its own.
_INSTANCE: _Rows = (
    (("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO"), gauge("gpu.utilization_ratio", PERCENT)),
    (("DEV_FB_USED",), gauge("gpu.memory_used_bytes", MIB)),
    (("DEV_FB_FREE",), gauge("gpu.memory_free_bytes", MIB)),
    (("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"), gauge("gpu.graphics_active_ratio")),
    (("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"), gauge("gpu.sm_active_ratio")),
    (("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"), gauge("gpu.tensor_active_ratio")),
    (("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"), gauge("gpu.dram_active_ratio")),
)

# Counters of NVLink 5 (Blackwell): of one link where the label `nvlink` names it, else of all links of the GPU. The COUNT
# spelling is the one up to DCGM 4.5.
_NVLINK5: dict[str, str] = {
    "DEV_NVLINK_COUNT_RX_ERRORS": "errors", "DEV_NVLINK_RX_ERROR_TOTAL": "errors",
    "DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS": "errors", "DEV_NVLINK_RX_PACKET_MALFORMED_TOTAL": "errors",
    "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": "errors", "DEV_NVLINK_INTEGRITY_ERROR_TOTAL": "errors",
    "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": "recoveries", "DEV_NVLINK_RECOVERY_EVENT_TOTAL": "recoveries",
}
# Counters of one link, up to NVLink 4: the link's number stands in the name, in DCGM 4.7 in a label.
_LANE = re.compile(r"DCGM_FI_DEV_NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_"
                   r"(?:COUNT_L(\d{1,2})|L(\d{1,2})_TOTAL|PER_LINK_TOTAL)")
_OF_LINK = {"errors": counter("link.errors_per_second"), "recoveries": counter("link.recoveries_per_second")}
_OF_GPU = {"errors": counter("gpu.nvlink_errors_per_second"), "recoveries": counter("gpu.nvlink_recoveries_per_second")}

# Version 1.x of the exporter (and its compatibility CSV).
_OLD_NAMES = {
    "dcgm_sm_clock": "DEV_SM_CLOCK", "dcgm_memory_clock": "DEV_MEM_CLOCK", "dcgm_gpu_temp": "DEV_GPU_TEMP",
    "dcgm_memory_temp": "DEV_MEMORY_TEMP", "dcgm_power_usage": "DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DEV_TOTAL_ENERGY_CONSUMPTION", "dcgm_xid_errors": "DEV_XID_ERRORS",
    "dcgm_pcie_replay_counter": "DEV_PCIE_REPLAY_COUNTER", "dcgm_gpu_utilization": "DEV_GPU_UTIL",
    "dcgm_fb_free": "DEV_FB_FREE", "dcgm_fb_used": "DEV_FB_USED", "dcgm_thermal_violation": "DEV_THERMAL_VIOLATION",
    "dcgm_power_violation": "DEV_POWER_VIOLATION", "dcgm_ecc_sbe_volatile_total": "DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DEV_ECC_DBE_VOL_TOTAL", "dcgm_ecc_sbe_aggregate_total": "DEV_ECC_SBE_AGG_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_nvlink_flit_crc_error_count_total": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_replay_error_count_total": "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_recovery_error_count_total": "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "dcgm_fi_prof_gr_engine_active": "PROF_GR_ENGINE_ACTIVE", "dcgm_fi_prof_sm_active": "PROF_SM_ACTIVE",
    "dcgm_fi_prof_pipe_tensor_active": "PROF_PIPE_TENSOR_ACTIVE", "dcgm_fi_prof_dram_active": "PROF_DRAM_ACTIVE",
    "dcgm_fi_prof_pcie_tx_bytes": "PROF_PCIE_TX_BYTES", "dcgm_fi_prof_pcie_rx_bytes": "PROF_PCIE_RX_BYTES",
}

# Metrics that count only where no other says the same: the requested limit where the enforced one is missing, the
# instantaneous power, the finer counter of the power limit (so that a DCGM upgrade changes nothing), and lifetime counters
# of ECC errors, whose rate is that of the volatile ones.
SECOND_CHOICE = frozenset(f"DCGM_FI_DEV_{name}" for name in (
    "POWER_MGMT_LIMIT", "BOARD_POWER_LIMIT_REQUESTED_WATTS", "POWER_USAGE_INSTANT", "BOARD_POWER_RAW_WATTS",
    "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "ECC_SBE_AGG_TOTAL", "ECC_DBE_AGG_TOTAL",
)) | {"dcgm_ecc_sbe_aggregate_total", "dcgm_ecc_dbe_aggregate_total"}

_CLOCK_EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"
_THERMAL_EVENTS = ("sw_thermal", "hw_thermal")
# Declared a counter, yet it is the count within the exporter's own sliding window (signals.md §2).
_EVENTS_IN_WINDOW = gauge("gpu.thermal_events_in_window")


def _table() -> dict[str, tuple[Meaning, bool]]:
    """Metric name → (meaning, belongs to the MIG instance)."""
    out: dict[str, tuple[Meaning, bool]] = {}
    for rows, instance in ((_BOARD, False), (_INSTANCE, True)):
        for names, meaning in rows:
            for name in names:
                out[f"DCGM_FI_{name}"] = (meaning, instance)
    for old, name in _OLD_NAMES.items():
        out[old] = out[f"DCGM_FI_{name}"]
    return out


TABLE = _table()


def gpu_of(labels: Mapping[str, str], target: TargetInfo, instance: bool = False) -> Target | None:
    """The GPU that a series' labels name, None where they name none. instance: the MIG instance where there is one."""
    index = labels.get("gpu") or labels.get("device", "").removeprefix("nvidia")
    uuid = labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid")
    if not index.isdigit():
        index = labels.get("pci_bus_id", "")
    if not index and not uuid:
        return None
    node = node_of(labels, target, IDENTITY)
    part = labels.get("GPU_I_ID")
    if instance and part:
        return Target("gpu", node, f"{index}/{part}" if index else None, f"{uuid}/{part}" if uuid else None)
    return Target("gpu", node, index or None, uuid)


def _link(series: Series, target: TargetInfo) -> SignalRef | None:
    """The meaning of a counter of one NVLink, or of NVLink 5's counters."""
    labels = labels_of(series)
    if "nvswitch" in labels:
        return None
    lane = _LANE.fullmatch(series.name)
    if lane is not None:
        what, number = "recoveries" if lane[1] == "RECOVERY" else "errors", lane[2] or lane[3] or labels.get("nvlink")
    else:
        what, number = _NVLINK5.get(series.name.removeprefix("DCGM_FI_"), ""), labels.get("nvlink")
    gpu = gpu_of(labels, target) if what else None
    if gpu is None:
        return None
    if number is None:
        return None if lane is not None else _OF_GPU[what].ref(gpu)
    return _OF_LINK[what].ref(Target("link", gpu.node, f"{gpu.device or gpu.id}/nvlink{number}",
                                     f"{gpu.id}/nvlink{number}" if gpu.id else None))


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a dcgm-exporter series."""
    found = TABLE.get(series.name)
    if found is None:
        if series.name.startswith("DCGM_FI_DEV_NVLINK_"):
            return _link(series, target)
        if series.name != _CLOCK_EVENTS or series.label("clock_event") not in _THERMAL_EVENTS:
            return None
        found = (_EVENTS_IN_WINDOW, False)
    meaning, instance = found
    labels = labels_of(series)
    if "nvlink" in labels or "nvswitch" in labels:
        return None  # a link's or a switch's own row, not the GPU's total
    gpu = gpu_of(labels, target, instance)
    return None if gpu is None else meaning.ref(gpu)


def described() -> Iterator[Row]:
    """The rows for the docs."""
    for name, (meaning, instance) in TABLE.items():
        yield Row(name, meaning, "GPU (`UUID`, `gpu`)" + (" or MIG instance (`GPU_I_ID`)" if instance else ""))
    for event in _THERMAL_EVENTS:
        yield Row(f'{_CLOCK_EVENTS}{{clock_event="{event}"}}', _EVENTS_IN_WINDOW, "GPU (`UUID`, `gpu`)")
    for name, what in _NVLINK5.items():
        yield Row(f"DCGM_FI_{name}", _OF_GPU[what], "GPU (`UUID`, `gpu`)")
        yield Row(f'DCGM_FI_{name}{{nvlink="…"}}', _OF_LINK[what], "NVLink (`UUID`, `nvlink`)")
    for name in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY"):
        meaning = _OF_LINK["recoveries" if name == "RECOVERY" else "errors"]
        for form in ("COUNT_L<n>", "L<n>_TOTAL", "PER_LINK_TOTAL"):
            yield Row(f"DCGM_FI_DEV_NVLINK_{name}_ERROR_{form}", meaning, "NVLink (`UUID`, link number)")


PLUGIN = SourcePlugin("dcgm", map_series=map_series, identity=IDENTITY, prefixes=("DCGM_", "dcgm_"),
                      second_choice=SECOND_CHOICE,
                      facts=(("modelName", "gpu model"), ("DCGM_FI_DRIVER_VERSION", "driver"),
                             ("DCGM_FI_DEV_VBIOS_VERSION", "vbios")))
