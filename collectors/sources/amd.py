"""AMD GPUs: device-metrics-exporter (`gpu_…`, often `amd_gpu_…`), and the older amd_smi_exporter (signals.md §2.3).

device-metrics-exporter: °C, W, µJ, %, MHz, MB. In a partitioned GPU the board's values stand on partition 0 and are 0 or
missing on the others, which are left out. The junction (hotspot) temperature comes first, the edge's where it is missing.
`gpu_clock` has a row for each compute die and memory stack; the first of a type is taken. VRAM in MB is in units of 2^20.

amd_smi_exporter gives what the driver gives: millidegrees, microwatts, hertz; its GPU stands in a label that is named as
the metric (`amd_gpu_power{gpu_power="0"}`).
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge, labels_of, node_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

IDENTITY = ("hostname",)
MIB, PERCENT, MHZ, MICRO, MILLI = 1024.0 * 1024.0, 0.01, 1e6, 1e-6, 1e-3
MEGABIT = 125_000.0  # bytes

# Without `amd_` in front.
TABLE: dict[str, Meaning] = {
    "gpu_junction_temperature": gauge("gpu.temperature_celsius"),
    "gpu_edge_temperature": gauge("gpu.temperature_celsius"),
    "gpu_memory_temperature": gauge("gpu.memory_temperature_celsius"),
    "gpu_package_power": gauge("gpu.power_watts"),
    "gpu_average_package_power": gauge("gpu.power_watts"),
    "gpu_power_usage": gauge("gpu.power_watts"),
    "gpu_energy_consumed": counter("gpu.energy_watts", MICRO),
    "gpu_gfx_activity": gauge("gpu.utilization_ratio", PERCENT),
    "gpu_umc_activity": gauge("gpu.dram_active_ratio", PERCENT),
    "gpu_used_vram": gauge("gpu.memory_used_bytes", MIB),
    "gpu_free_vram": gauge("gpu.memory_free_bytes", MIB),
    "gpu_ecc_correct_total": counter("gpu.ecc_correctable_per_second"),
    "gpu_ecc_uncorrect_total": counter("gpu.ecc_uncorrectable_per_second"),
    "gpu_violation_socket_thermal_residency_percentage": gauge("gpu.hw_thermal_ratio", PERCENT),
    "gpu_violation_ppt_residency_percentage": gauge("gpu.power_violation_ratio", PERCENT),
    "pcie_replay_count": counter("gpu.pcie_replays_per_second"),
    "pcie_bandwidth": gauge("gpu.pcie_bytes_per_second", MEGABIT),
}
CLOCKS: dict[str, Meaning] = {"system": gauge("gpu.sm_clock_hertz", MHZ), "memory": gauge("gpu.memory_clock_hertz", MHZ)}
_CLOCK = "gpu_clock"
SECOND_CHOICE = frozenset(f"{prefix}{name}" for prefix in ("", "amd_") for name in (
    "gpu_edge_temperature", "gpu_average_package_power", "gpu_power_usage"))

# amd_smi_exporter.
SMI: dict[str, Meaning] = {
    "amd_gpu_current_temperature": gauge("gpu.temperature_celsius", MILLI),
    "amd_gpu_power": gauge("gpu.power_watts", MICRO),
    "amd_gpu_power_cap": gauge("gpu.power_limit_watts", MICRO),
    "amd_gpu_SCLK": gauge("gpu.sm_clock_hertz"),
    "amd_gpu_MCLK": gauge("gpu.memory_clock_hertz"),
    "amd_gpu_use_percent": gauge("gpu.utilization_ratio", PERCENT),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an AMD exporter's series."""
    labels = labels_of(series)
    if series.name in SMI:
        index = labels.get(series.name.removeprefix("amd_"), "")
        return SMI[series.name].ref(Target("gpu", target.node, index)) if index.isdigit() else None
    name = series.name.removeprefix("amd_")
    meaning = CLOCKS.get(labels.get("clock_type", "").lower()) if name == _CLOCK else TABLE.get(name)
    index = labels.get("gpu_id", "")
    if meaning is None or not index.isdigit() or labels.get("gpu_partition_id", "0") not in ("0", "NA"):
        return None
    node = node_of(labels, target, IDENTITY)
    return meaning.ref(Target("gpu", node, index, labels.get("gpu_uuid"), serial=labels.get("serial_number")))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    part = "GPU (`gpu_uuid`, `gpu_id`)"
    yield from (Row(f"[amd_]{name}", meaning, part) for name, meaning in TABLE.items())
    yield from (Row(f'[amd_]{_CLOCK}{{clock_type="{kind}"}}', meaning, part) for kind, meaning in CLOCKS.items())
    yield from (Row(name, meaning, f"GPU (`{name.removeprefix('amd_')}`)") for name, meaning in SMI.items())


PLUGIN = SourcePlugin("amd", map_series=map_series, identity=IDENTITY, prefixes=("gpu_", "amd_", "pcie_"),
                      second_choice=SECOND_CHOICE)
