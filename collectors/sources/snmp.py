"""Switch ports by snmp_exporter's module if_mib (signals.md §3.5).

A port is kind link: node = the switch (the target's name), device = `ifName`, else `ifDescr`. Only 64-bit counters are
read: a 32-bit counter of octets wraps within a second at 100 Gb/s. Received errors hold FCS errors already. The state is 1
for up and 2 to 7 for the rest, or stands in a label of that name where the exporter makes a set of states of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from collectors.switchport import port_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef

MEGABIT = 125_000.0  # bytes
TABLE: dict[str, Meaning] = {
    "ifHCInOctets": counter("link.received_bytes_per_second"),
    "ifHCOutOctets": counter("link.transmitted_bytes_per_second"),
    "ifInErrors": counter("link.errors_per_second"),
    "ifOutErrors": counter("link.errors_per_second"),
    "ifInDiscards": counter("link.discards_per_second"),
    "ifOutDiscards": counter("link.discards_per_second"),
    "ifHighSpeed": gauge("link.rate_bytes_per_second", MEGABIT),
    "dot3HCInPauseFrames": counter("link.pause_received_per_second"),
    "dot3HCOutPauseFrames": counter("link.pause_sent_per_second"),
}
_STATE = "ifOperStatus"
STATE_NUMBER = gauge("link.up", -1.0)  # core.derive reads -1 as up
STATE_LABEL = gauge("link.up")


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an IF-MIB series."""
    meaning = TABLE.get(series.name)
    if meaning is None and series.name != _STATE:
        return None
    labels = labels_of(series)
    if meaning is None:
        state = labels.get(_STATE)
        if state is not None and state != "up":
            return None  # the row of another state of the set: the one of `up` says it all
        meaning = STATE_NUMBER if state is None else STATE_LABEL
    port = port_of(target.node, labels.get("ifName") or labels.get("ifDescr") or labels.get("ifIndex"))
    return meaning.ref(port) if port else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    part = "switch port (`ifName`, else `ifDescr`)"
    yield from (Row(name, meaning, part) for name, meaning in TABLE.items())
    yield Row(_STATE, STATE_NUMBER, part)
    yield Row(f'{_STATE}{{{_STATE}="up"}}', STATE_LABEL, part)


PLUGIN = SourcePlugin("snmp", map_series=map_series, prefixes=("if", "dot3HC"))
