"""NVIDIA's dcgm-exporter, in its old and new spellings (signals.md §0 fact 6, §2).

DCGM 4.6 renames many fields and keeps the old names as aliases, version 1.x of the exporter wrote lower-case names, and
sites choose their own subset by CSV: all spellings of a field stand in one table. Units: MHz, °C, W, mJ, MiB, %, ns
(violations are nanoseconds whatever an old CSV says, §0 fact 3).

A MIG instance is its own part (`<GPU UUID>/<GPU_I_ID>`) only for what is measured inside it (activity, memory).
Temperature, clocks, power, throttling and errors are the physical GPU's even where each instance repeats them.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.meaning import Meaning, labels_of, node_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

IDENTITY = ("Hostname", "hostname", "kubernetes_node")

MHZ, MIB, PERCENT, NANO = 1e6, 1024.0 * 1024.0, 0.01, 1e-9
MILLIWATT = 1e-3  # the rate of a counter of mJ is mW

# Fields of the whole board. Names without `DCGM_FI_`; aliases share a row.
_BOARD: tuple[tuple[tuple[str, ...], Meaning], ...] = (
    (("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS"), Meaning("gpu.temperature_celsius")),
    (("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS"), Meaning("gpu.memory_temperature_celsius")),
    (("DEV_GPU_TEMP_LIMIT", "DEV_GPU_TEMP_MARGIN_CELSIUS"), Meaning("gpu.thermal_margin_celsius")),
    (("DEV_SLOWDOWN_TEMP", "DEV_SLOWDOWN_TEMP_CELSIUS"), Meaning("gpu.slowdown_temperature_celsius")),
    (("DEV_SM_CLOCK",), Meaning("gpu.sm_clock_hertz", MHZ)),
    (("DEV_MEM_CLOCK",), Meaning("gpu.memory_clock_hertz", MHZ)),
    (("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS", "DEV_POWER_USAGE_INSTANT", "DEV_BOARD_POWER_INSTANT_WATTS"),
     Meaning("gpu.power_watts")),
    (("DEV_ENFORCED_POWER_LIMIT", "DEV_POWER_MGMT_LIMIT", "DEV_ENFORCED_POWER_LIMIT_WATTS",
      "DEV_POWER_MGMT_LIMIT_WATTS"), Meaning("gpu.power_limit_watts")),
    (("DEV_TOTAL_ENERGY_CONSUMPTION", "DEV_TOTAL_ENERGY_CONSUMPTION_MILLIJOULES"),
     Meaning("gpu.energy_watts", MILLIWATT, True)),
    (("DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS"), Meaning("gpu.throttle_reasons_bits")),
    (("DEV_THERMAL_VIOLATION",), Meaning("gpu.thermal_violation_ratio", NANO, True)),
    (("DEV_POWER_VIOLATION",), Meaning("gpu.power_violation_ratio", NANO, True)),
    (("DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",), Meaning("gpu.sw_thermal_ratio", NANO, True)),
    (("DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",), Meaning("gpu.hw_thermal_ratio", NANO, True)),
    (("DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_NS"),
     Meaning("gpu.power_brake_ratio", NANO, True)),
    (("DEV_XID_ERRORS", "DEV_XID_ERROR"), Meaning("gpu.xid")),
    (("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"), Meaning("gpu.pcie_replays_per_second", 1.0, True)),
    (("DEV_ECC_SBE_VOL_TOTAL",), Meaning("gpu.ecc_correctable_per_second", 1.0, True)),
    (("DEV_ECC_DBE_VOL_TOTAL",), Meaning("gpu.ecc_uncorrectable_per_second", 1.0, True)),
    # Profiling rates of links: some CSVs declare them counters, the field is a rate either way (signals.md §2).
    (("PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"), Meaning("gpu.pcie_bytes_per_second")),
    (("PROF_NVLINK_TX_BYTES", "PROF_NVLINK_RX_BYTES"), Meaning("gpu.nvlink_bytes_per_second")),
)

# Fields that a MIG instance has of its own.
_INSTANCE: tuple[tuple[tuple[str, ...], Meaning], ...] = (
    (("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO"), Meaning("gpu.utilization_ratio", PERCENT)),
    (("DEV_FB_USED",), Meaning("gpu.memory_used_bytes", MIB)),
    (("DEV_FB_FREE",), Meaning("gpu.memory_free_bytes", MIB)),
    (("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"), Meaning("gpu.graphics_active_ratio")),
    (("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"), Meaning("gpu.sm_active_ratio")),
    (("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"), Meaning("gpu.tensor_active_ratio")),
    (("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"), Meaning("gpu.dram_active_ratio")),
)

# Version 1.x of the exporter (and its compatibility CSV).
_OLD_NAMES = {
    "dcgm_sm_clock": "DEV_SM_CLOCK", "dcgm_memory_clock": "DEV_MEM_CLOCK", "dcgm_gpu_temp": "DEV_GPU_TEMP",
    "dcgm_memory_temp": "DEV_MEMORY_TEMP", "dcgm_power_usage": "DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DEV_TOTAL_ENERGY_CONSUMPTION", "dcgm_xid_errors": "DEV_XID_ERRORS",
    "dcgm_pcie_replay_counter": "DEV_PCIE_REPLAY_COUNTER", "dcgm_gpu_utilization": "DEV_GPU_UTIL",
    "dcgm_fb_free": "DEV_FB_FREE", "dcgm_fb_used": "DEV_FB_USED", "dcgm_thermal_violation": "DEV_THERMAL_VIOLATION",
    "dcgm_power_violation": "DEV_POWER_VIOLATION", "dcgm_ecc_sbe_volatile_total": "DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DEV_ECC_DBE_VOL_TOTAL", "dcgm_fi_prof_gr_engine_active": "PROF_GR_ENGINE_ACTIVE",
    "dcgm_fi_prof_pipe_tensor_active": "PROF_PIPE_TENSOR_ACTIVE", "dcgm_fi_prof_dram_active": "PROF_DRAM_ACTIVE",
    "dcgm_fi_prof_pcie_tx_bytes": "PROF_PCIE_TX_BYTES", "dcgm_fi_prof_pcie_rx_bytes": "PROF_PCIE_RX_BYTES",
}

_CLOCK_EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"
_THERMAL_EVENTS = ("sw_thermal", "hw_thermal")


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


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a dcgm-exporter series."""
    found = TABLE.get(series.name)
    if found is None:
        if series.name != _CLOCK_EVENTS or series.label("clock_event") not in _THERMAL_EVENTS:
            return None
        # Declared a counter, yet it is the count within the exporter's own sliding window (signals.md §2).
        found = (Meaning("gpu.thermal_events_in_window"), False)
    meaning, instance = found
    labels = labels_of(series)
    if "nvlink" in labels or "nvswitch" in labels:
        return None  # a link's or a switch's own row, not the GPU's total
    gpu = gpu_of(labels, target, instance)
    return None if gpu is None else meaning.ref(gpu)


PLUGIN = SourcePlugin("dcgm", map_series=map_series, identity=IDENTITY)
