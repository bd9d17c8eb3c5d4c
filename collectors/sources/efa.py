"""AWS's EFA exporter: `node_amazonefa_<counter>{device,port}` (signals.md §3.4).

The port's `state` is hard-coded to ACTIVE by the driver (signals.md §0 fact 8), so no link state is taken from it.
`impaired_remote_conn_events` and `unresponsive_remote_events` speak of a peer of this device, not of the device.
"""

from __future__ import annotations

from collectors.meaning import Meaning, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

PREFIX = "node_amazonefa_"

TABLE: dict[str, Meaning] = {
    "tx_bytes": Meaning("nic.transmitted_bytes_per_second", 1.0, True),
    "rx_bytes": Meaning("nic.received_bytes_per_second", 1.0, True),
    "tx_pkts": Meaning("nic.transmitted_packets_per_second", 1.0, True),
    "rx_pkts": Meaning("nic.received_packets_per_second", 1.0, True),
    "rx_drops": Meaning("nic.packets_lost_per_second", 1.0, True),
    "retrans_pkts": Meaning("nic.retransmits_per_second", 1.0, True),
    "retrans_timeout_events": Meaning("nic.timeouts_per_second", 1.0, True),
    "impaired_remote_conn_events": Meaning("nic.remote_impaired_per_second", 1.0, True),
    "unresponsive_remote_events": Meaning("nic.remote_impaired_per_second", 1.0, True),
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


PLUGIN = SourcePlugin("efa", map_series=map_series)
