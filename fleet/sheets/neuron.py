"""neuron-monitor's Prometheus bridge: labels of the instance on every series, floats with a point.

A Neuron device counts as a GPU of the fleet's banks and has several NeuronCores, which work alike. Runtime metrics name the
process (`runtime_tag`) and are there while one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.sheets.base import PYTHON, Family, Get, Sheet
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
MIB = float(1 << 20)


def _instance(node: Node) -> str:
    return (f'instance_id="i-{node.serial.lower()}",instance_name="{node.name}",'
            f'instance_type="{node.kind.name}"')


class NeuronSheet(Sheet):
    """All NeuronCores and devices of all nodes."""

    name = "neuron"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        kind = world.kind
        self._cores = kind.cores
        cores, devices = [str(i) for i in range(kind.gpus * kind.cores)], [str(i) for i in range(kind.gpus)]
        events = [(event, device) for device in devices for event in EVENTS]

        def of(name: str, text: str, kind_: str, blocks: Sequence[str], get: Get) -> Family:
            """blocks: the labels beside the instance's, `name="value",…`, in order; `@` where the instance's come."""
            def labels(node: Node) -> list[str]:
                return [f"{{{block.replace('@', _instance(node))}}}" for block in blocks]
            return Family(name, text, kind_, labels, len(blocks), get, PYTHON)

        super().__init__(world, [
            of("neuroncore_utilization_ratio", "NeuronCore utilization ratio", "gauge",
               [f'@,neuroncore="{core}",region="us-east-1",runtime_tag="1"' for core in cores], self._utilisation),
            of("neuron_runtime_memory_used_bytes", "Runtime memory used bytes", "gauge",
               [f'@,memory_location="{place}",region="us-east-1",runtime_tag="1"' for place in ("host", "neuron_device")],
               self._memory),
            of("execution_errors_total", "Execution errors total", "counter",
               [f'error_type="{kind_}",@,region="us-east-1",runtime_tag="1"' for kind_ in ("generic", "hardware", "numerical")],
               lambda w: _running(w, np.zeros((len(w.nodes), 3)))),
            of("hardware_ecc_events_total", "Hardware ecc events total", "counter",
               [f'event_type="{event}",@,neuron_device_index="{device}",region="us-east-1"' for event, device in events],
               self._ecc),
            of("system_memory_total_bytes", "System memory total_bytes bytes", "gauge", ['@,region="us-east-1"'],
               lambda w: w.kind.host_memory_bytes),
            of("system_memory_used_bytes", "System memory used_bytes bytes", "gauge", ['@,region="us-east-1"'],
               lambda w: np.rint(w.kind.host_memory_bytes - w.hosts.available)),
            of("system_vcpu_count", "System vCPU count", "gauge", ['@,region="us-east-1"'], lambda w: float(w.kind.vcpus)),
            of("instance_info", "EC2 instance information", "gauge", ['@,region="us-east-1"'], lambda w: 1.0),
        ])

    def _utilisation(self, world: World) -> Floats:
        return _running(world, np.repeat(np.round(world.gpus.util / 100, 4), self._cores, axis=1))

    def _memory(self, world: World) -> Floats:
        held = np.rint(world.gpus.memory.sum(axis=1) * MIB)
        host = np.where(held > 0, 3.2e9, 0.0)
        return _running(world, np.stack([host, held], axis=1))

    def _ecc(self, world: World) -> Floats:
        gpus, none = world.gpus, np.zeros(world.gpus.util.shape)
        found = np.stack([gpus.ecc_correctable, gpus.ecc_uncorrectable, none, none], axis=2)
        return np.where(gpus.present[:, :, None], found, np.nan).reshape(len(found), -1)


def _running(world: World, values: Floats) -> Floats:
    """Absent where no process uses the devices."""
    return np.where((world.gpus.memory.max(axis=1) > 0)[:, None], values, np.nan)
