"""What an upgrade of an exporter renames: old family names to new ones."""

from __future__ import annotations

from collections.abc import Mapping

# DCGM 4.6's names; the old ones are aliases that a site may have dropped.
_DCGM: Mapping[str, str] = {
    "DEV_GPU_TEMP": "DEV_GPU_TEMP_CELSIUS", "DEV_MEMORY_TEMP": "DEV_MEMORY_TEMP_CELSIUS",
    "DEV_GPU_TEMP_LIMIT": "DEV_GPU_TEMP_MARGIN_CELSIUS", "DEV_POWER_USAGE": "DEV_BOARD_POWER_WATTS",
    "DEV_POWER_MGMT_LIMIT": "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", "DEV_GPU_UTIL": "DEV_GPU_UTIL_RATIO",
    "DEV_XID_ERRORS": "DEV_XID_ERROR", "DEV_PCIE_REPLAY_COUNTER": "DEV_PCIE_REPLAY_TOTAL",
    "DEV_NVLINK_BANDWIDTH_TOTAL": "DEV_NVLINK_THROUGHPUT_TOTAL", "DEV_CLOCK_THROTTLE_REASONS": "DEV_CLOCKS_EVENT_REASONS",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
    "DEV_CORRECTABLE_REMAPPED_ROWS": "DEV_ROW_REMAP_CORRECTABLE_TOTAL", "DEV_ROW_REMAP_FAILURE": "DEV_ROW_REMAP_FAILED",
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "DEV_NVLINK_REPLAY_ERROR_TOTAL",
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "DEV_NVLINK_RECOVERY_ERROR_TOTAL",
    "PROF_GR_ENGINE_ACTIVE": "PROF_GR_ENGINE_UTIL_RATIO", "PROF_SM_ACTIVE": "PROF_SM_UTIL_RATIO",
    "PROF_PIPE_TENSOR_ACTIVE": "PROF_TENSOR_UTIL_RATIO", "PROF_DRAM_ACTIVE": "PROF_DRAM_UTIL_RATIO",
}
# vLLM's second generation of names.
_VLLM: Mapping[str, str] = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}
RENAMES: Mapping[str, str] = {**{f"DCGM_FI_{old}": f"DCGM_FI_{new}" for old, new in _DCGM.items()}, **_VLLM}


def renamed(name: str) -> str:
    """The family's name after the upgrade; most keep theirs. node_exporter's InfiniBand rows lose their `port_`: they are
    those of its `legacy_` set then, as of adapters without extended counters."""
    if name.startswith("node_infiniband_port_") and name.endswith("_total"):
        return name.replace("_port_", "_legacy_", 1)
    return RENAMES.get(name, name)
