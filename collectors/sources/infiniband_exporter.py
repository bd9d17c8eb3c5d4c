"""The fabric as infiniband_exporter sees it: both ends of each cable, from one place (signals.md §3.5).

A port is kind link: a switch's at node = the switch's name, a host channel adapter's at node = the host; its identity is
`<guid>/<port>`. Names stand in series of their own (`infiniband_switch_info`, `infiniband_hca_info`), and the adapter's is
`<host> <adapter>`. An adapter's port is not the NIC that node_exporter speaks of (nothing says which it is), so no loss is
told twice for a NIC. Relay errors (a packet that would leave where it came from) happen in healthy fabrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from core.protocols import Join, SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

TABLE: dict[str, Meaning] = {
    "rate_bytes_per_second": gauge("link.rate_bytes_per_second"),
    "transmit_data_bytes_total": counter("link.transmitted_bytes_per_second"),
    "receive_data_bytes_total": counter("link.received_bytes_per_second"),
    "symbol_error_total": counter("link.errors_per_second"),
    "receive_errors_total": counter("link.errors_per_second"),
    "local_link_integrity_errors_total": counter("link.errors_per_second"),
    "transmit_discards_total": counter("link.discards_per_second"),
    "excessive_buffer_overrun_errors_total": counter("link.discards_per_second"),
    "link_error_recovery_total": counter("link.recoveries_per_second"),
    "link_downed_total": counter("link.downed_per_second"),
    "transmit_wait_total": counter("link.wait_ticks_per_second"),
}
_SWITCH, _HCA = "infiniband_switch_port_", "infiniband_hca_port_"
_HCA_RATE = "infiniband_hca_rate_bytes_per_second"


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an infiniband_exporter series."""
    if series.name == _HCA_RATE:
        meaning: Meaning | None = TABLE["rate_bytes_per_second"]
    elif series.name.startswith((_SWITCH, _HCA)):
        meaning = TABLE.get(series.name.removeprefix(_SWITCH).removeprefix(_HCA))
    else:
        return None
    if meaning is None:
        return None
    labels = labels_of(series)
    guid, port = labels.get("guid"), labels.get("port", "1")
    if not guid:
        return None
    host, _, adapter = labels.get("hca", "").partition(" ")
    node = labels.get("switch") or host or None
    device = f"{adapter}/{port}" if adapter else port if node else f"{guid}/{port}"
    return meaning.ref(Target("link", node, device, f"{guid}/{port}"))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    for prefix, part in ((_SWITCH, "switch port (`guid`, `port`)"), (_HCA, "adapter port (`guid`, `port`)")):
        for name, meaning in TABLE.items():
            full = _HCA_RATE if (prefix, name) == (_HCA, "rate_bytes_per_second") else prefix + name
            yield Row(full, meaning, part)


PLUGIN = SourcePlugin(
    "infiniband_exporter", map_series=map_series, prefixes=(_SWITCH, _HCA, _HCA_RATE),
    joins=(Join(_SWITCH, "infiniband_switch_info", ("guid",), ("switch",)),
           Join("infiniband_hca_", "infiniband_hca_info", ("guid",), ("hca",))),
)
