"""What a site's own scripts write for node_exporter's textfile collector, under names that Greylag gives.

Lustre exports no latency and no exporter tells how a node is set up, so sites read both themselves. A script that writes
these names (see `docs/sources.md`) is understood:

- `greylag_node_setting_info{setting="driver",value="570.86.15"} 1`: how the node is set up, a line for each setting.
- `greylag_lustre_osc_{wait_seconds,rpcs_in_flight,connected,timeouts_total}{target="scratch-OST0003"}`: the client's side of
  each storage target, of `osc/*/import` and `mdc/*/import` (average wait, calls under way, state FULL, timeouts).
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

SETTING = "greylag_node_setting_info"
PRESENT = gauge("label.present")
LUSTRE: dict[str, Meaning] = {
    "greylag_lustre_osc_wait_seconds": gauge("storage.wait_seconds"),
    "greylag_lustre_osc_rpcs_in_flight": gauge("storage.calls_in_flight"),
    "greylag_lustre_osc_connected": gauge("storage.connected"),
    "greylag_lustre_osc_timeouts_total": counter("storage.timeouts_per_second"),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a series of a site's own file."""
    if series.name == SETTING:
        setting = series.label("setting")
        return PRESENT.ref(Target("label", target.node, f"{setting}={series.label('value')}")) if setting else None
    meaning, where = LUSTRE.get(series.name), series.label("target")
    return meaning.ref(Target("storage", target.node, where)) if meaning and where else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row(SETTING, PRESENT, "node's label (`setting`=`value`)")
    yield from (Row(name, meaning, "storage target (`target`), as this client sees it") for name, meaning in LUSTRE.items())


PLUGIN = SourcePlugin("site_files", map_series=map_series, prefixes=("greylag_node_", "greylag_lustre_"))
