"""AWS Neuron (Trainium, Inferentia): neuron-monitor's Prometheus bridge (signals.md §2.3).

A NeuronCore is a part (`core<n>`): activity is measured by core. ECC events are the device's (`device<n>`). The bridge's
`system_…` metrics repeat node_exporter's, and their names could be anybody's. Its runtime metrics name a process, no part.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

_UTILIZATION = "neuroncore_utilization_ratio"
_ECC = "hardware_ecc_events_total"
CORE = gauge("gpu.utilization_ratio")
EVENTS: dict[str, Meaning] = {
    "mem_ecc_corrected": counter("gpu.ecc_correctable_per_second"),
    "sram_ecc_corrected": counter("gpu.ecc_correctable_per_second"),
    "mem_ecc_uncorrected": counter("gpu.ecc_uncorrectable_per_second"),
    "sram_ecc_uncorrected": counter("gpu.ecc_uncorrectable_per_second"),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a neuron-monitor series."""
    if series.name == _UTILIZATION:
        core = series.label("neuroncore")
        return CORE.ref(Target("gpu", target.node, f"core{core}")) if core.isdigit() else None
    if series.name == _ECC:
        meaning, device = EVENTS.get(series.label("event_type")), series.label("neuron_device_index")
        return meaning.ref(Target("gpu", target.node, f"device{device}")) if meaning and device.isdigit() else None
    return None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row(_UTILIZATION, CORE, "GPU: NeuronCore (`neuroncore`)")
    yield from (Row(f'{_ECC}{{event_type="{event}"}}', meaning, "GPU: Neuron device (`neuron_device_index`)")
                for event, meaning in EVENTS.items())


PLUGIN = SourcePlugin("neuron", map_series=map_series, prefixes=(_UTILIZATION, _ECC))
