"""The page of dcgm-exporter: HELP before TYPE, labels in the exporter's own order, no timestamps, no `# EOF`.

Integer fields are printed as integers, floating ones with six decimals. A GPU that never met an XID has no XID line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.world import World

Get = Callable[[World], Floats]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    help: str
    type: str
    get: Get
    whole: bool = True


def _const(value: float) -> Get:
    return lambda w: np.full(w.gpus.core.shape, value)


FIELDS: tuple[_Field, ...] = (
    _Field("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", "gauge", lambda w: w.gpus.clock),
    _Field("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", "gauge",
           lambda w: np.full(w.gpus.core.shape, float(w.kind.memory_clock_mhz))),
    _Field("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", "gauge", lambda w: w.gpus.hbm),
    _Field("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", "gauge", lambda w: w.gpus.core),
    _Field("DCGM_FI_DEV_GPU_TEMP_LIMIT", "Distance to the nearest slowdown temperature (in C).", "gauge",
           lambda w: np.floor(w.gpus.margin + 0.5)),
    _Field("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", "gauge", lambda w: w.gpus.power, whole=False),
    _Field("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power management limit (in W).", "gauge",
           lambda w: np.full(w.gpus.core.shape, w.kind.limit_watts), whole=False),
    _Field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", "counter",
           lambda w: w.gpus.energy_mj),
    _Field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", "counter", lambda w: w.gpus.pcie_replays),
    _Field("DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe link generation.", "gauge", lambda w: w.gpus.link_gen),
    _Field("DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe link width.", "gauge", _const(16)),
    _Field("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "gauge", lambda w: w.gpus.util),
    _Field("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", "gauge", lambda w: w.gpus.copy_util),
    _Field("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", "gauge",
           lambda w: w.kind.memory_mib - w.kind.reserved_mib - np.floor(w.gpus.memory)),
    _Field("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", "gauge", lambda w: np.floor(w.gpus.memory)),
    _Field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask).", "gauge",
           lambda w: w.gpus.reasons),
    _Field("DCGM_FI_DEV_POWER_VIOLATION", "Throttling duration due to power constraints (in ns).", "counter",
           lambda w: w.gpus.power_ns),
    _Field("DCGM_FI_DEV_THERMAL_VIOLATION", "Throttling duration due to thermal constraints (in ns).", "counter",
           lambda w: w.gpus.thermal_ns),
    _Field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", "counter",
           lambda w: w.gpus.ecc_correctable),
    _Field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", "counter", _const(0)),
    _Field("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Total number of single-bit persistent ECC errors.", "counter",
           lambda w: w.gpus.ecc_correctable_ever),
    _Field("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Total number of double-bit persistent ECC errors.", "counter", _const(0)),
    _Field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors", "counter",
           _const(0)),
    _Field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors", "counter",
           lambda w: w.gpus.remapped_rows),
    _Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", "gauge", _const(0)),
    _Field("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether remapping of rows is pending", "gauge", _const(0)),
    _Field("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Total number of NVLink flow-control CRC errors.", "counter",
           _const(0)),
    _Field("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Total number of NVLink retries.", "counter", _const(0)),
    _Field("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "Total number of NVLink recovery errors.", "counter",
           _const(0)),
    _Field("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Total number of NVLink bandwidth counters for all lanes.", "counter",
           lambda w: w.gpus.nvlink_mb),
    _Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", "gauge",
           lambda w: w.gpus.graphics, whole=False),
    _Field("DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", "gauge",
           lambda w: w.gpus.sm, whole=False),
    _Field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", "gauge",
           lambda w: w.gpus.tensor, whole=False),
    _Field("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.",
           "gauge", lambda w: w.gpus.dram, whole=False),
)
_XID = "DCGM_FI_DEV_XID_ERRORS"


def _labels(node: Node, gpu: int) -> str:
    return (f'gpu="{gpu}",UUID="{node.uuids[gpu]}",pci_bus_id="00000000:{node.kind.buses[gpu]}:00.0",'
            f'device="nvidia{gpu}",modelName="{node.kind.gpu_model}",Hostname="{node.name}",'
            f'DCGM_FI_DRIVER_VERSION="{node.kind.driver}"')


class DcgmPages:
    """Pages of all nodes; the text around the values is made once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._templates: dict[int, str] = {}
        self._revision = -1
        self._values = np.zeros((0, 0))

    def page(self, node: Node) -> bytes:
        """The node's page as of now."""
        world = self._world
        if self._revision != world.revision:
            stack = np.stack([np.round(f.get(world)) if f.whole else f.get(world) for f in FIELDS])
            self._values = stack.transpose(1, 0, 2).reshape(len(world.nodes), -1)
            self._revision = world.revision
        template = self._templates.get(node.index)
        if template is None:
            template = self._templates[node.index] = self._template(node)
        text = template % tuple(self._values[node.index].tolist())
        return (text + self._xids(node)).encode()

    def _template(self, node: Node) -> str:
        lines = []
        for one in FIELDS:
            lines += [f"# HELP {one.name} {one.help}".replace("%", "%%"), f"# TYPE {one.name} {one.type}"]
            mark = "%d" if one.whole else "%.6f"
            lines += [f"{one.name}{{{_labels(node, gpu)}}} {mark}" for gpu in range(node.kind.gpus)]
        return "\n".join(lines) + "\n"

    def _xids(self, node: Node) -> str:
        seen = [(gpu, int(x)) for gpu, x in enumerate(self._world.gpus.xid[node.index]) if x]
        if not seen:
            return ""
        head = f"# HELP {_XID} Value of the last XID error encountered.\n# TYPE {_XID} gauge\n"
        return head + "".join(f'{_XID}{{{_labels(node, gpu)},err_code="{x}",err_msg="XID {x}"}} {x}\n' for gpu, x in seen)
