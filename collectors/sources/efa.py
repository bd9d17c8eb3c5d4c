"""AWS's EFA exporter: `node_amazonefa_<counter>{device,port}` (signals.md §3.4).

The port's `state` is hard-coded to ACTIVE by the driver (signals.md §0 fact 8), so no link state is taken from it.
Names are taken with and without `_total` behind them.
`impaired_remote_conn_events` and `unresponsive_remote_events` speak of a peer of this device, not of the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

PREFIX = "node_amazonefa_"

TABLE: dict[str, Meaning] = {
    "tx_bytes": counter("nic.transmitted_bytes_per_second"),
    "rx_bytes": counter("nic.received_bytes_per_second"),
    "tx_pkts": counter("nic.transmitted_packets_per_second"),
    "rx_pkts": counter("nic.received_packets_per_second"),
    "rx_drops": counter("nic.packets_lost_per_second"),
    "retrans_pkts": counter("nic.retransmits_per_second"),
    "retrans_timeout_events": counter("nic.timeouts_per_second"),
    "impaired_remote_conn_events": counter("nic.remote_impaired_per_second"),
    "unresponsive_remote_events": counter("nic.remote_impaired_per_second"),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an EFA counter. The families are counters although some are exposed as untyped or gauge."""
    if not series.name.startswith(PREFIX):
        return None
    meaning = TABLE.get(series.name.removeprefix(PREFIX).removesuffix("_total"))
    labels = labels_of(series)
    device = labels.get("device")
    if meaning is None or not device:
        return None
    port = labels.get("port")
    return meaning.ref(Target("nic", target.node, f"{device}/{port}" if port else device))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(PREFIX + name, meaning, "NIC (`device`/`port`)") for name, meaning in TABLE.items())


PLUGIN = SourcePlugin("efa", map_series=map_series, prefixes=(PREFIX,))
