"""neuron-monitor's Prometheus bridge, as captured on a real instance: the instance's labels on every series, in the order of
their names, floats with a point, `_created` beside each counter.

A Neuron device counts as a GPU of the fleet's banks and has several NeuronCores, which work alike. Runtime metrics name the
process (`runtime_tag`) and are there while one runs. What prometheus-client says of the bridge's own process is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.hosts import LOAD_AT_FULL
from fleet.sheets.base import PYTHON, Family, Get, Sheet
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
STATES = ("completed", "completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue")
# In the order in which the bridge has them.
PERCENTILES = {"p0": 0.0, "p1": 1.0, "p100": 100.0, "p25": 25.0, "p50": 50.0, "p75": 75.0, "p99": 99.0}
EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
PLACES, USES = ("host", "neuron_device"), ("user", "system")
MIB = float(1 << 20)
# A compiled step is executed in so many parts; the bridge times each.
PARTS = 26
RUNTIME_HOST_BYTES = 3.2e9
# Of the time in which a host works, what its processes and what the kernel take.
USER, SYSTEM = 0.8, 0.17


def _instance(node: Node) -> dict[str, str]:
    return {"availability_zone": "us-east-1a", "instance_id": f"i-{node.serial.lower()}", "instance_name": node.name,
            "instance_type": node.kind.name, "region": "us-east-1", "subnet_id": "subnet-0a1b2c3d"}


def _family(name: str, text: str, kind: str, rows: Sequence[Mapping[str, str]], get: Get) -> Family:
    """rows: of each series its labels beside the instance's. `runtime_tag` is the process's number on its node."""
    def labels(node: Node) -> list[str]:
        shown = []
        for row in rows:
            all_of_it = {**_instance(node), **row}
            if "runtime_tag" in row:
                all_of_it["runtime_tag"] = str(15_000 + node.index)
            shown.append("{" + ",".join(f'{key}="{value}"' for key, value in sorted(all_of_it.items())) + "}")
        return shown
    return Family(name, text, kind, labels, len(rows), get, PYTHON)


def _counter(name: str, text: str, rows: Sequence[Mapping[str, str]], get: Get, born: Get) -> list[Family]:
    return [_family(f"{name}_total", text, "counter", rows, get), _family(f"{name}_created", text, "gauge", rows, born)]


def _of_runtime(key: str, names: Sequence[str]) -> list[dict[str, str]]:
    return [{key: name, "runtime_tag": ""} for name in names]


class NeuronSheet(Sheet):
    """All NeuronCores and devices of all nodes."""

    name = "neuron"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        kind = world.kind
        self._cores = kind.cores
        cores = [str(i) for i in range(kind.gpus * kind.cores)]
        events = [{"event_type": event, "neuron_device_index": str(device)} for device in range(kind.gpus) for event in EVENTS]
        none: list[dict[str, str]] = [{}]
        super().__init__(world, [
            *_counter("execution_errors", "Execution errors total", _of_runtime("error_type", ERRORS),
                      lambda w: _running(w, np.zeros((len(w.nodes), len(ERRORS)))), self._begun(len(ERRORS))),
            *_counter("execution_status", "Execution status total", _of_runtime("status_type", STATES), self._executed,
                      self._begun(len(STATES))),
            _family("execution_latency_seconds", "Execution latency in seconds", "gauge", _of_runtime("percentile", [*PERCENTILES]),
                    self._latency),
            _family("neuron_runtime_memory_used_bytes", "Runtime memory used bytes", "gauge", _of_runtime("memory_location", PLACES),
                    self._memory),
            _family("neuron_runtime_vcpu_usage_ratio", "Runtime vCPU utilization ratio", "gauge", _of_runtime("usage_type", USES),
                    lambda w: _running(w, 0.9 * _host_use(w))),
            _family("neuroncore_utilization_ratio", "NeuronCore utilization ratio", "gauge", _of_runtime("neuroncore", cores),
                    self._utilisation),
            _family("system_memory_total_bytes", "System memory total_bytes bytes", "gauge", none, lambda w: w.kind.host_memory_bytes),
            _family("system_memory_used_bytes", "System memory used_bytes bytes", "gauge", none,
                    lambda w: np.rint(w.kind.host_memory_bytes - w.hosts.available)),
            _family("system_swap_total_bytes", "System swap total_bytes bytes", "gauge", none, lambda w: 0.0),
            _family("system_swap_used_bytes", "System swap used_bytes bytes", "gauge", none, lambda w: 0.0),
            *_counter("hardware_ecc_events", "Hardware ecc events total", events, self._ecc, lambda w: _each(w, len(events), _boots(w))),
            _family("system_vcpu_count", "System vCPU count", "gauge", none, lambda w: float(w.kind.vcpus)),
            _family("system_vcpu_usage_ratio", "System CPU utilization ratio", "gauge", [{"usage_type": use} for use in USES], _host_use),
            _family("instance_info", "EC2 instance information", "gauge", none, lambda w: 1.0),
        ])

    @staticmethod
    def _begun(width: int) -> Get:
        """When the bridge first saw the process: shown as the boot of its node."""
        return lambda w: _running(w, _each(w, width, _boots(w)))

    def _executed(self, world: World) -> Floats:
        """Executions of the node's run, all of them completed."""
        done = np.zeros((len(world.nodes), len(STATES)))
        for job in world.jobs.values():
            done[job.rows, 0] = job.seq.reshape(len(job.nodes), -1).sum(axis=1)
        return _running(world, done)

    def _latency(self, world: World) -> Floats:
        """Percentiles over the node's ranks of the time of a part; NaN before the first step."""
        out = np.full((len(world.nodes), len(PERCENTILES)), np.nan)
        for job in world.jobs.values():
            times = job.compute.reshape(len(job.nodes), -1) / PARTS
            known = ~np.isnan(times).any(axis=1)
            if known.any():
                out[job.rows[known]] = np.percentile(times[known], [*PERCENTILES.values()], axis=1).T
        return _running(world, out)

    def _utilisation(self, world: World) -> Floats:
        return _running(world, np.repeat(np.round(world.gpus.util / 100, 4), self._cores, axis=1))

    def _memory(self, world: World) -> Floats:
        held = np.rint(world.gpus.memory.sum(axis=1) * MIB)
        host = np.where(held > 0, RUNTIME_HOST_BYTES, 0.0)
        return _running(world, np.stack([host, held], axis=1))

    def _ecc(self, world: World) -> Floats:
        gpus, none = world.gpus, np.zeros(world.gpus.util.shape)
        found = np.stack([gpus.ecc_correctable, gpus.ecc_uncorrectable, none, none], axis=2)
        return np.where(gpus.present[:, :, None], found, np.nan).reshape(len(found), -1)


def _running(world: World, values: Floats) -> Floats:
    """Absent where no process uses the devices."""
    return np.where((world.gpus.memory.max(axis=1) > 0)[:, None], values, np.nan)


def _boots(world: World) -> Floats:
    return np.array([node.boot_ms / 1000 for node in world.nodes])


def _each(world: World, width: int, values: Floats) -> Floats:
    return np.broadcast_to(values[:, None], (len(world.nodes), width))


def _host_use(world: World) -> Floats:
    """Share of the host's CPU time by processes and by the kernel, [node, 2]."""
    busy = np.minimum(1.0, world.hosts.load1 / LOAD_AT_FULL)
    return np.round(busy[:, None] * np.array([USER, SYSTEM]), 4)
