"""Whatever labels a known metric carries, a source gives a sound meaning or none."""

from __future__ import annotations

import importlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocols import TargetInfo
from core.signals import SIGNALS
from core.types import Series
from tests.sources.captured import MAPPER, SOURCES

NAMES = sorted({
    re.sub(r"\[\w+\]|\{.*|<n>| \(.*", lambda m: "3" if m[0] == "<n>" else "", row.metric)
    for name in SOURCES for row in importlib.import_module(f"collectors.sources.{name}").described()
})
KEYS = sorted({"gpu", "UUID", "device", "port", "Hostname", "node", "exported_node", "mode", "mountpoint", "fstype", "export",
               "operation", "component", "target", "status", "condition", "phase", "pod", "model_name", "model", "ifName",
               "ifOperStatus", "interface_name", "source", "oper_status", "guid", "switch", "hca", "name", "fan", "sensor", "chip",
               "nvlink", "GPU_I_ID", "gpu_id", "gpu_power", "clock_type", "clock_event", "neuroncore", "neuron_device_index",
               "event_type", "class_id", "bus", "job", "rank", "pci_bus_id", "partition"})
VALUES = st.one_of(st.sampled_from(["0", "7", "²", "١", "-1", "nvidia3", "mlx5_0", "drained*", "*", "Ready", "client", "READ", "x-worker-1",
                                    "10.0.0.1:/x", ":/", "0x0207", "lustre", "UP", "[::1]:57400", "p0001 HCA-1", " "]), st.text(max_size=12))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.sampled_from(["n1", None]))
def test_any_labels(name, labels, node) -> None:
    """Nothing raises; the part is of the signal's kind; the meaning is the same when asked again."""
    target = TargetInfo("job/x", {"job": "job", "instance": "n1:1"}, node)
    series = [Series(name, tuple(sorted((key, value) for key, value in labels.items() if value)), "gauge")]
    layout = MAPPER.layout(target, series)
    assert all(SIGNALS[ref.signal].kind == ref.target.kind for ref in layout.signals)
    assert layout == MAPPER.layout(target, series)
