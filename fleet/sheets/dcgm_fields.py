"""The fields of dcgm-exporter in the order of its own list, with where their values come from.

`default`: what the exporter shows out of the box; the others are those that operators are advised to add. `demo`: shown on
the demo's short pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import NodeType
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

Get = Callable[["World"], "Floats | float"]
XID = "DCGM_FI_DEV_XID_ERRORS"


@dataclass(frozen=True, slots=True)
class Field:
    """whole: an integer field. values: float64[node, gpu] or one number; NaN = absent. nvlink: the generations of NVLink that
    have it, None = it has nothing to do with it. margin: only where the part has a temperature margin."""

    name: str
    help: str
    type: str
    get: Get
    whole: bool = True
    default: bool = False
    demo: bool = True
    nvlink: range | None = None
    margin: bool = False

    def shown(self, telemetry: Telemetry, kind: NodeType) -> bool:
        """Whether the exporter is set up to show it, and such a GPU has it."""
        if (self.nvlink is not None and kind.nvlink_version not in self.nvlink) or (self.margin and not kind.margin_shown):
            return False
        return self.demo if telemetry.lean else self.default or telemetry.at_least("C")


def _dev(name: str, text: str, kind: str, get: Get, *marks: str) -> Field:
    """marks: `default`, `hidden` (not on the demo's pages), `float`, `margin`."""
    return Field(f"DCGM_FI_DEV_{name}", text, kind, get, "float" not in marks, "default" in marks, "hidden" not in marks,
                 margin="margin" in marks)


def _prof(name: str, text: str, get: Get, *marks: str) -> Field:
    return Field(f"DCGM_FI_PROF_{name}", text, "gauge", get, "whole" in marks, "default" in marks, "hidden" not in marks)


def _link(name: str, text: str, get: Get, generations: range, *marks: str) -> Field:
    """A counter of all NVLinks of a GPU."""
    return Field(f"DCGM_FI_DEV_NVLINK_{name}", text, "counter", get, True, "default" in marks, "hidden" not in marks, generations)


def _none(world: World) -> float:
    return 0.0


def _violation(name: str, why: str, get: Get, *marks: str) -> Field:
    return _dev(f"{name}_VIOLATION", f"Throttling duration due to {why} (in ns).", "counter", get, *marks)


def _event(name: str, why: str, get: Get) -> Field:
    return _dev(f"CLOCKS_EVENT_REASON_{name}_NS", f"Duration for which clocks were limited by {why} (in ns).", "counter", get,
                "hidden")


def _banks(place: int, name: str) -> Field:
    return _dev(f"BANKS_REMAP_ROWS_AVAIL_{name}", f"Number of memory banks with {name.lower()} availability of spare rows.",
                "gauge", lambda w: w.gpus.banks()[place], "hidden")


def _last_xid(world: World) -> Floats:
    return np.where(world.gpus.xid > 0, world.gpus.xid, np.nan)


def _free(world: World) -> Floats:
    return world.kind.memory_mib - world.kind.reserved_mib - np.floor(world.gpus.memory)


# Generations of NVLink: up to Hopper, and from Blackwell on (facts/signals.md §2).
_OLD, _NEW, _ANY = range(1, 5), range(5, 99), range(1, 99)

_BOARD: tuple[Field, ...] = (
    _dev("SM_CLOCK", "SM clock frequency (in MHz).", "gauge", lambda w: w.gpus.clock, "default"),
    _dev("MEM_CLOCK", "Memory clock frequency (in MHz).", "gauge", lambda w: float(w.kind.memory_clock_mhz), "default"),
    _dev("MEMORY_TEMP", "Memory temperature (in C).", "gauge", lambda w: w.gpus.hbm, "default"),
    _dev("GPU_TEMP", "GPU temperature (in C).", "gauge", lambda w: w.gpus.core, "default"),
    _dev("GPU_TEMP_LIMIT", "Distance to the nearest slowdown temperature (in C).", "gauge",
         lambda w: np.floor(w.gpus.margin + 0.5), "margin"),
    _dev("POWER_USAGE", "Power draw (in W).", "gauge", lambda w: w.gpus.power, "default", "float"),
    _dev("POWER_MGMT_LIMIT", "Power management limit (in W).", "gauge", lambda w: w.gpus.power_limit, "float"),
    _dev("TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", "counter", lambda w: w.gpus.energy_mj,
         "default"),
    _dev("PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", "counter", lambda w: w.gpus.pcie_replays, "default"),
    _dev("PCIE_LINK_GEN", "PCIe link generation.", "gauge", lambda w: w.gpus.link_gen),
    _dev("PCIE_LINK_WIDTH", "PCIe link width.", "gauge", lambda w: w.gpus.link_width),
    _dev("PCIE_MAX_LINK_GEN", "Highest PCIe link generation of the GPU.", "gauge", lambda w: float(w.kind.pcie_gen), "hidden"),
    _dev("PCIE_MAX_LINK_WIDTH", "Highest PCIe link width of the GPU.", "gauge", lambda w: float(w.kind.pcie_width), "hidden"),
    _dev("GPU_UTIL", "GPU utilization (in %).", "gauge", lambda w: w.gpus.util, "default"),
    _dev("MEM_COPY_UTIL", "Memory utilization (in %).", "gauge", lambda w: w.gpus.copy_util, "default"),
    _dev("ENC_UTIL", "Encoder utilization (in %).", "gauge", _none, "default", "hidden"),
    _dev("DEC_UTIL", "Decoder utilization (in %).", "gauge", _none, "default", "hidden"),
    Field(XID, "Value of the last XID error encountered.", "gauge", _last_xid, default=True),
    _dev("CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask).", "gauge", lambda w: w.gpus.reasons),
    _violation("POWER", "power constraints", lambda w: w.gpus.power_ns),
    _violation("THERMAL", "thermal constraints", lambda w: w.gpus.thermal_ns),
    _violation("SYNC_BOOST", "sync-boost constraints", _none, "hidden"),
    _violation("BOARD_LIMIT", "board limit constraints", _none, "hidden"),
    _violation("LOW_UTIL", "low utilization", _none, "hidden"),
    _violation("RELIABILITY", "reliability constraints", _none, "hidden"),
    _event("SW_POWER_CAP", "the power limit", lambda w: w.gpus.power_ns),
    _event("SYNC_BOOST", "sync boost", _none),
    _event("SW_THERM_SLOWDOWN", "the driver because of heat", lambda w: w.gpus.sw_thermal_ns),
    _event("HW_THERM_SLOWDOWN", "the hardware because of heat", lambda w: w.gpus.hw_thermal_ns),
    _event("HW_POWER_BRAKE_SLOWDOWN", "the power brake", lambda w: w.gpus.brake_ns),
    _dev("FB_FREE", "Framebuffer memory free (in MiB).", "gauge", _free, "default"),
    _dev("FB_USED", "Framebuffer memory used (in MiB).", "gauge", lambda w: np.floor(w.gpus.memory), "default"),
    _dev("FB_RESERVED", "Framebuffer memory reserved (in MiB).", "gauge", lambda w: float(w.kind.reserved_mib), "default",
         "hidden"),
)
_ERRORS: tuple[Field, ...] = (
    _dev("ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", "counter", lambda w: w.gpus.ecc_correctable),
    _dev("ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", "counter", lambda w: w.gpus.ecc_uncorrectable),
    _dev("ECC_SBE_AGG_TOTAL", "Total number of single-bit persistent ECC errors.", "counter",
         lambda w: w.gpus.ecc_correctable_ever),
    _dev("ECC_DBE_AGG_TOTAL", "Total number of double-bit persistent ECC errors.", "counter",
         lambda w: w.gpus.ecc_uncorrectable_ever),
    _link("CRC_FLIT_ERROR_COUNT_TOTAL", "Total number of NVLink flow-control CRC errors.", lambda w: w.gpus.nvlink_crc, _OLD),
    _link("CRC_DATA_ERROR_COUNT_TOTAL", "Total number of NVLink data CRC errors.", lambda w: w.gpus.nvlink_data_crc, _OLD,
          "hidden"),
    _link("REPLAY_ERROR_COUNT_TOTAL", "Total number of NVLink retries.", lambda w: w.gpus.nvlink_replays, _OLD),
    _link("RECOVERY_ERROR_COUNT_TOTAL", "Total number of NVLink recovery errors.", lambda w: w.gpus.nvlink_recoveries, _OLD),
    _link("COUNT_RX_ERRORS", "Total number of packets with errors received on NVLink.",
          lambda w: w.gpus.nvlink_crc + w.gpus.nvlink_data_crc, _NEW),
    _link("COUNT_LINK_RECOVERY_EVENTS", "Total number of times that NVLink recovered.", lambda w: w.gpus.nvlink_recoveries, _NEW),
    _link("BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes.", lambda w: w.gpus.nvlink_mb, _ANY,
          "default"),
    _dev("VGPU_LICENSE_STATUS", "vGPU License status", "gauge", _none, "default", "hidden"),
    _dev("UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", "counter",
         lambda w: w.gpus.uncorrectable_rows, "default"),
    _dev("CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", "counter",
         lambda w: w.gpus.remapped_rows, "default"),
    _dev("ROW_REMAP_FAILURE", "Whether remapping of rows has failed", "gauge", lambda w: w.gpus.remap_failure, "default"),
    _dev("ROW_REMAP_PENDING", "Whether remapping of rows is pending", "gauge", lambda w: w.gpus.remap_pending),
    *(_banks(place, name) for place, name in enumerate(("MAX", "HIGH", "PARTIAL", "LOW", "NONE"))),
    _dev("GPU_RECOVERY_ACTION", "What the driver asks for to recover the GPU.", "gauge", lambda w: w.gpus.recovery_action,
         "hidden"),
)
_PROFILING: tuple[Field, ...] = (
    _prof("GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", lambda w: w.gpus.graphics, "default"),
    _prof("SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", lambda w: w.gpus.sm),
    _prof("SM_OCCUPANCY", "The ratio of number of warps resident on an SM.", lambda w: w.gpus.occupancy, "hidden"),
    _prof("PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", lambda w: w.gpus.tensor, "default"),
    _prof("DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.",
          lambda w: w.gpus.dram, "default"),
    _prof("PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - "
          "in bytes per second.", lambda w: w.gpus.pcie_tx, "default", "hidden", "whole"),
    _prof("PCIE_RX_BYTES", "The rate of data received over the PCIe bus - including both protocol headers and data payloads - "
          "in bytes per second.", lambda w: w.gpus.pcie_rx, "default", "hidden", "whole"),
    _prof("NVLINK_TX_BYTES", "The rate of data transmitted over NVLink, in bytes per second.", lambda w: w.gpus.nvlink_tx,
          "hidden", "whole"),
    _prof("NVLINK_RX_BYTES", "The rate of data received over NVLink, in bytes per second.", lambda w: w.gpus.nvlink_rx,
          "hidden", "whole"),
)
FIELDS: tuple[Field, ...] = (*_BOARD, *_ERRORS, *_PROFILING)
