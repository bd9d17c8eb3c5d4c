"""Switch ports by gnmic's Prometheus output of OpenConfig interfaces (signals.md §3.5).

A metric's name is the YANG path with underscores, behind a prefix and a subscription's name where the site set them. The
counters are exposed as untyped or gauge. A port is kind link: node = `source` (without its port), device =
`interface_name`. Subinterfaces repeat their port. Errors received hold FCS errors already. The state is a string, which
gnmic shows as a label (`strings-as-labels`) of a series that is 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge, host_of, labels_of, node_of
from collectors.switchport import port_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef

IDENTITY = ("source", "device")
_PATH = re.compile(r"(?:[A-Za-z0-9_]+_)?interfaces_interface_(?:ethernet_)?state_(\w+)")
TABLE: dict[str, Meaning] = {
    "counters_in_octets": counter("link.received_bytes_per_second"),
    "counters_out_octets": counter("link.transmitted_bytes_per_second"),
    "counters_in_errors": counter("link.errors_per_second"),
    "counters_out_errors": counter("link.errors_per_second"),
    "counters_in_discards": counter("link.discards_per_second"),
    "counters_out_discards": counter("link.discards_per_second"),
    "counters_carrier_transitions": counter("link.carrier_changes_per_second"),
    "counters_in_mac_pause_frames": counter("link.pause_received_per_second"),
    "counters_out_mac_pause_frames": counter("link.pause_sent_per_second"),
}
_STATE = "oper_status"
UP, NOT_UP = gauge("link.up"), gauge("link.up", 0.0)


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an OpenConfig interface series."""
    path = _PATH.fullmatch(series.name)
    if path is None:
        return None
    labels = labels_of(series)
    meaning = TABLE.get(path[1])
    if path[1] == _STATE and _STATE in labels:
        meaning = UP if labels[_STATE] == "UP" else NOT_UP
    port = port_of(host_of(node_of(labels, target, IDENTITY)),
                   labels.get("interface_name") or labels.get("interface") or labels.get("name"))
    return meaning.ref(port) if meaning and port else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    part = "switch port (`source`, `interface_name`)"
    for name, meaning in TABLE.items():
        family = "ethernet_state" if "pause" in name else "state"
        yield Row(f"[prefix_]interfaces_interface_{family}_{name}", meaning, part)
    yield Row(f'[prefix_]interfaces_interface_state_{_STATE}{{{_STATE}="UP"}}', UP, part)
    yield Row(f'[prefix_]interfaces_interface_state_{_STATE}{{{_STATE}="…"}}', NOT_UP, part)


PLUGIN = SourcePlugin("gnmic", map_series=map_series, identity=IDENTITY,
                      prefixes=("gnmic_", "interfaces_interface_", "openconfig_", "oc_"))
